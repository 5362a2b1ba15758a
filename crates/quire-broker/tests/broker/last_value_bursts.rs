//! Messages that arrive together, so that the broker knows their keys ahead, against the same
//! messages one at a time.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_broker::SowTopicSettings;
use quire_command::*;
use quire_wire::Encode;

use crate::last_value_pair::*;
use crate::pair::*;

/// Two topics with generated keys, one whose key is a constructed field, one with supplied keys,
/// and one that keeps no last values.
const TOPICS: [&str; 5] = ["a", "b", "constructed", "supplied", "log"];

#[derive(Clone, Debug)]
enum Sent {
    Publish {
        topic: usize,
        key: u8,
        is_delta: bool,
        /// How far back the sequence is; 0 = a new one.
        back: u64,
    },
    /// No JSON, so it has no key.
    Broken {
        topic: usize,
    },
    /// The records with a value.
    Delete {
        topic: usize,
        value: usize,
    },
    Heartbeat,
}

fn sent() -> impl Strategy<Value = Sent> {
    // Most messages follow others of the first topic.
    let topic = || prop_oneof![6 => Just(0), 4 => 0..TOPICS.len()];
    let back = prop_oneof![8 => Just(0), 1 => 1..6u64];
    prop_oneof![
        20 => (topic(), 0..4u8, prop::bool::weighted(0.2), back)
            .prop_map(|(topic, key, is_delta, back)| Sent::Publish { topic, key, is_delta, back }),
        1 => topic().prop_map(|topic| Sent::Broken { topic }),
        1 => (0..4usize, 0..9usize).prop_map(|(topic, value)| Sent::Delete { topic, value }),
        1 => Just(Sent::Heartbeat),
    ]
}

fn pair() -> Pair {
    let constructed = SowTopicSettings {
        key: vec!["/made".into()],
        preprocessing: vec!["CONCAT('k', /id) AS /made".into()],
        ..supplied("constructed")
    };
    with_topics([sow_topic("a"), sow_topic("b"), constructed, supplied("supplied")])
}

/// The frames, each with its number as its value.
fn frames(all: &[Sent]) -> Vec<Vec<u8>> {
    let mut next = 0;
    let mut frame = |(number, sent): (usize, &Sent)| {
        let mut frame = Vec::new();
        let mut sequence = |back: u64| {
            next += u64::from(back == 0);
            (next - back.min(next)).max(1)
        };
        let mut put = |command: Command<'_>| command.encode(&mut frame);
        match sent {
            Sent::Publish { topic, key, is_delta, back } => {
                let data = match is_delta {
                    true => format!(r#"{{"id":{key},"delta":{number}}}"#),
                    false => format!(r#"{{"id":{key},"value":{number}}}"#),
                };
                let key = format!("k-{key}");
                let key = if TOPICS[*topic] == "supplied" { key.as_bytes() } else { b"" };
                let publish = publish(sequence(*back), TOPICS[*topic], &data);
                put(Command::Publish(Publish { key, is_delta: *is_delta && *topic < 4, ..publish }));
            }
            Sent::Broken { topic } => put(Command::Publish(publish(sequence(0), TOPICS[*topic], "{"))),
            Sent::Delete { topic, value } => {
                let filter = format!("/value = {value}");
                let delete = delete(number as u32 + 1, sequence(0), TOPICS[*topic]);
                put(Command::SowDelete(SowDelete { filter: Some(&filter), ..delete }));
            }
            Sent::Heartbeat => put(Command::Heartbeat),
        }
        frame
    };
    all.iter().enumerate().map(&mut frame).collect()
}

/// The records of all topics, and what was refused.
fn outcome(mut pair: Pair) -> (Vec<String>, Vec<String>) {
    pair.turn();
    let is_refusal = |said: &Said| matches!(said, Said::Failed { .. });
    let refused = pair.take(1).into_iter().filter(is_refusal).map(|said| format!("{said:?}"));
    let mut refused: Vec<_> = refused.collect();
    refused.sort();
    let mut records = Vec::new();
    for topic in &TOPICS[..4] {
        pair.send(2, &Command::Query(query(5, topic)));
        pair.turn();
        records.extend(pair.take(2).into_iter().filter_map(|said| match said {
            Said::Row(row) => Some(format!("{topic} {} {}", row.key, row.data)),
            _ => None,
        }));
    }
    records.sort();
    (records, refused)
}

proptest! {
    #[test]
    fn messages_in_one_piece_are_as_messages_one_at_a_time(
        all in vec(sent(), 1..60),
        cuts in vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let frames = frames(&all);
        let mut one_at_a_time = pair();
        for frame in &frames {
            one_at_a_time.send_bytes(1, frame);
            one_at_a_time.turn();
        }
        let bytes = frames.concat();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let mut together = pair();
        for piece in cuts.windows(2) {
            together.send_bytes(1, &bytes[piece[0]..piece[1]]);
        }
        prop_assert_eq!(outcome(together), outcome(one_at_a_time));
    }
}

#[test]
fn a_new_key_twice_in_one_piece_has_one_record() {
    let mut pair = pair();
    let same = Sent::Publish { topic: 0, key: 1, is_delta: false, back: 0 };
    pair.send_bytes(1, &frames(&vec![same; 20]).concat());
    assert_eq!(pair.records(2, query(5, "a")), [r#"{"id":1,"value":19}"#]);
}
