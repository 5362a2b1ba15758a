//! The index gives every subscription that wants a message, in the order in which they came.

use quire_core::filter::*;
use quire_core::message_type::Arena;

use super::{json, parsed};

#[test]
fn the_index_gives_every_subscription_that_wants_the_message_and_forgets_those_that_left() {
    let filter = |text| Some(parsed(text));
    let mut index = SubscriptionIndex::default();
    index.insert(1, None);
    index.insert(2, filter("/a = 1"));
    index.insert(3, filter("/a = 2"));
    index.insert(4, filter("/a = 1"));
    let message = json(r#"{"a":1}"#);
    let mut found = Vec::new();
    index.for_each_match(&message, &mut Arena::default(), |id| found.push(id));
    assert_eq!(found, [1, 2, 4]);
    for id in [1, 2, 3, 4] {
        index.remove(id);
    }
    assert!(index.is_empty());
}
