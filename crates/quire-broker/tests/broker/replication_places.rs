//! A bookmark subscription gets the places of the other instances, and begins at one of them
//! (docs/internals/copies.md, *A subscription that moves*).

use std::time::Duration;

use quire_broker::{BrokerConfig, SyncType};
use quire_command::*;

use super::links::*;
use super::pair::*;

fn reading<'a>(place: Option<LogPlace>, options: SubscribeOptions) -> Subscribe<'a> {
    Subscribe {
        command: 1,
        acks: Acks::PROCESSED.and(Acks::PERSISTED),
        subscription: 1,
        topic: "orders",
        bookmark: Some("0"),
        takes_places: true,
        options,
        place,
        ..Subscribe::default()
    }
}

/// The last places that a client was told, and the data of its messages.
fn take(cluster: &mut Cluster, number: usize, client: u64) -> (Vec<(String, LogPlace)>, Vec<String>) {
    let (mut last, mut messages) = (Vec::new(), Vec::new());
    for said in cluster.at(number).take(client) {
        match said {
            Said::Places { places, subscriptions } => {
                assert_eq!(subscriptions, [1]);
                last = places;
            }
            Said::Message { data, .. } => messages.push(data),
            _ => (),
        }
    }
    (last, messages)
}

fn place_of(places: &[(String, LogPlace)], name: &str) -> Option<LogPlace> {
    places.iter().find(|(instance, _)| instance == name).map(|(_, place)| *place)
}

fn end_of(cluster: &mut Cluster, number: usize) -> LogPlace {
    let position = cluster.log(number).len() as u64;
    LogPlace { log: cluster.stats(number).log, position }
}

#[test]
fn a_subscription_is_told_the_ends_of_the_logs_when_everything_was_sent() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.at(1).client(2, "q");
    cluster.at(0).client(3, "r");
    cluster.at(0).subscribe(3, &reading(None, SubscribeOptions::default()));
    cluster.publish(0, 1, 1, 3);
    cluster.publish(1, 2, 1, 4);
    cluster.pass(Duration::from_secs(5));
    let (places, messages) = take(&mut cluster, 0, 3);
    assert_eq!(messages.len(), 7);
    let ends = [0, 1].map(|number| end_of(&mut cluster, number));
    assert_eq!(places, [("b".to_owned(), ends[1]), ("a".to_owned(), ends[0])]);
    assert!(ends[0].log > 0 && ends[0].position == 7);
    // Nothing is said while nothing happens.
    cluster.pass(Duration::from_secs(60));
    let said = cluster.at(0).take(3);
    assert!(said.iter().all(|said| *said == Said::Heartbeat), "{said:?}");
}

#[test]
fn a_client_that_does_not_take_places_is_told_none_and_so_is_one_without_replication() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    let subscribe = Subscribe { takes_places: false, ..reading(None, SubscribeOptions::default()) };
    cluster.at(0).subscribe(1, &subscribe);
    cluster.pass(Duration::from_secs(5));
    assert!(!cluster.at(0).take(1).iter().any(|said| matches!(said, Said::Places { .. })));
    let mut alone = Pair::new();
    alone.client(1, "p");
    alone.subscribe(1, &reading(None, SubscribeOptions::default()));
    alone.publish(1, 1, "orders", "{}");
    alone.turn();
    alone.pass(Duration::from_secs(5));
    assert!(!alone.take(1).iter().any(|said| matches!(said, Said::Places { .. })));
}

/// The messages of a publisher that the subscription has not heard of are on the other instance
/// before those that it has.
#[test]
fn a_place_is_before_everything_that_the_log_lacks() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    cluster.at(0).client(1, "p");
    cluster.at(1).client(2, "q");
    cluster.at(0).client(3, "r");
    cluster.publish(0, 1, 1, 2);
    cluster.at(0).subscribe(3, &reading(None, SubscribeOptions::default()));
    cluster.pass(Duration::from_secs(5));
    let before = end_of(&mut cluster, 1);
    cluster.partition(0, 1);
    cluster.publish(1, 2, 1, 3);
    cluster.publish(0, 1, 3, 2);
    cluster.pass(Duration::from_secs(30));
    let (places, messages) = take(&mut cluster, 0, 3);
    assert_eq!(place_of(&places, "b"), Some(before));
    assert_eq!(messages, ["1", "2", "3", "4"].map(|n| format!("{{\"n\":{n}}}")));
    // The records of the other instance come after those that it has got meanwhile.
    cluster.at(1).client(4, "r");
    cluster.at(1).subscribe(4, &reading(Some(before), SubscribeOptions::default()));
    cluster.settle();
    let (_, messages) = take(&mut cluster, 1, 4);
    assert_eq!(messages, ["1", "2", "3"].map(|n| format!("{{\"n\":{n}}}")), "of q");
}

#[test]
fn a_subscription_that_has_not_caught_up_is_told_that_there_are_places() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 3);
    cluster.pass(Duration::from_secs(5));
    cluster.at(0).reads_at_once = false;
    cluster.at(0).client(3, "r");
    let slow = Subscribe { rate: Some("1"), ..reading(None, SubscribeOptions::default()) };
    cluster.at(0).subscribe(3, &slow);
    cluster.settle();
    let said = cluster.at(0).take(3);
    let places = said.iter().filter(|said| matches!(said, Said::Places { places, .. } if places.is_empty()));
    assert_eq!(places.count(), 1, "{said:?}");
}

#[test]
fn a_place_of_another_log_does_not_count() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 3);
    cluster.pass(Duration::from_secs(5));
    let end = end_of(&mut cluster, 1);
    let other = LogPlace { log: end.log + 1, ..end };
    let beyond = LogPlace { position: end.position + 1, ..end };
    let cases = [(end, 0, 0), (other, 2, 3), (beyond, 2, 3), (LogPlace::default(), 2, 3)];
    for (client, (place, detail, count)) in (10..).zip(cases) {
        cluster.at(1).client(client, "r");
        cluster.at(1).subscribe(client, &reading(Some(place), SubscribeOptions::default()));
        cluster.settle();
        assert_eq!(cluster.at(1).clients[&client].detail, detail, "{place:?}");
        assert_eq!(take(&mut cluster, 1, client).1.len(), count, "{place:?}");
    }
    for (client, place) in (20..).zip([other, LogPlace::default()]) {
        cluster.at(1).client(client, "r");
        cluster.at(1).subscribe(client, &reading(Some(place), SubscribeOptions::NOT_FOUND_FAILS));
        cluster.settle();
        assert_eq!(cluster.at(1).take(client), [refused(Code::BookmarkNotFound, 1, 1)]);
    }
}

#[test]
fn a_log_that_was_lost_has_another_number_and_new_places() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.at(0).client(3, "r");
    cluster.at(0).subscribe(3, &reading(None, SubscribeOptions::default()));
    cluster.publish(0, 1, 1, 3);
    cluster.pass(Duration::from_secs(5));
    let first = place_of(&take(&mut cluster, 0, 3).0, "b").unwrap();
    cluster.destroy(1);
    cluster.pass(Duration::from_secs(5));
    cluster.start(1);
    cluster.pass(Duration::from_secs(60));
    cluster.publish(0, 1, 4, 1);
    cluster.pass(Duration::from_secs(5));
    let second = place_of(&take(&mut cluster, 0, 3).0, "b").unwrap();
    assert!(second.log > first.log);
    assert_eq!(second, end_of(&mut cluster, 1));
}

fn mesh(pass_through: &[&str]) -> Vec<BrokerConfig> {
    let names = ["a", "b", "c"];
    let links = |own: &str| {
        let others = names.iter().filter(|name| **name != own);
        let to = |name: &&str| {
            let mut to = destination(name, SyncType::Async);
            to.pass_through = pass_through.iter().map(|pattern| (*pattern).to_owned()).collect();
            to
        };
        others.map(to).collect()
    };
    names.iter().map(|name| instance(name, links(name))).collect()
}

/// Without `pass_through`, the messages of the third instance come from there only.
#[test]
fn in_a_mesh_a_place_waits_for_the_messages_of_the_third_instance() {
    for pass_through in [&[][..], &[".*"]] {
        let mut cluster = Cluster::new(mesh(pass_through));
        cluster.at(0).client(1, "p");
        cluster.at(1).client(2, "q");
        cluster.at(2).client(3, "s");
        cluster.at(0).client(4, "r");
        cluster.at(0).subscribe(4, &reading(None, SubscribeOptions::default()));
        cluster.publish(0, 1, 1, 2);
        cluster.publish(1, 2, 1, 2);
        cluster.publish(2, 3, 1, 2);
        cluster.pass(Duration::from_secs(10));
        let (places, messages) = take(&mut cluster, 0, 4);
        assert_eq!(messages.len(), 6);
        let ends = [1, 2].map(|number| end_of(&mut cluster, number));
        assert_eq!(["b", "c"].map(|name| place_of(&places, name)), ends.map(Some), "{pass_through:?}");
        // The first instance does not get what the third one sends to the second one.
        cluster.partition(0, 2);
        cluster.publish(2, 3, 3, 2);
        cluster.publish(1, 2, 3, 1);
        cluster.pass(Duration::from_secs(10));
        let (places, messages) = take(&mut cluster, 0, 4);
        let has_all = !pass_through.is_empty();
        assert_eq!(messages.len(), if has_all { 3 } else { 1 });
        let place = place_of(&places, "b").unwrap();
        assert_eq!(place == end_of(&mut cluster, 1), has_all, "{place:?}");
        if !has_all {
            assert_eq!(place, ends[0]);
        }
        cluster.heal();
        cluster.pass(Duration::from_secs(60));
        let (places, _) = take(&mut cluster, 0, 4);
        let ends = [1, 2].map(|number| end_of(&mut cluster, number));
        assert_eq!(["b", "c"].map(|name| place_of(&places, name)), ends.map(Some), "{pass_through:?}");
    }
}

/// The messages of a distant instance, and its place, come over the one between.
#[test]
fn a_place_of_a_distant_instance_comes_over_the_one_between() {
    let passing = |name: &str| {
        let mut to = destination(name, SyncType::Async);
        to.pass_through = vec![".*".to_owned()];
        to
    };
    let mut cluster = Cluster::new(vec![
        instance("a", vec![passing("b")]),
        instance("b", vec![passing("a"), passing("c")]),
        instance("c", vec![passing("b")]),
    ]);
    cluster.at(0).client(1, "p");
    cluster.at(2).client(2, "q");
    cluster.at(0).client(4, "r");
    cluster.at(0).subscribe(4, &reading(None, SubscribeOptions::default()));
    for first in [1, 3] {
        cluster.publish(0, 1, first, 2);
        cluster.publish(2, 2, first, 2);
        cluster.pass(Duration::from_secs(10));
    }
    let (places, _) = take(&mut cluster, 0, 4);
    let ends = [1, 2].map(|number| end_of(&mut cluster, number));
    assert_eq!(["b", "c"].map(|name| place_of(&places, name)), ends.map(Some));
}
