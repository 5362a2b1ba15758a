//! The border of links. When another program sends anything that is not allowed there, the link
//! ends with a reason. The server, the journal and the other connections are not affected.

use std::time::Duration;

use proptest::prelude::*;
use quire_broker::{BrokerConfig, ConnectionId, Event, Input, SyncType};
use quire_command::{KEY_SIZE_MAX, Publish};

use super::links::{Cluster, destination, instance};
use super::pair::*;
use super::slices::with_stopwatch;
use quire_wire::link::VERSION;

const PEER: u64 = 5_000;
const HELLO: u8 = 1;
const REFUSED: u8 = 3;
const RECORDS: u8 = 4;
const ACKNOWLEDGED: u8 = 5;
const COMPRESSED: u8 = 8;
const LOGON: u8 = 10;

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 1).to_le_bytes()[..], &[kind], body].concat()
}

fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = text.as_ref();
    [&(bytes.len() as u16).to_le_bytes()[..], bytes].concat()
}

/// The logon of an instance without an identity.
pub fn logon(name: &str) -> Vec<u8> {
    frame(LOGON, &[&VERSION.to_le_bytes()[..], &text(name), &text(""), &text(""), &text("")].concat())
}

pub fn hello(name: &str, topics: &[&str], excluded: &[&str]) -> Vec<u8> {
    let mut body = VERSION.to_le_bytes().to_vec();
    [name, name, "a", ""].iter().for_each(|part| body.extend(text(part)));
    [1, 0, 0, 0, 0, 0].iter().for_each(|number: &u64| body.extend(number.to_le_bytes()));
    body.extend((topics.len() as u32).to_le_bytes());
    topics.iter().for_each(|topic| [topic, "json", ""].iter().for_each(|part| body.extend(text(part))));
    body.extend((excluded.len() as u32).to_le_bytes());
    excluded.iter().for_each(|check| body.extend(text(check)));
    body.extend([0; 4]);
    frame(HELLO, &body)
}

/// A record of a peer, with the parts that a test changes.
#[derive(Clone, Debug)]
pub struct Sent {
    kind: u8,
    message_type: u8,
    publisher: u64,
    sequence: u64,
    topic: Vec<u8>,
    correlation_id: Vec<u8>,
    attributes: Vec<u8>,
    data: Vec<u8>,
}

impl Sent {
    pub fn new(topic: &str, data: &str) -> Self {
        Sent {
            kind: 1,
            message_type: 1,
            publisher: 5,
            sequence: 1,
            topic: topic.into(),
            correlation_id: Vec::new(),
            attributes: Vec::new(),
            data: data.into(),
        }
    }

    pub fn of(self, publisher: u64, sequence: u64) -> Self {
        Sent { publisher, sequence, ..self }
    }

    fn with_key(self, key: &[u8]) -> Self {
        let mut attributes = vec![1, (key.len() % 128) as u8 | 0x80, (key.len() / 128) as u8];
        attributes.extend_from_slice(key);
        Sent { attributes, ..self }
    }

    fn record(&self) -> Vec<u8> {
        let mut bytes = self.sequence.to_le_bytes().to_vec();
        bytes.extend([self.kind, self.message_type]);
        [self.publisher, self.sequence].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.push(0);
        [&self.topic, &self.correlation_id, &self.attributes]
            .iter()
            .for_each(|part| bytes.extend(text(part)));
        bytes.extend((self.data.len() as u32).to_le_bytes());
        bytes.extend(&self.data);
        bytes
    }

    pub fn frame(&self) -> Vec<u8> {
        frame(RECORDS, &[&self.sequence.to_le_bytes()[..], &[0; 32], &self.record()].concat())
    }
}

/// The kinds and bodies of frames.
pub fn frames_of(bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let (mut frames, mut rest) = (Vec::new(), bytes);
    while let Some((size, after)) = rest.split_first_chunk::<4>() {
        let (frame, after) = after.split_at(u32::from_le_bytes(*size) as usize);
        frames.push((frame[0], frame[1..].to_vec()));
        rest = after;
    }
    frames
}

/// An instance with a last-value topic with key fields, and one with supplied keys.
fn config() -> BrokerConfig {
    let sow = r#"[
        {"name": "orders.prices", "message_type": "json", "key": ["/k"]},
        {"name": "orders.supplied", "message_type": "json"}
    ]"#;
    BrokerConfig { sow_topics: serde_json::from_str(sow).unwrap(), ..instance("a", vec![]) }
}

/// The instance, an honest client, and the peer.
struct Border {
    pair: Pair,
    sequence: u64,
}

impl Border {
    fn new(pair: Pair) -> Self {
        let mut border = Border { pair, sequence: 0 };
        border.pair.client(1, "honest");
        border.connect(PEER);
        border
    }

    fn connect(&mut self, connection: u64) {
        let now = self.pair.now();
        let connection = ConnectionId(connection);
        self.pair.broker.handle(now, Input::LinkAccepted { connection, peer: "peer", tls: false });
        self.pair.broker.handle(now, Input::Received { connection, bytes: &logon("peer") });
        self.pair.turn();
        self.pair.links.retain(|output| matches!(output, LinkOutput::Close { .. }));
    }

    fn send(&mut self, bytes: &[u8]) {
        let now = self.pair.now();
        self.pair.broker.handle(now, Input::Received { connection: ConnectionId(PEER), bytes });
        self.pair.turn();
    }

    /// The frames that the peer got, by their kind.
    fn take(&mut self) -> Vec<(u8, Vec<u8>)> {
        let mut bytes = Vec::new();
        for output in self.pair.links.drain(..) {
            if let LinkOutput::Send { connection: PEER, bytes: sent } = output {
                bytes.extend(sent);
            }
        }
        frames_of(&bytes)
    }

    /// The reason with which the link ended.
    fn refusal(&mut self) -> Option<String> {
        let refused = self.take().into_iter().find(|(kind, _)| *kind == REFUSED);
        refused.map(|(_, body)| String::from_utf8(body[2..].to_vec()).unwrap())
    }

    /// The journal takes writes, and other connections are served.
    fn assert_unharmed(&mut self) {
        self.sequence += 1;
        self.pair.publish(1, self.sequence, "orders", "{}");
        self.pair.turn();
        assert_eq!(self.pair.take(1), [Said::Persisted(self.sequence)]);
        assert!(!self.pair.broker.stats().journal_failed);
    }
}

/// A link that was let in.
fn open() -> Border {
    let mut border = Border::new(Pair::with(config()));
    border.send(&hello("evil", &[], &["replicate"]));
    assert_eq!(border.refusal(), None);
    border
}

#[test]
fn a_record_that_no_client_could_publish_ends_its_link_and_nothing_else() {
    let good = Sent::new("orders", "{}");
    let kind = |kind: u8, data: &str| Sent { kind, ..Sent::new("orders.prices", data) };
    let path = |names: &[&str]| {
        let names = names.iter().flat_map(|name| [&[name.len() as u8], name.as_bytes()].concat());
        let value: Vec<_> = [1].into_iter().chain(names).collect();
        [&[2, value.len() as u8][..], &value].concat()
    };
    let delayed = [&[4, 8][..], &u64::MAX.to_le_bytes()].concat();
    let bad = [
        (kind(4, "{}"), "not a list of keys"),
        (Sent { data: [&[0xac, 2][..], &[b'k'; 300]].concat(), ..kind(4, "") }, "a key of 300 bytes"),
        (kind(2, "{}"), "kind \"acknowledge\""),
        (kind(3, "{}"), "kind \"lease\""),
        (Sent { data: b"\x01k".to_vec(), ..Sent { kind: 4, ..good.clone() } }, "keeps no last values"),
        (Sent { correlation_id: vec![b'c'; 256], ..good.clone() }, "a correlation id of 256 bytes"),
        (Sent::new("orders.prices", r#"{"k":1}"#).with_key(&[b'k'; 300]), "a key of 300 bytes"),
        (Sent::new("orders.supplied", "{}").with_key(b"\xff\xfe"), "a key of 2 bytes"),
        (Sent::new("orders", "{}").with_key(b"k"), "keeps no last values"),
        (Sent::new("orders.prices", "no JSON").with_key(b"k"), "not a valid json message"),
        (Sent { attributes: path(&["../../etc", ""]), ..good.clone() }, "an instance of its path"),
        (Sent { attributes: path(&["b", "x\ny"]), ..good.clone() }, "a group of its path"),
        (Sent { attributes: delayed, ..good.clone() }, "delay"),
        (Sent { topic: vec![b't'; 1025], ..good.clone() }, "a topic"),
        (Sent { topic: b"unrecorded".to_vec(), ..good.clone() }, "txlog"),
        (Sent { message_type: 3, ..good.clone() }, "message_type"),
        (Sent { data: vec![b' '; (16 << 20) + 1], ..good.clone() }, "max_message_size is 16777216 bytes"),
        (Sent { data: vec![b' '; 21 << 20], ..good.clone() }, "max_message_size is 16777216 bytes"),
    ];
    for (sent, expected) in bad {
        let mut border = open();
        border.send(&sent.frame());
        let reason = border.refusal().unwrap_or_default();
        assert!(reason.contains(expected), "{expected}: {reason:?}");
        border.assert_unharmed();
        let ended = |event: &Event| matches!(event, Event::LinkRefused { source, .. } if source == "evil");
        assert!(border.pair.log.iter().any(ended), "{expected}");
    }
}

#[test]
fn records_that_a_client_could_publish_are_taken() {
    let mut border = open();
    let good = [
        Sent::new("orders", "any bytes"),
        Sent { sequence: 2, ..Sent::new("orders.prices", r#"{"k":1}"#).with_key(&[b'k'; KEY_SIZE_MAX]) },
        Sent { sequence: 3, ..Sent::new("orders.supplied", "any bytes").with_key(b"key") },
        Sent { sequence: 4, ..Sent::new("orders.prices", "a dead letter without a key") },
        Sent { sequence: 5, correlation_id: vec![b'c'; 255], ..Sent::new("orders", "") },
        Sent { sequence: 6, kind: 4, data: b"\x03key".to_vec(), ..Sent::new("orders.supplied", "") },
    ];
    good.iter().for_each(|sent| border.send(&sent.frame()));
    let acknowledged = border.take().iter().filter(|(kind, _)| *kind == ACKNOWLEDGED).count();
    assert_eq!((acknowledged, border.pair.broker.stats().appended), (6, 6));
    border.assert_unharmed();
}

#[test]
fn a_source_may_leave_out_the_checks_of_keys() {
    let mut border = Border::new(Pair::with(config()));
    border.send(&hello("old", &[], &["replicate", "sow", "key"]));
    border.send(&Sent::new("orders", "{}").with_key(b"k").frame());
    border.send(&Sent { sequence: 2, ..Sent::new("orders.prices", "no JSON").with_key(b"k") }.frame());
    assert_eq!((border.refusal(), border.pair.broker.stats().appended), (None, 2));
    border.send(&Sent { sequence: 3, ..Sent::new("orders", "{}").with_key(&[b'k'; 256]) }.frame());
    assert!(border.refusal().is_some(), "no log can have this key");
    border.assert_unharmed();
}

#[test]
fn names_of_instances_with_other_characters_are_refused() {
    for name in ["../../etc/passwd", "evil\n2026-11-27 ERROR", "", "a b"] {
        let mut border = Border::new(Pair::with(config()));
        border.send(&hello(name, &[], &["replicate"]));
        assert!(border.refusal().unwrap_or_default().contains("is not 1 to 100 letters"), "{name:?}");
    }
}

#[test]
fn a_compressed_frame_without_a_body_is_refused() {
    for (size, bytes) in [(0_u32, &b""[..]), (5, b"")] {
        for algorithm in [1_u8, 2] {
            let mut border = open();
            border.send(&frame(COMPRESSED, &[&[algorithm][..], &size.to_le_bytes(), bytes].concat()));
            assert!(border.refusal().is_some(), "{algorithm} {size}");
            border.assert_unharmed();
        }
    }
}

#[test]
fn unfinished_frames_of_links_count_in_max_unfinished() {
    let limits = quire_broker::Limits { max_unfinished: 10 << 20, ..quire_broker::Limits::default() };
    let mut border = Border::new(Pair::with(BrokerConfig { limits, ..config() }));
    let begun = &frame(RECORDS, &vec![0; 9 << 20])[..6 << 20];
    border.send(&hello("evil", &[], &["replicate"]));
    border.send(begun);
    assert_eq!(border.refusal(), None);
    border.connect(PEER + 1);
    let now = border.pair.now();
    let second = [hello("evil-2", &[], &["replicate"]), begun.to_vec()].concat();
    border.pair.broker.handle(now, Input::Received { connection: ConnectionId(PEER + 1), bytes: &second });
    border.pair.turn();
    let closed =
        |output: &LinkOutput| matches!(output, LinkOutput::Close { connection } if *connection == PEER + 1);
    assert!(border.pair.links.iter().any(closed));
    border.assert_unharmed();
    // The bytes of a connection that is gone count no longer.
    border.pair.broker.handle(now, Input::Disconnected { connection: ConnectionId(PEER) });
    border.connect(PEER);
    border.send(&hello("evil", &[], &["replicate"]));
    border.send(begun);
    assert_eq!(border.refusal(), None);
}

#[test]
fn connections_of_other_instances_have_a_limit() {
    let mut border = Border::new(Pair::with(config()));
    (1..70).for_each(|number| border.connect(PEER + number));
    border.pair.turn();
    let closed = border.pair.links.iter().filter(|output| matches!(output, LinkOutput::Close { .. })).count();
    assert_eq!(closed, 70 - 64);
    border.assert_unharmed();
}

#[test]
fn a_frame_of_many_records_is_recorded_over_several_turns() {
    let mut border = Border::new(with_stopwatch(config()));
    border.send(&hello("evil", &[], &["replicate"]));
    let records = |sequence: u64| Sent { sequence, ..Sent::new("orders", "{}") }.record();
    let mut body = [&20_000_u64.to_le_bytes()[..], &[0; 32]].concat();
    (1..=20_000).for_each(|sequence| body.extend(records(sequence)));
    let bytes = frame(RECORDS, &body);
    let now = border.pair.now();
    let connection = ConnectionId(PEER);
    border.pair.broker.handle(now, Input::Received { connection, bytes: &bytes });
    border.pair.one_turn();
    let appended = border.pair.broker.stats().appended;
    assert!((1..5_000).contains(&appended), "{appended} records in one turn");
    let next = Sent { sequence: 20_001, ..Sent::new("orders", "{}") }.frame();
    border.pair.broker.handle(now, Input::Received { connection, bytes: &next });
    border.pair.turn();
    assert_eq!(border.pair.broker.stats().appended, 20_001);
    assert_eq!(border.refusal(), None);
    border.assert_unharmed();
}

#[test]
fn greetings_on_one_connection_are_taken_at_intervals() {
    let mut border = Border::new(Pair::with(config()));
    let one = hello("evil", &[], &["replicate"]);
    border.send(&one.repeat(20));
    let accepted = |border: &Border| {
        border.pair.log.iter().filter(|event| matches!(event, Event::LinkAccepted { .. })).count()
    };
    assert_eq!(accepted(&border), 1);
    border.pair.pass(Duration::from_millis(450));
    assert_eq!(accepted(&border), 5);
    border.assert_unharmed();
}

#[test]
fn the_topics_of_a_greeting_have_a_limit_and_are_checked_over_several_turns() {
    let names: Vec<_> = (0..10_001).map(|number| format!("orders.{number}")).collect();
    let topics: Vec<_> = names.iter().map(String::as_str).collect();
    let mut border = Border::new(with_stopwatch(config()));
    border.send(&hello("evil", &topics, &["replicate"]));
    assert!(border.refusal().unwrap_or_default().contains("more topics than a hello has"));
    let mut border = Border::new(with_stopwatch(config()));
    let now = border.pair.now();
    let bytes = hello("honest", &topics[..10_000], &["replicate"]);
    border.pair.broker.handle(now, Input::Received { connection: ConnectionId(PEER), bytes: &bytes });
    border.pair.one_turn();
    assert_eq!(border.take(), [], "the checks take more than a turn");
    border.pair.turn();
    // The answer, and the members: the source is one while it is connected.
    assert_eq!(border.take().len(), 2);
    border.assert_unharmed();
}

#[test]
fn a_record_above_the_limit_of_the_destination_is_refused_and_both_sides_report_it() {
    for size in [70_000, 6 << 20] {
        let configs = |limit: u32| {
            let mut to = instance("b", vec![]);
            to.transports[0].max_message_size = limit;
            vec![instance("a", vec![destination("b", SyncType::Async)]), to]
        };
        let mut cluster = Cluster::new(configs(1 << 16));
        cluster.at(0).client(1, "p");
        cluster.publish(0, 1, 1, 3);
        cluster.at(0).publish(1, 4, "orders", &"x".repeat(size));
        cluster.publish(0, 1, 5, 1);
        cluster.pass(Duration::from_secs(60));
        let link = cluster.stats(0).destinations[0].clone();
        let reason = link.last_error.unwrap_or_default();
        assert_eq!((link.state, cluster.log(1).len()), ("refused", 3), "{reason}");
        assert!(reason.contains("max_message_size is 65536 bytes"), "{reason}");
        assert!(link.connect_count < 12, "{} links in a minute", link.connect_count);
        let tells = |event: &Event| matches!(event, Event::LinkRefused { reason, .. } if reason.contains("max_message_size"));
        assert!(cluster.at(1).log.iter().any(tells));
        cluster.kill(1);
        cluster.configure(1, configs(16 << 20).remove(1));
        cluster.start(1);
        cluster.pass(Duration::from_secs(60));
        assert_eq!((cluster.log(1).len(), cluster.stats(0).destinations[0].state), (5, "live"));
    }
}

/// Parts of records: usual ones, and any bytes.
fn any_record() -> impl Strategy<Value = Sent> {
    let bytes = |usual: &'static [&'static [u8]]| {
        prop_oneof![
            3 => prop::sample::select(usual).prop_map(<[u8]>::to_vec),
            1 => prop::collection::vec(any::<u8>(), 0..400),
        ]
    };
    let topics: &[&[u8]] = &[b"orders", b"orders.prices", b"orders.supplied", b"local"];
    let attributes: &[&[u8]] = &[b"", b"\x01\x01k", b"\x02\x04\x01\x01b\0", b"\x04\x08\x01\0\0\0\0\0\0\0"];
    let data: &[&[u8]] = &[b"{}", br#"{"k":1}"#, b"\x01k", b"\x03key\x01k"];
    let sequence = prop_oneof![1_u64..50, Just(u64::MAX)];
    (0_u8..6, 0_u8..9, any::<u64>(), sequence, bytes(topics), bytes(&[b""]), bytes(attributes), bytes(data))
        .prop_map(|(kind, message_type, publisher, sequence, topic, correlation_id, attributes, data)| Sent {
            kind,
            message_type,
            publisher,
            sequence,
            topic,
            correlation_id,
            attributes,
            data,
        })
}

proptest! {
    #[test]
    fn any_records_leave_the_server_and_other_connections_unharmed(
        sent in prop::collection::vec(any_record(), 1..12),
        garbage in prop::collection::vec(any::<u8>(), 0..40),
        excludes in any::<bool>(),
    ) {
        let mut border = Border::new(Pair::with(config()));
        let excluded: &[&str] = if excludes { &["replicate", "sow", "key"] } else { &["replicate"] };
        for sent in sent {
            border.send(&hello("evil", &[], excluded));
            border.send(&sent.frame());
            border.pair.pass(Duration::from_millis(100));
        }
        border.send(&garbage);
        border.assert_unharmed();
        // The log can be read by a start.
        let Border { pair, .. } = border;
        let disk = pair.disk.clone();
        drop(pair);
        let mut again = Border::new(Pair::on(disk, config()));
        again.sequence = 1;
        again.pair.take(1);
        again.assert_unharmed();
    }
}

#[test]
fn a_publisher_whose_sequences_another_instance_used_up_is_refused_and_others_are_not() {
    let mut border = open();
    let client = quire_journal::PublisherId::of_client_name("honest");
    let publisher = quire_journal::PublisherId::derived(client, "a").get();
    border.send(&Sent { publisher, sequence: u64::MAX, ..Sent::new("orders", "{}") }.frame());
    border.take();
    // A message without a sequence gets the next number of this publisher, and there is none.
    border
        .pair
        .send(1, &quire_command::Command::Publish(Publish { sequence: 0, ..publish(0, "orders", "{}") }));
    border.pair.turn();
    let said = border.pair.take(1);
    assert!(!border.pair.broker.stats().journal_failed, "{said:?}");
    border.connect(PEER + 1);
    border.assert_unharmed();
}
