//! Commands that a client gives while it has no connection: what is answered at once, and what is
//! not done later.

use std::time::Duration;

use quire_client::*;

use crate::link::*;

/// Longer than any wait between two attempts to connect.
const RECONNECT: Duration = Duration::from_secs(60);

#[test]
fn the_end_of_a_subscription_needs_no_connection() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    let number = link.subscribe(client, SubscriptionSpec::new("orders"));
    link.kill(0);
    let command = link.clients[client].core.unsubscribe(number).unwrap();
    link.run();
    assert_eq!(link.clients[client].answers.remove(&command.0), Some(Ok(())));
    link.start(0);
    link.pass(RECONNECT);
    link.publish(client, "orders", "a");
    link.run();
    assert_eq!(link.take(client), [""; 0]);
}

#[test]
fn a_subscription_that_ended_before_it_was_entered_is_not_entered() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    link.kill(0);
    let (number, entering) = link.clients[client].core.subscribe(SubscriptionSpec::new("orders")).unwrap();
    let leaving = link.clients[client].core.unsubscribe(number).unwrap();
    link.run();
    let answers = &mut link.clients[client].answers;
    assert!(answers.remove(&entering.0).unwrap().is_err());
    assert_eq!(answers.remove(&leaving.0), Some(Ok(())));
    link.start(0);
    link.pass(RECONNECT);
    link.publish(client, "orders", "a");
    link.run();
    assert_eq!(link.take(client), [""; 0]);
    assert!(link.clients[client].answers.is_empty());
}

#[test]
fn a_command_that_acts_once_is_withdrawn_with_its_caller() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    link.kill(0);
    let core = &mut link.clients[client].core;
    let waiting = core.queue_stats(None).unwrap();
    let abandoned = core.queue_stats(None).unwrap();
    assert!(core.abandon(abandoned), "no answer will come");
    link.start(0);
    link.pass(RECONNECT);
    let told: Vec<u32> = link.clients[client].told.iter().map(|(command, _)| *command).collect();
    assert_eq!(told, [waiting.0]);
    // One that was sent is answered.
    let sent = link.clients[client].core.queue_stats(None).unwrap();
    assert!(!link.clients[client].core.abandon(sent));
    link.run();
    assert!(link.clients[client].answers.contains_key(&sent.0));
}

#[test]
fn a_logon_says_what_is_sent_again() {
    let mut link = Link::new(&["one"]);
    let client = link.client(config("client"));
    link.subscribe(client, SubscriptionSpec::new("orders"));
    link.kill(0);
    for _ in 0..3 {
        link.publish(client, "orders", "a");
    }
    link.start(0);
    link.pass(RECONNECT);
    assert_eq!(link.clients[client].logons, [(0, 0), (3, 1)]);
}
