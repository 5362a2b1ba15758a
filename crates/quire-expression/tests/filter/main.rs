//! The filter language agrees with `docs/filters.md`. The golden vectors hold, and so do the
//! examples of the page. Mistakes point at their column. The index has the same result as
//! evaluating each filter. No input of a client or a message causes more than an error.

mod golden;
mod hostile;
mod index;
mod keys;
mod mistakes;
mod numbers;
mod reading;
mod view;

use quire_expression::filter::*;
use quire_expression::message_type::MessageType;
use quire_types::{Headers, Timestamp};

/// A filter that must parse.
fn parsed(text: &str) -> Filter {
    Filter::parse(text, &FilterOptions::default())
        .unwrap_or_else(|error| panic!("{}", error.with_caret(text)))
}

/// A message on topic `orders`, one second after 1970 began.
fn message(message_type: MessageType, data: &[u8]) -> MessageContext<'_> {
    MessageContext {
        headers: Headers::NONE,
        message_type,
        data,
        topic: "orders",
        key: None,
        bookmark: None,
        correlation_id: b"",
        timestamp: Timestamp(1_000_000_000),
        now: Timestamp(1_000_000_000),
    }
}

fn json(data: &str) -> MessageContext<'_> {
    message(MessageType::Json, data.as_bytes())
}
