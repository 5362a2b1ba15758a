//! A driver without room for more messages has the server keep those of a bookmark subscription
//! back, and nothing is missed by it.

use std::time::Duration;

use quire_client::SubscriptionSpec;

use crate::link::{Link, config};

fn everything(link: &mut Link, client: usize) -> u32 {
    let spec = SubscriptionSpec { bookmark: Some("0".into()), ..SubscriptionSpec::new("orders") };
    link.subscribe(client, spec)
}

fn hold(link: &mut Link, client: usize, number: u32, is_held: bool) -> bool {
    let command = link.clients[client].core.set_held(&[number], is_held);
    link.run();
    !command.is_empty()
}

#[test]
fn a_held_subscription_gets_nothing_until_it_is_let_go_also_over_reconnects() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    let number = everything(&mut link, client);
    link.publish(client, "orders", "1");
    link.run();
    assert_eq!(link.take(client), ["1"]);
    assert!(hold(&mut link, client, number, true));
    assert!(!hold(&mut link, client, number, true), "said once");
    link.publish(client, "orders", "2");
    link.run();
    link.cut(client);
    link.pass(Duration::from_secs(30));
    link.publish(client, "orders", "3");
    link.run();
    assert!(link.take(client).is_empty());
    assert!(hold(&mut link, client, number, false));
    assert_eq!(link.take(client), ["2", "3"]);
}

#[test]
fn one_that_is_held_and_paused_goes_on_when_it_is_neither() {
    for is_resumed_first in [false, true] {
        let mut link = Link::new(&["one"]);
        let client = link.client(config("client"));
        let number = everything(&mut link, client);
        assert!(hold(&mut link, client, number, true));
        let pause = link.clients[client].core.set_paused(&[number], true).unwrap();
        link.publish(client, "orders", "1");
        link.run();
        assert_eq!(link.clients[client].answers.remove(&pause.0), Some(Ok(())));
        if is_resumed_first {
            let resume = link.clients[client].core.set_paused(&[number], false).unwrap();
            link.run();
            assert_eq!(link.clients[client].answers.remove(&resume.0), Some(Ok(())));
            assert!(link.take(client).is_empty(), "there is still no room");
            assert!(hold(&mut link, client, number, false));
        } else {
            assert!(!hold(&mut link, client, number, false), "it is the user who paused it");
            assert!(link.take(client).is_empty());
            link.clients[client].core.set_paused(&[number], false).unwrap();
            link.run();
        }
        assert_eq!(link.take(client), ["1"]);
    }
}

#[test]
fn silence_while_nothing_is_read_is_not_the_servers() {
    let mut link = Link::new(&["one"]);
    let heartbeat = Duration::from_secs(1);
    let client = link.client(quire_client::ClientConfig { heartbeat: Some(heartbeat), ..config("client") });
    let core = &mut link.clients[client].core;
    let start = core.next_timeout().unwrap();
    let unread_until = start + heartbeat * 5;
    core.handle_unread(unread_until);
    assert!(!core.handle_timeout(unread_until + heartbeat));
    assert!(core.handle_timeout(unread_until + heartbeat * 2));
}
