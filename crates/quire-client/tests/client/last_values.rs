//! Queries, deletes and subscriptions to records, against a server that the test plays: after every
//! reconnect the program has exactly the records that the server has, and was told of every
//! difference once.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use quire_client::*;
use quire_command::{
    self as command, Ack, AckKind, Acks, Code, Command, LoggedOn, MessageKind, OofReason, RecordHash, Reply,
    SubscribeOptions,
};
use quire_types::time::Instant;
use quire_wire::{Decode, Encode, Inbox};
use xxhash_rust::xxh3::xxh3_128;

use crate::link::config;

/// A server with one last-value topic. The filter of every subscription matches data that begins
/// with an even byte, which is below the limit that the filter names.
struct Server {
    records: BTreeMap<String, u8>,
    /// Frames that are on their way to the client.
    outgoing: VecDeque<Vec<u8>>,
    inbox: Option<Inbox>,
    subscription: Option<u32>,
    /// It is a delta subscription.
    is_delta: bool,
    limit: u8,
    queries: usize,
    /// The bookmark of each subscribe command, and whether it asked for records.
    asked: Vec<(Option<String>, bool)>,
    /// The results of deletes: command, sequence.
    deletes: Vec<(u32, u64)>,
    last_sequence: u64,
}

const TOPIC: &str = "orders";

fn matches(data: u8) -> bool {
    data.is_multiple_of(2)
}

impl Server {
    fn new() -> Self {
        Server {
            records: BTreeMap::new(),
            outgoing: VecDeque::new(),
            inbox: None,
            subscription: None,
            is_delta: false,
            limit: u8::MAX,
            queries: 0,
            asked: Vec::new(),
            deletes: Vec::new(),
            last_sequence: 0,
        }
    }

    fn matches(&self, data: u8) -> bool {
        matches(data) && data < self.limit
    }

    /// The subscription has the limit now, and had another one before.
    fn replace(&mut self, number: u32, before: u8) {
        let records = self.records.clone();
        let changes =
            records.iter().filter(|(_, data)| matches(**data) && (**data < before) != (**data < self.limit));
        let (left, entered): (Vec<_>, Vec<_>) = changes.partition(|(_, data)| **data < before);
        for (key, data) in left {
            self.message(number, key, MessageKind::Oof(OofReason::Match), *data);
        }
        for (key, data) in entered {
            self.message(number, key, MessageKind::Publish, *data);
        }
    }

    fn say(&mut self, reply: &Reply<'_>) {
        let mut frame = Vec::new();
        reply.encode(&mut frame);
        self.outgoing.push_back(frame);
    }

    fn message(&mut self, subscription: u32, key: &str, kind: MessageKind, data: u8) {
        // A difference has other bytes than the record.
        let parts = [data, 0xff];
        let data = if matches!(kind, MessageKind::Delta(_)) { &parts[..] } else { &parts[..1] };
        self.say(&Reply::Message(command::Message {
            subscription,
            topic: TOPIC.as_bytes(),
            key: key.as_bytes(),
            kind,
            data,
            ..command::Message::default()
        }));
    }

    fn ack(&mut self, kind: AckKind, command: u32, subscription: u32, code: Code, detail: u32) {
        self.say(&Reply::Ack(Ack { kind, code, command, subscription, detail, reason: "" }));
    }

    fn connected(&mut self) {
        self.outgoing.clear();
        self.inbox = Some(Inbox::new(1 << 20));
        self.subscription = None;
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut inbox = self.inbox.take().unwrap();
        let mut rest = bytes;
        while let Some(frame) = inbox.next(&mut rest).unwrap() {
            self.command(Command::decode(frame).unwrap());
        }
        self.inbox = Some(inbox);
    }

    fn command(&mut self, command: Command<'_>) {
        match command {
            Command::Logon(_) => self.say(&Reply::LoggedOn(LoggedOn {
                version: 1,
                publisher: 1,
                last_sequence: self.last_sequence,
                highest_sequence: self.last_sequence,
                message_size_max: 1 << 20,
                instance: "test",
                server_version: None,
                takes_reasons: true,
            })),
            Command::Subscribe(subscribe) => {
                let number = subscribe.subscription;
                let has_records = subscribe.options.has(SubscribeOptions::SOW);
                self.asked.push((subscribe.bookmark.map(str::to_owned), has_records));
                self.subscription = Some(number);
                self.is_delta = subscribe.options.has(SubscribeOptions::DELTA);
                self.ack(AckKind::Processed, subscribe.command, number, Code::Ok, 0);
                let limit = subscribe.filter.map_or(u8::MAX, |filter| filter.parse().unwrap());
                let before = std::mem::replace(&mut self.limit, limit);
                if !has_records {
                    return;
                }
                if subscribe.options.has(SubscribeOptions::REPLACE) {
                    return self.replace(number, before);
                }
                assert!(subscribe.acks.has(Acks::COMPLETED));
                let found: Vec<_> =
                    self.records.clone().into_iter().filter(|(_, data)| self.matches(*data)).collect();
                for (key, data) in &found {
                    self.message(number, key, MessageKind::Record, *data);
                }
                self.ack(AckKind::Completed, subscribe.command, number, Code::Ok, found.len() as u32);
            }
            Command::Query(query) => {
                self.queries += 1;
                let number = query.subscription;
                assert!(query.wants_last_values);
                self.ack(AckKind::Processed, query.command, number, Code::Ok, 0);
                let keys: Option<Vec<String>> = query
                    .keys
                    .map(|keys| keys.iter().map(|key| String::from_utf8(key.to_vec()).unwrap()).collect());
                let wanted = |key: &String| keys.as_ref().is_none_or(|keys| keys.contains(key));
                let found: Vec<_> = self.records.clone().into_iter().filter(|(key, _)| wanted(key)).collect();
                for (key, data) in &found {
                    self.message(number, key, MessageKind::Record, *data);
                }
                self.ack(AckKind::Completed, query.command, number, Code::Ok, found.len() as u32);
            }
            Command::SowDelete(delete) => {
                self.deletes.push((delete.command, delete.sequence));
                let is_new = delete.sequence > self.last_sequence;
                self.last_sequence = self.last_sequence.max(delete.sequence);
                let mut count = 0;
                for key in delete.keys.unwrap().iter() {
                    let key = std::str::from_utf8(key).unwrap();
                    count += u32::from(is_new && self.remove(key));
                }
                self.ack(AckKind::Processed, delete.command, 0, Code::Ok, count);
                self.say(&Reply::Persisted { sequence: self.last_sequence });
            }
            Command::Unsubscribe(_) | Command::Heartbeat => (),
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, key: &str, data: u8) {
        let before = self.records.insert(key.to_owned(), data);
        let Some(subscription) = self.subscription else { return };
        if self.matches(data) {
            let hash = RecordHash(xxh3_128(&[data]).to_le_bytes());
            let is_delta = self.is_delta && before.is_some_and(|before| self.matches(before));
            let kind = if is_delta { MessageKind::Delta(hash) } else { MessageKind::Publish };
            self.message(subscription, key, kind, data);
        } else if before.is_some_and(|before| self.matches(before)) {
            self.message(subscription, key, MessageKind::Oof(OofReason::Match), data);
        }
    }

    fn remove(&mut self, key: &str) -> bool {
        let Some(before) = self.records.remove(key) else { return false };
        if let Some(subscription) = self.subscription.filter(|_| self.matches(before)) {
            self.message(subscription, key, MessageKind::Oof(OofReason::Deleted), before);
        }
        true
    }
}

/// A client, its server, and what the program knows.
struct World {
    core: ClientCore,
    server: Server,
    now_ns: u64,
    is_connected: bool,
    /// The records by the messages that the program received.
    view: BTreeMap<String, u8>,
    /// Command, key and reason of each message.
    seen: Vec<(&'static str, String, Option<OofReason>)>,
    /// Whether each message is a difference.
    deltas: Vec<bool>,
    completed: usize,
    outdated: usize,
    ended: Vec<(u32, Option<Failure>)>,
    answers: BTreeMap<u32, Result<(), Failure>>,
    told: BTreeMap<u32, String>,
}

impl World {
    fn new() -> Self {
        let mut world = World {
            core: ClientCore::new(config("test"), Instant(0)),
            server: Server::new(),
            now_ns: 0,
            is_connected: false,
            view: BTreeMap::new(),
            seen: Vec::new(),
            deltas: Vec::new(),
            completed: 0,
            outdated: 0,
            ended: Vec::new(),
            answers: BTreeMap::new(),
            told: BTreeMap::new(),
        };
        world.connect();
        world.settle();
        world
    }

    fn connect(&mut self) {
        if self.is_connected {
            return;
        }
        let (_, at) = self.core.poll_connect().unwrap();
        self.now_ns = self.now_ns.max(at.0);
        self.core.handle_connected(Instant(self.now_ns));
        self.server.connected();
        self.is_connected = true;
        self.send();
    }

    fn cut(&mut self) {
        if std::mem::take(&mut self.is_connected) {
            self.core.handle_disconnected(Instant(self.now_ns));
            self.server.subscription = None;
        }
        self.take_events();
    }

    fn send(&mut self) {
        let mut bytes = Vec::new();
        self.core.poll_transmit(Instant(self.now_ns), &mut bytes);
        if self.is_connected {
            self.server.take(&bytes);
        }
        self.take_events();
    }

    /// One frame reaches the client, and its reaction the server.
    fn receive(&mut self) -> bool {
        let Some(frame) = self.server.outgoing.pop_front().filter(|_| self.is_connected) else {
            return false;
        };
        self.core.handle_received(Instant(self.now_ns), frame.into()).unwrap();
        self.take_events();
        self.send();
        true
    }

    fn settle(&mut self) {
        self.send();
        while self.receive() {}
    }

    fn subscribe(&mut self, oof: bool) -> u32 {
        let options =
            if oof { SubscribeOptions::SOW.and(SubscribeOptions::OOF) } else { SubscribeOptions::SOW };
        self.subscribe_with(options)
    }

    fn subscribe_with(&mut self, options: SubscribeOptions) -> u32 {
        let records = Some(RecordsSpec::default());
        let spec = SubscriptionSpec { options, records, ..SubscriptionSpec::new(TOPIC) };
        let (number, _) = self.core.subscribe(spec).unwrap();
        self.send();
        number
    }

    fn take_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::Messages { messages, .. } => messages.iter().for_each(|message| self.take(message)),
                Event::Completed { .. } => self.completed += 1,
                Event::Outdated { .. } => self.outdated += 1,
                Event::Ended { subscription, failure } => self.ended.push((subscription, failure)),
                Event::Answered { command, result } => drop(self.answers.insert(command.0, result)),
                Event::JsonReply { command, json } => drop(self.told.insert(command.0, json)),
                _ => (),
            }
        }
    }

    fn take(&mut self, message: &Message) {
        let key = String::from_utf8(message.key().to_vec()).unwrap();
        let (name, reason) = match message.cause() {
            Cause::Left(reason) => {
                assert!(self.view.remove(&key).is_some(), "oof of {key}, which the program does not have");
                if reason == OofReason::Match {
                    assert_eq!(message.data().len(), 1);
                }
                ("oof", Some(reason))
            }
            cause => {
                self.view.insert(key.clone(), message.data()[0]);
                (if cause == Cause::Query { "sow" } else { "publish" }, None)
            }
        };
        self.seen.push((name, key, reason));
        self.deltas.push(message.cause() == Cause::Delta);
    }

    fn take_seen(&mut self) -> Vec<(&'static str, String, Option<OofReason>)> {
        std::mem::take(&mut self.seen)
    }

    /// The records of the server that the subscription shows.
    fn expected(&self) -> BTreeMap<String, u8> {
        self.server.records.clone().into_iter().filter(|(_, data)| self.server.matches(*data)).collect()
    }

    fn replace(&mut self, number: u32, limit: u8) {
        let spec = SubscriptionSpec {
            filter: Some(limit.to_string()),
            ..self.core.subscription(number).unwrap().clone()
        };
        self.core.replace(number, spec).unwrap();
        self.send();
    }
}

fn seen(
    name: &'static str,
    key: &str,
    reason: Option<OofReason>,
) -> (&'static str, String, Option<OofReason>) {
    (name, key.to_owned(), reason)
}

#[test]
fn after_a_reconnect_the_subscription_receives_the_difference() {
    let mut world = World::new();
    for (key, data) in [("same", 2), ("changed", 2), ("deleted", 2), ("hidden", 2)] {
        world.server.put(key, data);
    }
    world.subscribe(true);
    world.settle();
    assert_eq!(world.take_seen().len(), 4);
    assert_eq!((world.completed, world.outdated), (1, 0));
    world.cut();
    assert_eq!(world.outdated, 1);
    world.server.put("changed", 4);
    world.server.remove("deleted");
    world.server.put("hidden", 3);
    world.server.put("new", 6);
    world.connect();
    world.settle();
    assert_eq!(
        world.take_seen(),
        [
            seen("publish", "changed", None),
            seen("publish", "new", None),
            seen("oof", "hidden", Some(OofReason::Match)),
            seen("oof", "deleted", Some(OofReason::Deleted)),
        ]
    );
    assert_eq!((world.completed, world.server.queries), (2, 1));
    assert_eq!(world.view, world.expected());
}

#[test]
fn a_record_that_a_difference_has_changed_is_known_after_a_reconnect() {
    let mut world = World::new();
    for key in ["same", "changed"] {
        world.server.put(key, 2);
    }
    world.subscribe_with(SubscribeOptions::SOW.and(SubscribeOptions::DELTA));
    world.settle();
    for key in ["same", "changed"] {
        world.server.put(key, 4);
    }
    world.settle();
    let is_delta: Vec<bool> = std::mem::take(&mut world.deltas);
    assert_eq!(is_delta, [false, false, true, true]);
    world.take_seen();
    world.cut();
    world.server.put("changed", 6);
    world.connect();
    world.settle();
    assert_eq!(world.take_seen(), [seen("publish", "changed", None)]);
    assert_eq!(world.deltas, [false], "a record that changed meanwhile is whole");
}

#[test]
fn a_replaced_subscription_has_the_difference_and_keeps_it_over_a_reconnect() {
    let mut world = World::new();
    for (key, data) in [("a", 2), ("b", 4), ("c", 6)] {
        world.server.put(key, data);
    }
    let number = world.subscribe(true);
    world.settle();
    world.take_seen();
    world.replace(number, 5);
    world.settle();
    assert_eq!(world.take_seen(), [seen("oof", "c", Some(OofReason::Match))]);
    world.cut();
    world.server.put("a", 6);
    world.connect();
    world.settle();
    assert_eq!(world.take_seen(), [seen("oof", "a", Some(OofReason::Match))]);
    assert_eq!((world.view.clone(), world.completed), (world.expected(), 2));
}

#[test]
fn a_replacement_that_was_not_answered_is_sent_again_after_the_reconnect() {
    let mut world = World::new();
    world.server.put("a", 4);
    let number = world.subscribe(true);
    world.settle();
    world.take_seen();
    world.replace(number, 3);
    world.cut();
    world.connect();
    world.settle();
    assert_eq!(world.take_seen(), [seen("oof", "a", Some(OofReason::Match))]);
    assert_eq!(
        (world.server.limit, world.core.subscription(number).unwrap().filter.as_deref()),
        (3, Some("3"))
    );
}

#[test]
fn without_oof_lost_records_are_forgotten_without_a_question() {
    let mut world = World::new();
    world.server.put("a", 2);
    world.server.put("b", 2);
    world.subscribe(false);
    world.settle();
    world.take_seen();
    world.cut();
    world.server.remove("a");
    world.connect();
    world.settle();
    assert_eq!((world.take_seen(), world.server.queries, world.completed), (Vec::new(), 0, 2));
    world.server.put("a", 2);
    world.cut();
    world.connect();
    world.settle();
    assert_eq!(world.take_seen(), [seen("publish", "a", None)], "the program was not told that it had gone");
}

#[test]
fn a_record_of_a_first_result_that_was_interrupted_is_a_record() {
    let mut world = World::new();
    world.server.put("a", 2);
    world.server.put("b", 2);
    world.subscribe(true);
    // The answer, and the first record.
    assert!(world.receive() && world.receive());
    world.cut();
    world.connect();
    world.settle();
    assert_eq!(world.take_seen(), [seen("sow", "a", None), seen("sow", "b", None)]);
    assert_eq!(world.completed, 1);
}

/// A subscription with the record `a` reconnects, the record is missing in its result, and is
/// published again as `data` before the answer to the question about it.
fn world_with_a_record_that_comes_back(data: u8) -> World {
    let mut world = World::new();
    world.server.put("a", 2);
    world.subscribe(true);
    world.settle();
    world.take_seen();
    world.cut();
    world.server.remove("a");
    world.connect();
    while world.server.queries == 0 {
        assert!(world.receive());
    }
    let answer = std::mem::take(&mut world.server.outgoing);
    world.server.put("a", data);
    world.server.outgoing.extend(answer);
    world.settle();
    world
}

#[test]
fn a_record_that_is_published_again_while_the_server_is_asked_about_it_is_not_lost() {
    let mut world = world_with_a_record_that_comes_back(8);
    assert_eq!(world.take_seen(), [seen("publish", "a", None)]);
    assert_eq!((world.view.clone(), world.completed), (world.expected(), 2));
}

/// A page has lost the record, and gets it back before its result is whole: simulation seed 42.
#[test]
fn a_record_that_comes_back_unchanged_after_a_reconnect_is_not_received_again() {
    let mut world = world_with_a_record_that_comes_back(2);
    assert_eq!((world.take_seen(), world.completed), (Vec::new(), 2));
    // From now on it is one of the records of this connection.
    world.server.put("a", 2);
    world.settle();
    assert_eq!(world.take_seen(), [seen("publish", "a", None)]);
}

#[test]
fn many_lost_records_are_asked_about_in_several_questions() {
    let mut world = World::new();
    for number in 0..1000 {
        world.server.put(&format!("{number:0250}"), 2);
    }
    world.subscribe(true);
    world.settle();
    world.take_seen();
    world.cut();
    for number in 0..1000 {
        if number % 2 == 0 {
            world.server.remove(&format!("{number:0250}"));
        } else {
            world.server.put(&format!("{number:0250}"), 1);
        }
    }
    world.connect();
    world.settle();
    let reasons: Vec<_> = world.take_seen().into_iter().filter_map(|(_, _, reason)| reason).collect();
    assert_eq!(reasons.iter().filter(|reason| **reason == OofReason::Deleted).count(), 500);
    assert_eq!(reasons.iter().filter(|reason| **reason == OofReason::Match).count(), 500);
    assert_eq!((world.server.queries, world.view.len()), (5, 0));
}

#[test]
fn a_subscription_from_an_earlier_state_resumes_without_its_records() {
    let mut world = World::new();
    world.server.put("a", 2);
    world.server.put("b", 4);
    let spec = SubscriptionSpec {
        options: SubscribeOptions::SOW,
        records: Some(RecordsSpec::default()),
        bookmark: Some("9|1|".into()),
        ..SubscriptionSpec::new(TOPIC)
    };
    let (number, _) = world.core.subscribe(spec).unwrap();
    world.send();
    // The answer, and the first record, but not the second one.
    assert!(world.receive() && world.receive());
    for _ in 0..2 {
        world.cut();
        world.connect();
        world.settle();
    }
    let keys: Vec<_> = world.take_seen().into_iter().map(|(command, key, _)| (command, key)).collect();
    assert_eq!(keys, [("sow", "a".to_owned()), ("sow", "b".to_owned())]);
    assert_eq!(world.server.asked, vec![(Some("9|1|".to_owned()), true); 3]);
    world.server.say(&Reply::Message(command::Message {
        subscription: number,
        topic: TOPIC.as_bytes(),
        key: b"a",
        bookmark: Some((5, 7)),
        data: &[6],
        ..command::Message::default()
    }));
    world.settle();
    world.cut();
    world.connect();
    world.settle();
    assert_eq!(world.server.asked.last(), Some(&(Some("5|7|".to_owned()), false)));
    assert_eq!(world.take_seen().len(), 1);
}

#[test]
fn a_replacement_of_a_subscription_with_a_bookmark_asks_for_no_records() {
    for bookmark in [None, Some("9|2|".to_owned())] {
        let mut world = World::new();
        let options = SubscribeOptions::SOW;
        let records = Some(RecordsSpec::default());
        let spec = SubscriptionSpec {
            options,
            records,
            bookmark: Some("9|1|".into()),
            ..SubscriptionSpec::new(TOPIC)
        };
        let (number, _) = world.core.subscribe(spec.clone()).unwrap();
        world.send();
        world.settle();
        let replacement = SubscriptionSpec { bookmark: bookmark.clone(), ..spec };
        world.core.replace(number, replacement).unwrap();
        world.send();
        world.settle();
        assert_eq!(world.server.asked.last().map(|(_, has_records)| *has_records), Some(false));
        world.cut();
        world.connect();
        world.settle();
        // Without another bookmark it had received nothing of the log.
        let again = (bookmark.clone().or(Some("9|1|".to_owned())), bookmark.is_none());
        assert_eq!(world.server.asked.last(), Some(&again));
    }
}

#[test]
fn a_query_whose_connection_is_lost_ends_with_an_error() {
    let mut world = World::new();
    world.server.put("a", 2);
    let (number, _) = world.core.query(&QuerySpec { topic: TOPIC.into(), ..QuerySpec::default() }).unwrap();
    world.send();
    // The answer, and the record, but not the end.
    assert!(world.receive() && world.receive());
    world.cut();
    let [(ended, Some(failure))] = &world.ended[..] else { panic!("{:?}", world.ended) };
    assert_eq!((*ended, failure.code), (number, FailureCode::Disconnected));
}

#[test]
fn a_query_that_the_server_ends_early_ends_with_its_error() {
    let mut world = World::new();
    world.server.put("a", 2);
    let spec = QuerySpec { topic: TOPIC.into(), ..QuerySpec::default() };
    let (number, command) = world.core.query(&spec).unwrap();
    world.send();
    assert!(world.receive() && world.receive());
    world.server.outgoing.clear();
    world.server.ack(AckKind::Processed, command.0, number, Code::LimitExceeded, 0);
    world.settle();
    let [(ended, Some(failure))] = &world.ended[..] else { panic!("{:?}", world.ended) };
    assert_eq!((*ended, failure.code), (number, Code::LimitExceeded.into()));
}

#[test]
fn a_delete_is_kept_until_it_is_persisted_and_gives_its_number_once() {
    let mut world = World::new();
    world.server.put("a", 2);
    let keys = ["a".to_owned()];
    let spec = DeleteSpec { topic: TOPIC, keys: Some(&keys), ..DeleteSpec::default() };
    let (sequence, command) = world.core.delete(&spec).unwrap();
    assert_eq!(sequence, 1);
    world.cut();
    world.connect();
    world.settle();
    assert_eq!(world.told[&command.0], "1");
    assert_eq!(world.answers[&command.0], Ok(()));
    assert_eq!(world.server.deletes, [(command.0, 1)]);
    assert_eq!(world.core.persisted(), 1);
}

#[test]
fn a_delete_that_the_server_has_seen_does_not_tell_a_wrong_number() {
    let mut world = World::new();
    world.server.put("a", 2);
    let keys = ["a".to_owned()];
    let spec = DeleteSpec { topic: TOPIC, keys: Some(&keys), ..DeleteSpec::default() };
    let (_, command) = world.core.delete(&spec).unwrap();
    world.send();
    world.cut();
    world.connect();
    world.settle();
    let failure = world.answers[&command.0].clone().unwrap_err();
    assert_eq!(failure.code, FailureCode::Disconnected);
    assert!(world.told.is_empty() && world.server.records.is_empty());
}

#[test]
fn the_number_of_a_delete_is_never_that_of_another_command() {
    let mut world = World::new();
    let keys = ["a".to_owned()];
    let spec = DeleteSpec { topic: TOPIC, keys: Some(&keys), ..DeleteSpec::default() };
    let (_, delete) = world.core.delete(&spec).unwrap();
    let (_, query) = world.core.query(&QuerySpec { topic: TOPIC.into(), ..QuerySpec::default() }).unwrap();
    assert!(delete.0 >= 1 << 31 && query.0 < 1 << 31);
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8),
    Remove(u8),
    Replace(u8),
    Receive(u8),
    Cut,
    Connect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..12, 0u8..6).prop_map(|(key, data)| Step::Put(key, data)),
        2 => (0u8..12).prop_map(Step::Remove),
        1 => (0u8..6).prop_map(Step::Replace),
        6 => (1u8..12).prop_map(Step::Receive),
        1 => Just(Step::Cut),
        2 => Just(Step::Connect),
    ]
}

proptest! {
    /// The model: the program keeps what it receives, and at the end that is what the server has.
    #[test]
    fn the_view_of_the_program_becomes_that_of_the_server(
        first in proptest::collection::vec((0u8..12, 0u8..6), 0..12),
        steps in proptest::collection::vec(step(), 1..120), is_delta: bool,
    ) {
        let mut world = World::new();
        for (key, data) in first {
            world.server.put(&format!("k{key}"), data);
        }
        let delta = if is_delta { SubscribeOptions::DELTA } else { SubscribeOptions::default() };
        let number = world.subscribe_with(SubscribeOptions::SOW.and(SubscribeOptions::OOF).and(delta));
        // A subscription that was never accepted is another matter.
        prop_assert!(world.receive());
        for step in steps {
            match step {
                Step::Put(key, data) => world.server.put(&format!("k{key}"), data),
                Step::Remove(key) => drop(world.server.remove(&format!("k{key}"))),
                Step::Replace(limit) => world.replace(number, limit),
                Step::Receive(count) => {
                    for _ in 0..count {
                        world.receive();
                    }
                }
                Step::Cut => world.cut(),
                Step::Connect => world.connect(),
            }
        }
        world.connect();
        world.settle();
        prop_assert_eq!(&world.view, &world.expected());
        // Nothing changed: a further reconnect tells nothing.
        world.take_seen();
        world.cut();
        world.connect();
        world.settle();
        prop_assert_eq!(world.take_seen(), Vec::new());
    }
}
