//! Evaluating a filter does not allocate after the first messages. The allocator counts that. XML
//! is left out, because its parser has separate buffers.

#[path = "../../quire-broker/tests/counting/mod.rs"]
mod counting;

use counting::allocation_count;
use quire_expression::filter::{Filter, FilterOptions, MessageContext};
use quire_expression::message_type::{Arena, MessageType};
use quire_types::Timestamp;

const JSON: &[u8] =
    br#"{"symbol":"IBM","qty":100,"price":17.25,"legs":[{"px":1},{"px":2.5}],"note":"a \"quote\" \u00e9"}"#;
const FIX: &[u8] = b"35=D\x0155=IBM\x0138=100\x0138=200\x01";
const MSGPACK: &[u8] = b"\x82\xa6symbol\xa3IBM\xa3qty\x64";
const BSON: &[u8] = b"\x0e\0\0\0\x10qty\0\x64\0\0\0\0";

#[test]
fn evaluation_asks_for_no_memory() {
    for (message_type, data, text) in [
        (MessageType::Json, JSON, "/symbol = 'IBM' AND /qty > 50"),
        (MessageType::Json, JSON, "/qty * /price > 1000 AND /legs/px BETWEEN 2 AND 3 AND /legs[0]/px = 1"),
        (MessageType::Json, JSON, "/note LIKE 'quote.*$' AND UPPER(CONCAT(/symbol, '-', /qty)) = 'IBM-100'"),
        (MessageType::Fix, FIX, "/55 IN ('HPQ', 'IBM') AND /38 = 200"),
        (MessageType::Msgpack, MSGPACK, "/symbol = 'IBM' AND /qty > 50"),
        (MessageType::Bson, BSON, "/qty > 50"),
        (MessageType::Json, b"{", "/symbol IS NULL OR TRUE"),
    ] {
        let filter = Filter::parse(text, &FilterOptions::default())
            .unwrap_or_else(|error| panic!("{}", error.with_caret(text)));
        let message = MessageContext {
            message_type,
            data,
            topic: "orders",
            key: None,
            bookmark: None,
            correlation_id: b"",
            headers: quire_types::Headers::NONE,
            timestamp: Timestamp(0),
            now: Timestamp(0),
        };
        let mut arena = Arena::default();
        let first = filter.matches_with(&message, &mut arena);
        assert_eq!(first, data != b"{", "{text}");
        // The arena takes its room at the first messages, the engine for patterns its own.
        (0..3).for_each(|_| assert_eq!(filter.matches_with(&message, &mut arena), first));
        let before = allocation_count();
        (0..100).for_each(|_| assert_eq!(filter.matches_with(&message, &mut arena), first));
        assert_eq!(allocation_count(), before, "{text}");
        assert!(before > 0, "nothing is counted");
    }
}
