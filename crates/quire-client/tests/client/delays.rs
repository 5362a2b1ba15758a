//! Publishes with a delay: the frames of the first connection, the frames of later connections, and
//! the content of a publish log. The test is the server.

use std::sync::{Arc, Mutex};

use quire_client::*;
use quire_command::*;
use quire_types::time::Instant;
use quire_types::{Delay, Timestamp};
use quire_wire::{Decode, Encode, Inbox};

use crate::link::config;

const NOW: Instant = Instant(0);
const SECOND: u64 = 1_000_000_000;
const END: Timestamp = Timestamp(1_000_000_005 * SECOND);

/// A delay of five seconds.
const RELATIVE: NewDelay = NewDelay { end: END, ns: Some(5 * SECOND) };
/// A delay until a time of day.
const ABSOLUTE: NewDelay = NewDelay { end: END, ns: None };

fn message(delay: Option<NewDelay>, sequence: Sequence) -> NewMessage<'static> {
    NewMessage { delay, sequence, ..NewMessage::new("jobs", b"{}") }
}

fn publish(core: &mut ClientCore, delay: NewDelay) -> u64 {
    core.publish(&message(Some(delay), Sequence::Auto)).unwrap().unwrap()
}

fn client() -> ClientCore {
    ClientCore::new(config("loader"), NOW)
}

fn hear(core: &mut ClientCore, frame: &Reply<'_>) {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    core.handle_received(NOW, bytes.into()).unwrap();
}

fn log_on(core: &mut ClientCore, last_sequence: u64) {
    core.handle_connected(NOW);
    assert_eq!(sent(core), []);
    let logged_on = LoggedOn {
        version: 1,
        publisher: 7,
        message_size_max: 1 << 20,
        last_sequence,
        ..LoggedOn::default()
    };
    hear(core, &Reply::LoggedOn(logged_on));
}

/// Sequence and delay of the publishes that the client has sent since the last call.
fn sent(core: &mut ClientCore) -> Vec<(u64, Delay)> {
    let mut bytes = Vec::new();
    core.poll_transmit(NOW, &mut bytes);
    publishes(&bytes)
}

fn publishes(mut bytes: &[u8]) -> Vec<(u64, Delay)> {
    let (mut inbox, mut all) = (Inbox::new(1 << 20), Vec::new());
    while let Some(frame) = inbox.next(&mut bytes).unwrap() {
        if let Command::Publish(publish) = Command::decode(frame).unwrap() {
            assert_eq!((publish.topic, publish.data), (&b"jobs"[..], &b"{}"[..]));
            all.push((publish.sequence, publish.delay));
        }
    }
    all
}

const FOR: Delay = Delay::For { ns: 5 * SECOND };
const UNTIL: Delay = Delay::Until(END);

#[test]
fn a_relative_delay_is_sent_as_it_is_and_again_with_its_end() {
    let mut core = client();
    log_on(&mut core, 0);
    core.publish(&message(None, Sequence::Auto)).unwrap();
    publish(&mut core, RELATIVE);
    publish(&mut core, ABSOLUTE);
    publish(&mut core, RELATIVE);
    assert_eq!(sent(&mut core), [(1, Delay::None), (2, FOR), (3, UNTIL), (4, FOR)]);
    // The store drops frames in chunks, and so keeps this one.
    hear(&mut core, &Reply::Persisted { sequence: 1 });
    core.handle_disconnected(NOW);
    publish(&mut core, RELATIVE);
    for _ in 0..2 {
        log_on(&mut core, 0);
        let again = [(1, Delay::None), (2, UNTIL), (3, UNTIL), (4, UNTIL), (5, UNTIL)];
        assert_eq!(sent(&mut core), again);
        core.handle_disconnected(NOW);
    }
}

#[test]
fn a_publish_without_a_connection_is_sent_with_the_end_of_its_delay() {
    let mut core = client();
    publish(&mut core, RELATIVE);
    core.handle_connected(NOW);
    publish(&mut core, RELATIVE);
    log_on(&mut core, 0);
    publish(&mut core, RELATIVE);
    assert_eq!(sent(&mut core), [(1, UNTIL), (2, UNTIL), (3, FOR)]);
}

#[test]
fn a_publish_without_a_sequence_is_sent_once_with_its_relative_delay() {
    let mut core = client();
    log_on(&mut core, 0);
    for delay in [RELATIVE, ABSOLUTE] {
        assert_eq!(core.publish(&message(Some(delay), Sequence::None)), Ok(None));
    }
    assert_eq!(sent(&mut core), [(0, FOR), (0, UNTIL)]);
}

#[test]
fn what_is_persisted_is_forgotten_and_the_rest_has_the_ends_of_its_delays() {
    let mut core = client();
    log_on(&mut core, 0);
    let mut last = 0;
    // More than the store drops as one.
    while core.released() == 0 {
        for _ in 0..1_000 {
            core.publish(&message(None, Sequence::Auto)).unwrap();
            last = publish(&mut core, RELATIVE);
        }
        while !sent(&mut core).is_empty() {}
        hear(&mut core, &Reply::Persisted { sequence: last - 10 });
        assert!(last < 1_000_000, "nothing is dropped");
    }
    core.handle_disconnected(NOW);
    log_on(&mut core, last - 10);
    let mut again = sent(&mut core);
    while let Some(more) = Some(sent(&mut core)).filter(|more| !more.is_empty()) {
        again.extend(more);
    }
    assert!(again.len() >= 11);
    for (sequence, delay) in again {
        assert_eq!(delay, if sequence % 2 == 0 { UNTIL } else { Delay::None }, "{sequence}");
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl PublishLog for Log {
    fn has_room(&self, _: usize) -> bool {
        true
    }

    fn frame_size_max(&self) -> usize {
        1 << 20
    }

    fn append(&mut self, _: u64, frame: &[u8]) -> Result<(), Failure> {
        self.0.lock().unwrap().extend_from_slice(frame);
        Ok(())
    }

    fn persisted(&mut self, _: u64) {}
}

#[test]
fn a_publish_log_keeps_the_end_of_a_delay() {
    let (mut core, log) = (client(), Log::default());
    core.keep_publishes_in(Box::new(log.clone()), &StoredPublishes::default());
    log_on(&mut core, 0);
    let batch = [message(Some(RELATIVE), Sequence::Auto), message(Some(ABSOLUTE), Sequence::Auto)];
    core.publish_many(&batch, false).unwrap();
    assert_eq!(sent(&mut core), [(1, FOR), (2, UNTIL)]);
    assert_eq!(publishes(&log.0.lock().unwrap()), [(1, UNTIL), (2, UNTIL)]);
}
