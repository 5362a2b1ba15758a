//! The configuration of last-value topics (docs/last-values.md section 8).

use quire_broker::{
    Broker, BrokerConfig, ConfigError, HistorySettings, OpenError, QueueSettings, RecordedTopic,
    SowTopicSettings, TableExpiration, TransactionLogConfig,
};
use quire_command::*;
use quire_journal::Journal;

use crate::last_value_pair::*;
use crate::pair::*;
use crate::queue_pair::queue;

/// The first mistake in a configuration.
fn mistake(config: BrokerConfig) -> Option<ConfigError> {
    let journal = Journal::in_memory(&config.journal_options()).unwrap();
    match Broker::new(config, journal) {
        Ok(_) => None,
        Err(OpenError::Config(error)) => Some(error),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_bad_setting_is_named_with_its_key() {
    let topic = || sow_topic("orders");
    let log = |topic: RecordedTopic| TransactionLogConfig {
        topics: vec![topic],
        ..TransactionLogConfig::default()
    };
    let fix = RecordedTopic::new("orders", "fix");
    let filtered = RecordedTopic { filter: Some("/a = 1".into()), ..RecordedTopic::new("orders", "json") };
    let queues = vec![QueueSettings { underlying_topic: Some("x".into()), ..queue("orders") }];
    let plain = || sow_config([topic()]);
    let pattern = |text: &str| sow_config([SowTopicSettings { pattern: Some(text.into()), ..topic() }]);
    let texts = |list: &[&str]| list.iter().map(|text| text.to_string()).collect();
    let fields = |before: &[&str], after: &[&str]| {
        let (preprocessing, enrichment) = (texts(before), texts(after));
        sow_config([SowTopicSettings { preprocessing, enrichment, ..topic() }])
    };
    let history = |window_ns, granularity_ns, max_size| {
        let history = Some(HistorySettings { window_ns, granularity_ns, max_size });
        sow_config([SowTopicSettings { history, ..topic() }])
    };
    for (config, key, reason) in [
        (sow_config([sow_topic("^orders")]), "[0].name", "pattern"),
        (sow_config([topic(), topic()]), "[1].name", "another last-value topic"),
        (BrokerConfig { queues, ..plain() }, "[0].name", "a queue has the name"),
        (sow_config([SowTopicSettings { message_type: "jsn".into(), ..topic() }]), "[0].message_type", "jsn"),
        (
            sow_config([SowTopicSettings { message_type: "binary".into(), ..topic() }]),
            "[0].key",
            "supply keys",
        ),
        (sow_config([SowTopicSettings { key: vec!["id".into()], ..topic() }]), "[0].key", "id"),
        (
            sow_config([SowTopicSettings { key_domain: Some("d".into()), ..supplied("orders") }]),
            "[0].key_domain",
            "remove",
        ),
        (
            sow_config([SowTopicSettings { hash_index: vec![vec![]], ..topic() }]),
            "[0].hash_index",
            "at least one",
        ),
        (sow_config([SowTopicSettings { index: vec!["price".into()], ..topic() }]), "[0].index", "price"),
        (history(0, 0, 1 << 30), "[0].history.window", "1d"),
        (history(5, 6, 1 << 30), "[0].history.granularity", "longer than the window"),
        (history(5, 0, 1_000), "[0].history.max_size", "at least 65536"),
        (
            sow_config([SowTopicSettings { expiration: TableExpiration::AfterNs(0), ..topic() }]),
            "[0].expiration",
            "disabled",
        ),
        (
            sow_config([SowTopicSettings { recovery_point: Some("now".into()), ..topic() }]),
            "[0].recovery_point",
            "transient",
        ),
        (
            sow_config([SowTopicSettings { recovery_point: Some("x".into()), ..transient("orders") }]),
            "[0].recovery_point",
            "epoch",
        ),
        (
            sow_config([SowTopicSettings { recovery_point: Some("epoch".into()), ..transient("scratch") }]),
            "[0].recovery_point",
            "does not record",
        ),
        (fields(&["/a AS /b", "/a AS"], &[]), "[0].preprocessing[1]", "entry 2\n/a AS\n     ^\ncolumn 6"),
        (fields(&["/a OF PREVIOUS AS /b"], &[]), "[0].preprocessing[0]", "only for enrichment"),
        (fields(&[], &["1 AS /a", "2 AS /b", "3 AS /a/c"]), "[0].enrichment[2]", "another entry"),
        (fields(&[], &["SUM(/a) AS /b"]), "[0].enrichment[0]", "column 1"),
        (
            sow_config([SowTopicSettings {
                message_type: "binary".into(),
                preprocessing: vec!["1 AS /a".into()],
                ..supplied("orders")
            }]),
            "[0].preprocessing[0]",
            "binary",
        ),
        (pattern("orders/("), "[0].pattern", "unclosed group"),
        (
            sow_config([SowTopicSettings {
                pattern: Some("orders/.*".into()),
                history: Some(HistorySettings { window_ns: 1, granularity_ns: 0, max_size: 1 << 30 }),
                ..topic()
            }]),
            "[0].history",
            "entry without pattern",
        ),
        (pattern(""), "[0].pattern", "empty"),
        (pattern("orders/#"), "[0].pattern", "wildcard"),
        (
            BrokerConfig { transaction_log: log(RecordedTopic::new("x", "json")), ..pattern("orders/.*") },
            "[0].durability",
            "the pattern matches",
        ),
        (
            BrokerConfig {
                transaction_log: log(RecordedTopic::new("x", "json")),
                ..sow_config([SowTopicSettings {
                    pattern: Some("orders/.*".into()),
                    recovery_point: Some("epoch".into()),
                    ..transient("orders")
                }])
            },
            "[0].recovery_point",
            "the pattern matches",
        ),
        (BrokerConfig { transaction_log: log(fix), ..plain() }, "[0].message_type", "fix"),
        (BrokerConfig { transaction_log: log(filtered), ..plain() }, "[0].durability", "every message"),
        (
            BrokerConfig { transaction_log: log(RecordedTopic::new("x", "json")), ..plain() },
            "[0].durability",
            "transient",
        ),
    ] {
        let mistake = mistake(config).unwrap_or_else(|| panic!("{key} {reason}"));
        assert_eq!(mistake.key, format!("sow_topics{key}"));
        assert!(mistake.reason.contains(reason), "{mistake}");
    }
}

#[test]
fn a_queue_with_the_name_of_a_last_value_topic_cannot_be_created() {
    let mut pair = with_topics([sow_topic("orders")]);
    let settings = r#"{"name":"orders","message_type":"json","underlying_topic":"x"}"#;
    pair.send(1, &Command::DefineQueue { command: 7, action: DefineQueue::Create { settings } });
    pair.turn();
    assert_eq!(pair.take(1), [refused(Code::BadOption, 7, 0)]);
}
