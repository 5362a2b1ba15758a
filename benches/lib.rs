//! The Criterion benches are in `benches/`, those of whole processes in `end_to_end.py`. Here is
//! what several of them use.

pub mod driven_broker;
pub mod filled_table;

use quire_expression::filter::MessageContext;
use quire_expression::message_type::MessageType;
use quire_journal::Timestamp;

/// A message on `orders`, as a filter sees it.
pub fn context(message_type: MessageType, data: &[u8]) -> MessageContext<'_> {
    MessageContext {
        message_type,
        data,
        topic: "orders",
        key: None,
        bookmark: None,
        correlation_id: b"",
        headers: quire_types::Headers::NONE,
        timestamp: Timestamp(0),
        now: Timestamp(0),
    }
}
