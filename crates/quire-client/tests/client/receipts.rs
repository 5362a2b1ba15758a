//! Receipts: each publish that is followed learns its own outcome, over lost connections, repeats,
//! and the end of the client.

use std::time::Duration;

use proptest::prelude::*;
use quire_client::*;
use quire_command::Code;

use crate::link::*;

/// Longer than any wait between two attempts to connect.
const RECONNECT: Duration = Duration::from_secs(60);

/// Messages to this topic have a key. Servers refuse them, because the topic keeps no last values.
const REFUSED: &str = "keyed";

fn message(topic: &'static str, sequence: Sequence) -> NewMessage<'static> {
    NewMessage { key: if topic == REFUSED { "a" } else { "" }, ..message_of(topic, "{}", sequence) }
}

/// Publishes and follows a batch; gives its sequences and its receipt.
fn follow(link: &mut Link, client: usize, messages: &[NewMessage<'_>]) -> (Vec<u64>, ReceiptId) {
    let (sequences, receipt) = link.clients[client].core.publish_many(messages, true).unwrap();
    (sequences, receipt.expect("it is followed"))
}

/// A receipt, the codes of its refusals by their sequences, and the code of why it is not known
/// what became of the others.
type Settled = (ReceiptId, Vec<(u64, FailureCode)>, Option<FailureCode>);

/// The receipts that were settled since the last call.
fn settled(link: &mut Link, client: usize) -> Vec<Settled> {
    let codes = |outcome: &Outcome| {
        outcome.refusals.iter().map(|(sequence, failure)| (*sequence, failure.code)).collect()
    };
    let settled = std::mem::take(&mut link.clients[client].settled);
    settled
        .iter()
        .map(|(id, outcome)| (*id, codes(outcome), outcome.unknown.as_ref().map(|failure| failure.code)))
        .collect()
}

const NOT_LAST_VALUE: FailureCode = FailureCode::Wire(Code::NotLastValue);

#[test]
fn a_receipt_is_settled_when_its_messages_are_persisted_and_not_before() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    link.writes = false;
    let (sequences, first) = follow(&mut link, client, &[message("orders", Sequence::Auto)]);
    let (batch, second) =
        follow(&mut link, client, &[message("orders", Sequence::Auto), message("trades", Sequence::Auto)]);
    assert_eq!((sequences, batch), (vec![1], vec![2, 3]));
    link.run();
    assert_eq!(settled(&mut link, client), []);
    assert!(link.clients[client].core.awaits_receipt());
    link.writes = true;
    link.run();
    assert_eq!(settled(&mut link, client), [(first, vec![], None), (second, vec![], None)]);
    assert!(!link.clients[client].core.awaits_receipt());
}

#[test]
fn a_refusal_reaches_the_receipt_of_its_message_and_no_other() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    let messages = [
        message("orders", Sequence::Auto),
        message(REFUSED, Sequence::Auto),
        message("orders", Sequence::Auto),
        message(REFUSED, Sequence::Auto),
    ];
    link.clients[client].core.publish(&message(REFUSED, Sequence::Auto)).unwrap();
    let (_, before) = follow(&mut link, client, &messages[..1]);
    let (_, batch) = follow(&mut link, client, &messages);
    let (_, after) = follow(&mut link, client, &messages[..1]);
    link.run();
    let refusals = vec![(4, NOT_LAST_VALUE), (6, NOT_LAST_VALUE)];
    assert_eq!(
        settled(&mut link, client),
        [(before, vec![], None), (batch, refusals, None), (after, vec![], None)]
    );
    let unfollowed: Vec<u64> = link.clients[client].refused.iter().map(|(sequence, _)| *sequence).collect();
    assert_eq!(unfollowed, [1]);
}

#[test]
fn a_refusal_of_a_forgotten_receipt_is_reported() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    let (_, receipt) = follow(&mut link, client, &[message(REFUSED, Sequence::Auto)]);
    link.clients[client].core.forget_receipt(receipt);
    link.run();
    assert_eq!(settled(&mut link, client), []);
    assert_eq!(link.clients[client].refused.len(), 1);
}

#[test]
fn a_repeat_is_settled_when_the_server_has_looked_at_it() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    let (_, first) = follow(&mut link, client, &[message("orders", Sequence::Given(5))]);
    link.run();
    assert_eq!(settled(&mut link, client), [(first, vec![], None)]);
    let (_, dropped) = follow(&mut link, client, &[message("orders", Sequence::Given(5))]);
    let (_, refused) = follow(&mut link, client, &[message(REFUSED, Sequence::Given(4))]);
    assert_eq!(settled(&mut link, client), []);
    link.run();
    assert_eq!(
        settled(&mut link, client),
        [(dropped, vec![], None), (refused, vec![(4, NOT_LAST_VALUE)], None)]
    );
    // Its original is under way, and of a batch one message is new.
    let (_, original) = follow(&mut link, client, &[message("orders", Sequence::Given(7))]);
    let (_, mixed) = follow(
        &mut link,
        client,
        &[message(REFUSED, Sequence::Given(7)), message(REFUSED, Sequence::Given(8))],
    );
    link.run();
    assert_eq!(
        settled(&mut link, client),
        [(original, vec![], None), (mixed, vec![(7, NOT_LAST_VALUE), (8, NOT_LAST_VALUE)], None)]
    );
    assert!(link.clients[client].answers.is_empty(), "nobody asked for the answer to a barrier");
}

#[test]
fn receipts_outlive_the_connection() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    link.kill(0);
    let (_, receipt) =
        follow(&mut link, client, &[message("orders", Sequence::Auto), message(REFUSED, Sequence::Auto)]);
    let (_, repeat) = follow(&mut link, client, &[message(REFUSED, Sequence::Given(1))]);
    assert_eq!(settled(&mut link, client), []);
    link.start(0);
    link.pass(RECONNECT);
    assert_eq!(
        settled(&mut link, client),
        [(receipt, vec![(2, NOT_LAST_VALUE)], None), (repeat, vec![(1, NOT_LAST_VALUE)], None)]
    );
}

#[test]
fn the_end_of_the_client_settles_every_receipt() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    let (_, persisted) = follow(&mut link, client, &[message("orders", Sequence::Auto)]);
    link.run();
    link.kill(0);
    let (_, lost) = follow(&mut link, client, &[message("orders", Sequence::Auto)]);
    let core = &mut link.clients[client].core;
    core.close();
    core.end_receipts();
    core.end_receipts();
    link.run();
    assert_eq!(
        settled(&mut link, client),
        [(persisted, vec![], None), (lost, vec![], Some(FailureCode::Closed))]
    );
}

#[test]
fn a_receipt_says_that_another_program_may_have_used_its_sequence() {
    let mut link = Link::new(&["one"]);
    let other = link.client(config("client"));
    for _ in 0..3 {
        link.publish(other, "orders", "{}");
    }
    link.run();
    link.cut(other);
    link.clients.remove(other);
    link.kill(0);
    let client = link.client(config("client"));
    let (_, numbered) = follow(&mut link, client, &[message("orders", Sequence::Auto)]);
    let (_, given) = follow(&mut link, client, &[message("orders", Sequence::Given(2))]);
    link.start(0);
    link.pass(RECONNECT);
    let name_in_use = FailureCode::Wire(Code::NameInUse);
    assert_eq!(settled(&mut link, client), [(numbered, vec![], Some(name_in_use)), (given, vec![], None)]);
}

#[test]
fn a_batch_is_taken_whole_or_not_at_all() {
    let mut link = Link::new(&["one"]);
    let client = link.client(ClientConfig { publish_store_size_max: 100, ..config("client") });
    link.kill(0);
    let core = &mut link.clients[client].core;
    let good = message("orders", Sequence::Auto);
    let refusal = |messages: &[NewMessage<'_>], core: &mut ClientCore| {
        let error = core.publish_many(messages, true).unwrap_err();
        assert_eq!((error.taken.len(), core.last_sequence()), (0, 0));
        (error.index, error.error)
    };
    let (index, error) = refusal(&[good, message("orders", Sequence::None)], core);
    assert!(matches!(error, PublishError::Refused(failure) if failure.code == Code::BadOption));
    assert_eq!(index, Some(1));
    let (index, error) = refusal(&[good, good, message("", Sequence::Auto)], core);
    assert!(matches!(error, PublishError::Refused(failure) if failure.code == Code::BadTopic));
    assert_eq!(index, Some(2));
    let (index, error) = refusal(&[message("orders", Sequence::Given(u64::MAX)), good], core);
    assert!(matches!(error, PublishError::Refused(failure) if failure.code == Code::LimitExceeded));
    assert_eq!(index, Some(1));
    // An empty store takes a batch of any size, and then nothing more.
    let (sequences, receipt) = core.publish_many(&[good; 10], false).unwrap();
    assert_eq!((sequences, receipt), ((1..=10).collect(), None));
    let error = core.publish_many(&[good], false).unwrap_err();
    assert_eq!((error.index, error.error), (None, PublishError::Full { unpersisted: 10 }));
    assert!(!core.awaits_receipt());
}

proptest! {
    /// Against the obvious model: of every followed message it is known whether its topic is
    /// refused.
    #[test]
    fn every_receipt_is_settled_once_with_the_refusals_of_its_messages(
        steps in proptest::collection::vec((0u8..8, proptest::collection::vec((any::<bool>(), 0u64..4), 1..5)), 1..30),
    ) {
        let mut link = Link::new(&["one"]);
        let client = link.client(config("client"));
        let mut expected = Vec::new();
        let mut unfollowed = 0;
        for (step, items) in steps {
            match step {
                0 => link.run(),
                1 => link.writes = !link.writes,
                2 => {
                    link.clients[client].core.publish(&message(REFUSED, Sequence::Auto)).unwrap();
                    unfollowed += 1;
                }
                _ => {
                    let mut last = link.clients[client].core.last_sequence();
                    let (mut messages, mut refused) = (Vec::new(), Vec::new());
                    for (is_refused, back) in items {
                        // Some are repeats, also of each other. All repeats of a sequence are
                        // refused, or none: they cannot be told apart.
                        let sequence = (last + 1).saturating_sub(back).max(1);
                        let is_refused = if sequence > last { is_refused } else { sequence % 2 == 0 };
                        let given = if back == 0 { Sequence::Auto } else { Sequence::Given(sequence) };
                        messages.push(message(if is_refused { REFUSED } else { "orders" }, given));
                        refused.extend(is_refused.then_some(sequence));
                        last = last.max(sequence);
                    }
                    let (_, receipt) = follow(&mut link, client, &messages);
                    refused.sort_unstable();
                    expected.push((receipt, refused));
                }
            }
        }
        link.writes = true;
        link.run();
        let mut found: Vec<(ReceiptId, Vec<u64>)> = settled(&mut link, client)
            .into_iter()
            .map(|(receipt, refusals, _)| {
                let mut refused: Vec<u64> = refusals.into_iter().map(|(sequence, _)| sequence).collect();
                refused.sort_unstable();
                (receipt, refused)
            })
            .collect();
        found.sort_unstable();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(link.clients[client].refused.len(), unfollowed);
    }
}
