//! Random publishes, deltas, constructed fields, deletes, lifetimes, subscriptions with and without
//! deltas, replacements, slow connections, repeated sequences, restarts and crashes, against a
//! model of last-value topics. At quiet moments, a query gives the records of the model. The
//! records, publishes, differences and `oof` messages of each subscription, applied in their order,
//! give the records of the model that its filter matches. A page has those at its places of the
//! order. A query of an earlier instant gives the records that the model had then, and a
//! subscription to it also every later message. Conflated subscriptions have them after an interval
//! without changes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use quire_broker::{BrokerConfig, HistorySettings, SowTopicSettings, TableExpiration};
use quire_command::*;
use quire_expression::message_type::{MessageType, merge};
use quire_types::Timestamp;
use quire_types::time::Instant;
use serde_json::Value;

use crate::last_value_pair::*;
use crate::pair::*;

/// The last two are topics of one pattern.
const TOPICS: [&str; 4] = ["a", "b", "c/1", "c/2"];
const SELECTORS: [&str; 4] = ["a", "b", "c/1", "^"];
/// The topics that keep their history.
const HISTORIES: Range<usize> = 0..2;
/// The selector that selects every topic.
const ALL: usize = 3;
const KEYS: u8 = 4;
/// A filter, and its meaning in the model.
type Filter = (&'static str, fn(u8) -> bool);
const FILTERS: [Option<Filter>; 3] =
    [None, Some(("/v > 4", |v| v > 4)), Some(("/v % 2 = 1", |v| v % 2 == 1))];
/// Expired records may still be in the view of a subscription for this time.
const RESOLUTION_NS: u64 = 100_000_000;
const INTERVAL_NS: u64 = 200_000_000;

#[derive(Clone, Debug)]
enum Step {
    Publish {
        topic: usize,
        key: u8,
        v: u8,
        lifetime_s: Option<u32>,
        is_delta: bool,
    },
    /// The records of a selector that the filter matches.
    Delete {
        selector: usize,
        filter: usize,
    },
    /// A publish under a sequence that was used before.
    Repeat {
        topic: usize,
        key: u8,
        back: u64,
    },
    Subscribe {
        number: u32,
        selector: usize,
        filter: usize,
        kind: Kind,
    },
    Replace {
        number: u32,
        selector: usize,
        filter: usize,
        is_conflated: bool,
        /// Of a page.
        page: Page,
    },
    Unsubscribe {
        number: u32,
    },
    /// A query of the state at the time of an earlier change.
    Past {
        back: usize,
        filter: usize,
    },
    /// A subscription that begins with the state at the time of an earlier change.
    Follow {
        number: u32,
        topic: usize,
        back: usize,
    },
    Writable(bool),
    /// Filters are evaluated on reader threads.
    Costly(bool),
    /// Whether another thread prepares each message.
    Large(bool),
    RunReads(bool),
    WriteJournal(bool),
    Turn,
    Pass {
        ms: u64,
    },
    Check,
    Restart,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let lifetime = prop_oneof![3 => Just(None), 1 => (1..3u32).prop_map(Some)];
    prop_oneof![
        12 => (0..TOPICS.len(), 0..KEYS, 0..10u8, lifetime, any::<bool>())
            .prop_map(|(topic, key, v, lifetime_s, is_delta)| Step::Publish { topic, key, v, lifetime_s, is_delta }),
        2 => (0..SELECTORS.len(), 0..3usize).prop_map(|(selector, filter)| Step::Delete { selector, filter }),
        1 => (0..TOPICS.len(), 0..KEYS, 0..5u64).prop_map(|(topic, key, back)| Step::Repeat { topic, key, back }),
        4 => (1..5u32, 0..SELECTORS.len(), 0..3usize, kind()).prop_map(
            |(number, selector, filter, kind)| Step::Subscribe {
                number,
                // A page is of one topic.
                selector: if kind.page.is_some() { selector % ALL } else { selector },
                filter,
                kind,
            }
        ),
        4 => (1..5u32, 0..SELECTORS.len(), 0..3usize, any::<bool>(), page()).prop_map(
            |(number, selector, filter, is_conflated, page)| {
                Step::Replace { number, selector, filter, is_conflated, page }
            }
        ),
        1 => (1..5u32).prop_map(|number| Step::Unsubscribe { number }),
        3 => (0..12usize, 0..3usize).prop_map(|(back, filter)| Step::Past { back, filter }),
        2 => (1..5u32, 0..2usize, 0..12usize)
            .prop_map(|(number, topic, back)| Step::Follow { number, topic, back }),
        2 => any::<bool>().prop_map(Step::Writable),
        1 => any::<bool>().prop_map(Step::Costly),
        1 => any::<bool>().prop_map(Step::Large),
        2 => any::<bool>().prop_map(Step::RunReads),
        1 => any::<bool>().prop_map(Step::WriteJournal),
        4 => Just(Step::Turn),
        3 => (1..1500u64).prop_map(|ms| Step::Pass { ms }),
        3 => Just(Step::Check),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
    ]
}

/// The changes of its records that a subscription gets.
#[derive(Clone, Copy, Debug)]
struct Kind {
    is_delta: bool,
    is_conflated: bool,
    page: Option<Page>,
}

fn kind() -> impl Strategy<Value = Kind> {
    (0..4u8, any::<bool>(), proptest::option::of(page())).prop_map(
        |(delta, is_conflated, page)| match delta {
            0 => Kind { is_delta: true, is_conflated, page: None },
            _ => Kind { is_delta: false, is_conflated, page },
        },
    )
}

/// A part of the order by `/v`.
#[derive(Clone, Copy, Debug)]
struct Page {
    skip_n: u32,
    top_n: u32,
    is_descending: bool,
}

fn page() -> impl Strategy<Value = Page> {
    let page = (0..3u32, 0..4u32, any::<bool>());
    page.prop_map(|(skip_n, top_n, is_descending)| Page { skip_n, top_n, is_descending })
}

/// A time, in nanoseconds since the beginning.
type At = u64;

/// A change. The list has it with the sequence and the time of its command.
#[derive(Clone, Debug)]
enum Change {
    Put { topic: usize, key: u8, record: Record },
    Remove(Vec<(usize, u8)>),
}

#[derive(Clone, Debug)]
struct Record {
    v: u8,
    /// The other fields of the message. A delta has none, and keeps those of the record.
    rest: String,
    data: String,
    /// In nanoseconds since the beginning.
    expires_ns: u64,
}

struct View {
    selector: usize,
    filter: usize,
    kind: Kind,
    /// The commands that are not answered yet. Those that replace have the selector, the filter,
    /// and the kind.
    commands: VecDeque<Option<(usize, usize, Kind)>>,
    /// The time of the state with which it began; later messages come from the log.
    since: Option<At>,
    rows: BTreeMap<String, String>,
}

struct World {
    pair: Pair,
    changes: Vec<(u64, At, Change)>,
    sequence: u64,
    views: BTreeMap<u32, View>,
    is_costly: bool,
    is_large: bool,
}

fn settings() -> BrokerConfig {
    let history = HistorySettings { window_ns: 1 << 60, granularity_ns: 0, max_size: 1 << 30 };
    let expiring = |name| SowTopicSettings {
        expiration: TableExpiration::Enabled,
        history: Some(history),
        ..sow_topic(name)
    };
    let [plain, with_fields, in_pattern] = ["a", "b", "c"].map(expiring);
    // Topics of a pattern keep no history.
    let in_pattern = SowTopicSettings { pattern: Some("c/[0-9]".into()), history: None, ..in_pattern };
    // The server makes the key, and the difference of the values.
    let with_fields = SowTopicSettings {
        key: vec!["/key".into()],
        preprocessing: vec!["CONCAT('k', /id) AS /key".into()],
        enrichment: vec!["/v - COALESCE(/v OF PREVIOUS, 0) AS /change".into()],
        ..with_fields
    };
    sow_config([plain, with_fields, in_pattern])
}

fn selects(selector: usize, topic: usize) -> bool {
    selector == ALL || selector == topic
}

fn matches(filter: usize, v: u8) -> bool {
    FILTERS[filter].is_none_or(|(_, matches)| matches(v))
}

impl World {
    fn new() -> Self {
        let mut world = World {
            pair: Pair::with(settings()),
            changes: Vec::new(),
            sequence: 0,
            views: BTreeMap::new(),
            is_costly: false,
            is_large: false,
        };
        world.begin();
        world
    }

    /// Connects the clients of a new broker.
    fn begin(&mut self) {
        self.views.clear();
        // A clock that moves by itself ends each portion of work early.
        let mut at_ns = 0;
        self.pair.broker.set_stopwatch(Box::new(move || {
            at_ns += 200_000;
            Instant(at_ns)
        }));
        if self.is_costly {
            self.pair.broker.set_turn_effort(1);
        }
        if self.is_large {
            self.pair.broker.set_turn_size(1);
        }
        self.pair.connect(1);
        self.pair.send(1, &Command::Logon(logon("publisher")));
        self.pair.turn();
        let last = self.pair.take(1).into_iter().find_map(|said| match said {
            Said::LoggedOn { last_sequence } => Some(last_sequence),
            _ => None,
        });
        // The log has lost the changes after this one.
        let last = last.expect("logged on");
        self.changes.retain(|(sequence, ..)| *sequence <= last);
        self.sequence = last;
        self.pair.client(2, "reader");
    }

    /// The records of the topics, those included that have expired.
    fn newest(&self) -> BTreeMap<(usize, u8), Record> {
        self.newest_at(u64::MAX)
    }

    /// The records after the changes up to a time.
    fn newest_at(&self, at_ns: u64) -> BTreeMap<(usize, u8), Record> {
        let mut newest = BTreeMap::new();
        for (_, _, change) in self.changes.iter().filter(|(_, at, _)| *at <= at_ns) {
            match change {
                Change::Put { topic, key, record } => {
                    newest.insert((*topic, *key), record.clone());
                }
                Change::Remove(keys) => keys.iter().for_each(|key| {
                    newest.remove(key);
                }),
            }
        }
        newest
    }

    /// The state of a topic at a time, with every later message; sorted. Records that were removed
    /// later are still there.
    fn followed(&self, topic: usize, since: At) -> Vec<String> {
        let alive = self.newest_at(since).into_iter().filter(|(_, record)| record.expires_ns > since);
        let mut rows: BTreeMap<_, _> = alive.filter(|(key, _)| key.0 == topic).collect();
        for (_, _, change) in self.changes.iter().filter(|(_, at, _)| *at > since) {
            if let Change::Put { topic: of, key, record } = change
                && *of == topic
            {
                rows.insert((topic, *key), record.clone());
            }
        }
        let mut data: Vec<String> = rows.into_values().map(|record| record.data).collect();
        data.sort();
        data
    }

    /// Checks that these rows are those at the places of the page. Records with equal values can be
    /// in any order.
    fn check_page(number: u32, page: Page, rows: &[String], records: &[String]) {
        let value = |row: &String| {
            let (_, rest) = row.split_once(r#""v":"#).unwrap();
            let v: i32 = rest.split([',', '}']).next().unwrap().parse().unwrap();
            if page.is_descending { -v } else { v }
        };
        let mut values: Vec<_> = records.iter().map(value).collect();
        values.sort_unstable();
        let wanted: Vec<_> =
            values.into_iter().skip(page.skip_n as usize).take(page.top_n as usize).collect();
        let mut shown: Vec<_> = rows.iter().map(value).collect();
        shown.sort_unstable();
        assert_eq!(shown, wanted, "{number}: {page:?} of {records:?} is {rows:?}");
        assert!(rows.iter().all(|row| records.contains(row)), "{number}: {rows:?} is not of {records:?}");
    }

    /// The data of the records that a selector and a filter select, and that end after `now_ns`;
    /// sorted.
    fn selected(&self, selector: usize, filter: usize, now_ns: u64) -> Vec<String> {
        Self::select(self.newest(), selector, filter, now_ns)
    }

    fn select(
        newest: BTreeMap<(usize, u8), Record>,
        selector: usize,
        filter: usize,
        now_ns: u64,
    ) -> Vec<String> {
        let newest = newest.into_iter();
        let selected = newest.filter(|((topic, _), record)| {
            selects(selector, *topic) && matches(filter, record.v) && record.expires_ns > now_ns
        });
        let mut data: Vec<String> = selected.map(|(_, record)| record.data).collect();
        data.sort();
        data
    }

    fn subscribe(&mut self, number: u32, selector: usize, filter: usize, kind: Kind, replaces: bool) {
        let selector = SELECTORS[selector];
        let Kind { is_delta, is_conflated, page } = kind;
        let subscribe = if is_delta { sow_delta(number, selector) } else { sow(number, selector) };
        let replace = if replaces { SubscribeOptions::REPLACE } else { SubscribeOptions::default() };
        let subscribe = Subscribe {
            filter: FILTERS[filter].map(|filter| filter.0),
            options: subscribe.options.and(replace),
            conflation_ns: is_conflated.then_some(INTERVAL_NS),
            order_by: page.map(|page| if page.is_descending { "/v DESC" } else { "/v" }),
            skip_n: page.map(|page| page.skip_n),
            top_n: page.map(|page| page.top_n),
            ..subscribe
        };
        self.pair.subscribe(2, &subscribe);
    }

    fn publish(
        &mut self,
        sequence: u64,
        topic: usize,
        key: u8,
        v: u8,
        more: (Option<&str>, Option<u32>, bool),
    ) {
        let (rest, expiration_s, is_delta) = more;
        let data = format!(r#"{{"id":{key},"v":{v}{}}}"#, rest.unwrap_or_default());
        let publish = Publish { expiration_s, is_delta, ..publish(sequence, TOPICS[topic], &data) };
        let taken = |pair: &Pair| {
            let stats = pair.broker.stats();
            stats.appended + stats.duplicate_count + stats.refused_count
        };
        let before = taken(&self.pair);
        self.pair.send(1, &Command::Publish(publish));
        // The message is taken after its jobs. The other reads wait.
        if self.is_large {
            while taken(&self.pair) == before && self.pair.run_last_read() {}
            self.pair.one_turn();
        }
    }

    /// The record that a publish makes of the record before it.
    fn made(&self, topic: usize, key: u8, v: u8, rest: Option<&str>, lifetime_s: Option<u32>) -> Record {
        let newest = self.newest();
        let previous = newest.get(&(topic, key)).filter(|record| record.expires_ns > self.pair.now_ns);
        let rest = rest.or_else(|| Some(&previous?.rest)).unwrap_or_default().to_owned();
        let change = i32::from(v) - previous.map_or(0, |previous| i32::from(previous.v));
        let fields = match topic {
            1 => format!(r#","key":"k{key}","change":{change}"#),
            _ => String::new(),
        };
        let lifetime_ns = lifetime_s.map(|seconds| u64::from(seconds) * 1_000_000_000);
        let expires_ns = lifetime_ns.map_or(u64::MAX, |lifetime| self.pair.now_ns + lifetime);
        let data = format!(r#"{{"id":{key},"v":{v}{rest}{fields}}}"#);
        Record { v, rest, data, expires_ns }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Publish { topic, key, v, lifetime_s, is_delta } => {
                self.sequence += 1;
                // Some fields are not in every message.
                let some =
                    ["", r#","x":1"#, r#","x":{"y":1,"z":[2]}"#, r#","x":{"z":[2]}"#][usize::from(v) % 4];
                let rest = (!is_delta).then(|| format!(r#","at":{}{some}"#, self.sequence));
                let record = self.made(topic, key, v, rest.as_deref(), lifetime_s);
                self.publish(self.sequence, topic, key, v, (rest.as_deref(), lifetime_s, is_delta));
                self.changes.push((self.sequence, self.pair.now_ns, Change::Put { topic, key, record }));
            }
            Step::Delete { selector, filter } => {
                self.sequence += 1;
                let now_ns = self.pair.now_ns;
                let selected = self.newest().into_iter().filter(|((topic, _), record)| {
                    selects(selector, *topic) && matches(filter, record.v) && record.expires_ns > now_ns
                });
                let keys: Vec<_> = selected.map(|(key, _)| key).collect();
                let filter = Some(FILTERS[filter].map_or("1 = 1", |filter| filter.0));
                let delete = SowDelete { filter, ..delete(900, self.sequence, SELECTORS[selector]) };
                self.pair.send(1, &Command::SowDelete(delete));
                self.pair.turn();
                let answered = self.pair.take(1).contains(&ack(AckKind::Processed, 900, 0));
                assert!(answered, "the delete is answered");
                assert_eq!(self.pair.clients[&1].detail as usize, keys.len());
                self.changes.push((self.sequence, self.pair.now_ns, Change::Remove(keys)));
            }
            Step::Repeat { topic, key, back } => {
                if let Some(sequence) = self.sequence.checked_sub(back).filter(|sequence| *sequence > 0) {
                    self.publish(sequence, topic, key, 9, (None, None, false));
                }
            }
            Step::Subscribe { number, selector, filter, kind } => {
                if !self.views.contains_key(&number) {
                    self.subscribe(number, selector, filter, kind, false);
                    let (commands, rows) = ([None].into(), BTreeMap::new());
                    self.views.insert(number, View { selector, filter, kind, commands, since: None, rows });
                }
            }
            Step::Replace { number, selector, filter, is_conflated, page } => {
                if let Some(view) = self.views.get_mut(&number).filter(|view| view.since.is_none()) {
                    let page = view.kind.page.map(|_| page);
                    let selector = if page.is_some() { selector % ALL } else { selector };
                    let kind = Kind { is_conflated, page, ..view.kind };
                    view.commands.push_back(Some((selector, filter, kind)));
                    self.subscribe(number, selector, filter, kind, true);
                }
            }
            Step::Unsubscribe { number } => {
                if self.views.contains_key(&number) {
                    let acks = Acks::PROCESSED;
                    let unsubscribe = Unsubscribe { command: 800, acks, subscription: number, begun: None };
                    self.pair.send(2, &Command::Unsubscribe(unsubscribe));
                    self.views.remove(&number);
                    // Another subscription that waits for its bookmark keeps the command waiting,
                    // too. The number is free after the answer.
                    let reads_at_once = std::mem::replace(&mut self.pair.reads_at_once, true);
                    self.pair.set_writable(2, true);
                    self.pair.turn();
                    self.hear();
                    self.pair.reads_at_once = reads_at_once;
                }
            }
            Step::Past { back, filter } => {
                let Some((_, at_ns, _)) = self.changes.iter().rev().nth(back) else { return };
                let (at_ns, then) = (*at_ns, Timestamp(WALL_START_NS + at_ns).to_string());
                self.pair.turn();
                let text = FILTERS[filter].map(|filter| filter.0);
                let past = Query { filter: text, bookmark: Some(&then), ..query(600, "^[ab]") };
                let mut newest = self.newest_at(at_ns);
                newest.retain(|(topic, _), _| HISTORIES.contains(topic));
                let expected = Self::select(newest, ALL, filter, at_ns);
                assert_eq!(self.pair.records(1, past), expected, "at {at_ns}");
            }
            Step::Follow { number, topic, back } => {
                let Some((_, at_ns, _)) = self.changes.iter().rev().nth(back) else { return };
                if self.views.contains_key(&number) {
                    return;
                }
                let (at_ns, then) = (*at_ns, Timestamp(WALL_START_NS + at_ns).to_string());
                self.pair.turn();
                // The state of a time that is not over can still change.
                self.pair.pass(Duration::from_millis(1));
                let options = SubscribeOptions::SOW;
                let follow = Subscribe { options, bookmark: Some(&then), ..sow(number, TOPICS[topic]) };
                self.pair.subscribe(2, &follow);
                let kind = Kind { is_delta: false, is_conflated: false, page: None };
                let (commands, since, rows) = ([None].into(), Some(at_ns), BTreeMap::new());
                self.views.insert(number, View { selector: topic, filter: 0, kind, commands, since, rows });
            }
            Step::Writable(writable) => self.pair.set_writable(2, writable),
            Step::Costly(is_costly) => {
                self.is_costly = is_costly;
                self.pair.broker.set_turn_effort(if is_costly { 1 } else { 200_000 });
            }
            Step::Large(is_large) => {
                self.is_large = is_large;
                self.pair.broker.set_turn_size(if is_large { 1 } else { 200_000 });
            }
            Step::RunReads(at_once) => self.pair.reads_at_once = at_once,
            Step::WriteJournal(at_once) => self.pair.writes_at_once = at_once,
            Step::Turn => self.pair.turn(),
            Step::Pass { ms } => {
                self.pair.turn();
                self.pair.pass(Duration::from_millis(ms));
            }
            Step::Check => self.check(),
            Step::Restart => {
                self.pair.writes_at_once = true;
                self.pair.turn();
                self.restart(|broker| broker.close().unwrap());
            }
            Step::Crash => self.restart(|broker| broker.abandon()),
        }
    }

    fn restart(&mut self, stop: impl FnOnce(quire_broker::Broker)) {
        let Pair { broker, disk, now_ns, .. } = std::mem::replace(&mut self.pair, Pair::new());
        stop(broker);
        self.pair = Pair::on(disk, settings());
        self.pair.now_ns = now_ns;
        self.begin();
    }

    /// Everything is sent and received; then the views and a query are compared with the model.
    fn check(&mut self) {
        let (reads_at_once, writes_at_once) = (self.pair.reads_at_once, self.pair.writes_at_once);
        self.pair.reads_at_once = true;
        self.pair.set_writable(2, true);
        if self.views.values().any(|view| view.since.is_some()) {
            self.pair.writes_at_once = true;
        }
        self.pair.turn();
        self.hear();
        if self.views.values().any(|view| view.kind.is_conflated) {
            self.pair.pass(Duration::from_nanos(2 * INTERVAL_NS));
        }
        self.hear();
        let now_ns = self.pair.now_ns;
        for (number, view) in &self.views {
            assert!(view.commands.is_empty(), "{number}: a command has no answer");
            if let Some(since) = view.since {
                let mut rows: Vec<String> = view.rows.values().cloned().collect();
                rows.sort();
                assert_eq!(rows, self.followed(view.selector, since), "{number}: since {since}");
                continue;
            }
            let late_ns = RESOLUTION_NS + if view.kind.is_conflated { INTERVAL_NS } else { 0 };
            let at_least = self.selected(view.selector, view.filter, now_ns);
            let at_most = self.selected(view.selector, view.filter, now_ns.saturating_sub(late_ns));
            if let Some(page) = view.kind.page {
                if at_least == at_most {
                    let rows: Vec<String> = view.rows.values().cloned().collect();
                    Self::check_page(*number, page, &rows, &at_least);
                }
                continue;
            }
            let [rows, at_least, at_most] = [view.rows.values().cloned().collect(), at_least, at_most]
                .map(|rows: Vec<String>| rows.iter().map(|row| fields(row)).collect::<Vec<_>>());
            assert!(
                at_least.iter().all(|row| rows.contains(row)),
                "{number}: {rows:?} lacks of {at_least:?}"
            );
            assert!(
                rows.iter().all(|row| at_most.contains(row)),
                "{number}: {rows:?} has more than {at_most:?}"
            );
        }
        for (filter, text) in FILTERS.iter().enumerate() {
            let query = Query { filter: text.map(|filter| filter.0), ..query(700, "^") };
            assert_eq!(self.pair.records(1, query), self.selected(ALL, filter, now_ns));
        }
        (self.pair.reads_at_once, self.pair.writes_at_once) = (reads_at_once, writes_at_once);
    }

    /// Applies the messages that the reader received.
    fn hear(&mut self) {
        for said in self.pair.take(2) {
            match said {
                Said::Row(row) => {
                    let Some(view) = self.views.get_mut(&row.subscription) else { continue };
                    match row.kind {
                        MessageKind::Record | MessageKind::Publish => {
                            view.rows.insert(row.key, row.data);
                        }
                        MessageKind::Delta(_) => {
                            assert!(view.kind.is_delta);
                            let known =
                                view.rows.get_mut(&row.key).expect("a difference to a record in view");
                            let mut merged = Vec::new();
                            let (old, delta) = (known.as_bytes(), row.data.as_bytes());
                            merge(MessageType::Json, old, delta, &mut merged).unwrap();
                            *known = String::from_utf8(merged).unwrap();
                        }
                        MessageKind::Delete => panic!("no view asks for deletes of the log"),
                        MessageKind::Oof(_) => {
                            let known = view.rows.remove(&row.key);
                            assert!(known.is_some(), "oof of a record that was not in view: {}", row.data);
                        }
                    }
                }
                Said::Ack { kind: AckKind::Processed, code, command, subscription }
                    if command == subscription =>
                {
                    let Some(view) = self.views.get_mut(&subscription) else { continue };
                    let replaced = view.commands.pop_front().expect("a command without an answer");
                    match (replaced, code) {
                        (Some((selector, filter, kind)), Code::Ok) => {
                            (view.selector, view.filter, view.kind) = (selector, filter, kind);
                        }
                        // Messages wait for a filter, or too many changes wait.
                        (Some(_), Code::LimitExceeded) | (None, Code::Ok) => (),
                        other => panic!("{other:?}"),
                    }
                }
                Said::Ack { code: Code::Ok, .. } => (),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The fields of a record. A difference makes a field that was removed NULL.
fn fields(data: &str) -> Value {
    let mut fields: Value = serde_json::from_str(data).unwrap();
    drop_nulls(&mut fields);
    fields
}

fn drop_nulls(value: &mut Value) {
    if let Value::Object(members) = value {
        members.retain(|_, member| !member.is_null());
        members.values_mut().for_each(drop_nulls);
    }
}

fn run(steps: &[Step]) {
    let mut world = World::new();
    steps.iter().for_each(|step| world.take(step));
    world.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn every_view_equals_the_filtered_records(steps in proptest::collection::vec(step(), 1..60)) {
        run(&steps);
    }
}

/// The delete came before the unsubscription, which waited for the bookmark of the subscription 1.
#[test]
fn a_number_is_used_again_when_its_subscription_has_ended() {
    let publish = |v| Step::Publish { topic: 0, key: 0, v, lifetime_s: None, is_delta: false };
    let kind = Kind { is_delta: true, is_conflated: false, page: None };
    let subscribe = || Step::Subscribe { number: 4, selector: 0, filter: 0, kind };
    run(&[
        Step::RunReads(false),
        publish(0),
        publish(0),
        publish(0),
        subscribe(),
        Step::Follow { number: 1, topic: 0, back: 0 },
        publish(5),
        Step::Unsubscribe { number: 4 },
        Step::Delete { selector: 3, filter: 0 },
        subscribe(),
        Step::Past { back: 0, filter: 0 },
    ]);
}
