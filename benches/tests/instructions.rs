//! Guards the hot paths by what does not depend on how busy the machine is: the instructions that
//! one message costs. Each path runs in a separate process that is followed step by step through
//! the part that counts, so that nothing but the kernel is needed. A step takes the kernel about
//! 17 µs, so the paths are short.
//!
//! A limit is a tenth to a quarter above what was counted when it was set: compilers and processors
//! (copying memory is done in their own way) differ by less. A path that goes above its limit has
//! become dearer; one that goes far below gets a new limit.

use std::process::{self, ExitCode, Stdio};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use quire_benches::context;
use quire_benches::driven_broker::Bench;
use quire_benches::filled_table;
use quire_broker::{BrokerConfig, QueueSettings, RecordedTopic, ReplicationConfig, TransactionLogConfig};
use quire_command::{Acks, Bookmarks, Command, Selection, Settle, Subscribe, Unsubscribe, put_bookmark};
use quire_expression::filter::{Filter, FilterOptions, path_of};
use quire_expression::message_type::{Arena, FieldPlan, MessageType, Step, difference, merge};
use quire_journal::PublisherId;
use quire_queue::*;
use quire_wire::Encode;

/// A path from its beginning to its end, what is counted between two calls of [`measured`].
struct Path {
    name: &'static str,
    run: fn(),
    messages: u64,
    /// Instructions for each message.
    limit: u64,
}

const PATHS: [Path; 18] = [
    Path { name: "take a publish of 512 B", run: publish, messages: 60, limit: 2_050 },
    Path { name: "the same, with replication", run: publish_replicated, messages: 60, limit: 3_900 },
    Path {
        name: "the same, each second one is not recorded",
        run: publish_alternating,
        messages: 60,
        limit: 4_600,
    },
    Path {
        name: "hand a message to one of 100 filtered subscriptions",
        run: fan_out,
        messages: 20,
        limit: 7_100,
    },
    Path { name: "replay a message of 256 B", run: replay, messages: 150, limit: 1_520 },
    Path { name: "evaluate two fields of 300 B of JSON", run: evaluate, messages: 20, limit: 4_000 },
    Path { name: "merge 4 fields into 300 B of JSON", run: merge_orders, messages: 20, limit: 14_300 },
    Path { name: "difference of 300 B of JSON", run: compare_orders, messages: 20, limit: 25_000 },
    Path { name: "lease and acknowledge, round robin", run: round_robin, messages: 60, limit: 2_700 },
    Path { name: "lease and acknowledge, proportional", run: proportional, messages: 60, limit: 3_050 },
    Path { name: "a message of 512 B through a queue", run: through_queue, messages: 60, limit: 9_900 },
    Path { name: "the same, its leases recorded", run: through_recording_queue, messages: 60, limit: 10_900 },
    Path { name: "replace a record of 300 B, with its key", run: replace_record, messages: 60, limit: 5_750 },
    Path { name: "get a record by its key", run: get_record, messages: 60, limit: 720 },
    Path { name: "look at a record of 300 B with a filter", run: scan_records, messages: 60, limit: 3_000 },
    // Other connections wait while a key is read from megabytes of these.
    Path { name: "pass one of 1,000 equal pairs of FIX", run: read_pairs, messages: 1_000, limit: 550 },
    Path { name: "pass one of 200 equal elements of XML", run: read_elements, messages: 200, limit: 3_190 },
    Path { name: "pass one of 200 equal names of JSON", run: read_members, messages: 200, limit: 1_220 },
];

/// Marks both ends of what is counted.
const END: Signal = Signal::SIGSTOP;

/// How a process ends that must not be followed: containers may forbid it.
const NOT_FOLLOWED: i32 = 77;

fn main() -> ExitCode {
    let wanted = std::env::args().skip_while(|argument| argument != "--path").nth(1);
    if let Some(path) = PATHS.iter().find(|path| wanted.as_deref() == Some(path.name)) {
        (path.run)();
        return ExitCode::SUCCESS;
    }
    let mut is_dearer = false;
    for path in &PATHS {
        let counted = match count(path) {
            Ok(Some(counted)) => counted.div_ceil(path.messages),
            Ok(None) => {
                println!("{}: not counted, the system does not let a process follow another", path.name);
                continue;
            }
            Err(error) => {
                println!("{}: {error}", path.name);
                return ExitCode::FAILURE;
            }
        };
        let verdict = if counted > path.limit { "FAILED" } else { "ok" };
        is_dearer |= counted > path.limit;
        println!("{}: {counted} instructions a message, at most {} ... {verdict}", path.name, path.limit);
    }
    if is_dearer { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The instructions between the two ends of a path; `None` where processes may not be followed.
fn count(path: &Path) -> Result<Option<u64>, Box<dyn std::error::Error>> {
    let child = process::Command::new(std::env::current_exe()?)
        .args(["--path", path.name])
        .stdin(Stdio::null())
        .spawn()?;
    let child = Pid::from_raw(i32::try_from(child.id())?);
    let mut count = 0;
    let mut is_begun = false;
    // An instruction that copies memory stops after each byte or word of it; it still counts as one
    // instruction.
    let mut place = 0;
    loop {
        match waitpid(child, None)? {
            WaitStatus::Stopped(_, END) if is_begun => break,
            WaitStatus::Stopped(_, END) => is_begun = true,
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                let next = place_of(child)?;
                count += u64::from(next != place);
                place = next;
            }
            WaitStatus::Exited(_, NOT_FOLLOWED) => return Ok(None),
            other => return Err(format!("the process ended on its way: {other:?}").into()),
        }
        ptrace::step(child, None)?;
    }
    ptrace::cont(child, None)?;
    match waitpid(child, None)? {
        WaitStatus::Exited(_, 0) => Ok(Some(count)),
        other => Err(format!("the process did not end well: {other:?}").into()),
    }
}

/// The address of the instruction that comes next.
#[cfg(target_arch = "x86_64")]
fn place_of(child: Pid) -> nix::Result<u64> {
    ptrace::getregs(child).map(|registers| registers.rip)
}

/// Other processors have no instruction that repeats itself.
#[cfg(not(target_arch = "x86_64"))]
fn place_of(_: Pid) -> nix::Result<u64> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(1);
    Ok(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// What is counted.
fn measured(part: impl FnOnce()) {
    if ptrace::traceme().is_err() {
        std::process::exit(NOT_FOLLOWED);
    }
    raise(END).expect("a signal to itself");
    part();
    raise(END).expect("a signal to itself");
}

fn publish() {
    take_publishes(Bench::new(), ["orders", "orders"]);
}

fn publish_replicated() {
    take_publishes(Bench::with(replicated()), ["orders", "orders"]);
}

/// The sequences of the messages that are not recorded are passed over.
fn publish_alternating() {
    take_publishes(Bench::with(replicated()), ["orders", "scratch"]);
}

fn replicated() -> BrokerConfig {
    let scratch = RecordedTopic { recorded: false, ..RecordedTopic::new("scratch", "json") };
    let topics = vec![scratch, RecordedTopic::new("^", "json")];
    BrokerConfig {
        name: "a".into(),
        transaction_log: TransactionLogConfig { topics, ..TransactionLogConfig::default() },
        replication: ReplicationConfig { accepts: true, ..ReplicationConfig::default() },
        ..BrokerConfig::default()
    }
}

fn take_publishes(mut bench: Bench, topics: [&str; 2]) {
    bench.connect_in_run(1, "publisher", 7);
    let read = |bench: &mut Bench| {
        let mut bytes = Vec::new();
        (0..60).for_each(|number| bench.publish(&mut bytes, topics[number % 2], &[b'x'; 512]));
        bytes
    };
    for _ in 0..3 {
        let bytes = read(&mut bench);
        bench.receive(1, &bytes);
        bench.turn();
        bench.broker.write_journal();
        bench.turn();
    }
    let bytes = read(&mut bench);
    measured(|| {
        bench.receive(1, &bytes);
        bench.turn();
    });
}

fn fan_out() {
    let mut bench = Bench::new();
    bench.connect(1, "publisher");
    for number in 0..100 {
        bench.connect(10 + number, &format!("subscriber-{number}"));
        let filter = format!("/key = {number}");
        let subscribe =
            Subscribe { subscription: 1, topic: "orders", filter: Some(&filter), ..Subscribe::default() };
        bench.subscribe(10 + number, subscribe);
    }
    bench.turn();
    let mut round = |counts: bool| {
        let mut bytes = Vec::new();
        for key in 0..20 {
            let data = format!(r#"{{"id":{key},"text":"{}","key":{key}}}"#, ".".repeat(90));
            bench.publish(&mut bytes, "orders", data.as_bytes());
        }
        let mut size = 0;
        let mut part = || {
            bench.receive(1, &bytes);
            size = bench.turn();
        };
        if counts {
            measured(part)
        } else {
            part()
        }
        assert!(size > 20 * 100, "every message goes to one");
        bench.broker.write_journal();
        bench.turn();
    };
    round(false);
    round(false);
    round(true);
}

fn replay() {
    let mut bench = Bench::new();
    bench.connect(1, "publisher");
    let mut bytes = Vec::new();
    (0..150).for_each(|_| bench.publish(&mut bytes, "orders", &[b'x'; 256]));
    bench.receive(1, &bytes);
    bench.turn();
    bench.broker.write_journal();
    bench.turn();
    bench.connect(2, "reader");
    let mut round = |number: u32| {
        let bookmark = Some("0");
        bench.subscribe(
            2,
            Subscribe { subscription: number, topic: "orders", bookmark, ..Subscribe::default() },
        );
        assert!(bench.turn() > 150 * 256);
        bench.send(
            2,
            &Command::Unsubscribe(Unsubscribe {
                command: 1,
                acks: Acks::default(),
                subscription: number,
                begun: None,
            }),
        );
        bench.turn();
    };
    round(1);
    measured(|| round(2));
}

fn orders() -> Vec<String> {
    (0..20)
        .map(|number| {
            let symbol = if number % 2 == 0 { 42 } else { number };
            let head = format!(r#"{{"id":{number},"symbol":"S{symbol:05}","side":"buy","qty":{},"price":90.25,"#, number * 70);
            let order = format!(
                r#"{head}"flags":["ioc","hidden"],"limits":{{"low":90.5,"high":110}},"trader":"j.smith","note":""#
            );
            format!("{order}{}\"}}", ".".repeat(298 - order.len()))
        })
        .collect()
}

fn evaluate() {
    let filter = Filter::parse("/symbol = 'S00042' AND /qty > 100", &FilterOptions::default()).unwrap();
    let (orders, mut arena) = (orders(), Arena::default());
    let mut round = || {
        let matches = orders
            .iter()
            .filter(|order| filter.matches_with(&context(MessageType::Json, order.as_bytes()), &mut arena))
            .count();
        assert_eq!(matches, 9);
    };
    round();
    measured(round);
}

/// Messages, and the messages that they become by a part of them.
fn changed_orders() -> Vec<(String, String, Vec<u8>)> {
    let orders = orders().into_iter().enumerate();
    let changed = orders.map(|(number, order)| {
        let delta = format!(r#"{{"id":{number},"qty":7,"limits":{{"low":91.5}},"state":"open"}}"#);
        let mut out = Vec::new();
        merge(MessageType::Json, order.as_bytes(), delta.as_bytes(), &mut out).unwrap();
        (order, delta, out)
    });
    changed.collect()
}

fn merge_orders() {
    let orders = changed_orders();
    let mut out = Vec::new();
    let mut round = || {
        for (order, delta, merged) in &orders {
            merge(MessageType::Json, order.as_bytes(), delta.as_bytes(), &mut out).unwrap();
            assert_eq!(out, *merged);
        }
    };
    round();
    measured(round);
}

fn compare_orders() {
    let (orders, keep) = (changed_orders(), [vec![Step::Name(b"id"[..].into())]]);
    let mut out = Vec::new();
    let mut round = || {
        for (order, _, merged) in &orders {
            assert_eq!(difference(MessageType::Json, order.as_bytes(), merged, &keep, &mut out), Ok(true));
        }
    };
    round();
    measured(round);
}

fn round_robin() {
    work_off(FairnessModel::RoundRobin);
}

fn proportional() {
    work_off(FairnessModel::Proportional);
}

/// 10,000 messages outstanding with 1,000 subscriptions; the oldest is acknowledged, another
/// leased.
fn work_off(model: FairnessModel) {
    const NOW: Time = Time::new(1_000_000_000);
    const CONNECTION: ConnectionId = ConnectionId::new(1);
    let mut queues = Queues::new();
    let config = QueueConfig {
        fairness_model: Some(model),
        lease_period: Some(std::time::Duration::from_secs(30)),
        ..QueueConfig::default()
    };
    let queue = queues.add_queue(config).unwrap();
    for _ in 0..1_000 {
        let spec =
            SubscriptionSpec { connection: CONNECTION, backlog: Some(20), queues: vec![(queue, None)] };
        queues.subscribe(&spec).unwrap();
    }
    for position in 1..=20_000 {
        let bookmark = Some(Bookmark::new(PublisherId::new(7), position));
        let entry = QueueEntry { bookmark, received: NOW, ..QueueEntry::default() };
        queues.enqueue(queue, Position::new(position), entry);
    }
    let mut nobody_asks = |_: Position, _: FilterId| false;
    for _ in 0..10_000 {
        queues.poll_delivery(NOW, &mut nobody_asks).unwrap();
    }
    let mut round = |first: u64, count: u64| {
        for position in (first..first + count).map(Position::new) {
            assert_eq!(queues.settle(queue, CONNECTION, Verdict::Acknowledge, &[position], NOW), 1);
            queues.poll_change().unwrap();
            queues.poll_delivery(NOW, &mut nobody_asks).unwrap();
        }
    };
    round(1, 2_000);
    measured(|| round(2_001, 60));
}

fn through_queue() {
    publish_to_acknowledge(false);
}

fn through_recording_queue() {
    publish_to_acknowledge(true);
}

/// Published, delivered to three workers in turn, acknowledged in three commands.
fn publish_to_acknowledge(record_leases: bool) {
    const WORKERS: u64 = 3;
    const COUNT: u64 = 60;
    let queue = QueueSettings {
        name: "jobs".into(),
        message_type: "json".into(),
        fairness_model: Some(FairnessModel::RoundRobin),
        leasing: Leasing::Strict,
        record_leases,
        ..QueueSettings::default()
    };
    let mut bench = Bench::with(BrokerConfig { queues: vec![queue], ..BrokerConfig::default() });
    bench.connect(1, "publisher");
    for worker in 0..WORKERS {
        bench.connect(10 + worker, &format!("worker-{worker}"));
        let max_backlog = Some(COUNT as u32);
        let subscribe = Subscribe { subscription: 1, topic: "jobs", max_backlog, ..Subscribe::default() };
        bench.subscribe(10 + worker, subscribe);
    }
    let publisher = PublisherId::of_client_name("publisher").get();
    let mut round = |number: u64, counts: bool| {
        let (mut publishes, first) = (Vec::new(), number * COUNT + 1);
        (0..COUNT).for_each(|_| bench.publish(&mut publishes, "jobs", &[b'x'; 512]));
        let settle = |worker: u64| {
            let (mut bookmarks, mut bytes) = (Vec::new(), Vec::new());
            let sequences = (first + worker..first + COUNT).step_by(WORKERS as usize);
            sequences.for_each(|sequence| put_bookmark(&mut bookmarks, publisher, sequence));
            let messages = Selection::Bookmarks(Bookmarks::from_bytes(&bookmarks).unwrap());
            let (verdict, acks) = (Verdict::Acknowledge, Acks::default());
            let settle = Settle { verdict, command: 0, acks, queue: "jobs", messages, reason: "" };
            Command::Settle(settle).encode(&mut bytes);
            bytes
        };
        let settles: Vec<_> = (0..WORKERS).map(settle).collect();
        let mut part = || {
            bench.receive(1, &publishes);
            bench.turn();
            bench.broker.write_journal();
            bench.turn();
            for (worker, bytes) in (0..).zip(&settles) {
                bench.receive(10 + worker, bytes);
            }
            bench.turn();
        };
        if counts {
            measured(part)
        } else {
            part()
        }
        bench.broker.write_journal();
        bench.turn();
        assert_eq!(bench.broker.queue_stats()["jobs"].engine.queue_depth, 0);
    };
    (0..3).for_each(|number| round(number, false));
    round(3, true);
}

fn replace_record() {
    let mut bench = filled_table::Bench::filled(10_000, Vec::new());
    let messages: Vec<_> = (0..60).map(|number| (number * 97, filled_table::message(number * 97))).collect();
    measured(|| messages.iter().for_each(|(number, data)| assert!(!bench.put(*number, data))));
}

fn get_record() {
    let mut bench = filled_table::Bench::filled(10_000, Vec::new());
    let key = |number: u64| {
        bench.keys.key_of(filled_table::message(number * 97).as_bytes(), &mut bench.arena).unwrap()
    };
    let keys: Vec<_> = (0..60).map(key).collect();
    measured(|| keys.iter().for_each(|key| assert!(bench.table.get(key).is_some())));
}

fn scan_records() {
    let mut bench = filled_table::Bench::filled(60, Vec::new());
    let filter = Filter::parse("/symbol = 'SYM007'", &FilterOptions::default()).unwrap();
    assert_eq!(bench.scan(&filter), 1);
    measured(|| assert_eq!(bench.scan(&filter), 1));
}

fn read_pairs() {
    read_repeated(MessageType::Fix, "55=1\u{1}".repeat(1_000), "/55");
}

fn read_elements() {
    read_repeated(MessageType::Xml, format!("<m>{}</m>", "<a>1</a>".repeat(200)), "/m/a");
}

fn read_members() {
    read_repeated(MessageType::Json, format!("{{\"k\":1{}}}", ",\"a\":{\"b\":1}".repeat(200)), "/a/b");
}

/// Reads the field as the field of a key.
fn read_repeated(message_type: MessageType, message: String, field: &str) {
    let (mut plan, mut arena) = (FieldPlan::of_first_elements(), Arena::default());
    let field = plan.add(&path_of(field));
    let mut round = || {
        arena.reset();
        let values = message_type.read_whole(message.as_bytes(), &plan, &arena).unwrap();
        assert!(!values[field.index()].is_null());
    };
    round();
    measured(round);
}
