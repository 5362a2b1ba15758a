//! Any text in the options of a subscription and of a query is taken or refused: no panic, and
//! other connections are served.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_command::*;
use std::time::Duration;

use super::pair::*;
use super::queue_pair::{queue, with_queues};

/// Nothing, any text, or words of a grammar in any order.
fn text(words: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        2 => Just(None),
        1 => "\\PC{0,20}".prop_map(Some),
        4 => vec(prop::sample::select(words), 0..7).prop_map(|words| Some(words.concat())),
    ]
}

fn topic() -> impl Strategy<Value = String> {
    const WORDS: &[&str] =
        &["jobs", "ticks", "^", "$", "[0-9]", "(", ")", "|", "*", "+", "{9}", "\\", ".", "/"];
    prop_oneof![2 => Just("jobs".to_owned()), 3 => text(WORDS).prop_map(Option::unwrap_or_default)]
}

fn bookmark() -> impl Strategy<Value = Option<String>> {
    text(&[
        "0",
        "0|1|",
        "1|2|",
        "18446744073709551615|",
        ",",
        "[",
        "]",
        "(",
        ")",
        ":",
        "20200101T000000Z",
        "|",
    ])
}

fn rate() -> impl Strategy<Value = Option<String>> {
    text(&["1", "0.5", "1000", "99999999999999999999", "KB", "MB", "X", "x", "-", ".", " "])
}

fn fields() -> impl Strategy<Value = Option<String>> {
    text(&["/a", "/b", "/a/b", "/", ",", "[0]", "@", "-/", "+/a", "+/", "-/b", " DESC", " ASC", "'"])
}

proptest! {
    #[test]
    fn any_options_of_a_subscription_or_a_query_are_taken_or_refused(
        (topic, filter, bookmark) in (topic(), fields(), bookmark()),
        (rate, rate_max_gap_ns) in (rate(), any::<Option<u64>>()),
        (conflation_ns, conflation_key) in (any::<Option<u64>>(), fields()),
        (select, order_by) in (fields(), fields()),
        (options, max_backlog, top_n) in (0u32..64, any::<Option<u32>>(), any::<Option<u32>>()),
    ) {
        let mut pair = with_queues([queue("jobs")]);
        pair.client(1, "publisher");
        pair.client(2, "reader");
        for (sequence, topic) in (1..).zip(["jobs", "ticks", "jobs"]) {
            pair.publish(1, sequence, topic, r#"{"a":{"b":1},"b":[2]}"#);
        }
        pair.turn();
        pair.subscribe(2, &Subscribe {
            filter: filter.as_deref(), bookmark: bookmark.as_deref(), options: SubscribeOptions(options), max_backlog,
            rate: rate.as_deref(), rate_max_gap_ns, conflation_ns, conflation_key: conflation_key.as_deref(),
            select: select.as_deref(), ..subscribe(1, &topic)
        });
        let query = Query { command: 2, subscription: 2, topic: "jobs", order_by: order_by.as_deref(), top_n, ..Query::default() };
        pair.send(2, &Command::Query(query));
        pair.turn();
        pair.pass(Duration::from_millis(50));
        pair.publish(1, 4, "ticks", "{}");
        pair.turn();
        let said = pair.take(1);
        prop_assert!(matches!(said.last(), Some(Said::Persisted(4))), "{:?}", said);
    }
}
