//! A corpus of messages of every type, sound and malformed, and mutations of it. Every path that
//! reads a message has the same result. `make fuzz` begins its guided fuzzing with the same
//! messages.

mod law;

use proptest::prelude::*;
use proptest::sample::Index;
use quire_expression::message_type::MessageType;

use law::{Entry, Law, corpus};

#[test]
fn each_message_of_the_corpus_has_its_verdict_on_every_path() {
    for message_type in MessageType::ALL {
        let mut law = Law::new(*message_type);
        for (is_sound, data) in corpus(*message_type) {
            let shown = data.escape_ascii();
            assert_eq!(law.agrees(&data), is_sound, "{} {shown}", message_type.name());
        }
    }
}

/// A change of a message.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Insert(Index, u8),
    Remove(Index, u8),
    Repeat(Index, u8),
    Cut(Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        (any::<Index>(), 1..9_u8).prop_map(|(at, size)| Change::Remove(at, size)),
        (any::<Index>(), 1..9_u8).prop_map(|(at, size)| Change::Repeat(at, size)),
        any::<Index>().prop_map(Change::Cut),
    ]
}

impl Change {
    fn apply(&self, data: &mut Vec<u8>) {
        let part = |at: &Index, size: &u8, data: &[u8]| {
            let at = at.index(data.len() + 1);
            at..(at + usize::from(*size)).min(data.len())
        };
        match self {
            Change::Set(at, byte) if !data.is_empty() => {
                let at = at.index(data.len());
                data[at] = *byte;
            }
            Change::Set(..) => {}
            Change::Insert(at, byte) => data.insert(at.index(data.len() + 1), *byte),
            Change::Remove(at, size) => drop(data.drain(part(at, size, data))),
            Change::Repeat(at, size) => {
                let part = part(at, size, data);
                let copy = data[part.clone()].to_vec();
                data.splice(part.end..part.end, copy);
            }
            Change::Cut(at) => data.truncate(at.index(data.len() + 1)),
        }
    }
}

proptest! {
    /// Two messages of the corpus, one after the other where the first is cut, with a few changes.
    #[test]
    fn any_mutation_of_the_corpus_ends_in_a_value_or_in_malformed_on_every_path(
        place in any::<Index>(), other in any::<Index>(), is_spliced in prop::bool::weighted(0.2),
        changes in proptest::collection::vec(change(), 1..5),
    ) {
        for message_type in MessageType::ALL {
            let corpus = corpus_of(*message_type);
            let mut data = corpus[place.index(corpus.len())].1.clone();
            if is_spliced {
                let with = &corpus[other.index(corpus.len())].1;
                data.truncate(other.index(data.len() + 1));
                data.extend_from_slice(&with[place.index(with.len() + 1)..]);
            }
            changes.iter().for_each(|change| change.apply(&mut data));
            LAWS.with_borrow_mut(|laws| {
                laws.iter_mut().find(|(known, _)| known == message_type).map(|(_, law)| law.agrees(&data))
            });
        }
    }
}

thread_local! {
    static LAWS: std::cell::RefCell<Vec<(MessageType, Law)>> =
        MessageType::ALL.iter().map(|known| (*known, Law::new(*known))).collect::<Vec<_>>().into();
}

fn corpus_of(message_type: MessageType) -> &'static [Entry] {
    static ALL: std::sync::OnceLock<Vec<Vec<Entry>>> = std::sync::OnceLock::new();
    let all = ALL.get_or_init(|| MessageType::ALL.iter().map(|known| corpus(*known)).collect());
    &all[MessageType::ALL.iter().position(|known| *known == message_type).unwrap_or_default()]
}
