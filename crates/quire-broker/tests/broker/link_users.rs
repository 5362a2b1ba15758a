//! The users of links: their logons, and the right `replicate`. A link without the right for a
//! topic ends. Both logs name the topic, and nothing of its messages is recorded.

use std::sync::Arc;
use std::time::Duration;

use quire_broker::{
    AccessRules, BrokerConfig, ConnectionId, Entitlements, EntrySettings, Event, Input, LinkIdentity,
    RecordedTopic, Right, SyncType,
};
use quire_command::Code;
use quire_types::Secret;
use quire_wire::link::{Frame, Logon, VERSION};

use super::link_borders::{Sent, frames_of, hello};
use super::links::*;
use super::pair::*;

const IDENTITY: LinkIdentity<'static> =
    LinkIdentity { user: Some("east"), password: Some(Secret("marked-password")), token: None };
const REFUSED: &str = "user or password are not accepted";
const A_MINUTE: Duration = Duration::from_secs(60);

fn entry(user: &str, allow: &[Right], topics: &[&str]) -> EntrySettings {
    EntrySettings {
        user: vec![user.into()],
        topic: topics.iter().map(|topic| (*topic).to_owned()).collect(),
        allow: allow.to_vec(),
        ..EntrySettings::default()
    }
}

fn replicating(topics: &[&str]) -> Vec<EntrySettings> {
    vec![entry("east", &[Right::Replicate], topics)]
}

/// `a` connects to `b`, which checks its logon and has these entries. Both send everything.
fn instances(entries: Vec<EntrySettings>) -> Vec<BrokerConfig> {
    let all = |name: &str| {
        let mut destination = destination(name, SyncType::Async);
        destination.topics[0].name = "^".into();
        destination
    };
    let mut configs = vec![instance("a", vec![all("b")]), instance("b", vec![all("a")])];
    for config in &mut configs {
        config.transaction_log.topics = vec![RecordedTopic::new("^", "json")];
    }
    // Only `a` connects.
    configs[1].replication.destinations[0].addresses.clear();
    configs[1].replication.authenticates = true;
    // Clients of `b` have no user. Their rights do not matter to links.
    let of_clients = entry("anonymous", &[Right::Read, Right::Replay, Right::Write], &["^"]);
    configs[1].entitlements = entries;
    if !configs[1].entitlements.is_empty() {
        configs[1].entitlements.push(of_clients);
    }
    configs
}

fn cluster(entries: Vec<EntrySettings>) -> Cluster {
    let mut cluster = Cluster::new(Vec::new());
    cluster.add(instances(entries), IDENTITY);
    // The links are not up before their logons are accepted.
    (0..2).for_each(|number| drop(cluster.admit(number)));
    cluster.at(0).client(1, "p");
    cluster.at(0).client(2, "q");
    cluster
}

/// The driver of `b` has checked the logons that wait.
fn answer(cluster: &mut Cluster, user: Result<&str, (Code, &str)>) -> usize {
    let pair = cluster.at(1);
    let (now, logons) = (pair.now(), std::mem::take(&mut pair.logons));
    for (connection, ..) in &logons {
        let connection = *connection;
        pair.broker.handle(now, Input::Authenticated { connection, user, groups: "" });
    }
    cluster.settle();
    logons.len()
}

fn accept(cluster: &mut Cluster) {
    answer(cluster, Ok("east"));
}

/// Lets a minute pass. Each logon is accepted at once.
fn pass(cluster: &mut Cluster) {
    for _ in 0..600 {
        cluster.pass(Duration::from_millis(100));
        accept(cluster);
    }
}

fn publish(cluster: &mut Cluster, number: usize, client: u64, sequence: u64, topic: &str) {
    cluster.at(number).publish(client, sequence, topic, "{}");
    cluster.settle();
}

/// The topics of the records of an instance.
fn topics(cluster: &mut Cluster, number: usize) -> Vec<String> {
    cluster.records(number, |record| record.topic.to_owned())
}

fn log_of(cluster: &mut Cluster, number: usize) -> Vec<String> {
    std::mem::take(&mut cluster.at(number).log).iter().map(Event::to_string).collect()
}

#[track_caller]
fn assert_names(lines: &[String], part: &str) {
    assert!(lines.iter().any(|line| line.contains(part)), "{part} is not in {lines:#?}");
}

fn rules(entries: &[EntrySettings], authenticates_links: bool) -> AccessRules {
    let options = quire_expression::filter::FilterOptions::default();
    let entitlements = Entitlements::compile(entries, &options).unwrap();
    AccessRules { entitlements, user_limits: Arc::default(), authenticates: vec![false], authenticates_links }
}

fn entitle(cluster: &mut Cluster, rules: AccessRules) {
    let pair = cluster.at(1);
    let now = pair.now();
    pair.broker.handle(now, Input::Entitle(rules));
    cluster.settle();
}

#[test]
fn a_link_begins_when_its_logon_is_accepted() {
    let mut cluster = cluster(replicating(&["^"]));
    let given = (Some("east".to_owned()), Some(Secret("marked-password".to_owned())));
    let logons: Vec<_> =
        cluster.at(1).logons.iter().map(|(_, user, password)| (user.clone(), *password == given.1)).collect();
    assert_eq!(logons, [(given.0, true)]);
    publish(&mut cluster, 0, 1, 1, "orders");
    assert_eq!(cluster.stats(0).destinations[0].state, "connecting");
    assert_eq!(topics(&mut cluster, 1), [""; 0]);
    accept(&mut cluster);
    assert_eq!(topics(&mut cluster, 1), ["orders"]);
    let (a, b) = (cluster.stats(0), cluster.stats(1));
    let figures = |user: &Option<String>, tls: bool| (user.as_deref().map(str::to_owned), tls);
    let east = (Some("east".to_owned()), false);
    assert_eq!(figures(&a.destinations[0].user, a.destinations[0].tls.unwrap()), east);
    assert_eq!(figures(&b.destinations[0].user, b.destinations[0].tls.unwrap()), east);
    assert_eq!(figures(&a.sources[0].user, a.sources[0].tls), east);
    assert_eq!(figures(&b.sources[0].user, b.sources[0].tls), east);
    assert_eq!((a.destinations[0].state, b.destinations[0].state), ("live", "live"));
}

#[test]
fn a_refused_logon_is_tried_again_after_20_seconds_and_nothing_else_is_looked_at() {
    let mut cluster = cluster(replicating(&["^"]));
    publish(&mut cluster, 0, 1, 1, "orders");
    let mut attempts = 0;
    for _ in 0..600 {
        attempts += answer(&mut cluster, Err((Code::AuthenticationFailed, REFUSED)));
        cluster.pass(Duration::from_millis(100));
    }
    assert_eq!(attempts, 3, "in a minute");
    answer(&mut cluster, Err((Code::AuthenticationFailed, REFUSED)));
    let link = &cluster.stats(0).destinations[0];
    assert_eq!((link.state, link.last_error.as_deref(), link.user.clone()), ("refused", Some(REFUSED), None));
    let log = log_of(&mut cluster, 0);
    let lines = log.iter().filter(|line| line.contains(REFUSED)).count();
    assert_eq!(lines, 1, "the same reason is logged once: {log:#?}");
    assert_names(&log_of(&mut cluster, 1), REFUSED);
    assert_eq!((topics(&mut cluster, 1), cluster.connection_count()), (vec![], 0));
    cluster.pass(Duration::from_secs(20));
    accept(&mut cluster);
    assert_eq!(topics(&mut cluster, 1), ["orders"]);
}

#[test]
fn a_logon_that_cannot_be_checked_now_is_tried_again_soon() {
    let mut cluster = cluster(replicating(&["^"]));
    let reason = "the service cannot be used";
    assert_eq!(answer(&mut cluster, Err((Code::AuthenticationUnavailable, reason))), 1);
    assert_eq!(cluster.stats(0).destinations[0].last_error.as_deref(), Some(reason));
    cluster.pass(Duration::from_millis(300));
    assert_eq!(answer(&mut cluster, Ok("east")), 1);
    assert_eq!(cluster.stats(0).destinations[0].state, "live");
}

#[test]
fn a_logon_whose_check_takes_long_gets_heartbeats_and_ends_at_its_timeout() {
    let mut configs = instances(replicating(&["^"]));
    configs[1].replication.logon_timeout_ns = 30_000_000_000;
    let mut cluster = Cluster::new(Vec::new());
    cluster.add(configs, IDENTITY);
    cluster.pass(Duration::from_secs(29));
    assert_eq!(cluster.connection_count(), 1);
    let mut other = Cluster::new(Vec::new());
    other.add(instances(replicating(&["^"])), IDENTITY);
    other.pass(Duration::from_millis(4_900));
    assert_eq!(other.connection_count(), 1);
    other.pass(Duration::from_millis(200));
    assert_eq!(other.connection_count(), 0);
    assert_names(&log_of(&mut other, 0), "the logon was not checked within logon_timeout");
    accept(&mut other);
    accept(&mut cluster);
    assert_eq!(cluster.stats(0).destinations[0].state, "live");
}

#[test]
fn a_topic_without_the_right_ends_its_link_and_both_logs_name_it() {
    // The rights on other topics, other rights, and the rights of other users do not count.
    let entries = vec![
        entry("east", &[Right::Replicate], &["orders"]),
        entry("east", &[Right::Read, Right::Write, Right::Admin], &["^"]),
        entry("west", &[Right::Replicate], &["^"]),
    ];
    let mut cluster = cluster(entries);
    publish(&mut cluster, 0, 1, 1, "orders");
    publish(&mut cluster, 0, 2, 1, "trades");
    pass(&mut cluster);
    assert_eq!(topics(&mut cluster, 1), [""; 0], "the link ends before its first message");
    let reason = r#"the user may not replicate "trades""#;
    let link = &cluster.stats(0).destinations[0];
    assert_eq!((link.state, link.last_error.as_deref()), ("refused", Some(reason)));
    assert_names(&log_of(&mut cluster, 0), reason);
    let log = log_of(&mut cluster, 1);
    assert_names(&log, reason);
    assert_names(&log, r#"audit: refused user="east" client="a" right="replicate" topic="trades""#);
    let count = log.iter().filter(|line| line.contains("audit: refused")).count();
    assert!(count <= 4, "{count} attempts in a minute");
    // The sequences of the publisher are those that it has here.
    cluster.at(1).client(7, "q");
    publish(&mut cluster, 1, 7, 1, "trades");
    assert_eq!(topics(&mut cluster, 1), ["trades"]);
}

#[test]
fn a_later_topic_of_a_pattern_without_the_right_ends_its_link() {
    let mut cluster = cluster(replicating(&["^orders"]));
    accept(&mut cluster);
    publish(&mut cluster, 0, 1, 1, "orders/eu");
    publish(&mut cluster, 0, 1, 2, "orders/us");
    assert_eq!(topics(&mut cluster, 1), ["orders/eu", "orders/us"]);
    publish(&mut cluster, 0, 2, 1, "trades");
    assert_eq!(topics(&mut cluster, 1), ["orders/eu", "orders/us"]);
    let reason = r#"the user may not replicate "trades""#;
    assert_names(&log_of(&mut cluster, 0), reason);
    assert_names(&log_of(&mut cluster, 1), reason);
    pass(&mut cluster);
    assert_eq!(cluster.stats(0).destinations[0].state, "refused");
    assert_eq!(topics(&mut cluster, 1), ["orders/eu", "orders/us"]);
}

#[test]
fn a_link_to_the_instance_that_has_connected_needs_the_right_too() {
    let mut cluster = cluster(replicating(&["orders"]));
    accept(&mut cluster);
    cluster.at(1).client(5, "r");
    publish(&mut cluster, 1, 5, 1, "orders");
    publish(&mut cluster, 0, 1, 1, "orders");
    assert_eq!(topics(&mut cluster, 0), ["orders", "orders"]);
    // The topic appears while the link is up.
    publish(&mut cluster, 1, 5, 2, "trades");
    assert_eq!(topics(&mut cluster, 0), ["orders", "orders"]);
    let reason = r#"the user may not replicate "trades""#;
    assert_names(&log_of(&mut cluster, 0), reason);
    let log = log_of(&mut cluster, 1);
    assert_names(&log, reason);
    assert_names(&log, r#"audit: refused user="east" client="a" right="replicate" topic="trades""#);
    // It is in the log when the link would begin again, or after a restart of the other instance.
    cluster.pass(A_MINUTE);
    let link = &cluster.stats(1).destinations[0];
    assert_eq!((link.state, link.last_error.as_deref()), ("refused", Some(reason)));
    assert_eq!(topics(&mut cluster, 0), ["orders", "orders"]);
    cluster.kill(0);
    cluster.start(0);
    cluster.settle();
    accept(&mut cluster);
    assert_names(&log_of(&mut cluster, 0), reason);
    assert_eq!(topics(&mut cluster, 0), ["orders", "orders"]);
    // The link of the other direction is not affected.
    assert_eq!(cluster.stats(0).destinations[0].state, "live");
    let pair = cluster.at(1);
    let turns = pair.repeat_count;
    (0..10).for_each(|_| pair.turn());
    assert!(pair.repeat_count - turns <= 10, "the refused link asks for turns");
}

#[test]
fn a_user_without_any_right_learns_nothing_about_the_instance() {
    let mut cluster = cluster(vec![entry("west", &[Right::Replicate], &["^"])]);
    accept(&mut cluster);
    publish(&mut cluster, 0, 1, 1, "orders");
    pass(&mut cluster);
    let link = &cluster.stats(0).destinations[0];
    assert_eq!((link.state, topics(&mut cluster, 1)), ("refused", vec![]));
    let reason = cluster.stats(0).destinations[0].last_error.clone().unwrap();
    assert!(reason.starts_with("the user may not replicate "), "{reason}");
}

#[test]
fn other_rights_end_the_link_and_give_it_back() {
    let (allowed, refused) = (replicating(&["^"]), replicating(&["^other"]));
    let others = |mut entries: Vec<EntrySettings>| {
        entries.push(entry("anna", &[Right::Write], &["orders"]));
        entries
    };
    let mut cluster = cluster(allowed.clone());
    accept(&mut cluster);
    publish(&mut cluster, 0, 1, 1, "orders");
    // The entries of others do not matter.
    entitle(&mut cluster, rules(&others(allowed.clone()), true));
    assert_eq!(cluster.stats(0).destinations[0].state, "live");
    log_of(&mut cluster, 1);
    // A message of the same turn does not pass by the old rights.
    entitle(&mut cluster, rules(&refused, true));
    publish(&mut cluster, 0, 1, 2, "orders");
    pass(&mut cluster);
    assert_eq!(topics(&mut cluster, 1), ["orders"]);
    let (changed, reason) = ("the rights of the user were changed", r#"the user may not replicate "orders""#);
    let log = log_of(&mut cluster, 1);
    assert_names(&log, changed);
    assert_names(
        &log,
        r#"audit: logoff user="east" client="a" reason="the rights of the user were changed""#,
    );
    assert_names(&log, reason);
    let log = log_of(&mut cluster, 0);
    assert_names(&log, changed);
    assert_names(&log, reason);
    assert_eq!(cluster.stats(0).destinations[0].state, "refused");
    entitle(&mut cluster, rules(&allowed, true));
    pass(&mut cluster);
    assert_eq!(topics(&mut cluster, 1), ["orders", "orders"]);
    assert_eq!(cluster.stats(0).destinations[0].state, "live");
}

#[test]
fn a_reload_that_adds_authentication_ends_connections_without_it() {
    let entries = vec![entry("^east", &[Right::Replicate], &["^"])];
    let mut configs = instances(entries.clone());
    configs[1].entitlements[0].user.push("anonymous".into());
    configs[1].replication.authenticates = false;
    let entries = configs[1].entitlements.clone();
    let mut cluster = Cluster::new(Vec::new());
    cluster.add(configs, IDENTITY);
    assert_eq!(cluster.stats(0).destinations[0].state, "live");
    assert_eq!(cluster.stats(0).destinations[0].user, None);
    entitle(&mut cluster, rules(&entries, true));
    assert_names(&log_of(&mut cluster, 0), "the authentication of the server was changed");
    cluster.pass(Duration::from_secs(1));
    accept(&mut cluster);
    assert_eq!(cluster.stats(0).destinations[0].user.as_deref(), Some("east"));
}

#[test]
fn a_link_without_authentication_has_the_rights_of_anonymous() {
    for (user, is_allowed) in [("anonymous", true), ("^", false), ("east", false)] {
        let mut configs = instances(vec![entry(user, &[Right::Replicate], &["^"])]);
        configs[1].replication.authenticates = false;
        let mut cluster = Cluster::new(Vec::new());
        // It claims to be a user.
        cluster.add(configs, IDENTITY);
        cluster.admit(0);
        cluster.at(0).client(1, "p");
        publish(&mut cluster, 0, 1, 1, "orders");
        cluster.pass(A_MINUTE);
        assert_eq!(topics(&mut cluster, 1).len(), usize::from(is_allowed), "{user}");
    }
}

#[test]
fn without_entries_every_user_that_has_logged_on_may_replicate_everything() {
    let mut cluster = cluster(Vec::new());
    publish(&mut cluster, 0, 1, 1, "orders");
    accept(&mut cluster);
    assert_eq!(topics(&mut cluster, 1), ["orders"]);
}

#[test]
fn a_user_that_has_changed_loses_its_links() {
    let mut cluster = cluster(replicating(&["^"]));
    accept(&mut cluster);
    publish(&mut cluster, 0, 1, 1, "orders");
    let connection = cluster.link_of(1);
    let pair = cluster.at(1);
    let now = pair.now();
    pair.broker.handle(now, Input::Reset { connection, reason: "the token has expired" });
    cluster.settle();
    assert_names(&log_of(&mut cluster, 0), "the token has expired");
    assert_names(
        &log_of(&mut cluster, 1),
        r#"audit: logoff user="east" client="a" reason="the token has expired""#,
    );
    publish(&mut cluster, 0, 1, 2, "orders");
    assert_eq!(topics(&mut cluster, 1), ["orders"]);
    cluster.pass(Duration::from_secs(1));
    accept(&mut cluster);
    assert_eq!(topics(&mut cluster, 1), ["orders", "orders"]);
}

// --- Hostile peers ---

/// One instance, with a peer that has connected and an honest client.
struct Stranger {
    pair: Pair,
}

const PEER: ConnectionId = ConnectionId(5_000);

impl Stranger {
    fn new(entries: Vec<EntrySettings>) -> Self {
        let mut config = instances(entries).pop().unwrap();
        // As a `hello` of these tests wants it.
        config.name = "a".into();
        config.replication.destinations.clear();
        let mut pair = Pair::with(config);
        pair.client(1, "honest");
        let now = pair.now();
        pair.broker.handle(now, Input::LinkAccepted { connection: PEER, peer: "peer", tls: false });
        pair.turn();
        Stranger { pair }
    }

    fn send(&mut self, bytes: &[u8]) {
        let now = self.pair.now();
        self.pair.broker.handle(now, Input::Received { connection: PEER, bytes });
        self.pair.turn();
    }

    fn log_on(&mut self, user: &str) {
        self.send(&logon_of(user));
        assert_eq!(std::mem::take(&mut self.pair.logons).len(), 1);
        let now = self.pair.now();
        self.pair.broker.handle(now, Input::Authenticated { connection: PEER, user: Ok(user), groups: "" });
        self.pair.turn();
        let (frames, is_closed) = self.take();
        assert_eq!((frames.len(), frames[0].0, is_closed), (1, 11, false));
    }

    /// The frames that it got, and whether its connection was closed.
    fn take(&mut self) -> (Vec<(u8, Vec<u8>)>, bool) {
        let (mut bytes, mut is_closed) = (Vec::new(), false);
        for output in self.pair.links.drain(..) {
            match output {
                LinkOutput::Send { bytes: sent, .. } => bytes.extend(sent),
                LinkOutput::Close { .. } => is_closed = true,
                LinkOutput::Open { .. } => (),
            }
        }
        (frames_of(&bytes), is_closed)
    }

    /// Nothing was recorded, and the publisher continues with its sequences.
    fn assert_unharmed(&mut self) {
        assert_eq!(self.pair.broker.stats().appended, 0);
        self.pair.publish(1, 1, "orders", "{}");
        self.pair.turn();
        assert_eq!(self.pair.take(1), [Said::Persisted(1)]);
    }

    /// It got a reason, and nothing more can come from it.
    #[track_caller]
    fn assert_refused(&mut self, reason: &str) {
        let (frames, is_closed) = self.take();
        let kinds: Vec<_> = frames.iter().map(|(kind, _)| *kind).collect();
        assert_eq!((&kinds[..], is_closed), (&[3][..], true));
        let text = String::from_utf8(frames[0].1[2..].to_vec()).unwrap();
        assert!(text.contains(reason), "{text}");
        assert!(self.pair.logons.is_empty());
        self.send(&hello("peer", &["orders"], &["replicate"]));
        self.send(&records("orders", 1 << 60));
        assert!(self.take().0.is_empty());
        self.assert_unharmed();
    }
}

fn logon_of(user: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (version, password) = (VERSION, Some(Secret("marked-password")));
    Frame::Logon(Logon { version, instance: "peer", user: Some(user), password, token: None })
        .encode(&mut bytes);
    bytes
}

/// A record of the honest publisher, with a high sequence.
fn records(topic: &str, sequence: u64) -> Vec<u8> {
    let publisher = quire_types::PublisherId::of_client_name("honest").get();
    Sent::new(topic, "{}").of(publisher, sequence).frame()
}

#[test]
fn frames_before_the_logon_end_the_connection() {
    let frames = [
        (hello("peer", &["orders"], &["replicate"]), "its first frame is no logon"),
        (records("orders", 1 << 60), "its first frame is no logon"),
        (vec![1, 0, 0, 0, 6], "its first frame is no logon"),
        (vec![1, 0, 0, 0, 99], "an unknown kind"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "the size of the frame"),
        (vec![0xff; 9], "the size of the frame"),
        ([&(1_u32 << 20).to_le_bytes()[..], &[10, VERSION as u8, 0]].concat(), "the size of the frame"),
        ([logon_of("east"), records("orders", 1 << 60)].concat(), "before the logon was answered"),
        (vec![3, 0, 0, 0, 10, 9, 9], "version 2313 of links"),
    ];
    for (bytes, reason) in frames {
        let mut whole = Stranger::new(replicating(&["^"]));
        whole.send(&bytes);
        whole.assert_refused(reason);
        if reason.contains("answered") {
            continue;
        }
        let mut parts = Stranger::new(replicating(&["^"]));
        for byte in &bytes {
            parts.send(&[*byte]);
        }
        parts.assert_refused(reason);
    }
}

#[test]
fn frames_while_the_logon_is_checked_end_the_connection() {
    let mut stranger = Stranger::new(replicating(&["^"]));
    stranger.send(&logon_of("east"));
    assert_eq!(std::mem::take(&mut stranger.pair.logons).len(), 1);
    stranger.send(&hello("peer", &["orders"], &["replicate"]));
    stranger.assert_refused("before its logon was answered");
    // The answer comes too late.
    let now = stranger.pair.now();
    let late = Input::Authenticated { connection: PEER, user: Ok("east"), groups: "" };
    stranger.pair.broker.handle(now, late);
    stranger.pair.turn();
    assert!(stranger.take().0.is_empty());
}

#[test]
fn a_slow_logon_ends_at_its_timeout() {
    let mut stranger = Stranger::new(replicating(&["^"]));
    let bytes = logon_of("east");
    for byte in &bytes[..bytes.len() - 1] {
        stranger.send(&[*byte]);
        stranger.pair.pass(Duration::from_millis(100));
    }
    stranger.pair.pass(Duration::from_secs(2));
    stranger.assert_refused("no logon within logon_timeout");
}

#[test]
fn a_second_logon_ends_the_connection() {
    let mut stranger = Stranger::new(replicating(&["^"]));
    stranger.log_on("east");
    stranger.send(&logon_of("west"));
    let (frames, is_closed) = stranger.take();
    assert_eq!((frames.len(), frames[0].0, is_closed), (1, 3, true));
    stranger.assert_unharmed();
}

#[test]
fn a_user_without_the_right_cannot_touch_the_sequences_of_a_publisher() {
    let histories: [&[&str]; 3] = [&[], &["orders"], &["trades"]];
    for (granted, offered) in
        histories.into_iter().flat_map(|granted| [(granted, "orders"), (granted, "trades")])
    {
        if granted == ["orders"] && offered == "orders" {
            continue;
        }
        let entries = match granted {
            [] => vec![entry("west", &[Right::Replicate], &["^"])],
            topics => replicating(topics),
        };
        let mut stranger = Stranger::new(entries);
        stranger.log_on("east");
        // It offers a topic, and sends one for which it has no right.
        let sent = if granted == ["orders"] { "trades" } else { "orders" };
        stranger.send(&[hello("peer", &[offered], &["replicate"]), records(sent, 1 << 60)].concat());
        stranger.send(&records(sent, (1 << 60) + 1));
        stranger.pair.pass(Duration::from_millis(10));
        let log: Vec<_> = stranger.pair.log.iter().map(Event::to_string).collect();
        assert_names(&log, "the user may not replicate ");
        assert_names(&log, r#"audit: refused user="east" client="peer" right="replicate""#);
        stranger.assert_unharmed();
    }
}

#[test]
fn nothing_but_the_logon_is_looked_at_of_an_instance_that_is_refused() {
    let mut stranger = Stranger::new(replicating(&["^"]));
    stranger.send(&logon_of("east"));
    let (connection, user, password) = stranger.pair.logons.pop().unwrap();
    assert_eq!(
        (connection, user.as_deref(), password.unwrap().0.as_str()),
        (PEER, Some("east"), "marked-password")
    );
    let now = stranger.pair.now();
    let user = Err((Code::AuthenticationFailed, REFUSED));
    stranger.pair.broker.handle(now, Input::Authenticated { connection: PEER, user, groups: "" });
    stranger.pair.turn();
    stranger.assert_refused(REFUSED);
    assert!(!stranger.pair.log.iter().any(|event| format!("{event} {event:?}").contains("marked")));
}
