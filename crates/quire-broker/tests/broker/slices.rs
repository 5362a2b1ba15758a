//! The commands of one connection run a slice at a time, so other connections do not wait for all
//! of them. The stopwatch of these tests moves by a fixed step each time it is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quire_broker::{BrokerConfig, Limits, QueueSettings};
use quire_command::*;
use quire_types::time::Instant;
use quire_types::{HeaderValue, HeadersBuffer};
use quire_wire::*;

use super::pair::*;

/// The time of reading the clock after every command: five commands fit into a slice.
const STEP_NS: u64 = 100_000;

pub fn with_stopwatch(config: BrokerConfig) -> Pair {
    let mut pair = Pair::with(config);
    let elapsed = Arc::new(AtomicU64::new(0));
    pair.broker.set_stopwatch(Box::new(move || Instant(elapsed.fetch_add(STEP_NS, Ordering::Relaxed))));
    pair
}

fn stats_count(pair: &mut Pair, client: u64) -> usize {
    pair.take(client).iter().filter(|said| matches!(said, Said::Stats { .. })).count()
}

#[test]
fn commands_of_one_connection_do_not_delay_a_publish_of_another() {
    let queue =
        QueueSettings { name: "work".into(), message_type: "json".into(), ..QueueSettings::default() };
    let mut pair = with_stopwatch(BrokerConfig { queues: vec![queue], ..config() });
    pair.client(1, "greedy");
    pair.client(2, "honest");
    let mut frames = Vec::new();
    for command in 1..=1_000 {
        Command::Stats { command, queue: None }.encode(&mut frames);
    }
    pair.send_bytes(1, &frames);
    pair.publish(2, 1, "orders", "honest");
    pair.one_turn();
    let answered = stats_count(&mut pair, 1);
    assert!((1..20).contains(&answered), "{answered} commands in one turn");
    pair.write();
    pair.one_turn();
    assert_eq!(pair.take(2), [Said::Persisted(1)], "after two turns, with most commands still waiting");
    let answered = answered + stats_count(&mut pair, 1);
    pair.turn();
    assert_eq!(answered + stats_count(&mut pair, 1), 1_000, "all are answered in the end");
}

#[test]
fn a_large_message_for_many_connections_uses_up_a_slice_although_nothing_is_copied() {
    let mut pair = Pair::new();
    pair.broker.set_stopwatch(Box::new(|| Instant(0)));
    pair.client(1, "publisher");
    for client in 2..=11 {
        pair.client(client, &format!("subscriber-{client}"));
        pair.subscribe(client, &subscribe(7, "orders"));
    }
    pair.turn();
    let data = "x".repeat(100_000);
    let mut frames = Vec::new();
    (1..=100).for_each(|sequence| Command::Publish(publish(sequence, "orders", &data)).encode(&mut frames));
    (2..=11).for_each(|client| drop(pair.take(client)));
    pair.send_bytes(1, &frames);
    pair.one_turn();
    let received = pair.take_data(2).len();
    assert!(
        (1..=2).contains(&received),
        "{received} messages of 100,000 bytes for ten connections in one turn"
    );
    pair.turn();
    assert_eq!(received + pair.take_data(2).len(), 100);
    assert_eq!(pair.take_data(11).len(), 100);
}

/// A batch frame of `count` messages without data, the first of them with this sequence.
fn batch(sequence: u64, topic: &str, count: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let head = publish(sequence, topic, "");
    put_publish_batch(&mut frame, &head, |out| (0..count).for_each(|_| put_batch_item(out, b"")));
    frame
}

#[test]
fn a_large_batch_goes_on_where_its_slice_ended_in_order_and_once() {
    let mut pair = with_stopwatch(config());
    pair.client(1, "greedy");
    pair.client(2, "honest");
    let mut frames = batch(1, "orders", 10_000);
    Command::Publish(publish(10_001, "orders", "behind the batch")).encode(&mut frames);
    pair.send_bytes(1, &frames);
    pair.publish(2, 1, "orders", "honest");
    pair.one_turn();
    let appended = pair.broker.stats().appended;
    assert!((100..1_000).contains(&appended), "{appended} messages in one turn");
    pair.turn();
    assert_eq!(pair.broker.stats().appended, 10_002);
    assert_eq!(pair.take(1).last(), Some(&Said::Persisted(10_001)));
    pair.subscribe(2, &replay(1, "orders", "0"));
    pair.turn();
    let mut sequences = pair.take(2).into_iter().filter_map(|said| match said {
        Said::Message { bookmark: Some((_, sequence)), data, .. } if data != "honest" => Some(sequence),
        _ => None,
    });
    assert!((1..=10_001).all(|sequence| sequences.next() == Some(sequence)));
}

/// A batch of deltas of a few bytes onto one record.
fn deltas(sequence: u64, count: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let head = Publish { is_delta: true, ..publish(sequence, "records", "") };
    put_publish_batch(&mut frame, &head, |out| {
        (0..count).for_each(|number| put_batch_item(out, format!(r#"{{"k":1,"n":{number}}}"#).as_bytes()));
    });
    frame
}

fn with_records(limits: Limits) -> BrokerConfig {
    let sow = r#"[{"name": "records", "message_type": "json", "key": ["/k"]}]"#;
    BrokerConfig { sow_topics: serde_json::from_str(sow).unwrap(), limits, ..config() }
}

#[test]
fn deltas_onto_a_large_record_use_up_the_slice_of_their_connection() {
    let mut pair = with_stopwatch(with_records(Limits::default()));
    pair.client(1, "greedy");
    pair.publish(1, 1, "records", &format!(r#"{{"k":1,"x":"{}"}}"#, "x".repeat(100_000)));
    pair.turn();
    pair.send_bytes(1, &deltas(2, 200));
    pair.one_turn();
    let appended = pair.broker.stats().appended;
    assert!((2..40).contains(&appended), "{appended} deltas in one turn");
    pair.turn();
    assert_eq!(pair.take(1).last(), Some(&Said::Persisted(201)));
}

#[test]
fn a_batch_waits_while_too_much_waits_for_the_disk() {
    let mut pair = with_stopwatch(with_records(Limits { max_unpersisted: 1 << 20, ..Limits::default() }));
    pair.client(1, "greedy");
    pair.publish(1, 1, "records", &format!(r#"{{"k":1,"x":"{}"}}"#, "x".repeat(100_000)));
    pair.turn();
    pair.writes_at_once = false;
    pair.send_bytes(1, &deltas(2, 200));
    (0..300).for_each(|_| pair.one_turn());
    let unpersisted = pair.broker.stats().unpersisted_bytes;
    assert!(unpersisted < 2 << 20, "{unpersisted} bytes wait for the disk");
    pair.writes_at_once = true;
    pair.turn();
    assert_eq!(pair.take(1).last(), Some(&Said::Persisted(201)));
}

#[test]
fn every_message_of_a_large_batch_has_the_headers_of_the_batch() {
    let mut pair = with_stopwatch(config());
    pair.client(1, "greedy");
    let mut frame = Vec::new();
    let headers = HeadersBuffer::new([("trace", HeaderValue::Text("abc"))]).unwrap();
    let head = Publish { headers: headers.as_headers(), ..publish(1, "orders", "") };
    put_publish_batch(&mut frame, &head, |out| (0..10_000).for_each(|_| put_batch_item(out, b"")));
    pair.send_bytes(1, &frame);
    pair.one_turn();
    assert!(pair.broker.stats().appended < 1_000, "the rest of the batch waits");
    pair.turn();
    let filter = Some("HEADER('trace') = 'abc'");
    pair.subscribe(1, &Subscribe { filter, ..replay(1, "orders", "0") });
    pair.turn();
    let is_message = |said: &Said| matches!(said, Said::Message { .. });
    assert_eq!(pair.take(1).iter().filter(|said| is_message(said)).count(), 10_000);
}

#[test]
fn nothing_of_a_batch_is_acknowledged_before_it_was_taken() {
    let mut pair = with_stopwatch(config());
    pair.client(1, "greedy");
    pair.send_bytes(1, &batch(1, "orders", 10_000));
    for _ in 0..10 {
        pair.one_turn();
        pair.write();
        let appended = pair.broker.stats().appended;
        for said in pair.take(1) {
            assert!(
                matches!(said, Said::Persisted(sequence) if sequence <= appended),
                "{said:?} of {appended}"
            );
        }
    }
    pair.disconnect(1);
    pair.turn();
    let appended = pair.broker.stats().appended;
    assert!(appended < 10_000);
    pair.connect(1);
    pair.send(1, &Command::Logon(logon("greedy")));
    pair.turn();
    assert_eq!(pair.take(1), [Said::LoggedOn { last_sequence: appended }], "the rest is to be sent again");
}

/// Refusals wait for what was published before them. A batch of them waits, too, when there are too
/// many.
#[test]
fn a_batch_of_refusals_is_taken_only_as_far_as_they_may_wait() {
    let mut pair = Pair::new();
    pair.writes_at_once = false;
    pair.client(1, "refused");
    pair.publish(1, 1, "orders", "not yet persisted");
    pair.send_bytes(1, &batch(2, "", 100_000));
    pair.one_turn();
    assert!(pair.broker.stats().refused_count < 20_000);
    pair.writes_at_once = true;
    pair.turn();
    let refused = pair.take(1).iter().filter(|said| matches!(said, Said::Failed { .. })).count();
    assert_eq!(refused, 100_000);
}

/// A subscription that resumes at a resume position must not receive again what it had before the
/// position was sent.
#[test]
fn a_resume_position_is_not_before_messages_that_were_sent() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.subscribe(2, &Subscribe { acks: Acks::PERSISTED, ..replay(1, "orders", "0") });
    pair.turn();
    pair.take(2);
    // Two batches are persisted at once. The tail stops in the second one.
    pair.publish(1, 1, "orders", "");
    pair.one_turn();
    let (mut frames, data) = (Vec::new(), "x".repeat(1_000));
    (2..=401).for_each(|sequence| Command::Publish(publish(sequence, "orders", &data)).encode(&mut frames));
    pair.send_bytes(1, &frames);
    pair.one_turn();
    // One block of the journal to a turn.
    let elapsed = Arc::new(AtomicU64::new(0));
    pair.broker.set_stopwatch(Box::new(move || Instant(elapsed.fetch_add(10 * STEP_NS, Ordering::Relaxed))));
    let (mut received, mut places) = (0, 0);
    for turn in 0..100 {
        pair.write();
        pair.run_reads();
        // The next position is due.
        pair.now_ns += 1_000_000_000 * u64::from(turn == 1);
        pair.one_turn();
        for said in pair.take(2) {
            match said {
                Said::Message { bookmark: Some((_, sequence)), .. } => received = sequence.max(received),
                Said::Place { bookmark: (_, sequence), .. } if sequence > 0 => {
                    assert!(sequence >= received, "{sequence} after message {received} was sent");
                    places += 1;
                }
                _ => (),
            }
        }
    }
    assert_eq!(received, 401);
    assert!(places > 0);
}
