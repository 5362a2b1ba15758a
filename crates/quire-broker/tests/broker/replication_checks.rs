//! The checks of two configurations that concern their links: `replicate` and `cascade`
//! (docs/replication.md, *How a link begins*).

use quire_broker::{BrokerConfig, SyncType};

use super::links::*;

/// Why the first link of the first instance is refused; empty when it is up.
fn refusal(configs: Vec<BrokerConfig>) -> String {
    let link = Cluster::new(configs).stats(0).destinations.remove(0);
    assert_eq!(link.last_error.is_none(), link.state == "live");
    link.last_error.unwrap_or_default()
}

/// An instance `a` that sends to `b`, which has some links.
fn from_a(
    sync_type: SyncType,
    excluded: &[&str],
    of_b: Vec<quire_broker::DestinationSettings>,
) -> Vec<BrokerConfig> {
    let mut to_b = destination("b", sync_type);
    to_b.topics[0].name = "orders".into();
    to_b.exclude_validation = excluded.iter().map(|check| (*check).to_owned()).collect();
    vec![instance("a", vec![to_b]), instance("b", of_b), instance("c", vec![])]
}

#[test]
fn a_sync_destination_must_send_the_topics_back_unless_the_check_is_excluded() {
    let refused = refusal(from_a(SyncType::Sync, &[], vec![]));
    assert!(refused.starts_with("replicate: \"b\" does not send to \"a\""), "{refused}");
    assert!(refused.contains("add a [[replication.destination]] for \"a\" at \"b\""), "{refused}");
    let mut other_topic = destination("a", SyncType::Async);
    other_topic.topics[0].name = "local".into();
    let refused = refusal(from_a(SyncType::Sync, &[], vec![other_topic.clone()]));
    assert!(refused.starts_with("replicate: \"b\" does not send the topic \"orders\" to \"a\""), "{refused}");
    assert_eq!(refusal(from_a(SyncType::Sync, &["replicate"], vec![other_topic])), "");
    assert_eq!(refusal(from_a(SyncType::Sync, &[], vec![destination("a", SyncType::Sync)])), "");
    // Clients do not fail over to an async destination.
    assert_eq!(refusal(from_a(SyncType::Async, &[], vec![])), "");
    // The destination sends to any instance of the group of the source.
    let mut to_group = destination("east", SyncType::Sync);
    (to_group.group, to_group.addresses) = (Some("east".into()), vec!["a".into()]);
    let mut configs = from_a(SyncType::Sync, &[], vec![to_group]);
    configs[0].replication.group = Some("east".into());
    assert_eq!(refusal(configs), "");
}

#[test]
fn a_destination_that_sends_a_topic_on_makes_the_same_checks_unless_the_check_is_excluded() {
    let with = |excluded: &[&str], pass_through: &[&str], weaker: &[&str]| {
        let mut to_c = destination("c", SyncType::Async);
        to_c.pass_through = pass_through.iter().map(|pattern| (*pattern).to_owned()).collect();
        to_c.exclude_validation = weaker.iter().map(|check| (*check).to_owned()).collect();
        let mut to_a = destination("a", SyncType::Async);
        to_a.exclude_validation = vec!["key".into()];
        to_a.pass_through = vec![".*".into()];
        refusal(from_a(SyncType::Sync, excluded, vec![to_c, to_a]))
    };
    let refused = with(&[], &["^a$"], &["key"]);
    assert!(
        refused.starts_with("cascade: \"b\" sends the topic \"orders\" to \"c\" without the check \"key\""),
        "{refused}"
    );
    assert_eq!(with(&[], &["^a$"], &[]), "");
    assert_eq!(with(&[], &["^x$"], &["key"]), "", "what came from the source is not sent on");
    assert_eq!(with(&["key"], &["^a$"], &["key"]), "", "the source leaves it out, too");
    assert_eq!(with(&["cascade"], &["^a$"], &["key"]), "");
}

#[test]
fn each_end_says_every_difference_at_once() {
    let mut configs = from_a(SyncType::Sync, &[], vec![]);
    configs[1].transaction_log.topics[0].message_type = "binary".into();
    let mut cluster = Cluster::new(configs);
    let refused = cluster.stats(0).destinations.remove(0).last_error.unwrap();
    assert!(refused.contains("replicate: ") && refused.contains("; message_type: "), "{refused}");
    let logged: Vec<_> = cluster.at(1).log.iter().map(ToString::to_string).collect();
    let line = format!("source \"a\": link ended: {refused}");
    assert!(logged.contains(&line), "{logged:?}");
}
