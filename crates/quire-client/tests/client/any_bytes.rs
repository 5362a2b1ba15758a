//! A server sends any bytes: the client accepts them or ends the connection with an error, and
//! never panics.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_client::*;
use quire_command::{self as command, *};
use quire_types::time::Instant;
use quire_wire::Encode;

use crate::link::config;

/// A frame that a server may send at this point, or one that does not fit.
fn frame(which: u8, number: u32, text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let kinds = [AckKind::Received, AckKind::Processed, AckKind::Completed, AckKind::Persisted];
    let (sequence, kind) = (u64::from(number), kinds[number as usize % 4]);
    let code = Code::ALL[number as usize % Code::ALL.len()];
    let queued = Queued { lease_ms: sequence, deliveries: 1, cancels: 0, position: sequence, queue: None };
    let subscriptions = number.to_le_bytes();
    let frame = match which {
        0 => Reply::LoggedOn(LoggedOn { version: 1, publisher: sequence, ..LoggedOn::default() }),
        1 => Reply::Ack(Ack { kind, code, command: number, subscription: number, detail: 1, reason: text }),
        2 => Reply::Persisted { sequence },
        3 => Reply::PublishFailed { sequence, code, scope: FailureScope::One, reason: text },
        4 | 5 => Reply::Message(command::Message {
            subscription: number,
            bookmark: Some((5, sequence)),
            timestamp_ns: 1,
            queued: (which == 5).then_some(queued),
            topic: b"orders",
            correlation_id: b"",
            headers: quire_types::Headers::NONE,
            key: b"",
            kind: command::MessageKind::Publish,
            data: text.as_bytes(),
        }),
        6 => Reply::Stats { command: number, json: text },
        7 => Reply::LeaseLost {
            subscription: number,
            reason: LeaseEnd::Expired,
            publisher: 5,
            sequence,
            queue: None,
        },
        8 => Reply::ResumePosition {
            publisher: 5,
            sequence,
            subscriptions: SubscriptionNumbers::from_bytes(&subscriptions).unwrap(),
        },
        9 => Reply::SubscriptionEnded { subscription: number, code, reason: text },
        10 => Reply::JournalFile { command: number, json: text },
        11 => Reply::Places {
            places: PlaceList::from_bytes(&[0; 18]).unwrap(),
            subscriptions: SubscriptionNumbers::from_bytes(&subscriptions).unwrap(),
        },
        _ => Reply::Error { code, reason: text },
    };
    frame.encode(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn any_bytes_of_a_server_are_taken_or_end_the_connection(
        frames in vec((0u8..13, prop_oneof![0u32..6, any::<u32>()], "\\PC{0,8}"), 0..20),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        rest in vec(any::<u8>(), 0..40),
        logs_on: bool,
        piece in 1usize..200,
    ) {
        let now = Instant(0);
        let mut core = ClientCore::new(config("client"), now);
        core.handle_connected(now);
        let _replay = core.subscribe(SubscriptionSpec { bookmark: Some("0".into()), ..SubscriptionSpec::new("orders") });
        let _jobs = core.subscribe(SubscriptionSpec { max_backlog: Some(10), ..SubscriptionSpec::new("jobs") });
        let message = |sequence| NewMessage { sequence, ..NewMessage::new("orders", b"{}") };
        let mut settled = Vec::new();
        let follow = |core: &mut ClientCore, sequences: &[Sequence]| {
            let messages: Vec<NewMessage<'_>> = sequences.iter().copied().map(message).collect();
            core.publish_many(&messages, true).unwrap().1.unwrap()
        };
        let receipts = [
            follow(&mut core, &[Sequence::Auto, Sequence::Given(3)]),
            follow(&mut core, &[Sequence::Given(2), Sequence::Auto]),
            follow(&mut core, &[Sequence::Given(1)]),
        ];
        let mut bytes = if logs_on { frame(0, 7, "") } else { Vec::new() };
        for (which, number, text) in &frames {
            bytes.extend(frame(*which, *number, text));
        }
        bytes.extend(rest);
        for (at, byte) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        for piece in bytes.chunks(piece) {
            let taken = core.handle_received(now, piece.to_vec().into());
            take_settled(&mut core, &mut settled);
            let mut said = Vec::new();
            core.poll_transmit(now, &mut said);
            if taken.is_err() {
                break;
            }
        }
        core.handle_disconnected(now);
        core.handle_connected(now);
        prop_assert!(core.handle_received(now, frame(0, 7, "").into()).is_ok(), "the next connection is not harmed");
        core.close();
        core.end_receipts();
        take_settled(&mut core, &mut settled);
        settled.sort_unstable();
        prop_assert_eq!(settled, receipts, "each receipt is settled once");
    }
}

fn take_settled(core: &mut ClientCore, settled: &mut Vec<ReceiptId>) {
    while let Some(event) = core.poll_event() {
        if let Event::Settled { receipt, .. } = event {
            settled.push(receipt);
        }
    }
}
