//! A bookmark subscription resumes at its position, without a gap or a duplicate, also when it has
//! received no message.

use std::time::Duration;

use quire_client::SubscriptionSpec;

use crate::link::{Link, config};

const NOW: &str = "0|1|";

fn replay(topic: &str, bookmark: &str) -> SubscriptionSpec {
    SubscriptionSpec { bookmark: Some(bookmark.into()), ..SubscriptionSpec::new(topic) }
}

#[test]
fn a_subscription_from_now_on_that_received_nothing_misses_nothing() {
    for before in 0..3 {
        let mut link = Link::new(&["one"]);
        let (publisher, reader) = (link.client(config("publisher")), link.client(config("reader")));
        for number in 0..before {
            link.publish(publisher, "orders", &format!("before {number}"));
        }
        link.run();
        link.subscribe(reader, replay("orders", NOW));
        // Nothing was said since the subscription began: only its first place can tell.
        link.cut(reader);
        // The reader reconnects at once, but the publisher is served before it.
        link.publish(publisher, "orders", "meanwhile");
        link.run();
        assert_eq!(link.take(reader), ["meanwhile"], "after {before} messages");
    }
}

#[test]
fn a_subscription_that_matches_little_goes_on_where_the_log_was_looked_at() {
    let mut link = Link::new(&["one"]);
    let (publisher, reader) = (link.client(config("publisher")), link.client(config("reader")));
    let number = link.subscribe(reader, replay("rare", "0"));
    assert_eq!(
        link.clients[reader].core.last_received(number).map(|resume_position| resume_position.sequence),
        Some(0)
    );
    for _ in 0..10 {
        link.publish(publisher, "common", "x");
    }
    link.pass(Duration::from_secs(2));
    let resume_position = link.clients[reader].core.last_received(number).unwrap();
    assert_eq!(
        (resume_position.publisher.get(), resume_position.sequence),
        (link.clients[publisher].core.publisher(), 10)
    );
    link.kill(0);
    link.start(0);
    link.publish(publisher, "rare", "found");
    link.pass(Duration::from_secs(30));
    assert_eq!(link.take(reader), ["found"]);
}

#[test]
fn what_was_received_after_a_place_counts() {
    let mut link = Link::new(&["one"]);
    let (publisher, reader) = (link.client(config("publisher")), link.client(config("reader")));
    link.subscribe(reader, replay("orders", NOW));
    for round in 0..5 {
        link.publish(publisher, "orders", &format!("{round} a"));
        link.publish(publisher, "other", "x");
        link.pass(Duration::from_millis(700));
        link.publish(publisher, "orders", &format!("{round} b"));
        link.run();
        link.cut(reader);
        link.publish(publisher, "orders", &format!("{round} c"));
        link.pass(Duration::from_secs(1));
        assert_eq!(link.take(reader), ["a", "b", "c"].map(|part| format!("{round} {part}")));
    }
}

#[test]
fn a_place_is_told_to_a_paused_subscription_when_it_is_resumed() {
    let mut link = Link::new(&["one"]);
    let (publisher, reader) = (link.client(config("publisher")), link.client(config("reader")));
    let number = link.subscribe(reader, replay("orders", NOW));
    link.clients[reader].core.set_paused(&[number], true).unwrap();
    link.run();
    let first = link.clients[reader].core.last_received(number);
    link.publish(publisher, "orders", "held back");
    link.pass(Duration::from_secs(3));
    assert_eq!(link.clients[reader].core.last_received(number), first);
    link.cut(reader);
    link.clients[reader].core.set_paused(&[number], false).unwrap();
    link.pass(Duration::from_secs(3));
    assert_eq!(link.take(reader), ["held back"]);
}

#[test]
fn a_range_keeps_its_end_over_a_lost_connection() {
    let mut link = Link::new(&["one"]);
    let (publisher, reader) = (link.client(config("publisher")), link.client(config("reader")));
    for number in 1..=3 {
        link.publish(publisher, "orders", &number.to_string());
    }
    link.run();
    let id = link.clients[publisher].core.publisher();
    let number = link.subscribe(reader, replay("orders", &format!("[0:{id}|5|)")));
    link.run();
    assert_eq!(link.take(reader), ["1", "2", "3"]);
    link.cut(reader);
    for number in 4..=6 {
        link.publish(publisher, "orders", &number.to_string());
    }
    link.run();
    assert_eq!(link.take(reader), ["4"]);
    assert_eq!(link.clients[reader].ended, [(number, None)]);
}
