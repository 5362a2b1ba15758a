//! What happens between a connection and its logon.

use std::time::Duration;

use quire_core::client::{ClientConfig, NewMessage, PublishError, Sequence, State};

use crate::link::{Link, config};

#[test]
fn a_logon_that_waits_for_the_disk_is_kept_alive_by_heartbeats() {
    let mut link = Link::new(&["one"]);
    let heartbeat = Some(Duration::from_millis(100));
    let publisher = link.client(ClientConfig { heartbeat, ..config("publisher") });
    link.writes = false;
    link.publish(publisher, "orders", "not persisted yet");
    link.run();
    link.cut(publisher);
    link.pass(Duration::from_secs(5));
    assert_eq!(
        *link.clients[publisher].core.state(),
        State::Reconnecting,
        "what it published is not persisted"
    );
    link.writes = true;
    link.pass(Duration::from_millis(10));
    assert_eq!(*link.clients[publisher].core.state(), State::Connected);
    assert_eq!(link.clients[publisher].core.persisted(), 1);
}

/// Once, whoever began again from the start under the same name waited for room for ever: a server acknowledges what it gets first only.
#[test]
fn what_the_server_has_already_does_not_fill_the_store() {
    let mut link = Link::new(&["one"]);
    for round in 0..2 {
        let publisher = link.client(config("publisher"));
        link.run();
        let data = [b'x'; 10_000];
        let mut full_count = 0;
        // Three times what the store takes.
        for sequence in 1..=300 {
            let message = NewMessage {
                topic: "orders",
                data: &data,
                sequence: Sequence::Given(sequence),
                expiration_s: None,
                correlation_id: b"",
            };
            let publish = |link: &mut Link| link.clients[publisher].core.publish(&message);
            if let Err(PublishError::Full { .. }) = publish(&mut link) {
                full_count += 1;
                link.run();
                publish(&mut link).unwrap();
            }
        }
        link.run();
        assert!(full_count > 0, "round {round}: the store is too large for this test");
        assert_eq!(link.clients[publisher].core.unpersisted_count(), 0, "round {round}");
        assert_eq!(link.clients[publisher].core.persisted(), 300);
        link.cut(publisher);
        link.clients.remove(publisher);
    }
}
