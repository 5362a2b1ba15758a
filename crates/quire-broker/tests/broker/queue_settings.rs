//! Which queues cannot be: the configuration names queue and key.

use quire_broker::{BrokerConfig, ConfigError, Event, QueueSettings, RecordedTopic};
use quire_queue::{FairnessModel, Semantics};

use crate::queue_pair::*;

fn mistake(queues: impl IntoIterator<Item = QueueSettings>) -> ConfigError {
    let config = queue_config(queues);
    let journal = quire_journal::Journal::in_memory(&config.journal_options()).unwrap();
    match quire_broker::Broker::new(config, journal) {
        Err(quire_broker::OpenError::Config(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the configuration was taken"),
    }
}

#[test]
fn a_setting_that_cannot_be_is_refused_with_its_key() {
    let text = |text: &str| Some(text.to_owned());
    let jobs = || queue("jobs");
    let cases = [
        (QueueSettings { name: String::new(), ..jobs() }, "name"),
        (queue("^jobs"), "name"),
        (QueueSettings { message_type: String::new(), ..jobs() }, "message_type"),
        (QueueSettings { underlying_topic: text("a("), ..jobs() }, "underlying_topic"),
        (QueueSettings { underlying_topic: text("^jobs"), ..jobs() }, "default_publish_target"),
        (QueueSettings { default_publish_target: text("other"), ..jobs() }, "default_publish_target"),
        (QueueSettings { message_type: "binary".into(), ..jobs() }, "default_publish_target"),
        (QueueSettings { filter: text("/a ="), ..jobs() }, "filter"),
        (QueueSettings { priority: text("/a +"), ..jobs() }, "priority"),
        (QueueSettings { barrier_expression: text("/a ="), ..jobs() }, "barrier_expression"),
        (QueueSettings { recovery_point: text("yesterday"), ..jobs() }, "recovery_point"),
        (QueueSettings { max_backlog: Some(0), ..jobs() }, "max_backlog"),
        (QueueSettings { dead_letter_topic: text("jobs"), ..jobs() }, "dead_letter_topic"),
        (QueueSettings { target_queue_depth: Some(1), priority: text("/a"), ..jobs() }, "target_queue_depth"),
        (
            QueueSettings { target_queue_depth: Some(1), barrier_expression: text("/a = 1"), ..jobs() },
            "target_queue_depth",
        ),
        (
            QueueSettings {
                semantics: Semantics::AtMostOnce,
                fairness_model: Some(FairnessModel::Fast),
                ..jobs()
            },
            "fairness_model",
        ),
    ];
    for (settings, key) in cases {
        let error = mistake([settings]);
        assert_eq!(error.key, format!("queues[0].{key}"), "{error}");
    }
}

#[test]
fn what_only_shows_among_several_is_refused_as_well() {
    assert_eq!(mistake([queue("a"), queue("a")]).key, "queues[1].name");
    let to_another = QueueSettings { underlying_topic: Some("b".into()), ..queue("a") };
    assert_eq!(mistake([to_another, queue("b")]).key, "queues[0].default_publish_target");
    let dead =
        |name: &str, topic: &str| QueueSettings { dead_letter_topic: Some(topic.into()), ..queue(name) };
    assert_eq!(mistake([dead("a", "b"), dead("b", "a")]).key, "queues[0].dead_letter_topic");
    let one_way = queue_config([dead("a", "b"), dead("b", "c")]);
    assert!(BrokerConfig::from_json("{}").is_ok() && one_way.queues.len() == 2);
    crate::pair::Pair::with(one_way);
}

#[test]
fn underlying_topics_and_dead_letters_are_recorded() {
    let recorded = |name: &str, filter: Option<&str>| RecordedTopic {
        filter: filter.map(Into::into),
        ..RecordedTopic::new(name, "json")
    };
    let open = |topics: Vec<RecordedTopic>, settings: QueueSettings| {
        let mut config = queue_config([settings]);
        config.transaction_log.topics = topics;
        let journal = quire_journal::Journal::in_memory(&config.journal_options()).unwrap();
        quire_broker::Broker::new(config, journal).map(drop).map_err(|error| error.to_string())
    };
    let with_dead = || QueueSettings { dead_letter_topic: Some("dead".into()), ..queue("jobs") };
    assert!(open(vec![recorded("other", None)], queue("jobs")).unwrap_err().contains("underlying_topic"));
    assert!(open(vec![recorded("jobs", None)], with_dead()).unwrap_err().contains("dead_letter_topic"));
    let in_part = vec![recorded("jobs", None), recorded("dead", Some("/a = 1"))];
    assert!(open(in_part, with_dead()).unwrap_err().contains("does not record every message"));
    assert_eq!(open(vec![recorded("jobs", None), recorded("dead", None)], with_dead()), Ok(()));
}

#[test]
fn topics_that_are_not_recorded_are_reported_together() {
    let jobs =
        r#"{"name": "jobs", "message_type": "json", "underlying_topic": "a", "dead_letter_topic": "b"}"#;
    let other = r#"{"name": "other", "message_type": "json", "underlying_topic": "orders", "dead_letter_topic": "c"}"#;
    // Its topic is not known, because the other queue has a mistake.
    let third = r#"{"name": "third", "message_type": "json", "underlying_topic": "orders", "dead_letter_topic": "jobs"}"#;
    let topics = r#"[{"name": "orders", "message_type": "json"}]"#;
    let text =
        format!(r#"{{"transaction_log": {{"topics": {topics}}}, "queues": [{jobs}, {other}, {third}]}}"#);
    let keys: Vec<_> = BrokerConfig::diagnose(&text).0.into_iter().map(|error| error.key).collect();
    let expected =
        ["queues[0].underlying_topic", "queues[0].dead_letter_topic", "queues[1].dead_letter_topic"];
    assert_eq!(keys, expected);
}

#[test]
fn settings_without_effect_are_logged() {
    let settings = QueueSettings {
        semantics: Semantics::AtMostOnce,
        lease_period_ns: Some(1),
        max_backlog: Some(1),
        max_per_subscription_backlog: Some(2),
        ..queue("jobs")
    };
    let mut pair = with_queues([settings]);
    pair.turn();
    let ignored: Vec<_> = pair
        .log
        .iter()
        .filter_map(|event| match event {
            Event::QueueSettingIgnored { queue, key } => Some((queue.as_str(), key.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(ignored, [("jobs", "lease_period"), ("jobs", "max_per_subscription_backlog")]);
}

#[test]
fn the_settings_are_read_from_json_by_their_names() {
    let json = r#"{"queues": [{"name": "jobs", "message_type": "json", "semantics": "at-most-once",
        "fairness_model": "round-robin", "leasing": "strict", "expiration_model": "minimum"}]}"#;
    let config = BrokerConfig::from_json(json).unwrap();
    assert_eq!(config.queues[0].semantics, Semantics::AtMostOnce);
    let unknown = r#"{"queues": [{"name": "jobs", "message_type": "json", "max_cancel": 3}]}"#;
    assert_eq!(BrokerConfig::from_json(unknown).unwrap_err().key, "max_cancel");
}

#[test]
fn a_diagnosis_names_every_mistake_at_once() {
    let text = r#"{
        "name": "a b",
        "transaction_log": {
            "journal_size": 5,
            "topics": [
                {"name": "a(", "message_type": "jsn", "filter": "/a ="},
                {"name": "b", "message_type": "fix", "validate": true}
            ]
        },
        "transports": [{"max_message_size": 0}]
    }"#;
    let (errors, warnings) = BrokerConfig::diagnose(text);
    let keys: Vec<_> = errors.iter().map(|error| error.key.as_str()).collect();
    let expected = [
        "name",
        "transaction_log.journal_size",
        "transports[0].max_message_size",
        "transaction_log.topics[0].name",
        "transaction_log.topics[0].message_type",
        "transaction_log.topics[0].filter",
        "transaction_log.topics[1].validate",
    ];
    assert_eq!((keys.as_slice(), warnings.len()), (expected.as_slice(), 0));
    let queues = r#"{"queues": [
        {"name": "a", "message_type": "json", "filter": "/a =", "priority": "/a +", "max_backlog": 0},
        {"name": "b", "message_type": "json", "underlying_topic": "^b"}
    ]}"#;
    let keys: Vec<_> = BrokerConfig::diagnose(queues).0.into_iter().map(|error| error.key).collect();
    let expected = [
        "queues[0].filter",
        "queues[0].priority",
        "queues[0].max_backlog",
        "queues[1].default_publish_target",
    ];
    assert_eq!(keys, expected);
    assert_eq!(BrokerConfig::diagnose("5").0.len(), 1);
    let (errors, warnings) = BrokerConfig::diagnose(r#"{"transaction_log": {"topics": []}}"#);
    assert!(errors.is_empty() && warnings.len() == 1);
}

#[test]
fn limits_below_the_largest_message_of_another_transport_are_warnings() {
    let warnings = |guests: &str, limits: &str| {
        let transports = format!(r#"[{{"name": "services"}}, {{"name": "guests"{guests}}}]"#);
        let text = format!(r#"{{"transports": {transports}, "limits": {{{limits}}}}}"#);
        let (errors, warnings) = BrokerConfig::diagnose(&text);
        assert!(errors.is_empty(), "{errors:?}");
        warnings
    };
    assert!(warnings("", "").is_empty());
    for (guests, limits, expected) in [
        (r#", "max_message_size": 65536"#, "", "clients may publish 65536 bytes"),
        (r#", "max_client_backlog": 65536"#, "", "max_client_backlog is 65536 bytes"),
        ("", r#""max_unfinished": 65536"#, "limits.max_unfinished is 65536 bytes"),
    ] {
        let warnings = warnings(guests, limits);
        assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
    }
}

#[test]
fn a_dead_letter_topic_that_looks_misspelled_is_a_warning() {
    for (topic, expected) in [("orders.faild", 1), ("orders.failed", 0), ("letters", 0), ("", 0)] {
        let text = serde_json::json!({
            "transaction_log": {"topics": [
                {"name": "^orders", "message_type": "json"},
                {"name": "letters", "message_type": "json"},
            ]},
            "queues": [
                {
                    "name": "jobs", "message_type": "json", "underlying_topic": "orders",
                    "dead_letter_topic": (!topic.is_empty()).then_some(topic),
                },
                {"name": "failed", "message_type": "json", "underlying_topic": "orders.failed"},
            ],
        });
        let (errors, warnings) = BrokerConfig::diagnose(&text.to_string());
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(warnings.len(), expected, "{topic}: {warnings:?}");
    }
}

/// The diagnosis of a queue over `orders` with these further settings.
fn diagnosis(further: serde_json::Value) -> (Vec<ConfigError>, Vec<String>) {
    let mut text = serde_json::json!({
        "transaction_log": {"topics": [
            {"name": "orders/fix", "message_type": "fix"},
            {"name": "^orders", "message_type": "json"},
            {"name": "dead", "message_type": "json"},
        ]},
        "queues": [{
            "name": "jobs", "message_type": "json", "underlying_topic": "orders", "dead_letter_topic": "dead",
        }],
    });
    let serde_json::Value::Object(further) = further else { panic!("{further}") };
    further.into_iter().for_each(|(key, value)| text[key] = value);
    BrokerConfig::diagnose(&text.to_string())
}

fn destination(topic: &str, sync_type: &str, excluded: &[&str]) -> serde_json::Value {
    serde_json::json!({
        "name": "east-2", "addresses": ["h:1"], "sync_type": sync_type, "exclude_validation": excluded,
        "topics": [{"name": topic, "message_type": "json"}],
    })
}

#[test]
fn a_queue_over_topics_of_a_mutual_link_is_refused_unless_it_is_local() {
    let replication = |topic: &str, sync_type: &str, excluded: &[&str], local: &[&str], accepts: bool| {
        serde_json::json!({"replication": {
            "accepts": accepts, "destinations": [destination(topic, sync_type, excluded)], "local_queues": local,
        }})
    };
    for topic in ["^", "^ord", "orders"] {
        let (errors, _) = diagnosis(replication(topic, "sync", &[], &[], true));
        assert_eq!(errors.len(), 1, "{topic}: {errors:?}");
        assert_eq!(errors[0].key, "queues[0].name");
        assert!(errors[0].reason.contains("east-2") && errors[0].reason.contains("[[local_queue]]"));
        assert!(diagnosis(replication(topic, "sync", &[], &["jobs"], true)).0.is_empty());
    }
    // Another topic, or an instance that takes no links.
    assert!(diagnosis(replication("trades", "sync", &[], &[], true)).0.is_empty());
    assert!(diagnosis(replication("^", "sync", &[], &[], false)).0.is_empty());
    // Whether the destination sends the topics back is not known.
    for (sync_type, excluded) in [("async", &[][..]), ("sync", &["replicate"][..])] {
        let (errors, warnings) = diagnosis(replication("orders", sync_type, excluded, &[], true));
        assert_eq!((errors.len(), warnings.len()), (0, 1), "{errors:?} {warnings:?}");
        assert!(warnings[0].contains("[[local_queue]]"), "{warnings:?}");
    }
}

#[test]
fn dead_letters_of_a_local_queue_on_a_replicated_topic_are_a_warning() {
    for (topic, local, expected) in [("dead", "jobs", 1), ("^other", "jobs", 0), ("dead", "none", 0)] {
        let (errors, warnings) = diagnosis(serde_json::json!({"replication": {
            "accepts": true, "destinations": [destination(topic, "sync", &[])], "local_queues": [local],
        }}));
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(warnings.len(), expected, "{topic} {local}: {warnings:?}");
    }
}

#[test]
fn dead_letters_on_a_last_value_topic_without_a_key_are_a_warning() {
    for (topic, expected) in [
        (serde_json::json!({"name": "dead", "message_type": "json"}), 1),
        (serde_json::json!({"name": "all", "message_type": "json", "pattern": "d.*"}), 1),
        (serde_json::json!({"name": "dead", "message_type": "json", "key": ["/queue", "/position"]}), 0),
    ] {
        let (errors, warnings) = diagnosis(serde_json::json!({"sow_topics": [topic]}));
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(warnings.len(), expected, "{warnings:?}");
    }
}

#[test]
fn a_topic_of_another_message_type_under_the_pattern_of_a_queue_is_a_warning() {
    let queue = |pattern: &str| {
        serde_json::json!({"queues": [{
            "name": "jobs", "message_type": "json", "underlying_topic": pattern, "default_publish_target": "orders",
        }]})
    };
    let (errors, warnings) = diagnosis(queue("^orders"));
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("orders/fix") && warnings[0].contains("fix"), "{warnings:?}");
    assert!(diagnosis(queue("^orders$")).1.is_empty());
}
