//! Views of queues (docs/views.md section 4): a view has the messages that wait or are leased, from
//! the moment when they enter the queue until they leave it, also over restarts, for new
//! definitions, and in portions.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use quire_broker::{
    AdminCommand, BrokerConfig, ConfigError, Event, QueueSettings, RecordedTopic, ViewSettings,
};
use quire_command::*;
use quire_queue::Semantics;
use quire_types::{Delay, Verdict};
use quire_wire::Encode;
use serde_json::{Value, json};

use crate::last_value_pair::*;
use crate::last_value_restarts::{crash, restart};
use crate::pair::*;
use crate::queue_defining::{COMMAND, create, drop_queue, refusal};
use crate::queue_pair::*;
use crate::slices::with_stopwatch;
use crate::view_restarts::view;

const OPERATOR: u64 = 3;

/// A queue over the topic `tasks`.
fn over_tasks(name: &str) -> QueueSettings {
    QueueSettings { underlying_topic: Some("tasks".into()), ..queue(name) }
}

/// A record for each message.
fn ids(name: &str, queue: &str) -> ViewSettings {
    view(name, queue, &["/id", "COUNT(1) AS /n"], &["/id"])
}

fn sums(name: &str, queue: &str) -> ViewSettings {
    view(name, queue, &["/g", "COUNT(1) AS /n", "SUM(/id) AS /sum"], &["/g"])
}

fn config_of(queues: impl IntoIterator<Item = QueueSettings>, views: Vec<ViewSettings>) -> BrokerConfig {
    BrokerConfig { queues: queues.into_iter().collect(), views, ..sow_config([sow_topic("desks")]) }
}

fn start(config: BrokerConfig) -> Pair {
    log_on(Pair::with(config))
}

fn log_on(mut pair: Pair) -> Pair {
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.client(OPERATOR, "operator");
    pair.turn();
    pair
}

fn task(id: u64) -> String {
    format!(r#"{{"id":{id},"g":{}}}"#, id % 3)
}

fn put(pair: &mut Pair, ids: std::ops::RangeInclusive<u64>) {
    ids.for_each(|id| pair.publish(1, id, "tasks", &task(id)));
    pair.turn();
}

/// The numbers of the messages in a view of [`ids`], each of which it has once.
fn numbers(pair: &mut Pair, view: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> = pair
        .ordered(OPERATOR, query(5, view))
        .iter()
        .map(|record| {
            let record: Value = serde_json::from_str(record).unwrap();
            assert_eq!(record["n"], 1);
            record["id"].as_u64().unwrap()
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

fn take(pair: &mut Pair, queue: &str, count: u32) -> Vec<FromQueue> {
    let number = if queue == "once" { 6 } else { 7 };
    pair.subscribe(2, &consume(number, queue, count));
    pair.turn();
    pair.take_queued(2)
}

fn define(pair: &mut Pair, settings: &ViewSettings) -> Result<bool, String> {
    pair.take(OPERATOR);
    let json = json!(settings).to_string();
    pair.send(OPERATOR, &Command::DefineView { command: COMMAND, settings: &json });
    pair.turn();
    match &pair.take(OPERATOR)[..] {
        [Said::Stats { command: COMMAND, json }] => {
            let told: Value = serde_json::from_str(json).unwrap();
            Ok(told["view"]["changed"].as_bool().unwrap())
        }
        _ => Err(pair.clients[&OPERATOR].refusal.clone()),
    }
}

#[test]
fn a_view_counts_the_messages_that_wait_or_are_leased() {
    let mut pair = start(config_of([over_tasks("jobs")], vec![sums("sums", "jobs")]));
    pair.subscribe(OPERATOR, &sow(8, "sums"));
    put(&mut pair, 1..=4);
    let rows = [
        r#"+{"g":1,"n":1,"sum":1}"#,
        r#"+{"g":2,"n":1,"sum":2}"#,
        r#"+{"g":0,"n":1,"sum":3}"#,
        r#"+{"g":1,"n":2,"sum":5}"#,
    ];
    assert_eq!(pair.take_rows(OPERATOR), rows);
    let taken = take(&mut pair, "jobs", 10);
    assert_eq!((taken.len(), pair.take_rows(OPERATOR)), (4, Vec::new()), "leased messages stay");
    pair.settle(2, "jobs", Verdict::Release, &taken[3..]);
    assert_eq!(pair.take_rows(OPERATOR), Vec::<String>::new());
    pair.take(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &taken[..1]);
    pair.settle(2, "jobs", Verdict::Expire, &taken[1..2]);
    let rows = [r#"+{"g":1,"n":1,"sum":4}"#, r#"-Deleted {"g":2,"n":1,"sum":2}"#];
    assert_eq!(pair.take_rows(OPERATOR), rows);
    pair.disconnect(2);
    pair.turn();
    assert_eq!(pair.take_rows(OPERATOR), Vec::<String>::new(), "they wait again");
}

#[test]
fn a_delayed_message_is_in_no_view_until_its_delay_is_over() {
    let jobs = QueueSettings { retry_delay_ns: vec![2_000_000_000], ..over_tasks("jobs") };
    let mut pair = start(config_of([jobs], vec![ids("ids", "jobs")]));
    put(&mut pair, 1..=1);
    let delay = Delay::For { ns: 1_000_000_000 };
    pair.send(1, &Command::Publish(Publish { delay, ..publish(2, "tasks", &task(2)) }));
    pair.turn();
    assert_eq!(numbers(&mut pair, "ids"), [1]);
    pair.pass(Duration::from_secs(1));
    assert_eq!(numbers(&mut pair, "ids"), [1, 2]);
    let taken = take(&mut pair, "jobs", 1);
    pair.settle(2, "jobs", Verdict::Cancel, &taken);
    assert_eq!(numbers(&mut pair, "ids"), [2]);
    pair.pass(Duration::from_millis(1_999));
    assert_eq!(numbers(&mut pair, "ids"), [2]);
    pair.pass(Duration::from_millis(1));
    assert_eq!(numbers(&mut pair, "ids"), [1, 2]);
}

#[test]
fn expired_purged_and_taken_messages_leave_a_view() {
    let jobs = QueueSettings {
        expiration_ns: Some(5_000_000_000),
        dead_letter_topic: Some("dead".into()),
        ..over_tasks("jobs")
    };
    let once = QueueSettings { semantics: Semantics::AtMostOnce, ..over_tasks("once") };
    let dead = QueueSettings { underlying_topic: Some("dead".into()), ..queue("letters") };
    let letters = view("letters-n", "letters", &["/queue", "COUNT(1) AS /n"], &["/queue"]);
    let views = vec![ids("ids", "jobs"), ids("once-ids", "once"), letters];
    let mut pair = start(config_of([jobs, once, dead], views));
    put(&mut pair, 1..=3);
    assert_eq!(take(&mut pair, "once", 1).len(), 1);
    assert_eq!(numbers(&mut pair, "once-ids"), [2, 3]);
    let taken = take(&mut pair, "jobs", 1);
    pair.pass(Duration::from_secs(5));
    assert_eq!(numbers(&mut pair, "ids"), [1], "a leased message does not expire by time");
    assert_eq!(pair.records(OPERATOR, query(5, "letters-n")), [r#"{"queue":"jobs","n":2}"#]);
    pair.settle(2, "jobs", Verdict::Release, &taken);
    assert_eq!(numbers(&mut pair, "ids"), Vec::<u64>::new());
    assert_eq!(pair.records(OPERATOR, query(5, "letters-n")), [r#"{"queue":"jobs","n":3}"#]);
    put(&mut pair, 4..=5);
    assert_eq!(numbers(&mut pair, "ids"), [4, 5]);
    let all = Selection::Matching("");
    let verdict = Verdict::Acknowledge;
    let acks = Acks::PROCESSED;
    let settle = Settle { verdict, command: 9, acks, queue: "jobs", messages: all, reason: "" };
    pair.send(OPERATOR, &Command::Settle(settle));
    pair.turn();
    assert_eq!(numbers(&mut pair, "ids"), Vec::<u64>::new());
}

#[test]
fn messages_beyond_the_target_depth_are_in_no_view() {
    let jobs = QueueSettings { target_queue_depth: Some(2), ..over_tasks("jobs") };
    let mut pair = start(config_of([jobs], vec![ids("ids", "jobs")]));
    put(&mut pair, 1..=5);
    assert_eq!(numbers(&mut pair, "ids"), [1, 2]);
    let taken = take(&mut pair, "jobs", 1);
    pair.settle(2, "jobs", Verdict::Acknowledge, &taken);
    assert_eq!(numbers(&mut pair, "ids"), [2, 3]);
}

#[test]
fn queues_are_joined_with_topics_and_views_are_made_of_views_of_queues() {
    let join = ViewSettings {
        join: vec!["[jobs].[/g] = [desks].[/id]".into()],
        ..view("named", "", &["[jobs].[/id] AS /id", "[desks].[/name] AS /name"], &[])
    };
    let groups = view("groups", "sums", &["COUNT(1) AS /groups", "SUM(/n) AS /n"], &[]);
    let filtered = ViewSettings {
        filter: Some("/id > 1 AND TOPIC_NAME() = 'jobs'".into()),
        message_type: "nvfix".into(),
        ..view("texts", "texts-q", &["COUNT(1) AS /n", "MAX(/id) AS /max"], &[])
    };
    let texts = QueueSettings { name: "texts-q".into(), ..over_tasks("texts-q") };
    let filtered = ViewSettings { filter: Some("/id > 1".into()), ..filtered };
    let views = vec![groups, join, sums("sums", "jobs"), filtered];
    let mut pair = start(config_of([over_tasks("jobs"), texts], views));
    put(&mut pair, 1..=3);
    pair.publish(1, 4, "desks", r#"{"id":1,"name":"one"}"#);
    pair.turn();
    let named = [r#"{"id":1,"name":"one"}"#, r#"{"id":2,"name":null}"#, r#"{"id":3,"name":null}"#];
    assert_eq!(pair.records(OPERATOR, query(5, "named")), named);
    assert_eq!(pair.records(OPERATOR, query(5, "groups")), [r#"{"groups":3,"n":3}"#]);
    assert_eq!(pair.records(OPERATOR, query(5, "texts")), ["n=2\u{1}max=3\u{1}"]);
    let taken = take(&mut pair, "jobs", 1);
    pair.settle(2, "jobs", Verdict::Acknowledge, &taken);
    assert_eq!(pair.records(OPERATOR, query(5, "named")), named[1..]);
    assert_eq!(pair.records(OPERATOR, query(5, "groups")), [r#"{"groups":2,"n":2}"#]);
}

#[test]
fn the_messages_of_a_queue_have_no_name_of_their_own() {
    let mut pair = start(config_of([over_tasks("jobs")], vec![sums("sums", "jobs")]));
    put(&mut pair, 1..=2);
    let pair_of_sums = [r#"{"g":1,"n":1,"sum":1}"#, r#"{"g":2,"n":1,"sum":2}"#];
    pair.send(OPERATOR, &Command::Inspect { command: 4, subject: Subject::Topics { after: "" } });
    pair.turn();
    let said = pair.take(OPERATOR);
    let Some(Said::Stats { json, .. }) = said.last() else { panic!("{said:?}") };
    let told: Value = serde_json::from_str(json).unwrap();
    let kept = told["topics"].as_array().unwrap().iter().filter(|topic| !topic["last_values"].is_null());
    let kept: Vec<_> = kept.map(|topic| topic["topic"].as_str().unwrap()).collect();
    assert_eq!(kept, ["desks", "sums"]);
    assert_eq!(pair.records(OPERATOR, query(5, "^(jobs|sums)$")), pair_of_sums);
    assert_eq!(take(&mut pair, "jobs", 5).len(), 2);
    let past = Query { bookmark: Some("0"), ..query(5, "sums") };
    pair.send(OPERATOR, &Command::Query(past));
    pair.turn();
    assert!(
        pair.clients[&OPERATOR].refusal.contains(r#""sums" is a view of the queue "jobs", and queues keep"#),
        "{}",
        pair.clients[&OPERATOR].refusal
    );
}

#[test]
fn a_start_computes_a_view_from_the_messages_of_its_queue() {
    for file_backed_metadata in [false, true] {
        let jobs = || QueueSettings { file_backed_metadata, ..over_tasks("jobs") };
        let config = || config_of([jobs()], vec![ids("ids", "jobs"), sums("sums", "jobs")]);
        let mut pair = start(config());
        put(&mut pair, 1..=9);
        let taken = take(&mut pair, "jobs", 5);
        pair.settle(2, "jobs", Verdict::Acknowledge, &taken[1..3]);
        let before = pair.records(OPERATOR, query(5, "sums"));
        let mut pair = restart(pair, config());
        pair.client(OPERATOR, "operator");
        assert_eq!(numbers(&mut pair, "ids"), [1, 4, 5, 6, 7, 8, 9]);
        assert_eq!(pair.records(OPERATOR, query(5, "sums")), before);
        let mut pair = crash(pair, config());
        pair.client(OPERATOR, "operator");
        assert_eq!(numbers(&mut pair, "ids"), [1, 4, 5, 6, 7, 8, 9]);
        put(&mut pair, 10..=10);
        let taken = take(&mut pair, "jobs", 1);
        pair.settle(2, "jobs", Verdict::Acknowledge, &taken);
        assert_eq!(numbers(&mut pair, "ids"), [4, 5, 6, 7, 8, 9, 10]);
    }
}

#[test]
fn mistakes_are_refused() {
    let refused = |config: BrokerConfig| ConfigError::from(config.check().unwrap_err()).to_string();
    let binary = QueueSettings { message_type: "binary".into(), ..over_tasks("jobs") };
    let mut config = config_of([binary], vec![sums("sums", "jobs")]);
    config.transaction_log.topics.insert(0, RecordedTopic::new("tasks", "binary"));
    let reason = refused(config);
    let expected = r#"views[0].underlying_topic: view "sums": the messages on "jobs" have no fields: binary"#;
    assert!(reason.starts_with(expected), "{reason}");
    let reason = refused(config_of([over_tasks("jobs")], vec![sums("sums", "job")]));
    assert!(
        reason.contains(r#""job" keeps no last values: no sow_topic, no view, no queue and"#),
        "{reason}"
    );
    let reason = refused(config_of([over_tasks("jobs")], vec![sums("jobs", "desks")]));
    assert!(reason.contains("a queue has the name"), "{reason}");
}

#[test]
fn a_new_definition_can_read_a_queue_and_then_another_topic() {
    let config = || config_of([over_tasks("jobs")], vec![sums("sums", "desks")]);
    let mut pair = start(config());
    put(&mut pair, 1..=5);
    let taken = take(&mut pair, "jobs", 1);
    assert_eq!(define(&mut pair, &sums("sums", "jobs")), Ok(true));
    let of_jobs = [r#"{"g":0,"n":1,"sum":3}"#, r#"{"g":1,"n":2,"sum":5}"#, r#"{"g":2,"n":2,"sum":7}"#];
    assert_eq!(pair.records(OPERATOR, query(5, "sums")), of_jobs);
    pair.settle(2, "jobs", Verdict::Acknowledge, &taken);
    let less = [of_jobs[0], r#"{"g":1,"n":1,"sum":4}"#, of_jobs[2]];
    assert_eq!(pair.records(OPERATOR, query(5, "sums")), less);
    let mut pair = restart(pair, config());
    pair.client(OPERATOR, "operator");
    assert_eq!(pair.records(OPERATOR, query(5, "sums")), less);
    assert_eq!(define(&mut pair, &sums("sums", "desks")), Ok(true));
    assert_eq!(pair.records(OPERATOR, query(5, "sums")), Vec::<String>::new());
    put(&mut pair, 6..=6);
    assert_eq!(pair.records(OPERATOR, query(5, "sums")), Vec::<String>::new());
    assert_eq!(define(&mut pair, &sums("sums", "jobs")), Ok(true));
    assert_eq!(pair.records(OPERATOR, query(5, "sums")), [r#"{"g":0,"n":2,"sum":9}"#, less[1], less[2]]);
}

#[test]
fn a_created_queue_with_a_view_cannot_be_dropped() {
    let config = || config_of([], vec![sums("sums", "desks")]);
    let mut pair = start(config());
    pair.take(OPERATOR);
    assert_eq!(create(&mut pair, &QueueSettings { name: "later".into(), ..over_tasks("later") }), Ok(true));
    put(&mut pair, 1..=2);
    assert_eq!(define(&mut pair, &sums("sums", "later")), Ok(true));
    let of_two = [r#"{"g":1,"n":1,"sum":1}"#, r#"{"g":2,"n":1,"sum":2}"#];
    assert_eq!(pair.records(OPERATOR, query(5, "sums")), of_two);
    let reason = refusal(&mut pair, AdminCommand::DropQueue("later".into()));
    assert!(reason.starts_with(r#"queue "later" is a source of the view "sums". Give"#), "{reason}");
    let mut pair = restart(pair, config());
    pair.client(OPERATOR, "operator");
    assert_eq!(pair.records(OPERATOR, query(5, "sums")), of_two);
    let reason = refusal(&mut pair, AdminCommand::DropQueue("later".into()));
    assert!(reason.contains(r#"the view "sums""#), "{reason}");
    assert_eq!(define(&mut pair, &sums("sums", "desks")), Ok(true));
    pair.take(OPERATOR);
    assert_eq!(drop_queue(&mut pair, "later"), Ok(2));
    let reason = define(&mut pair, &sums("sums", "later")).unwrap_err();
    assert!(reason.contains(r#""later" keeps no last values"#), "{reason}");
}

#[test]
fn the_messages_of_a_deep_queue_are_moved_in_portions() {
    const COUNT: u64 = 3_000;
    let mut pair = with_stopwatch(config_of([over_tasks("jobs")], vec![sums("sums", "desks")]));
    pair = log_on(pair);
    let mut frames = Vec::new();
    for id in 1..=COUNT {
        let data = format!(r#"{{"id":{id},"g":1}}"#);
        Command::Publish(publish(id, "tasks", &data)).encode(&mut frames);
    }
    pair.send_bytes(1, &frames);
    pair.turn();
    pair.take(OPERATOR);
    let json = json!(sums("sums", "jobs")).to_string();
    pair.send(OPERATOR, &Command::DefineView { command: COMMAND, settings: &json });
    let (mut turn_count, mut id) = (0, COUNT);
    while !pair.take(OPERATOR).iter().any(|said| matches!(said, Said::Stats { .. })) {
        turn_count += 1;
        assert!(turn_count < 10_000);
        id += 1;
        pair.publish(1, id, "tasks", &format!(r#"{{"id":{id},"g":1}}"#));
        pair.one_turn();
        pair.write();
        pair.run_reads();
    }
    assert!(turn_count > 10, "{turn_count}");
    let all = |from: u64, to: u64| {
        let (n, sum) = (to - from + 1, (from..=to).sum::<u64>());
        vec![format!(r#"{{"g":1,"n":{n},"sum":{sum}}}"#)]
    };
    pair.turn();
    assert_eq!(pair.records(OPERATOR, query(5, "sums")), all(1, id));
    assert!(!pair.log.iter().any(|event| matches!(event, Event::QueueMessageUnreadable { .. })));
}

/// A step of the property test.
#[derive(Clone, Debug)]
enum Step {
    Publish { count: u64, delay_ms: Option<u64> },
    Work { worker: u64, max_backlog: u32 },
    Disconnect { worker: u64 },
    Settle { worker: u64, verdict: Verdict, one_in: usize },
    Purge { group: u64, verdict: Verdict },
    Pass { ms: u64 },
    Restart { is_crash: bool },
    Define { definition: usize },
}

const LEASE_MS: u64 = 4_000;
const LIFETIME_MS: u64 = 30_000;
const RETRY_MS: u64 = 2_000;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let worker = || 10_u64..12;
    let verdict = prop_oneof![
        4 => Just(Verdict::Acknowledge),
        2 => Just(Verdict::Cancel),
        1 => (0_u64..3_000).prop_map(|delay_ms| Verdict::CancelWithDelay { delay_ms }),
        1 => Just(Verdict::Expire),
        2 => Just(Verdict::Release),
    ];
    let removing = prop_oneof![Just(Verdict::Acknowledge), Just(Verdict::Expire)];
    let step = prop_oneof![
        6 => (1_u64..6).prop_map(|count| Step::Publish { count, delay_ms: None }),
        2 => (1_u64..3, 1_u64..5_000).prop_map(|(count, ms)| Step::Publish { count, delay_ms: Some(ms) }),
        5 => (worker(), 0_u32..5).prop_map(|(worker, max_backlog)| Step::Work { worker, max_backlog }),
        1 => worker().prop_map(|worker| Step::Disconnect { worker }),
        5 => (worker(), verdict, 1_usize..3)
            .prop_map(|(worker, verdict, one_in)| Step::Settle { worker, verdict, one_in }),
        1 => (0_u64..3, removing).prop_map(|(group, verdict)| Step::Purge { group, verdict }),
        3 => (1_u64..6_000).prop_map(|ms| Step::Pass { ms }),
        1 => any::<bool>().prop_map(|is_crash| Step::Restart { is_crash }),
        1 => (0_usize..3).prop_map(|definition| Step::Define { definition }),
    ];
    prop::collection::vec(step, 1..50)
}

/// What is known of a message of `jobs` that has not left.
struct Known {
    /// In nanoseconds, as all times here.
    expires: u64,
    delayed_until: u64,
    /// The worker, and the end of the lease.
    held: Option<(u64, u64)>,
}

/// The slow model: the messages of both queues as those outside know them.
struct Model {
    pair: Pair,
    file_backed: bool,
    published: u64,
    jobs: BTreeMap<u64, Known>,
    /// Those of the queue that delivers at most once, with the end of their delays.
    once: BTreeMap<u64, u64>,
    workers: BTreeMap<u64, u32>,
    publisher: u64,
    definition: usize,
}

impl Model {
    fn new(file_backed: bool) -> Self {
        let pair = start(Model::config(file_backed));
        let publisher = pair.publisher_of("publisher");
        Model {
            pair,
            file_backed,
            published: 0,
            jobs: BTreeMap::new(),
            once: BTreeMap::new(),
            workers: BTreeMap::new(),
            publisher,
            definition: 0,
        }
    }

    fn config(file_backed_metadata: bool) -> BrokerConfig {
        let jobs = QueueSettings {
            lease_period_ns: Some(LEASE_MS * 1_000_000),
            expiration_ns: Some(LIFETIME_MS * 1_000_000),
            retry_delay_ns: vec![RETRY_MS * 1_000_000],
            file_backed_metadata,
            ..over_tasks("jobs")
        };
        let once = QueueSettings { semantics: Semantics::AtMostOnce, ..over_tasks("once") };
        let views = vec![
            ids("ids", "jobs"),
            ids("once-ids", "once"),
            ViewSettings { inline_conflation: true, ..sums("sums", "jobs") },
            view("groups", "sums", &["COUNT(1) AS /groups", "SUM(/sum) AS /sum"], &[]),
            ViewSettings {
                join: vec!["[jobs].[/id] = [once].[/id]".into()],
                ..view("both", "", &["[jobs].[/id] AS /id", "[once].[/id] AS /once"], &[])
            },
            Model::definition(0),
        ];
        config_of([jobs, once], views)
    }

    /// The definitions of the view that gets new ones.
    fn definition(number: usize) -> ViewSettings {
        match number {
            0 => view("moving", "desks", &["COUNT(1) AS /n", "SUM(/id) AS /sum"], &[]),
            1 => view("moving", "jobs", &["COUNT(1) AS /n", "SUM(/id) AS /sum"], &[]),
            _ => view("moving", "once", &["COUNT(1) AS /n", "SUM(/id) AS /sum"], &[]),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish { count, delay_ms } => (0..count).for_each(|_| self.publish(delay_ms)),
            Step::Work { worker, max_backlog } => self.work(worker, max_backlog),
            Step::Disconnect { worker } => {
                if self.workers.remove(&worker).is_some() {
                    self.pair.disconnect(worker);
                    self.release(worker);
                }
            }
            Step::Settle { worker, verdict, one_in } => self.settle(worker, verdict, one_in),
            Step::Purge { group, verdict } => {
                let filter = format!("/g = {group}");
                let messages = Selection::Matching(&filter);
                let (acks, command) = (Acks::PROCESSED, 9);
                let settle = Settle { verdict, command, acks, queue: "jobs", messages, reason: "" };
                self.pair.send(OPERATOR, &Command::Settle(settle));
                self.pair.turn();
                self.jobs.retain(|id, _| id % 3 != group);
            }
            Step::Pass { ms } => self.pass(ms * 1_000_000),
            Step::Restart { is_crash } => self.restart(is_crash),
            Step::Define { definition } => {
                let changes = self.definition != definition;
                assert_eq!(define(&mut self.pair, &Model::definition(definition)), Ok(changes));
                self.definition = definition;
            }
        }
        self.pair.turn();
        self.listen();
        self.check();
    }

    fn publish(&mut self, delay_ms: Option<u64>) {
        self.published += 1;
        let (id, now) = (self.published, self.pair.now_ns);
        let delay_ns = delay_ms.unwrap_or_default() * 1_000_000;
        let delay = if delay_ns > 0 { Delay::For { ns: delay_ns } } else { Delay::None };
        self.pair.send(1, &Command::Publish(Publish { delay, ..publish(id, "tasks", &task(id)) }));
        let delayed_until = now + delay_ns;
        let expires = now + LIFETIME_MS * 1_000_000;
        self.jobs.insert(id, Known { expires, delayed_until, held: None });
        self.once.insert(id, delayed_until);
    }

    fn work(&mut self, worker: u64, max_backlog: u32) {
        let known = self.workers.insert(worker, max_backlog).is_some();
        if !known {
            self.pair.client(worker, &format!("worker-{worker}"));
        }
        let options = if known { SubscribeOptions::REPLACE } else { SubscribeOptions::default() };
        for (number, queue) in [(1, "jobs"), (2, "once")] {
            let subscribe =
                Subscribe { options, acks: Acks::default(), ..consume(number, queue, max_backlog) };
            self.pair.subscribe(worker, &subscribe);
        }
    }

    /// The messages of a worker wait again.
    fn release(&mut self, worker: u64) {
        let is_of = |known: &&mut Known| known.held.is_some_and(|(holder, _)| holder == worker);
        self.jobs.values_mut().filter(is_of).for_each(|known| known.held = None);
    }

    fn settle(&mut self, worker: u64, verdict: Verdict, one_in: usize) {
        let is_of = |known: &Known| known.held.is_some_and(|(holder, _)| holder == worker);
        let held = self.jobs.iter().filter(|(_, known)| is_of(known));
        let chosen: Vec<u64> = held.map(|(id, _)| *id).step_by(one_in).collect();
        let bookmarks: Vec<_> = chosen.iter().map(|id| (self.publisher, *id)).collect();
        if bookmarks.is_empty() {
            return;
        }
        self.pair.settle_bookmarks_as(worker, "jobs", verdict, &bookmarks, 0, Acks::default());
        let delay_ms = match verdict {
            Verdict::Acknowledge | Verdict::Expire => {
                self.jobs.retain(|id, _| !chosen.contains(id));
                return;
            }
            Verdict::Release => 0,
            Verdict::Cancel => RETRY_MS,
            Verdict::CancelWithDelay { delay_ms } => delay_ms,
        };
        let now = self.pair.now_ns;
        for id in chosen {
            let known = self.jobs.get_mut(&id).unwrap();
            (known.held, known.delayed_until) = (None, now + delay_ms * 1_000_000);
        }
        self.expire();
    }

    fn pass(&mut self, ns: u64) {
        let end = self.pair.now_ns + ns;
        while let Some(at) = self.pair.broker.next_timeout().filter(|at| at.0 <= end) {
            self.pair.pass(Duration::from_nanos(at.0.saturating_sub(self.pair.now_ns)));
            self.listen();
        }
        self.pair.pass(Duration::from_nanos(end - self.pair.now_ns));
        self.listen();
    }

    fn restart(&mut self, is_crash: bool) {
        let before = std::mem::replace(&mut self.pair, Pair::new());
        let config = Model::config(self.file_backed);
        if is_crash {
            self.pair = log_on(before.restart(config));
        } else {
            self.pair = restart(before, config);
            self.pair.client(OPERATOR, "operator");
            self.pair.turn();
        }
        self.workers.clear();
        self.jobs.values_mut().for_each(|known| known.held = None);
        self.expire();
    }

    /// What is said at this time.
    fn listen(&mut self) {
        let now = self.pair.now_ns;
        self.expire();
        for worker in self.workers.keys().copied().collect::<Vec<_>>() {
            for said in self.pair.take(worker) {
                match said {
                    Said::Queued(message) if message.subscription == 2 => {
                        assert!(self.once.remove(&message.bookmark.1).is_some(), "delivered twice");
                    }
                    Said::Queued(message) => {
                        let known = self.jobs.get_mut(&message.bookmark.1).expect("it is in the queue");
                        known.held = Some((worker, now + message.lease_ms * 1_000_000));
                    }
                    _ => (),
                }
            }
        }
    }

    /// Ends leases, and removes messages whose time is over.
    fn expire(&mut self) {
        let now = self.pair.now_ns;
        for known in self.jobs.values_mut() {
            known.held.take_if(|(_, deadline)| *deadline <= now);
        }
        self.jobs.retain(|_, known| known.held.is_some() || known.expires > now);
    }

    /// Every view is a computation from the messages that wait or are leased.
    fn check(&mut self) {
        let now = self.pair.now_ns;
        let jobs: Vec<u64> =
            self.jobs.iter().filter(|(_, known)| known.delayed_until <= now).map(|(id, _)| *id).collect();
        let once: Vec<u64> =
            self.once.iter().filter(|(_, until)| **until <= now).map(|(id, _)| *id).collect();
        assert_eq!(numbers(&mut self.pair, "ids"), jobs);
        assert_eq!(numbers(&mut self.pair, "once-ids"), once);
        let of_group = |group| jobs.iter().filter(move |id| **id % 3 == group);
        let sums: Vec<String> = (0..3)
            .filter(|group| of_group(*group).count() > 0)
            .map(|group| {
                let (n, sum) = (of_group(group).count(), of_group(group).sum::<u64>());
                format!(r#"{{"g":{group},"n":{n},"sum":{sum}}}"#)
            })
            .collect();
        assert_eq!(self.pair.records(OPERATOR, query(5, "sums")), sums);
        let sum = if jobs.is_empty() { Value::Null } else { json!(jobs.iter().sum::<u64>()) };
        let groups = format!(r#"{{"groups":{},"sum":{sum}}}"#, sums.len());
        assert_eq!(self.pair.records(OPERATOR, query(5, "groups")), [groups]);
        let mut both: Vec<String> = jobs
            .iter()
            .map(|id| match once.contains(id) {
                true => format!(r#"{{"id":{id},"once":{id}}}"#),
                false => format!(r#"{{"id":{id},"once":null}}"#),
            })
            .collect();
        both.sort();
        assert_eq!(self.pair.records(OPERATOR, query(5, "both")), both);
        let source = match self.definition {
            0 => Vec::new(),
            1 => jobs,
            _ => once,
        };
        let sum = if source.is_empty() { Value::Null } else { json!(source.iter().sum::<u64>()) };
        let moving = format!(r#"{{"n":{},"sum":{sum}}}"#, source.len());
        assert_eq!(self.pair.records(OPERATOR, query(5, "moving")), [moving]);
    }
}

proptest! {
    #[test]
    fn views_have_the_messages_of_their_queues(file_backed: bool, steps in steps()) {
        let mut model = Model::new(file_backed);
        for step in &steps {
            model.step(step);
        }
        model.step(&Step::Restart { is_crash: true });
    }
}
