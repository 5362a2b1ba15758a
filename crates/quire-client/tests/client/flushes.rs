//! Flushes: the acknowledgement of the last publish is the answer when it has the same meaning as
//! the answer to the command. Otherwise the command is sent.

use std::time::Duration;

use quire_client::*;
use quire_command::{Code, FailureScope, Reply};
use quire_types::time::Instant;
use quire_wire::Encode;

use crate::link::*;

/// A server whose journal writes nothing yet, and a client that is logged on.
fn unwritten(config: ClientConfig) -> (Link, usize) {
    let mut link = Link::new(&["one"]);
    let client = link.client(config);
    link.writes = false;
    (link, client)
}

fn numbered(sequence: Sequence) -> NewMessage<'static> {
    message_of("orders", "{}", sequence)
}

/// Whether a flush sends a command now, when everything before has left.
fn sends_command(link: &mut Link, client: usize) -> bool {
    let core = &mut link.clients[client].core;
    assert!(core.is_idle());
    core.flush().unwrap();
    !core.is_idle()
}

fn answer(link: &Link, client: usize, CommandId(flush): CommandId) -> Option<&Result<(), Failure>> {
    link.clients[client].answers.get(&flush)
}

#[test]
fn a_flush_after_a_publish_is_answered_by_its_acknowledgement() {
    let (mut link, client) = unwritten(config("client"));
    link.publish(client, "orders", "1");
    link.publish(client, "orders", "2");
    link.run();
    let flush = link.clients[client].core.flush().unwrap();
    assert!(link.clients[client].core.is_idle(), "nothing is sent for it");
    link.publish(client, "orders", "3");
    let later = link.clients[client].core.flush().unwrap();
    link.run();
    assert_eq!((answer(&link, client, flush), answer(&link, client, later)), (None, None));
    link.writes = true;
    link.run();
    assert_eq!((answer(&link, client, flush), answer(&link, client, later)), (Some(&Ok(())), Some(&Ok(()))));
}

#[test]
fn a_flush_waits_for_every_earlier_publish() {
    let mut core = ClientCore::new(config("client"), Instant(0));
    let hear = |core: &mut ClientCore, reply: &Reply<'_>| {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        core.handle_received(Instant(0), bytes.into()).unwrap();
        let answered = |event| match event {
            Event::Answered { command, result } => Some((command, result.map_err(|failure| failure.code))),
            _ => None,
        };
        std::iter::from_fn(|| core.poll_event()).filter_map(answered).collect::<Vec<_>>()
    };
    core.handle_connected(Instant(0));
    let logged_on = quire_command::LoggedOn { version: 1, publisher: 7, ..Default::default() };
    hear(&mut core, &Reply::LoggedOn(quire_command::LoggedOn { message_size_max: 1 << 20, ..logged_on }));
    for _ in 0..3 {
        core.publish(&numbered(Sequence::Auto)).unwrap();
    }
    let flush = core.flush().unwrap();
    core.publish(&numbered(Sequence::Auto)).unwrap();
    let fourth = core.flush().unwrap();
    assert_eq!(hear(&mut core, &Reply::Persisted { sequence: 2 }), []);
    let (code, scope) = (Code::BadTopic, FailureScope::One);
    let refused = Reply::PublishFailed { sequence: 3, code, scope, reason: "bad" };
    assert_eq!(hear(&mut core, &refused), [(flush, Ok(()))], "a refusal is an acknowledgement, too");
    let (code, scope) = (Code::StorageFull, FailureScope::AllFromHere);
    let failed = Reply::PublishFailed { sequence: 4, code, scope, reason: "full" };
    assert_eq!(hear(&mut core, &failed), [(fourth, Err(Code::StorageFull.into()))]);
}

/// Hands a reply of the server to the client.
fn hear(core: &mut ClientCore, reply: &Reply<'_>) {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    core.handle_received(Instant(0), bytes.into()).unwrap();
}

/// A client whose server has no room for its first publish.
fn stalled() -> ClientCore {
    let mut core = ClientCore::new(config("client"), Instant(0));
    core.handle_connected(Instant(0));
    let logged_on = quire_command::LoggedOn { version: 1, publisher: 7, ..Default::default() };
    hear(&mut core, &Reply::LoggedOn(quire_command::LoggedOn { message_size_max: 1 << 20, ..logged_on }));
    core.publish(&numbered(Sequence::Auto)).unwrap();
    let (code, scope) = (Code::StorageFull, FailureScope::AllFromHere);
    hear(&mut core, &Reply::PublishFailed { sequence: 1, code, scope, reason: "full" });
    let refused = core.publish(&numbered(Sequence::Auto)).unwrap_err();
    assert!(matches!(refused, PublishError::Refused(failure) if failure.code == Code::StorageFull));
    core
}

#[test]
fn a_publish_is_taken_as_soon_as_the_server_reports_that_its_disk_has_room() {
    let reason = "the journal takes writes again";
    let ends = Reply::Error { code: Code::StorageFull, reason };
    // The acknowledgement and the end of the connection may arrive apart. The end comes alone when
    // every publish was persisted before.
    for reply in [Reply::Persisted { sequence: 1 }, ends] {
        let mut core = stalled();
        hear(&mut core, &reply);
        assert_eq!(core.publish(&numbered(Sequence::Auto)).unwrap(), Some(2));
        let flush = core.flush().unwrap();
        core.handle_disconnected(Instant(0));
        let answered = |event| matches!(event, Event::Answered { command, .. } if command == flush);
        assert!(!std::iter::from_fn(|| core.poll_event()).any(answered), "the next connection answers it");
    }
}

#[test]
fn a_flush_sends_its_command_when_no_acknowledgement_would_say_as_much() {
    let acknowledged_rarely = ClientConfig { ack_interval: Duration::from_secs(1), ..config("client") };
    let (mut link, client) = unwritten(acknowledged_rarely);
    link.publish(client, "orders", "1");
    link.run();
    assert!(sends_command(&mut link, client), "the acknowledgement may wait for the interval");

    let publish_nothing: fn(&mut Link, usize) = |_, _| ();
    let publish_without_sequence: fn(&mut Link, usize) = |link, client| {
        link.clients[client].core.publish(&numbered(Sequence::None)).unwrap();
        link.publish(client, "orders", "1");
    };
    let publish_lower: fn(&mut Link, usize) = |link, client| {
        for sequence in [10, 5] {
            link.clients[client].core.publish(&numbered(Sequence::Given(sequence))).unwrap();
        }
    };
    let ask_after_publish: fn(&mut Link, usize) = |link, client| {
        link.publish(client, "orders", "1");
        link.clients[client].core.queue_stats(Some("jobs")).unwrap();
    };
    let delete: fn(&mut Link, usize) = |link, client| {
        link.publish(client, "orders", "1");
        let spec = DeleteSpec { topic: "orders", filter: Some("1 = 1"), keys: None, data: None };
        link.clients[client].core.delete(&spec).unwrap();
    };
    let wait_until_persisted: fn(&mut Link, usize) = |link, client| {
        link.publish(client, "orders", "1");
        link.writes = true;
        link.run();
    };
    for (number, act) in [
        publish_nothing,
        publish_without_sequence,
        publish_lower,
        ask_after_publish,
        delete,
        wait_until_persisted,
    ]
    .into_iter()
    .enumerate()
    {
        let (mut link, client) = unwritten(config("client"));
        act(&mut link, client);
        link.run();
        assert!(sends_command(&mut link, client), "case {number}");
    }
}

#[test]
fn a_flush_without_a_command_survives_a_lost_connection() {
    let (mut link, client) = unwritten(config("client"));
    link.publish(client, "orders", "1");
    link.run();
    let flush = link.clients[client].core.flush().unwrap();
    link.kill(0);
    link.erase(0);
    link.start(0);
    link.pass(Duration::from_secs(60));
    assert_eq!(answer(&link, client, flush), None);
    link.writes = true;
    link.run();
    assert_eq!(answer(&link, client, flush), Some(&Ok(())));
}
