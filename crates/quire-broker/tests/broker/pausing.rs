//! Pause and resume of bookmark subscriptions (docs/replay.md).

use quire_command::*;

use super::pair::*;

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn pause(pair: &mut Pair, client: u64, command: u32, which: &[u32]) {
    let bytes = numbers(which);
    let subscriptions = SubscriptionNumbers::from_bytes(&bytes).unwrap();
    pair.send(client, &Command::Pause { command, acks: Acks::PROCESSED, subscriptions });
}

fn resume(pair: &mut Pair, client: u64, command: u32, which: &[u32]) {
    let bytes = numbers(which);
    let subscriptions = SubscriptionNumbers::from_bytes(&bytes).unwrap();
    pair.send(client, &Command::Resume { command, acks: Acks::PROCESSED, subscriptions });
}

fn paused<'a>(number: u32, topic: &'a str, bookmark: &'a str) -> Subscribe<'a> {
    Subscribe { options: SubscribeOptions::PAUSED, ..replay(number, topic, bookmark) }
}

#[test]
fn a_paused_subscription_loses_and_repeats_nothing() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.subscribe(1, &replay(7, "orders", "0"));
    pair.publish(1, 1, "orders", "1");
    pair.turn();
    assert_eq!(pair.take_data(1), ["1"]);
    pause(&mut pair, 1, 20, &[7]);
    pause(&mut pair, 1, 21, &[7]);
    pair.publish(1, 2, "orders", "2");
    pair.turn();
    assert_eq!(
        pair.take(1),
        [ack(AckKind::Processed, 20, 0), ack(AckKind::Processed, 21, 0), Said::Persisted(2)]
    );
    resume(&mut pair, 1, 22, &[7]);
    resume(&mut pair, 1, 23, &[7]);
    pair.turn();
    assert_eq!(pair.take_data(1), ["2"]);
}

#[test]
fn subscriptions_resumed_together_are_interleaved_as_the_log() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    for sequence in 1..=2000 {
        let topic = ["x", "y", "z"][sequence as usize % 3];
        pair.publish(1, sequence, topic, &sequence.to_string());
    }
    pair.turn();
    pair.take(1);
    for (number, topic) in [(1, "x"), (2, "y"), (3, "z")] {
        pair.subscribe(1, &paused(number, topic, "0"));
    }
    pair.turn();
    assert_eq!(pair.take_data(1), [""; 0]);
    resume(&mut pair, 1, 20, &[3, 1, 2]);
    pair.turn();
    assert_eq!(pair.take_data(1), (1..=2000).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// Three subscriptions share a replay whose reads end, mostly within a record, at messages of
/// `size` bytes, wherever that is; `alone` is paused after some of them, with a read under way, and
/// resumed at the end. Gives the sequences that each got.
fn pause_one_of_three(size: usize, alone: u32) -> [Vec<u64>; 3] {
    let mut pair = Pair::new();
    pair.client(1, "a");
    let data = "x".repeat(size);
    for sequence in 1..=400 {
        pair.publish(1, sequence, "orders", &data);
    }
    pair.turn();
    pair.take(1);
    pair.reads_at_once = false;
    for number in 1..=3 {
        pair.subscribe(1, &paused(number, "orders", "0"));
    }
    resume(&mut pair, 1, 20, &[1, 2, 3]);
    let mut got = [Vec::new(), Vec::new(), Vec::new()];
    let mut note = |said: Vec<Said>| {
        for said in said {
            if let Said::Message { subscription, bookmark: Some((_, sequence)), .. } = said {
                got[subscription as usize - 1].push(sequence);
            }
        }
        got[alone as usize - 1].len()
    };
    for step in 0..4 {
        pair.turn();
        pair.run_reads();
        if step == 1 {
            pair.turn();
            pause(&mut pair, 1, 21, &[alone]);
        }
        note(pair.take(1));
    }
    pair.reads_at_once = true;
    pair.turn();
    let halted_at = note(pair.take(1));
    assert!(halted_at > 0 && halted_at < 400, "{halted_at}");
    resume(&mut pair, 1, 22, &[alone]);
    pair.turn();
    note(pair.take(1));
    got
}

#[test]
fn one_that_is_paused_alone_leaves_the_others_running() {
    let all: Vec<u64> = (1..=400).collect();
    for size in [3000, 3111, 3222, 3333, 3444] {
        for alone in 1..=3 {
            assert_eq!(pause_one_of_three(size, alone), [&all[..], &all, &all], "{size} {alone}");
        }
    }
}

#[test]
fn what_cannot_be_paused_is_refused_and_the_rest_is_done() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.subscribe(1, &subscribe(1, "orders"));
    pair.subscribe(1, &replay(2, "orders", "0"));
    let live = Subscribe { options: SubscribeOptions::LIVE, ..replay(3, "orders", "0") };
    pair.subscribe(1, &live);
    pair.turn();
    pair.take(1);
    pause(&mut pair, 1, 20, &[9, 2]);
    pause(&mut pair, 1, 21, &[1]);
    pause(&mut pair, 1, 22, &[3]);
    pair.publish(1, 1, "orders", "x");
    pair.turn();
    let said = pair.take(1);
    assert_eq!(
        said[..3],
        [
            refused(Code::UnknownSubscription, 20, 0),
            refused(Code::BadOption, 21, 0),
            refused(Code::BadOption, 22, 0)
        ]
    );
    let to: Vec<_> = said
        .iter()
        .filter_map(|said| match said {
            Said::Message { subscription, .. } => Some(*subscription),
            _ => None,
        })
        .collect();
    assert_eq!(to, [1, 3]);
}

#[test]
fn a_replaced_subscription_stays_paused() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.publish(1, 1, "orders", "1");
    pair.subscribe(1, &paused(7, "orders", "0"));
    let replace = Subscribe { options: SubscribeOptions::REPLACE, ..subscribe(7, "orders") };
    pair.subscribe(1, &replace);
    pair.turn();
    assert_eq!(pair.take_data(1), [""; 0]);
    resume(&mut pair, 1, 20, &[7]);
    pair.turn();
    assert_eq!(pair.take_data(1), ["1"]);
}
