//! What happens between a connection and its logon.

use std::time::Duration;

use quire_core::client::{ClientConfig, State};

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
