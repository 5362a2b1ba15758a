//! An idle subscription of any kind costs less than 1 KiB, counted by the allocator.

mod counting;

use std::path::Path;
use std::sync::Arc;

use counting::allocated;
use quire_broker::{Access, Broker, BrokerConfig, ConnectionId, Input, Output, TransportId};
use quire_command::*;
use quire_journal::{Journal, MemoryDisk, Options, Timestamp};
use quire_types::time::{Instant, Now};
use quire_wire::*;

const NOW: Now = Now { instant: Instant(0), wall: Timestamp(1) };
const COUNT: u32 = 1000;

fn turn(broker: &mut Broker) {
    loop {
        broker.finish_turn(NOW);
        let mut did = false;
        while let Some(output) = broker.poll_output() {
            if let Output::Read(request) = output {
                broker.handle(NOW, Input::ReadDone(request.run()));
                did = true;
            }
        }
        if !did {
            return;
        }
    }
}

/// Bytes that each of [`COUNT`] subscriptions costs: on as many topics or on one, and with as many
/// filters or none.
fn cost(bookmark: Option<&str>, has_topic: bool, is_filtered: bool) -> usize {
    let options = Options { segment_size: 64 * 1024, ..Options::default() };
    let disk = Arc::new(MemoryDisk::new(1 << 20));
    let (journal, _) = Journal::driven_by_hand(disk, Path::new("journal"), &options).unwrap();
    let mut broker = Broker::new(BrokerConfig::default(), journal).unwrap();
    let connection = ConnectionId(1);
    broker.handle(
        NOW,
        Input::Connected {
            connection,
            peer: "test",
            transport: TransportId::default(),
            access: Access::Client,
        },
    );
    let send = |broker: &mut Broker, frame: &Command<'_>| {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        broker.handle(NOW, Input::Received { connection, bytes: &bytes });
    };
    send(&mut broker, &Command::Logon(Logon { version: VERSION, client_name: "a", ..Logon::default() }));
    turn(&mut broker);
    let before = allocated();
    for subscription in 1..=COUNT {
        let topic = if has_topic { format!("orders/{subscription}") } else { "orders".to_owned() };
        let filter = is_filtered.then(|| format!("/qty > {subscription} AND /symbol = 'IBM'"));
        let filter = filter.as_deref();
        let subscribe =
            Subscribe { command: 1, subscription, topic: &topic, bookmark, filter, ..Subscribe::default() };
        send(&mut broker, &Command::Subscribe(subscribe));
    }
    turn(&mut broker);
    assert_eq!(broker.stats().subscription_count, COUNT as usize);
    (allocated() - before) / COUNT as usize
}

#[test]
fn an_idle_subscription_costs_less_than_a_kibibyte() {
    for bookmark in [None, Some("0"), Some("0|1|")] {
        for (has_topic, is_filtered) in [(true, false), (false, true), (true, true)] {
            let cost = cost(bookmark, has_topic, is_filtered);
            let what = format!("bookmark {bookmark:?}, a topic: {has_topic}, a filter: {is_filtered}");
            println!("{what}: {cost} bytes");
            assert!((100..1024).contains(&cost), "{what}: {cost} bytes");
        }
    }
}
