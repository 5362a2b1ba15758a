//! The events between a connection and its logon.

use std::time::Duration;

use quire_client::{
    ClientConfig, ClientCore, ConnectionState, DeleteSpec, Event, Failure, FailureCode, NewMessage,
    PublishError, PublishLog, Sequence, StoredPublishes, SubscriptionSpec,
};
use quire_command::{Code, Command, LoggedOn, Reply, TOKEN_EXPIRED};
use quire_types::time::Instant;
use quire_wire::{Decode, Encode, RawFrame};

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
        ConnectionState::Reconnecting,
        "what it published is not persisted"
    );
    link.writes = true;
    link.pass(Duration::from_millis(10));
    assert_eq!(*link.clients[publisher].core.state(), ConnectionState::Connected);
    assert_eq!(link.clients[publisher].core.persisted(), 1);
}

/// Before a fix, the time of a heartbeat that is not sent before the logon was over until the
/// server answered, and the thread of the client kept a processor busy. The simulation found this.
#[test]
fn a_logon_that_waits_leaves_no_timer_that_is_over() {
    let interval = Duration::from_millis(100);
    let start = Instant::from_ns(0);
    let mut core = ClientCore::new(ClientConfig { heartbeat: Some(interval), ..config("client") }, start);
    core.handle_connected(start);
    let mut logon = Vec::new();
    core.poll_transmit(start, &mut logon);
    let later = start + interval + interval / 2;
    assert!(!core.handle_timeout(later), "the server is not silent for long enough");
    assert_eq!(core.next_timeout(), Some(start + interval * 2));
    assert!(core.handle_timeout(start + interval * 2), "the server is silent");
}

/// Before a fix, a client that began again from the start under the same name waited for room
/// without end: a server acknowledges only the first copy of a publish.
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
            let message =
                NewMessage { sequence: Sequence::Given(sequence), ..NewMessage::new("orders", &data) };
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

fn publish_next(link: &mut Link, client: usize) -> Result<Option<u64>, PublishError> {
    link.clients[client].core.publish(&NewMessage::new("orders", b"x"))
}

#[test]
fn after_the_last_sequence_a_publish_is_an_error() {
    let mut link = Link::new(&["one"]);
    let publisher = link.client(config("publisher"));
    link.run();
    let last = NewMessage { sequence: Sequence::Given(u64::MAX - 1), ..NewMessage::new("orders", b"x") };
    link.clients[publisher].core.publish(&last).unwrap();
    assert_eq!(publish_next(&mut link, publisher).unwrap(), Some(u64::MAX));
    let refused = publish_next(&mut link, publisher).unwrap_err();
    let PublishError::Refused(failure) = refused else { panic!("{refused:?}") };
    assert_eq!(failure.code, Code::LimitExceeded);
    assert!(failure.reason.contains("\"publisher\" has used the last number"), "{}", failure.reason);
    link.run();
    assert_eq!(link.clients[publisher].core.persisted(), u64::MAX);
    // The next program of this name learns the same at its logon.
    link.cut(publisher);
    let again = link.client(config("publisher"));
    link.run();
    assert!(matches!(publish_next(&mut link, again), Err(PublishError::Refused(_))));
}

#[test]
fn a_client_is_told_that_another_program_has_published_under_its_name() {
    let mut core = ClientCore::new(config("loader-9"), Instant(0));
    let log_on = |core: &mut ClientCore, highest: u64| {
        core.handle_disconnected(Instant(0));
        core.handle_connected(Instant(0));
        let mut bytes = Vec::new();
        let logged_on = LoggedOn {
            version: 1,
            last_sequence: highest,
            highest_sequence: highest,
            message_size_max: 1 << 20,
            ..LoggedOn::default()
        };
        Reply::LoggedOn(logged_on).encode(&mut bytes);
        core.handle_received(Instant(0), bytes.into()).unwrap();
        let (mut overtaken, mut dropped) = (None, None);
        while let Some(event) = core.poll_event() {
            match event {
                Event::Overtaken { own, persisted, highest } => overtaken = Some((own, persisted, highest)),
                Event::PublishFailed { sequence, failure } => {
                    assert_eq!(failure.code, FailureCode::Wire(Code::NameInUse));
                    dropped = Some((sequence, failure.reason));
                }
                _ => (),
            }
        }
        assert_eq!(overtaken.is_some(), dropped.is_some());
        overtaken.zip(dropped.map(|(sequence, reason)| {
            let reason = reason.split(". ").nth(1).unwrap().split(':').next().unwrap();
            (sequence, reason.to_owned())
        }))
    };
    let message = NewMessage::new("orders", b"x");
    // An earlier program with the name is expected.
    assert_eq!(log_on(&mut core, 3), None);
    (4..=7).for_each(|sequence| assert_eq!(core.publish(&message).unwrap(), Some(sequence)));
    assert_eq!(log_on(&mut core, 5), None);
    let may = "2 publishes of this client may have been dropped as duplicates".to_owned();
    assert_eq!(log_on(&mut core, 1000), Some(((7, 5, 1000), (6, may))));
    assert_eq!(log_on(&mut core, 1000), None);
    assert_eq!(core.publish(&message).unwrap(), Some(1001));
    // A client that publishes before its first logon has sent none of them. Some of their sequences
    // may be above those of the server.
    for (highest, dropped) in [(10, 6), (6, 6), (2, 2)] {
        let mut core = ClientCore::new(config("loader-9"), Instant(0));
        (1..=6).for_each(|sequence| assert_eq!(core.publish(&message).unwrap(), Some(sequence)));
        let were = format!("{dropped} publishes of this client were dropped as duplicates");
        assert_eq!(log_on(&mut core, highest), Some(((6, 0, highest), (1, were))));
        assert_eq!(log_on(&mut core, highest.max(6)), None);
    }
    // The server drops the repeats of a program that numbers its publishes. That is what the
    // program wants.
    let mut core = ClientCore::new(config("loader-9"), Instant(0));
    let numbered = NewMessage { sequence: Sequence::Given(3), ..message };
    assert_eq!(core.publish(&numbered).unwrap(), Some(3));
    assert_eq!(log_on(&mut core, 3), None);
}

#[test]
fn every_connection_has_the_next_number() {
    let now = Instant::from_ns(0);
    let mut core = ClientCore::new(config("publisher"), now);
    for number in 1..=3 {
        core.handle_connected(now);
        let mut bytes = Vec::new();
        core.poll_transmit(now, &mut bytes);
        // The frame begins with its size and its kind.
        let frame = RawFrame { kind: bytes[4], body: &bytes[5..] };
        let Ok(Command::Logon(logon)) = Command::decode(frame) else { panic!("{bytes:?}") };
        assert_eq!((logon.incarnation, logon.connection_number), (config("publisher").incarnation, number));
        core.handle_disconnected(now);
    }
}

/// The run and the persisted sequence of the next logon.
fn next_run(core: &mut ClientCore) -> (u64, u64) {
    core.handle_disconnected(Instant(0));
    core.handle_connected(Instant(0));
    let mut bytes = Vec::new();
    core.poll_transmit(Instant(0), &mut bytes);
    let Ok(Command::Logon(logon)) = Command::decode(RawFrame { kind: bytes[4], body: &bytes[5..] }) else {
        panic!("{bytes:?}")
    };
    (logon.run, logon.persisted)
}

#[test]
fn a_logon_names_the_run_and_the_highest_sequence_that_was_acknowledged_to_it() {
    let mut core = ClientCore::new(config("publisher"), Instant(0));
    let incarnation = config("publisher").incarnation;
    assert_eq!(next_run(&mut core), (incarnation, 0));
    let mut bytes = Vec::new();
    Reply::LoggedOn(LoggedOn { version: 1, last_sequence: 5, highest_sequence: 5, ..LoggedOn::default() })
        .encode(&mut bytes);
    Reply::Persisted { sequence: 7 }.encode(&mut bytes);
    core.handle_received(Instant(0), bytes.into()).unwrap();
    assert_eq!(next_run(&mut core), (incarnation, 7));
    // A store in a file is one run, whichever client publishes through it.
    let mut core = ClientCore::new(config("publisher"), Instant(0));
    let stored = StoredPublishes { last_sequence: 12, persisted: 9, run: 5, ..StoredPublishes::default() };
    core.keep_publishes_in(Box::new(NoLog), &stored);
    assert_eq!(next_run(&mut core), (5, 9));
}

fn refuse(core: &mut ClientCore, code: Code, reason: &str) {
    core.handle_connected(Instant(0));
    let mut bytes = Vec::new();
    Reply::Error { code, reason }.encode(&mut bytes);
    core.handle_received(Instant(0), bytes.into()).unwrap();
    core.handle_disconnected(Instant(0));
}

#[test]
fn a_token_that_has_expired_is_replaced_once() {
    let mut core = ClientCore::new(ClientConfig { renews_token: true, ..config("a") }, Instant(0));
    refuse(&mut core, Code::AuthenticationFailed, TOKEN_EXPIRED);
    assert_eq!(*core.state(), ConnectionState::Connecting);
    assert!(core.is_renewing_token());
    assert_eq!(core.poll_connect(), Some((0, Instant(0))), "the same address, at once");
    refuse(&mut core, Code::AuthenticationFailed, TOKEN_EXPIRED);
    assert!(
        matches!(core.state(), ConnectionState::Closed(Some(failure)) if failure.reason == TOKEN_EXPIRED)
    );
}

#[test]
fn a_token_is_not_replaced_without_another_one_or_for_another_reason() {
    for (renews_token, reason) in [(false, TOKEN_EXPIRED), (true, "user or token are not accepted")] {
        let mut core = ClientCore::new(ClientConfig { renews_token, ..config("a") }, Instant(0));
        refuse(&mut core, Code::AuthenticationFailed, reason);
        assert!(matches!(core.state(), ConnectionState::Closed(Some(_))));
    }
}

#[test]
fn a_logon_that_cannot_be_checked_is_tried_again() {
    let mut core = ClientCore::new(config("a"), Instant(0));
    refuse(&mut core, Code::AuthenticationUnavailable, "the service does not answer");
    assert_eq!(*core.state(), ConnectionState::Connecting);
    assert!(core.poll_connect().is_some_and(|(_, at)| at > Instant(0)));
}

/// A publish log that keeps nothing.
struct NoLog;

impl PublishLog for NoLog {
    fn has_room(&self, _: usize) -> bool {
        true
    }

    fn frame_size_max(&self) -> usize {
        1 << 20
    }

    fn append(&mut self, _: u64, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }

    fn persisted(&mut self, _: u64) {}
}

/// A client that is logged on to a server that takes messages of 1 KB.
fn limited() -> ClientCore {
    let mut core = ClientCore::new(config("guest"), Instant(0));
    core.handle_connected(Instant(0));
    let mut bytes = Vec::new();
    Reply::LoggedOn(LoggedOn { version: 1, message_size_max: 1024, ..LoggedOn::default() })
        .encode(&mut bytes);
    core.handle_received(Instant(0), bytes.into()).unwrap();
    core
}

#[test]
fn a_message_that_is_larger_than_what_the_client_may_publish_is_received() {
    let mut core = limited();
    let (number, _) = core.subscribe(SubscriptionSpec::new("news")).unwrap();
    let data = vec![b'x'; 1 << 20];
    let message = quire_command::Message {
        subscription: number,
        bookmark: Some((1, 1)),
        timestamp_ns: 1,
        queued: None,
        topic: b"news",
        correlation_id: b"",
        headers: quire_types::Headers::NONE,
        key: b"",
        kind: quire_command::MessageKind::Publish,
        data: &data,
    };
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    core.handle_received(Instant(0), bytes.into()).unwrap();
    let received = std::iter::from_fn(|| core.poll_event()).find_map(|event| match event {
        Event::Messages { messages, .. } => Some(messages.len()),
        _ => None,
    });
    assert_eq!(received, Some(1));
    // No record of a log is larger, so these bytes are not from a server.
    let size = (quire_wire::SERVER_FRAME_SIZE_MAX as u32 + 1).to_le_bytes();
    assert!(core.handle_received(Instant(0), size.to_vec().into()).is_err());
}

#[test]
fn a_command_that_the_server_would_not_take_is_refused_and_the_client_continues() {
    let mut core = limited();
    let filter = Some(format!("/x = '{}'", "y".repeat(200_000)));
    let (number, refused) =
        core.subscribe(SubscriptionSpec { filter, ..SubscriptionSpec::new("news") }).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| core.poll_event()).collect();
    let is_refusal = |event: &Event| {
        matches!(event, Event::Answered { command, result: Err(failure) }
            if *command == refused && failure.code == Code::MessageTooLarge)
    };
    assert!(events.iter().any(is_refusal), "{events:?}");
    assert!(core.subscription(number).is_none());
    let keys: Vec<_> = (0..2_000).map(|number| format!("{number:0100}")).collect();
    let delete = DeleteSpec { topic: "prices", keys: Some(&keys), ..DeleteSpec::default() };
    let Err(PublishError::Refused(failure)) = core.delete(&delete) else { panic!() };
    assert_eq!(failure.code, Code::MessageTooLarge);
    assert_eq!((core.state(), core.unpersisted_count()), (&ConnectionState::Connected, 0));
}
