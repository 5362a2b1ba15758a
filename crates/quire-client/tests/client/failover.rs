//! Two servers that hold the same messages in another order: a subscription that goes over to the
//! other one misses nothing and gets nothing twice. The same publishers feed both, as replication
//! would.

use std::time::Duration;

use quire_client::{ClientCore, ResumePosition, SubscriptionSpec};
use quire_types::time::Instant;

use crate::link::{Link, config};

const LONG: Duration = Duration::from_secs(60);

/// Publishers `a` and `b` on each of two servers.
struct Feeds {
    link: Link,
    a: [usize; 2],
    b: [usize; 2],
}

impl Feeds {
    fn new() -> Self {
        let mut link = Link::new(&["one", "two"]);
        let a = [0, 1].map(|server| link.client_of(&[server], config("a")));
        let b = [0, 1].map(|server| link.client_of(&[server], config("b")));
        Feeds { link, a, b }
    }

    /// Publishes to a server; each letter is the next message of that publisher.
    fn publish(&mut self, server: usize, order: &str) {
        for letter in order.chars() {
            let publisher = if letter == 'a' { self.a[server] } else { self.b[server] };
            let number = self.link.clients[publisher].core.last_sequence() + 1;
            self.link.publish(publisher, "orders", &format!("{letter}{number}"));
            self.link.run();
        }
    }
}

fn everything() -> SubscriptionSpec {
    SubscriptionSpec { bookmark: Some("0".into()), ..SubscriptionSpec::new("orders") }
}

#[test]
fn a_subscription_goes_over_to_another_instance_without_gap_or_duplicate() {
    let mut feeds = Feeds::new();
    let reader = feeds.link.client(config("reader"));
    feeds.publish(0, "aabab");
    // On the second server b is ahead of where it is on the first.
    feeds.publish(1, "bbbaaaab");
    feeds.link.subscribe(reader, everything());
    assert_eq!(feeds.link.take(reader), ["a1", "a2", "b1", "a3", "b2"]);
    feeds.link.kill(0);
    feeds.link.pass(LONG);
    assert_eq!(feeds.link.take(reader), ["b3", "a4", "b4"]);
    feeds.publish(1, "ab");
    feeds.link.run();
    assert_eq!(feeds.link.take(reader), ["a5", "b5"]);
}

#[test]
fn a_message_that_comes_late_to_the_new_instance_is_not_received_again() {
    let mut feeds = Feeds::new();
    let reader = feeds.link.client(config("reader"));
    feeds.publish(0, "aab");
    feeds.publish(1, "a");
    feeds.link.subscribe(reader, everything());
    assert_eq!(feeds.link.take(reader), ["a1", "a2", "b1"]);
    feeds.link.kill(0);
    feeds.link.pass(LONG);
    feeds.publish(1, "aabb");
    feeds.link.pass(LONG);
    assert_eq!(feeds.link.take(reader), ["a3", "b2"]);
}

#[test]
fn a_kept_place_on_an_instance_with_another_log_drops_nothing() {
    let mut link = Link::new(&["one"]);
    let (publisher, reader) = (link.client(config("publisher")), link.client(config("reader")));
    let number = link.subscribe(reader, everything());
    link.publish(publisher, "orders", "old");
    link.run();
    assert_eq!(link.take(reader), ["old"]);
    let kept = link.clients[reader].core.resume_position(number).cloned();
    link.kill(0);
    link.erase(0);
    link.start(0);
    // The program starts again, and has lost its publish store.
    link.clients[publisher].core = ClientCore::new(config("publisher"), Instant::default());
    let next = link.client(config("next"));
    link.subscribe(next, SubscriptionSpec { resume_position: kept, ..everything() });
    link.publish(publisher, "orders", "new");
    link.pass(LONG);
    assert_eq!(link.take(next), ["new"]);
}

#[test]
fn a_way_back_in_the_middle_of_catching_up_loses_nothing() {
    for cut_after in 0..12 {
        let mut feeds = Feeds::new();
        let reader = feeds.link.client(config("reader"));
        feeds.publish(0, "abab");
        feeds.publish(1, "bbbbaaaaba");
        feeds.link.subscribe(reader, everything());
        let mut seen = feeds.link.take(reader);
        feeds.link.kill(0);
        for _ in 0..cut_after {
            feeds.link.step();
        }
        feeds.link.cut(reader);
        feeds.link.pass(LONG);
        seen.extend(feeds.link.take(reader));
        feeds.publish(1, "ab");
        feeds.link.pass(LONG);
        seen.extend(feeds.link.take(reader));
        let of =
            |letter: &str| seen.iter().filter(|data| data.starts_with(letter)).cloned().collect::<Vec<_>>();
        assert_eq!(of("a"), (1..=6).map(|n| format!("a{n}")).collect::<Vec<_>>(), "cut after {cut_after}");
        assert_eq!(of("b"), (1..=6).map(|n| format!("b{n}")).collect::<Vec<_>>(), "cut after {cut_after}");
    }
}

#[test]
fn a_kept_place_is_exact_on_its_instance_and_a_list_on_another() {
    let mut feeds = Feeds::new();
    let reader = feeds.link.client_of(&[0], config("reader"));
    feeds.publish(0, "aabab");
    feeds.publish(1, "bbbaaaab");
    let number = feeds.link.subscribe(reader, everything());
    let resume_position = feeds.link.clients[reader].core.resume_position(number).unwrap().clone();
    assert_eq!(&*resume_position.instance, "one");
    feeds.publish(0, "ab");
    let resumed = |resume_position: ResumePosition| SubscriptionSpec {
        resume_position: Some(resume_position),
        ..everything()
    };
    for (server, expected) in [(0, &["a4", "b3"][..]), (1, &["b3", "a4", "b4"])] {
        let next = feeds.link.client_of(&[server], config(&format!("next {server}")));
        feeds.link.subscribe(next, resumed(resume_position.clone()));
        assert_eq!(feeds.link.take(next), expected);
    }
}

#[test]
fn a_server_that_lost_its_log_is_read_from_its_beginning() {
    let mut link = Link::new(&["one"]);
    let (publisher, reader) = (link.client(config("publisher")), link.client(config("reader")));
    link.subscribe(reader, everything());
    link.publish(publisher, "orders", "old");
    link.run();
    assert_eq!(link.take(reader), ["old"]);
    link.kill(0);
    link.erase(0);
    link.start(0);
    let other = link.client(config("other"));
    link.publish(other, "orders", "new");
    link.pass(LONG);
    assert_eq!(link.take(reader), ["new"]);
}
