//! Merging a part of a message into a message of 300 bytes, and the difference of two such
//! messages, by message type.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quire_expression::message_type::{MessageType, Step, difference, merge};

/// Different messages, so that no branch is learnt by heart.
const MESSAGE_COUNT: usize = 1_000;

/// The size of a message, in bytes.
const MESSAGE_SIZE: usize = 300;

/// An order as JSON.
fn json_order(number: usize) -> Vec<u8> {
    let (symbol, qty, price) = (number % 10_000, number * 7 % 1_000, number % 200);
    let mut text = format!(
        concat!(
            r#"{{"id":{number},"symbol":"S{symbol:05}","side":"buy","qty":{qty},"price":{price}.25,"currency":"USD","#,
            r#""account":"ACC-{number:08}","trader":"j.smith","venue":"XNYS","time":"2026-11-21T08:00:00.{number:06}Z","#,
            r#""flags":["ioc","hidden"],"limits":{{"low":90.5,"high":110}},"note":""#,
        ),
        number = number,
        symbol = symbol,
        qty = qty,
        price = price,
    );
    text.push_str(&".".repeat(MESSAGE_SIZE - text.len() - 2));
    text.push_str("\"}");
    text.into_bytes()
}

fn json_delta(number: usize) -> Vec<u8> {
    format!(r#"{{"id":{number},"qty":{},"limits":{{"low":91.5}},"state":"open"}}"#, number % 900).into_bytes()
}

fn fix_order(number: usize) -> Vec<u8> {
    let (symbol, qty) = (number % 10_000, number * 7 % 1_000);
    let mut text =
        format!("8=FIX.4.4\u{1}35=D\u{1}11={number}\u{1}55=S{symbol:05}\u{1}54=1\u{1}38={qty}\u{1}58=");
    text.push_str(&".".repeat(MESSAGE_SIZE - text.len() - 1));
    text.push('\u{1}');
    text.into_bytes()
}

fn fix_delta(number: usize) -> Vec<u8> {
    format!("11={number}\u{1}38={}\u{1}39=1\u{1}", number % 900).into_bytes()
}

fn xml_order(number: usize) -> Vec<u8> {
    let (symbol, qty) = (number % 10_000, number * 7 % 1_000);
    let mut text = format!(
        r#"<order id="{number}" side="buy"><symbol>S{symbol:05}</symbol><qty>{qty}</qty><limits><low>90.5</low></limits><note>"#
    );
    text.push_str(&".".repeat(MESSAGE_SIZE - text.len() - 15));
    text.push_str("</note></order>");
    text.into_bytes()
}

fn xml_delta(number: usize) -> Vec<u8> {
    let qty = number % 900;
    format!(
        r#"<order id="{number}"><qty>{qty}</qty><limits><low>91.5</low></limits><state>open</state></order>"#
    )
    .into_bytes()
}

/// A message, and what changes in it, by number.
type Format = (MessageType, fn(usize) -> Vec<u8>, fn(usize) -> Vec<u8>, &'static [&'static str]);

const FORMATS: [Format; 3] = [
    (MessageType::Json, json_order, json_delta, &["id"]),
    (MessageType::Fix, fix_order, fix_delta, &["11"]),
    (MessageType::Xml, xml_order, xml_delta, &["order", "@id"]),
];

fn merges(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("merge");
    group.throughput(Throughput::Elements(MESSAGE_COUNT as u64));
    for (message_type, order, delta, key) in FORMATS {
        let orders: Vec<Vec<u8>> = (0..MESSAGE_COUNT).map(order).collect();
        assert!(orders.iter().all(|order| order.len() == MESSAGE_SIZE));
        let deltas: Vec<Vec<u8>> = (0..MESSAGE_COUNT).map(delta).collect();
        let mut out = Vec::new();
        group.bench_function(format!("{}, 4 fields", message_type.name()), |bencher| {
            bencher.iter(|| {
                for (order, delta) in orders.iter().zip(&deltas) {
                    merge(message_type, black_box(order), black_box(delta), &mut out).unwrap();
                    black_box(&out);
                }
            });
        });
        let merged = |(order, delta): (&Vec<u8>, &Vec<u8>)| {
            let mut out = Vec::new();
            merge(message_type, order, delta, &mut out).map(|()| out).unwrap()
        };
        let changed: Vec<Vec<u8>> = orders.iter().zip(&deltas).map(merged).collect();
        let keep = [key.iter().map(|name| Step::Name(name.as_bytes().into())).collect::<Vec<_>>()];
        group.bench_function(format!("{}, difference", message_type.name()), |bencher| {
            bencher.iter(|| {
                for (old, new) in orders.iter().zip(&changed) {
                    let differs = difference(message_type, black_box(old), black_box(new), &keep, &mut out);
                    assert_eq!(differs, Ok(true));
                    black_box(&out);
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, merges);
criterion_main!(benches);
