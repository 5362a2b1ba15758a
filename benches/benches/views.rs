//! The engine of views alone: a change of a source with the new records of its groups, and changes
//! of joined topics by the number of their matches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quire_expression::filter::{FilterOptions, JoinCondition, JoinedTopic, Projection};
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::{Headers, Position, Timestamp};
use quire_table::{Groups, GroupsConfig, JoinConfig, JoinKeys, Joins, Row};

/// Calls of one round.
const ROUND: u64 = 100_000;

fn row<'a>(key: &'a [u8], data: &'a [u8]) -> Row<'a> {
    Row {
        key,
        position: Position(1),
        timestamp: Timestamp(7),
        stamp: None,
        expires: None,
        correlation_id: b"",
        headers: Headers::NONE,
        data,
    }
}

/// A message of 300 bytes.
fn order(number: u64, group: u64, quantity: u64) -> Vec<u8> {
    let head = format!(
        r#"{{"order_id":"order-{number:09}","account":"account-{group:07}","qty":{quantity},"price":12.5,"text":""#
    );
    format!("{head:x<298}\"}}").into_bytes()
}

/// An update of a record: SUM and COUNT of its group, and the record of the group.
fn updates(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("view update");
    group.throughput(Throughput::Elements(ROUND)).sample_size(10);
    let entries = ["/account", "SUM(/qty) AS /qty", "COUNT(/order_id) AS /orders"];
    let options = FilterOptions::default();
    let projection = Projection::parse(&entries, &["/account"], MessageType::Json, &options).unwrap();
    for groups in [10, 1_000, 100_000, 1_000_000_u64] {
        group.bench_function(format!("{groups} groups"), |bencher| {
            let mut arena = Arena::default();
            let mut view = Groups::new(GroupsConfig {
                source: "orders".into(),
                source_type: MessageType::Json,
                filter: None,
                projection: projection.clone(),
                key_domain: "view".into(),
            });
            for number in 0..groups {
                let data = order(number, number, 1);
                view.change(None, Some(&row(&number.to_le_bytes(), &data)), Timestamp(7), &mut arena);
            }
            let (mut out, mut round) = (Vec::new(), 0);
            bencher.iter_custom(|rounds| {
                let mut taken = Duration::ZERO;
                for _ in 0..rounds {
                    let numbers = (0..ROUND).map(|call| (call * 7_919 + round) % groups);
                    // Each record has the same group before and after the update.
                    let calls: Vec<_> =
                        numbers.map(|it| (it, order(it, it, 1), order(it, it, 1 + round % 2))).collect();
                    round += 2;
                    let start = Instant::now();
                    for (number, old, new) in &calls {
                        let key = number.to_le_bytes();
                        let (old, new) = (row(&key, old), row(&key, new));
                        for id in view.change(Some(&old), Some(&new), Timestamp(9), &mut arena) {
                            view.write(id, "view", &mut arena, &mut out).unwrap();
                        }
                    }
                    taken += start.elapsed();
                }
                taken
            });
        });
    }
    group.finish();
}

fn joined(orders: u64, matches: u64, arena: &mut Arena) -> Joins {
    let topic = |topic: &str| JoinedTopic { topic: topic.into(), message_type: MessageType::Json };
    let topics: Arc<[JoinedTopic]> = [topic("orders"), topic("accounts")].into();
    let options = FilterOptions { joined: Some(topics), ..FilterOptions::default() };
    let JoinCondition { left, right } =
        JoinCondition::parse("[orders].[/account] = [accounts].[/id]").unwrap();
    let entries = ["[orders].[/order_id] AS /id", "[accounts].[/name] AS /name", "[orders].[/qty] AS /qty"];
    let projection =
        Projection::parse_joined(&entries, &[], MessageType::Json, &options, &[left, right]).unwrap();
    let keys = JoinKeys { parent: 0, child: 1, parent_fields: vec![0], child_fields: vec![1] };
    let mut joins = Joins::new(JoinConfig {
        sources: vec![("orders".into(), MessageType::Json), ("accounts".into(), MessageType::Json)],
        joins: vec![keys],
        projection,
        key_domain: "view".into(),
    });
    for number in 0..orders / matches {
        change(&mut joins, 1, number, &account(number, "first"), arena);
    }
    for number in 0..orders {
        change(&mut joins, 0, number, &order(number, number / matches, 1), arena);
    }
    joins
}

fn account(number: u64, name: &str) -> Vec<u8> {
    format!(r#"{{"id":"account-{number:07}","name":"{name}"}}"#).into_bytes()
}

/// Returns the number of records of the view that it writes.
fn change(joins: &mut Joins, source: usize, number: u64, data: &[u8], arena: &mut Arena) -> usize {
    let key = number.to_le_bytes();
    joins.begin(source, &key, Some(&row(&key, data)), Timestamp(9), arena);
    while !joins.step(&mut { 64 }, arena) {}
    let mut out = Vec::new();
    let mut count = 0;
    while let Some(id) = joins.pop_touched() {
        joins.write(id, "view", arena, &mut out).unwrap();
        count += 1;
    }
    count
}

/// An update of a joined record with the records of all its matches, and an update of a record of
/// the first topic.
fn joins(criterion: &mut Criterion) {
    const ORDERS: u64 = 100_000;
    let mut arena = Arena::default();
    for matches in [1, 10, 1_000, 100_000] {
        let mut view = joined(ORDERS, matches, &mut arena);
        let mut group = criterion.benchmark_group(format!("join of {ORDERS} records"));
        group.throughput(Throughput::Elements(matches)).sample_size(10);
        let mut round = 0;
        group.bench_function(format!("update with {matches} matches"), |bencher| {
            bencher.iter(|| {
                round += 1;
                let number = round * 7_919 % (ORDERS / matches);
                let data = account(number, if round % 2 == 0 { "second" } else { "third" });
                assert_eq!(change(&mut view, 1, number, &data, &mut arena) as u64, matches);
            });
        });
        if matches == 1_000 {
            group.throughput(Throughput::Elements(1));
            group.bench_function("update of the first topic", |bencher| {
                bencher.iter(|| {
                    round += 1;
                    let number = round * 7_919 % ORDERS;
                    let data = order(number, number / matches, round % 9);
                    assert_eq!(change(&mut view, 0, number, &data, &mut arena), 1);
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, updates, joins);
criterion_main!(benches);
