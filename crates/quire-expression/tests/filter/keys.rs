//! Filters of a last-value topic can ask for the key of a message, and for the time of its last
//! update.

use quire_types::Timestamp;

use super::{json, parsed};
use quire_expression::filter::MessageContext;

#[test]
fn sow_key_is_the_key_of_the_message_and_null_without_one() {
    let keyed = MessageContext { key: Some(b"k1"), ..json("{}") };
    assert!(parsed("SOW_KEY() = 'k1'").matches(&keyed));
    assert!(!parsed("SOW_KEY() = 'k2'").matches(&keyed));
    assert!(parsed("SOW_KEY() IS NULL").matches(&json("{}")));
}

#[test]
fn a_message_with_a_key_was_updated_when_the_instance_took_it() {
    let later = MessageContext { now: Timestamp(9_000_000_000), ..json("{}") };
    let keyed = MessageContext { key: Some(b"k1"), ..later };
    assert!(parsed("LAST_UPDATED() = 1 AND UNIX_TIMESTAMP() = 9").matches(&keyed));
    assert!(parsed("LAST_UPDATED() = 9").matches(&later));
}
