//! Filters: one filter over one message, by message type and by condition; the index of the
//! subscriptions of a topic, compared with evaluating each filter in turn; and a publisher with
//! that index in a whole broker.

use std::hint::black_box;
use std::iter::Cycle;
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use quire_benches::context;
use quire_benches::driven_broker::Bench;
use quire_broker::{BrokerConfig, EntrySettings, Right};
use quire_command::Subscribe;
use quire_expression::filter::{Filter, FilterOptions, SubscriptionIndex};
use quire_expression::message_type::{Arena, MessageType};

/// Different messages, so that no branch is learnt by heart.
const MESSAGE_COUNT: usize = 1_000;

/// How many subscriptions a topic has.
const SUBSCRIPTION_COUNTS: [usize; 3] = [1, 100, 10_000];

/// The size of a message, in bytes.
const MESSAGE_SIZE: usize = 300;

/// An order as JSON.
fn order(number: usize) -> Vec<u8> {
    let (symbol, qty, price) = (number % 10_000, number * 7 % 1_000, number % 200);
    let mut text = format!(
        concat!(
            r#"{{"id":{number},"symbol":"S{symbol:05}","side":"buy","qty":{qty},"price":{price}.25,"currency":"USD","#,
            r#""account":"ACC-{number:08}","trader":"j.smith","venue":"XNYS","time":"2026-11-21T08:00:00.{number:06}Z","#,
            r#""flags":["ioc","hidden"],"limits":{{"low":90.5,"high":110}},"note":""#,
        ),
        number = number,
        symbol = symbol,
        qty = qty,
        price = price,
    );
    text.push_str(&".".repeat(MESSAGE_SIZE - text.len() - 2));
    text.push_str("\"}");
    text.into_bytes()
}

/// The same as pairs.
fn fix_order(number: usize) -> Vec<u8> {
    let (symbol, qty) = (number % 10_000, number * 7 % 1_000);
    let mut text =
        format!("8=FIX.4.4\u{1}35=D\u{1}11={number}\u{1}55=S{symbol:05}\u{1}54=1\u{1}38={qty}\u{1}58=");
    text.push_str(&".".repeat(MESSAGE_SIZE - text.len() - 1));
    text.push('\u{1}');
    text.into_bytes()
}

fn parsed(text: &str) -> Filter {
    Filter::parse(text, &FilterOptions::default())
        .unwrap_or_else(|error| panic!("{}", error.with_caret(text)))
}

/// One filter, message after message.
fn evaluate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("evaluate");
    group.throughput(Throughput::Elements(MESSAGE_COUNT as u64));
    let json: Vec<Vec<u8>> = (0..MESSAGE_COUNT).map(order).collect();
    let fix: Vec<Vec<u8>> = (0..MESSAGE_COUNT).map(fix_order).collect();
    assert!(json.iter().chain(&fix).all(|message| message.len() == MESSAGE_SIZE));
    for (name, text, message_type, messages) in [
        ("json, 2 fields", "/symbol = 'S00042' AND /qty > 100", MessageType::Json, &json),
        ("json, 2 fields, both read", "/symbol != 'S00042' AND /qty > 100", MessageType::Json, &json),
        ("json, 2 fields, 1 missing", "/symbol != 'S00042' AND /quantity IS NULL", MessageType::Json, &json),
        ("json, nested and array", "/limits/high > 100 AND /flags = 'hidden'", MessageType::Json, &json),
        ("json, arithmetic", "/qty * /price > 10000", MessageType::Json, &json),
        ("json, LIKE", "/account LIKE '^ACC-0*42$'", MessageType::Json, &json),
        ("fix, 2 fields", "/55 = 'S00042' AND /38 > 100", MessageType::Fix, &fix),
    ] {
        let (filter, mut arena) = (parsed(text), Arena::default());
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let matches = |data: &&Vec<u8>| filter.matches_with(&context(message_type, data), &mut arena);
                black_box(messages.iter().filter(matches).count())
            });
        });
    }
    group.finish();
}

/// Filters of which a message matches one, for any number of them.
fn filter_text(kind: &str, number: usize) -> String {
    match kind {
        "equality" => format!("/symbol = 'S{number:05}'"),
        "equality and more" => format!("/symbol = 'S{number:05}' AND /qty >= 0"),
        "range" => format!("/id >= {number} AND /id < {}", number + 1),
        other => unreachable!("{other}"),
    }
}

/// Two things take turns, so that what else the machine does falls on both: the time of the second
/// as a part of that of the first.
fn ratio(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    base: &mut impl FnMut() -> Duration,
    other: &mut impl FnMut() -> Duration,
) {
    let mut ratios = Vec::new();
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|rounds| {
            let mut elapsed = Duration::ZERO;
            for _ in 0..rounds {
                let expected = base();
                let took = other();
                ratios.push(took.as_secs_f64() / expected.as_secs_f64());
                elapsed += took;
            }
            elapsed
        });
    });
    ratios.sort_by(f64::total_cmp);
    if let Some(median) = ratios.get(ratios.len() / 2) {
        println!("{name}: {median:.3} (median of {} pairs of rounds)", ratios.len());
    }
}

/// Subscriptions, and messages of which each goes to one.
struct Subscribed {
    filters: Vec<Filter>,
    index: SubscriptionIndex<usize>,
    messages: Vec<Vec<u8>>,
    /// Messages looked at so far.
    seen: usize,
    arena: Arena,
}

impl Subscribed {
    fn new(kind: &str, count: usize) -> Self {
        let filters: Vec<Filter> = (0..count).map(|number| parsed(&filter_text(kind, number))).collect();
        let mut index = SubscriptionIndex::default();
        for (number, filter) in filters.iter().enumerate() {
            index.insert(number, Some(filter.clone()));
        }
        let messages: Vec<Vec<u8>> = (0..MESSAGE_COUNT).map(|number| order(number * 7_919 % count)).collect();
        Subscribed { filters, index, messages, seen: 0, arena: Arena::default() }
    }

    fn find(&mut self, count: usize) -> Duration {
        let start = Instant::now();
        for number in self.seen..self.seen + count {
            let data = &self.messages[number % MESSAGE_COUNT];
            let mut matches = 0;
            self.index.for_each_match(&context(MessageType::Json, data), &mut self.arena, |_| matches += 1);
            assert_eq!(matches, 1);
        }
        self.seen += count;
        start.elapsed()
    }

    fn evaluate_each(&mut self, count: usize) -> Duration {
        let start = Instant::now();
        for number in self.seen..self.seen + count {
            let message = context(MessageType::Json, &self.messages[number % MESSAGE_COUNT]);
            let wants = |filter: &&Filter| filter.matches_with(&message, &mut self.arena);
            assert_eq!(self.filters.iter().filter(wants).count(), 1);
        }
        self.seen += count;
        start.elapsed()
    }
}

/// The index alone: compared with one subscription in it, and with evaluating each filter in turn.
fn index(criterion: &mut Criterion) {
    const ROUND: usize = 500;
    let mut group = criterion.benchmark_group("index");
    for kind in ["equality", "equality and more", "range"] {
        let mut one = Subscribed::new(kind, 1);
        for count in SUBSCRIPTION_COUNTS {
            let mut many = Subscribed::new(kind, count);
            let mut in_turn = Subscribed::new(kind, count);
            group.throughput(Throughput::Elements(ROUND as u64));
            let name = format!("{kind}, {count} to 1");
            ratio(&mut group, &name, &mut || one.find(ROUND), &mut || many.find(ROUND));
            // Fewer messages, or it would take for ever.
            let name = format!("{kind}, {count}, to each in turn");
            group.throughput(Throughput::Elements(5));
            ratio(&mut group, &name, &mut || in_turn.evaluate_each(5), &mut || many.find(5));
        }
    }
    // The cost of adding and removing one subscription with ten thousand others.
    let mut subscribed = Subscribed::new("range", 10_000);
    let filters: Vec<Filter> = (0..20_000).map(|number| parsed(&filter_text("range", number))).collect();
    let mut number = 10_000;
    group.throughput(Throughput::Elements(1));
    group.bench_function("come and go beside 10000", |bencher| {
        bencher.iter(|| {
            subscribed.index.insert(number, Some(filters[number % 20_000].clone()));
            subscribed.index.remove(number - 10_000);
            number += 1;
        });
    });
    group.finish();
}

/// A broker with this number of subscriptions on one hundred connections. One of them gets each
/// message.
fn broker_with(kind: &str, count: usize) -> Bench {
    let mut bench = Bench::new();
    bench.connect(1, "publisher");
    for number in 0..count {
        let (connection, subscription) = (10 + number as u64 % 100, 1 + number as u32 / 100);
        if subscription == 1 {
            bench.connect(connection, &format!("subscriber-{connection}"));
        }
        let subscribe = Subscribe { subscription, topic: "orders", ..Subscribe::default() };
        match kind {
            "topic pattern" => {
                let topic = format!("^orders[.]{number:05}$");
                bench.subscribe(connection, Subscribe { topic: &topic, ..subscribe });
            }
            _ => {
                let filter = filter_text(kind, number);
                bench.subscribe(connection, Subscribe { filter: Some(&filter), ..subscribe });
            }
        }
    }
    bench.turn();
    bench
}

/// A publisher with this number of subscriptions.
struct Published {
    kind: &'static str,
    count: usize,
    bench: Bench,
    messages: Cycle<IntoIter<(String, Vec<u8>)>>,
    rounds_left: usize,
}

impl Published {
    /// Messages of one round.
    const ROUND: usize = 500;
    /// The journal is in memory. When it is full, the broker is made again.
    const ROUND_COUNT_MAX: usize = 2_000;

    fn new(kind: &'static str, count: usize) -> Self {
        let messages: Vec<(String, Vec<u8>)> = (0..MESSAGE_COUNT)
            .map(|number| number * 7_919 % count)
            .map(|number| match kind {
                "topic pattern" => (format!("orders.{number:05}"), order(number)),
                _ => ("orders".to_owned(), order(number)),
            })
            .collect();
        let bench = broker_with(kind, count);
        Published {
            kind,
            count,
            bench,
            messages: messages.into_iter().cycle(),
            rounds_left: Self::ROUND_COUNT_MAX,
        }
    }

    /// Frames are decoded, appended to the journal, matched, and encoded for the subscription that
    /// gets the message.
    fn round(&mut self) -> Duration {
        if self.rounds_left == 0 {
            *self = Published::new(self.kind, self.count);
        }
        self.rounds_left -= 1;
        let mut bytes = Vec::new();
        for (topic, data) in self.messages.by_ref().take(Self::ROUND) {
            self.bench.publish(&mut bytes, &topic, &data);
        }
        let start = Instant::now();
        self.bench.receive(1, &bytes);
        let sent = self.bench.turn();
        let elapsed = start.elapsed();
        assert!(sent > Self::ROUND * MESSAGE_SIZE);
        self.bench.broker.write_journal();
        self.bench.turn();
        elapsed
    }
}

/// One publisher with more and more subscriptions, compared with one subscription.
fn publish(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish");
    group.throughput(Throughput::Elements(Published::ROUND as u64));
    for kind in ["equality", "range", "topic pattern"] {
        let mut one = Published::new(kind, 1);
        for count in SUBSCRIPTION_COUNTS {
            let mut many = Published::new(kind, count);
            let name = format!("{kind}, {count} to 1");
            ratio(&mut group, &name, &mut || one.round(), &mut || many.round());
        }
    }
    group.finish();
}

/// A broker with one subscription, whose filter is that of the command, or that of the entitlement
/// of its user. The user is `anonymous` in both.
fn limited_broker(filter: &str, is_entitled: bool) -> Bench {
    let entry = |right: Right, filter: Option<&str>| EntrySettings {
        user: vec!["anonymous".into()],
        topic: vec!["orders".into()],
        allow: vec![right],
        filter: filter.map(Into::into),
        ..EntrySettings::default()
    };
    let read = entry(Right::Read, Some(filter).filter(|_| is_entitled));
    let entitlements = vec![entry(Right::Write, None), read];
    let mut bench = Bench::with(BrokerConfig { entitlements, ..BrokerConfig::default() });
    bench.connect(1, "publisher");
    bench.connect(2, "subscriber");
    let filter = Some(filter).filter(|_| !is_entitled);
    bench.subscribe(2, Subscribe { subscription: 1, topic: "orders", filter, ..Subscribe::default() });
    bench.turn();
    bench
}

/// The same filter in an entitlement and in a command: the ratio of the times. With an entitlement,
/// a message that matches must also have no key twice.
fn entitled(criterion: &mut Criterion) {
    const ROUND: usize = 500;
    let mut group = criterion.benchmark_group("entitled");
    group.throughput(Throughput::Elements(ROUND as u64));
    for (name, filter) in [
        ("every message matches", "/side = 'buy'"),
        ("every message matches, 2 fields", "/side = 'buy' AND /qty >= 0"),
        ("half of the messages match", "/qty < 500"),
        ("no message matches", "/side = 'sell'"),
    ] {
        let mut brokers = [false, true].map(|is_entitled| (limited_broker(filter, is_entitled), 0));
        let mut round = |is_entitled: bool| {
            let (bench, count) = &mut brokers[usize::from(is_entitled)];
            if *count == Published::ROUND_COUNT_MAX {
                (*bench, *count) = (limited_broker(filter, is_entitled), 0);
            }
            *count += 1;
            let mut bytes = Vec::new();
            for number in 0..ROUND {
                bench.publish(&mut bytes, "orders", &order(number * 7_919));
            }
            let start = Instant::now();
            bench.receive(1, &bytes);
            let sent = bench.turn();
            let elapsed = start.elapsed();
            assert_eq!(sent > ROUND * MESSAGE_SIZE / 4, !name.starts_with("no "), "{name}: {sent}");
            bench.broker.write_journal();
            bench.turn();
            elapsed
        };
        let round = std::cell::RefCell::new(&mut round);
        ratio(&mut group, name, &mut || round.borrow_mut()(false), &mut || round.borrow_mut()(true));
    }
    group.finish();
}

criterion_group!(benches, evaluate, index, publish, entitled);
criterion_main!(benches);
