//! Every command with every right that it needs missing: it is refused, its right and its topic are
//! named, it is counted and logged, and the answer tells nothing else.
//!
//! [`kind`] and [`KINDS`] list the commands of the protocol. A command without a line in the matrix
//! fails the test.

use std::collections::BTreeSet;
use std::sync::Arc;

use quire_broker::{
    Access, AccessRules, BrokerConfig, ConnectionId, EntrySettings, Event, Input, Right, TransportConfig,
};
use quire_command::*;
use quire_types::{Action, Files, Secret, Verdict};

use super::last_value_pair::*;
use super::pair::*;
use super::queue_pair::*;

/// A text of every message. No answer to a refused command has it.
pub const SECRET: &str = "marked-secret";

/// An entry that lists these rights on these topics.
pub fn entry(allow: &[Right], topic: &str) -> EntrySettings {
    EntrySettings { topic: vec![topic.into()], allow: allow.to_vec(), ..EntrySettings::default() }
}

pub fn refusing(deny: Right, topic: &str) -> EntrySettings {
    EntrySettings { topic: vec![topic.into()], deny: vec![deny], ..EntrySettings::default() }
}

/// Everything on every topic and resource.
pub fn everything() -> [EntrySettings; 2] {
    let topic = |topic: &str| entry(&Right::ALL, topic);
    [topic("^"), topic("^/quire/")]
}

/// A last-value topic `state`, a queue `jobs` over `work`, and plain topics.
pub fn guarded(entitlements: Vec<EntrySettings>) -> BrokerConfig {
    let transport = TransportConfig { authenticates: true, ..TransportConfig::default() };
    let mut jobs = queue("jobs");
    (jobs.underlying_topic, jobs.default_publish_target) = (Some("work".into()), Some("work".into()));
    BrokerConfig {
        transports: vec![transport],
        queues: vec![jobs],
        entitlements,
        ..sow_config([sow_topic("state")])
    }
}

/// Client 1 is an administrator. It has published a message on each topic.
pub fn start(entitlements: Vec<EntrySettings>) -> Pair {
    let mut pair = Pair::with(guarded(entitlements));
    pair.connect_as(1, Access::Administrator);
    pair.log_on(1, "administrator");
    let data = format!(r#"{{"id":"k","a":1,"text":"{SECRET}"}}"#);
    for (sequence, topic) in ["orders", "state", "work"].into_iter().enumerate() {
        pair.publish(1, sequence as u64 + 1, topic, &data);
    }
    pair.turn();
    pair.take(1);
    pair
}

/// A client whose password was accepted.
pub fn log_on_as(pair: &mut Pair, client: u64, user: &str, groups: &str) {
    let name = format!("client-{client}");
    pair.connect(client);
    let password = Some(Secret("correct horse"));
    pair.send(client, &Command::Logon(Logon { user: Some(user), password, ..logon(&name) }));
    pair.turn();
    let now = pair.now();
    let connection = ConnectionId(client);
    pair.broker.handle(now, Input::Authenticated { connection, user: Ok(user), groups });
    pair.turn();
    pair.turn();
    assert!(matches!(pair.take(client)[..], [Said::LoggedOn { .. }]));
}

/// The name of a command. A new command needs a line here, in [`KINDS`] and in the matrix.
fn kind(command: &Command<'_>) -> &'static str {
    match command {
        Command::Logon(_) => "logon",
        Command::Publish(_) => "publish",
        Command::PublishBatch(_) => "publish_batch",
        Command::Subscribe(_) => "subscribe",
        Command::Unsubscribe(_) => "unsubscribe",
        Command::Flush { .. } => "flush",
        Command::Heartbeat => "heartbeat",
        Command::Goodbye => "goodbye",
        Command::Pause { .. } => "pause",
        Command::Resume { .. } => "resume",
        Command::Settle(_) => "settle",
        Command::Extend(_) => "extend",
        Command::Query(_) => "query",
        Command::Stats { .. } => "stats",
        Command::Maintain(_) => "maintain",
        Command::Inspect { subject: Subject::Server, .. } => "inspect server",
        Command::Inspect { subject: Subject::Clients { .. }, .. } => "inspect clients",
        Command::Inspect { subject: Subject::Subscriptions { .. }, .. } => "inspect subscriptions",
        Command::Inspect { subject: Subject::Topics { .. }, .. } => "inspect topics",
        Command::Inspect { subject: Subject::Replication, .. } => "inspect replication",
        Command::Inspect { subject: Subject::Messages { .. }, .. } => "inspect messages",
        Command::Inspect { subject: Subject::Access { .. }, .. } => "inspect access",
        Command::Inspect { subject: Subject::Statistics { .. }, .. } => "inspect statistics",
        Command::DefineQueue { action: DefineQueue::Create { .. }, .. } => "create queue",
        Command::DefineQueue { action: DefineQueue::Alter { .. }, .. } => "alter queue",
        Command::DefineQueue { action: DefineQueue::Drop { .. }, .. } => "drop queue",
        Command::DefineView { .. } => "define view",
        Command::SowDelete(_) => "sow_delete",
        Command::Replicate { .. } => "replicate",
        Command::Reload { .. } => "reload",
        Command::Disconnect { .. } => "disconnect",
    }
}

const KINDS: [&str; 31] = [
    "logon",
    "publish",
    "publish_batch",
    "subscribe",
    "unsubscribe",
    "flush",
    "heartbeat",
    "goodbye",
    "pause",
    "resume",
    "settle",
    "extend",
    "query",
    "stats",
    "maintain",
    "inspect server",
    "inspect clients",
    "inspect subscriptions",
    "inspect topics",
    "inspect replication",
    "inspect messages",
    "inspect access",
    "inspect statistics",
    "create queue",
    "alter queue",
    "drop queue",
    "define view",
    "sow_delete",
    "replicate",
    "reload",
    "disconnect",
];

/// They name no topic, or only subscriptions of the connection. `subjects_show_what_is_allowed` has
/// the ones whose answers depend on rights.
const NEED_NONE: [&str; 9] = [
    "logon",
    "unsubscribe",
    "flush",
    "heartbeat",
    "goodbye",
    "pause",
    "resume",
    "inspect server",
    "inspect topics",
];

/// The number of every command of the matrix, and of its subscription.
const NUMBER: u32 = 7;

/// Calls `each` with every command of the matrix, and with the rights that it needs.
fn for_each_line(mut each: impl FnMut(&Command<'_>, &[(Right, &str)])) {
    use Right::{Admin, Delete, Monitor, Query as Browse, Read, Replay, Write};
    use SubscribeOptions as Option;
    let with = |topic, options| Subscribe { options, ..subscribe(NUMBER, topic) };
    let mut subscribes = |subscribe: Subscribe<'_>, needed: &[(Right, &str)]| {
        each(&Command::Subscribe(subscribe), needed);
    };
    subscribes(subscribe(NUMBER, "orders"), &[(Read, "orders")]);
    subscribes(subscribe(NUMBER, "nowhere"), &[(Read, "nowhere")]);
    subscribes(subscribe(NUMBER, "jobs"), &[(Read, "jobs")]);
    subscribes(with("state", Option::DELTA), &[(Read, "state")]);
    subscribes(with("state", Option::SOW), &[(Read, "state"), (Browse, "state")]);
    subscribes(with("state", Option::SOW.and(Option::DELTA)), &[(Read, "state"), (Browse, "state")]);
    subscribes(replay(NUMBER, "orders", "0"), &[(Read, "orders"), (Replay, "orders")]);
    subscribes(replay(NUMBER, "orders", "(0:0]"), &[(Replay, "orders")]);
    let of_log = Subscribe { bookmark: Some("0"), ..with("state", Option::SOW) };
    subscribes(of_log, &[(Read, "state"), (Browse, "state"), (Replay, "state")]);
    subscribes(replay(NUMBER, "jobs", "0"), &[(Read, "jobs")]);

    let query = |topic| query(NUMBER, topic);
    each(&Command::Query(query("state")), &[(Browse, "state")]);
    each(&Command::Query(query("nowhere")), &[(Browse, "nowhere")]);
    each(&Command::Query(query("jobs")), &[(Browse, "jobs")]);
    let at = Query { bookmark: Some("0"), ..query("state") };
    each(&Command::Query(at), &[(Browse, "state"), (Replay, "state")]);

    let data = r#"{"id":"k","a":2}"#;
    each(&Command::Publish(publish(1, "orders", data)), &[(Write, "orders")]);
    each(&Command::Publish(publish(1, "nowhere", data)), &[(Write, "nowhere")]);
    each(&Command::Publish(publish(1, "jobs", data)), &[(Write, "jobs")]);
    let delta = Publish { is_delta: true, ..publish(1, "state", data) };
    each(&Command::Publish(delta), &[(Write, "state")]);
    let mut items = Vec::new();
    put_batch_item(&mut items, data.as_bytes());
    let batch = PublishBatch::of_checked(publish(1, "orders", ""), &items);
    each(&Command::PublishBatch(batch), &[(Write, "orders")]);
    let delete = SowDelete { filter: Some("1 = 1"), ..delete(NUMBER, 1, "state") };
    each(&Command::SowDelete(delete), &[(Delete, "state")]);
    let by_keys = SowDelete { filter: None, data: Some(data.as_bytes()), ..delete };
    each(&Command::SowDelete(by_keys), &[(Delete, "state")]);

    let mut bytes = Vec::new();
    put_bookmark(&mut bytes, 1, 3);
    let bookmarks = Bookmarks::from_bytes(&bytes).unwrap();
    let settle = |verdict, messages| {
        let (command, acks) = (NUMBER, Acks::PROCESSED);
        Command::Settle(Settle { verdict, command, acks, queue: "jobs", messages, reason: "" })
    };
    for verdict in [Verdict::Acknowledge, Verdict::Cancel, Verdict::Expire] {
        each(&settle(verdict, Selection::Bookmarks(bookmarks)), &[(Read, "jobs")]);
    }
    each(&settle(Verdict::Acknowledge, Selection::Matching("")), &[(Read, "jobs")]);
    each(&settle(Verdict::Expire, Selection::Matching("/a = 1")), &[(Delete, "jobs")]);
    let extend = Extend { period_ms: 0, command: NUMBER, acks: Acks::PROCESSED, queue: "jobs", bookmarks };
    each(&Command::Extend(extend), &[(Read, "jobs")]);

    for_each_administrative_line(&mut each, (Admin, Monitor));
}

fn for_each_administrative_line(
    each: &mut impl FnMut(&Command<'_>, &[(Right, &str)]),
    (admin, monitor): (Right, Right),
) {
    let command = NUMBER;
    let inspect = |subject| Command::Inspect { command, subject };
    each(&Command::Stats { command, queue: Some("jobs") }, &[(monitor, "jobs")]);
    each(&inspect(Subject::Clients { after: 0 }), &[(monitor, "/quire/clients")]);
    let subscriptions = Subject::Subscriptions { after_connection: 0, after_subscription: 0 };
    each(&inspect(subscriptions), &[(monitor, "/quire/clients")]);
    each(&inspect(Subject::Replication), &[(monitor, "/quire/replication")]);
    each(&inspect(Subject::Messages { question: b"" }), &[(admin, "/quire/replication")]);
    each(&inspect(Subject::Access { question: b"" }), &[(monitor, "/quire/access")]);
    each(&inspect(Subject::Statistics { question: b"" }), &[(monitor, "/quire/server")]);
    let replicate = Command::Replicate { command, destination: "east", action: LinkAction::Pause };
    each(&replicate, &[(admin, "/quire/replication")]);
    each(&Command::Reload { command }, &[(admin, "/quire/access")]);
    each(&Command::Disconnect { command, connection: 99, block_ms: 0 }, &[(admin, "/quire/clients")]);
    let maintain = Maintain {
        command,
        action: Action::Remove,
        files: Files::OlderThan(0),
        dry_run: true,
        archive_directory: None,
    };
    each(&Command::Maintain(maintain), &[(admin, "/quire/journal")]);

    let mut settings = queue("later");
    settings.underlying_topic = Some("work".into());
    settings.dead_letter_topic = Some("dead".into());
    let settings = settings.to_json();
    let needed = [(admin, "later"), (Right::Read, "work"), (Right::Replay, "work"), (Right::Write, "dead")];
    let action = DefineQueue::Create { settings: &settings };
    each(&Command::DefineQueue { command, action }, &needed);
    let action = DefineQueue::Alter { queue: "jobs", changes: r#"{"dead_letter_topic":"dead"}"# };
    let needed = [(admin, "jobs"), (Right::Read, "work"), (Right::Replay, "work"), (Right::Write, "dead")];
    each(&Command::DefineQueue { command, action }, &needed);
    let action = DefineQueue::Drop { queue: "jobs" };
    each(&Command::DefineQueue { command, action }, &[(admin, "jobs")]);
    let settings = r#"{"name":"sums","join":["[orders].[/id] = [accounts].[/id]"]}"#;
    let (read, query) = (Right::Read, Right::Query);
    let sources = [(read, "orders"), (query, "orders"), (read, "accounts"), (query, "accounts")];
    let needed = [&[(admin, "sums")], &sources[..]].concat();
    each(&Command::DefineView { command, settings }, &needed);
}

/// Everything that the client was told about a command.
fn answer(pair: &mut Pair, command: &Command<'_>) -> Vec<Said> {
    pair.send(2, command);
    pair.turn();
    pair.take(2)
}

#[test]
fn a_command_is_refused_when_a_right_is_missing() {
    let mut kinds = BTreeSet::new();
    for_each_line(|command, needed| {
        let name = kind(command);
        kinds.insert(name);
        for (missing, topic) in needed {
            let entries = [vec![refusing(*missing, topic)], everything().to_vec()].concat();
            let mut pair = start(entries);
            log_on_as(&mut pair, 2, "anna", "");
            let recorded = pair.broker.stats().appended;
            let context = format!("{name} without {missing} on {topic}: {command:?}");
            let said = answer(&mut pair, command);
            let is_refusal = match command {
                Command::Publish(_) | Command::PublishBatch(_) => {
                    let (code, scope) = (Code::NotEntitled, FailureScope::One);
                    said == [Said::Failed { sequence: 1, code, scope }]
                }
                Command::Subscribe(_) | Command::Query(_) => {
                    said == [refused(Code::NotEntitled, NUMBER, NUMBER)]
                }
                // Its sequence is used.
                Command::SowDelete(_) => said == [refused(Code::NotEntitled, NUMBER, 0), Said::Persisted(1)],
                _ => said == [refused(Code::NotEntitled, NUMBER, 0)],
            };
            assert!(is_refusal, "{context}: {said:?}");
            if !matches!(command, Command::Publish(_) | Command::PublishBatch(_)) {
                let expected = format!("the user may not {missing} \"{topic}\"");
                assert_eq!(pair.clients[&2].refusal, expected, "{context}");
            }
            assert_eq!(pair.broker.stats().appended, recorded, "{context}: nothing is recorded");
            let (user, client) = ("anna".to_owned(), "client-2".to_owned());
            let event = Event::Refused { user, client, right: *missing, topic: (*topic).to_owned() };
            assert_eq!(pair.log.iter().filter(|logged| **logged == event).count(), 1, "{context}");
            assert!(!format!("{:?}", pair.log).contains(SECRET), "{context}");
            let (reads, writes) = denied(&mut pair);
            assert_eq!(reads + writes, 1, "{context}");
            assert_eq!(reads == 1, missing.is_of_reading(), "{context}");
        }
    });
    let lines: BTreeSet<_> = kinds.union(&NEED_NONE.into()).copied().collect();
    assert_eq!(lines, BTreeSet::from(KINDS), "every command has a line");
}

#[test]
fn a_command_is_carried_out_when_no_right_is_missing() {
    for_each_line(|command, needed| {
        let entries = needed.iter().map(|(right, topic)| entry(&[*right], topic)).collect();
        let mut pair = start(entries);
        log_on_as(&mut pair, 2, "anna", "");
        let said = answer(&mut pair, command);
        let is_refused = said.iter().any(|said| {
            matches!(
                said,
                Said::Ack { code: Code::NotEntitled, .. } | Said::Failed { code: Code::NotEntitled, .. }
            )
        });
        assert!(!is_refused, "{command:?}: {said:?}");
        assert_eq!(denied(&mut pair), (0, 0), "{command:?}");
    });
}

/// The refusals of client 2, as the administrator sees them.
fn denied(pair: &mut Pair) -> (u64, u64) {
    pair.send(1, &Command::Inspect { command: 9, subject: Subject::Clients { after: 0 } });
    pair.turn();
    let Some(Said::Stats { json, .. }) =
        pair.take(1).into_iter().find(|said| matches!(said, Said::Stats { .. }))
    else {
        panic!("no figures")
    };
    let figures: serde_json::Value = serde_json::from_str(&json).unwrap();
    let clients = figures["clients"].as_array().unwrap();
    let client = clients.iter().find(|client| client["connection"] == 2).unwrap();
    (client["denied_reads"].as_u64().unwrap(), client["denied_writes"].as_u64().unwrap())
}

/// The figures that the client got.
fn shown(pair: &mut Pair, command: &Command<'_>) -> serde_json::Value {
    match &answer(pair, command)[..] {
        [Said::Stats { json, .. }] => serde_json::from_str(json).unwrap(),
        said => panic!("{said:?}"),
    }
}

#[test]
fn subjects_show_what_is_allowed() {
    let mut pair = start(vec![entry(&[Right::Read], "orders"), entry(&[Right::Read], "state")]);
    log_on_as(&mut pair, 2, "anna", "");
    let command = NUMBER;
    let server = shown(&mut pair, &Command::Inspect { command, subject: Subject::Server });
    let mut keys: Vec<_> = server["server"].as_object().unwrap().keys().cloned().collect();
    keys.sort();
    assert_eq!(keys, ["name", "user", "version"]);
    assert_eq!(server["server"]["user"], "anna");
    let topics = shown(&mut pair, &Command::Inspect { command, subject: Subject::Topics { after: "" } });
    let names: Vec<_> = topics["topics"].as_array().unwrap().iter().map(|topic| &topic["topic"]).collect();
    assert_eq!(names, ["orders", "state"]);
    let queues = shown(&mut pair, &Command::Stats { command, queue: None });
    assert_eq!(queues["queues"], serde_json::json!({}));
    assert_eq!(denied(&mut pair), (0, 0));
}

#[test]
fn a_topic_is_listed_with_the_queues_on_which_the_user_has_a_right() {
    for (topics, queues) in [("work", vec![]), ("^work|^jobs", vec!["jobs"])] {
        let mut pair = start(vec![entry(&[Right::Write], topics)]);
        log_on_as(&mut pair, 2, "anna", "");
        let subject = Subject::Topics { after: "" };
        let listed = shown(&mut pair, &Command::Inspect { command: NUMBER, subject });
        let listed = listed["topics"].as_array().unwrap();
        let work = listed.iter().find(|topic| topic["topic"] == "work").unwrap();
        assert_eq!(work["queues"], serde_json::json!(queues), "{topics}");
    }
}

#[test]
fn queues_are_listed_to_users_with_any_right_and_their_figures_to_those_who_may_see_them() {
    for (right, has_figures) in [(Right::Read, false), (Right::Admin, false), (Right::Monitor, true)] {
        let mut config = guarded(vec![entry(&[right], "jobs")]);
        config.queues.push(queue("other"));
        let mut pair = Pair::with(config);
        log_on_as(&mut pair, 2, "anna", "");
        let figures = shown(&mut pair, &Command::Stats { command: NUMBER, queue: None });
        let queues = figures["queues"].as_object().unwrap();
        assert_eq!(queues.keys().collect::<Vec<_>>(), ["jobs"], "{right}");
        assert_eq!(queues["jobs"].get("depth").is_some(), has_figures, "{right}");
        assert_eq!(queues["jobs"].as_object().unwrap().is_empty(), !has_figures, "{right}");
    }
}

#[test]
fn a_refusal_does_not_tell_whether_a_topic_exists() {
    let mut pair = start(vec![entry(&[Right::Read], "other")]);
    log_on_as(&mut pair, 2, "anna", "");
    let mut texts = BTreeSet::new();
    for topic in ["orders", "state", "jobs", "nowhere", "a wrong\u{7f}name", "^orders", "^("] {
        for command in [Command::Subscribe(subscribe(NUMBER, topic)), Command::Query(query(NUMBER, topic))] {
            let is_open = matches!(command, Command::Subscribe(_)) && topic == "^orders";
            if is_open {
                continue;
            }
            let said = answer(&mut pair, &command);
            assert_eq!(said, [refused(Code::NotEntitled, NUMBER, NUMBER)], "{topic}");
            let quoted = serde_json::Value::from(topic).to_string();
            texts.insert(pair.clients[&2].refusal.replace(&quoted, "TOPIC"));
        }
    }
    let expected = ["query", "read"].map(|right| format!("the user may not {right} TOPIC"));
    assert_eq!(texts, BTreeSet::from(expected));
}

#[test]
fn a_range_of_a_queue_does_not_tell_whether_the_queue_exists() {
    let mut pair = start(vec![entry(&[Right::Replay], "work")]);
    log_on_as(&mut pair, 2, "anna", "");
    for topic in ["jobs", "nowhere"] {
        let said = answer(&mut pair, &Command::Subscribe(replay(NUMBER, topic, "[:0|1|]")));
        assert_eq!(said, [refused(Code::NotEntitled, NUMBER, NUMBER)], "{topic}");
        assert_eq!(pair.clients[&2].refusal, format!("the user may not replay {topic:?}"));
    }
    // A user who may know the queue has the messages of the topics with the right.
    let mut pair = start(vec![entry(&[Right::Replay], "work"), entry(&[Right::Monitor], "jobs")]);
    log_on_as(&mut pair, 2, "anna", "");
    let said = answer(&mut pair, &Command::Subscribe(replay(NUMBER, "jobs", "[:0|1|]")));
    assert!(
        said.iter().any(|said| matches!(said, Said::Message { topic, .. } if topic == "work")),
        "{said:?}"
    );
}

#[test]
fn refusals_beyond_60_a_minute_are_counted_and_logged_together() {
    let mut pair = start(vec![entry(&[Right::Read], "other")]);
    log_on_as(&mut pair, 2, "anna", "");
    for _ in 0..100 {
        answer(&mut pair, &Command::Subscribe(subscribe(NUMBER, "orders")));
    }
    let lines = |pair: &Pair| {
        pair.log
            .iter()
            .map(ToString::to_string)
            .filter(|line| line.starts_with("audit: refused"))
            .collect::<Vec<_>>()
    };
    assert_eq!(lines(&pair).len(), 60);
    pair.pass(std::time::Duration::from_secs(60));
    let all = lines(&pair);
    assert_eq!(all.len(), 61);
    assert_eq!(all[0], r#"audit: refused user="anna" client="client-2" right="read" topic="orders""#);
    assert_eq!(all[60], r#"audit: refused user="anna" right="read" 40 more times"#);
    answer(&mut pair, &Command::Subscribe(subscribe(NUMBER, "orders")));
    assert_eq!(lines(&pair).len(), 62, "the next interval");
    assert_eq!(denied(&mut pair), (101, 0));
}

#[test]
fn without_entries_every_user_may_do_everything() {
    let mut pair = start(Vec::new());
    log_on_as(&mut pair, 2, "anna", "");
    for_each_line(|command, _| {
        let said = answer(&mut pair, command);
        let code = |said: &Said| matches!(said, Said::Ack { code: Code::NotEntitled, .. });
        // Only a reload is then for the administrator of the machine.
        let is_refused = kind(command) == "reload";
        assert_eq!(said.iter().any(code), is_refused, "{command:?}: {said:?}");
    });
}

#[test]
fn a_connection_without_authentication_has_the_rights_of_anonymous() {
    let mut config =
        guarded(vec![EntrySettings { user: vec!["anonymous".into()], ..entry(&[Right::Read], "orders") }]);
    config.entitlements.push(entry(&[Right::Read], "state"));
    config.transports[0].authenticates = false;
    let mut pair = Pair::with(config);
    pair.connect(2);
    // The client claims to be another user.
    pair.send(2, &Command::Logon(Logon { user: Some("anna"), ..logon("loader") }));
    pair.turn();
    pair.take(2);
    let allowed = answer(&mut pair, &Command::Subscribe(subscribe(NUMBER, "orders")));
    assert_eq!(allowed[0], ack(AckKind::Processed, NUMBER, NUMBER));
    let other = answer(&mut pair, &Command::Subscribe(subscribe(8, "state")));
    assert_eq!(other, [refused(Code::NotEntitled, 8, 8)]);
}

/// The simulation found that a connection which does not accept bytes got them later.
#[test]
fn messages_that_wait_for_a_connection_are_dropped_when_its_rights_end() {
    let anna = |allow: &[Right]| EntrySettings { user: vec!["anna".into()], ..entry(allow, "orders") };
    let mut pair = start(vec![anna(&[Right::Read])]);
    let options = quire_expression::filter::FilterOptions::default();
    let entitlements = quire_broker::Entitlements::compile(&[anna(&[Right::Write])], &options).unwrap();
    let other = AccessRules {
        entitlements,
        user_limits: Arc::default(),
        authenticates: vec![true],
        authenticates_links: false,
    };
    let now = pair.now();
    for client in [2, 3] {
        log_on_as(&mut pair, client, "anna", "");
        pair.subscribe(client, &subscribe(NUMBER, "orders"));
        pair.turn();
        pair.take(client);
        pair.set_writable(client, false);
    }
    pair.publish(1, 9, "orders", &format!(r#"{{"text":"{}"}}"#, "x".repeat(100_000)));
    pair.publish(1, 10, "orders", r#"{"a":1}"#);
    pair.turn();
    pair.broker.handle(now, Input::Entitle(other));
    pair.broker.handle(now, Input::Reset { connection: ConnectionId(3), reason: "the token has expired" });
    pair.turn();
    for client in [2, 3] {
        assert_eq!(pair.take(client), [Said::Error(Code::EntitlementReset), Said::Closed]);
    }
}

#[test]
fn other_entitlements_end_only_the_connections_with_other_entries() {
    let of = |user: &str, allow: &[Right], topic: &str| EntrySettings {
        user: vec![user.into()],
        ..entry(allow, topic)
    };
    let before = vec![of("anna", &[Right::Read], "orders"), of("bob", &[Right::Read], "orders")];
    let after = vec![of("anna", &[Right::Read], "state"), of("bob", &[Right::Read], "orders")];
    let mut pair = start(before);
    log_on_as(&mut pair, 2, "anna", "");
    log_on_as(&mut pair, 3, "bob", "");
    for client in [2, 3] {
        pair.subscribe(client, &subscribe(NUMBER, "orders"));
        pair.turn();
        pair.take(client);
    }
    let options = quire_expression::filter::FilterOptions::default();
    let entitlements = quire_broker::Entitlements::compile(&after, &options).unwrap();
    let other = AccessRules {
        entitlements,
        user_limits: Arc::default(),
        authenticates: vec![true],
        authenticates_links: false,
    };
    let now = pair.now();
    pair.broker.handle(now, Input::Entitle(other.clone()));
    // A message of the same turn.
    pair.publish(1, 9, "orders", r#"{"a":1}"#);
    pair.turn();
    assert_eq!(pair.take(2), [Said::Error(Code::EntitlementReset), Said::Closed]);
    assert_eq!(pair.take_data(3), [r#"{"a":1}"#]);
    // The present rights decide about old messages.
    log_on_as(&mut pair, 4, "anna", "");
    pair.subscribe(4, &replay(NUMBER, "orders", "0"));
    pair.turn();
    assert_eq!(pair.take(4), [refused(Code::NotEntitled, NUMBER, NUMBER)]);
    pair.broker.handle(now, Input::Entitle(other));
    pair.turn();
    assert_eq!(pair.take(4), [], "the entries are the same");
}

#[test]
fn a_transport_that_gets_users_ends_its_connections() {
    let entries = vec![EntrySettings { user: vec!["anonymous".into()], ..entry(&[Right::Read], "orders") }];
    let mut config = guarded(entries.clone());
    config.transports[0].authenticates = false;
    let mut pair = Pair::with(config);
    pair.connect_as(1, Access::Administrator);
    pair.log_on(1, "administrator");
    pair.client(2, "a client");
    let options = quire_expression::filter::FilterOptions::default();
    let entitlements = quire_broker::Entitlements::compile(&entries, &options).unwrap();
    let now = pair.now();
    let rules = |authenticates| AccessRules {
        entitlements: entitlements.clone(),
        user_limits: Arc::default(),
        authenticates: vec![authenticates],
        authenticates_links: false,
    };
    pair.broker.handle(now, Input::Entitle(rules(false)));
    pair.turn();
    assert_eq!(pair.take(2), []);
    pair.broker.handle(now, Input::Entitle(rules(true)));
    pair.turn();
    assert_eq!(pair.take(2), [Said::Error(Code::EntitlementReset), Said::Closed]);
    assert_eq!(pair.take(1), [], "the administrator has no user");
    log_on_as(&mut pair, 3, "anna", "");
    pair.subscribe(3, &subscribe(NUMBER, "orders"));
    pair.turn();
    assert_eq!(pair.take(3), [refused(Code::NotEntitled, NUMBER, NUMBER)], "anna is not anonymous");
}

/// The answer comes before the end of the connection.
#[test]
fn a_connection_whose_reload_changes_its_rights_gets_the_answer() {
    let mut pair = start(everything().to_vec());
    log_on_as(&mut pair, 2, "anna", "");
    pair.send(2, &Command::Reload { command: NUMBER });
    pair.turn();
    let options = quire_expression::filter::FilterOptions::default();
    let entitlements = quire_broker::Entitlements::compile(&[entry(&[Right::Read], "x")], &options).unwrap();
    let rules = AccessRules {
        entitlements,
        user_limits: Arc::default(),
        authenticates: vec![true],
        authenticates_links: false,
    };
    let (now, connection) = (pair.now(), ConnectionId(2));
    pair.broker.handle(now, Input::Reloaded { connection, command: NUMBER, result: Ok("entitlement") });
    pair.broker.handle(now, Input::Entitle(rules));
    pair.turn();
    let json = r#"{"reloaded":["entitlement"]}"#.to_owned();
    let answer = Said::Stats { command: NUMBER, json };
    assert_eq!(pair.take(2), [answer, Said::Error(Code::EntitlementReset), Said::Closed]);
}

#[test]
fn a_reload_is_for_administrators_and_its_result_is_answered() {
    let command = NUMBER;
    for entries in [Vec::new(), everything().to_vec()] {
        let is_allowed = !entries.is_empty();
        let mut pair = start(entries);
        log_on_as(&mut pair, 2, "anna", "");
        for client in [1, 2] {
            pair.send(client, &Command::Reload { command });
            pair.turn();
            if client == 2 && !is_allowed {
                assert_eq!(pair.take(2), [refused(Code::NotEntitled, NUMBER, 0)]);
                continue;
            }
            assert_eq!(pair.take(client), [], "it waits for the driver");
            let connection = ConnectionId(client);
            assert_eq!(pair.reloads.pop(), Some((connection, command)));
            let now = pair.now();
            let result = Ok("entitlement\nlimits");
            pair.broker.handle(now, Input::Reloaded { connection, command, result });
            pair.broker.handle(now, Input::Reloaded { connection, command, result: Err("wrong") });
            pair.turn();
            let json = r#"{"reloaded":["entitlement","limits"]}"#.to_owned();
            assert_eq!(
                pair.take(client),
                [Said::Stats { command, json }, refused(Code::BadOption, NUMBER, 0)]
            );
        }
    }
}

#[test]
fn administration_is_logged() {
    let mut pair = start(everything().to_vec());
    log_on_as(&mut pair, 2, "anna", "");
    let command = NUMBER;
    let action = DefineQueue::Drop { queue: "nothing" };
    answer(&mut pair, &Command::DefineQueue { command, action });
    answer(&mut pair, &Command::Reload { command });
    let replicate = Command::Replicate { command, destination: "east", action: LinkAction::Pause };
    answer(&mut pair, &replicate);
    let lines: Vec<_> =
        pair.log.iter().map(ToString::to_string).filter(|line| line.starts_with("audit: admin")).collect();
    let line = |action: &str, resource: &str| {
        format!(r#"audit: admin user="anna" client="client-2" action="{action}" resource="{resource}""#)
    };
    let expected =
        [line("drop", "nothing"), line("reload", "/quire/access"), line("pause", "/quire/replication")];
    assert_eq!(lines, expected);
}

#[test]
fn a_reader_of_ranges_needs_only_the_right_to_replay() {
    let mut pair = start(vec![entry(&[Right::Replay], "orders")]);
    log_on_as(&mut pair, 2, "anna", "");
    // It learns where the log ends, and reads up to there.
    for (number, topic, bookmark) in [(1, "^$", "0|1|"), (2, "orders", "[:0|1|]"), (3, "^", "[:0|1|]")] {
        let said = answer(&mut pair, &Command::Subscribe(replay(number, topic, bookmark)));
        assert!(said.contains(&ack(AckKind::Processed, number, number)), "{topic}: {said:?}");
        let topics =
            said.iter().filter(|said| matches!(said, Said::Message { topic, .. } if topic == "orders"));
        assert_eq!(topics.count(), usize::from(number > 1), "{said:?}");
        assert!(!said.iter().any(|said| matches!(said, Said::Message { topic, .. } if topic != "orders")));
    }
    // Without an end, messages follow that are not in the log yet.
    let said = answer(&mut pair, &Command::Subscribe(replay(4, "orders", "0")));
    assert_eq!(said, [refused(Code::NotEntitled, 4, 4)]);
    assert_eq!(pair.clients[&2].refusal, "the user may not read \"orders\"");
}
