//! The boundary of the code that reads the content of messages.
//!
//! Every client can send content, so bad content must affect only its message. Everything in this
//! crate that reads a message runs in [`contained`]. There, a panic becomes
//! [`Malformed::Panicked`], and the message is *unreadable* like one whose bytes are not of its
//! type: it matches no filter that reads fields, and it has no key (docs/filters.md, "Unreadable
//! messages").
//!
//! A server has one [`Unreadables`]. The arenas that read for it report to it, from any thread.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use quire_types::Bookmark;

use crate::filter::MessageContext;
use crate::message_type::{Arena, Malformed, MessageType};

/// The number of panics that the panic hook of the program reports. A message that is read again
/// and again must not fill the error output.
const REPORTED_PANICS_MAX: u64 = 10;

thread_local! {
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs work on the content of messages.
///
/// After a panic, memory that the work has changed may contain half a result. The work must
/// overwrite it before it reads it.
///
/// # Errors
/// [`Malformed::Panicked`] after a panic.
#[inline]
pub fn contained<T>(work: impl FnOnce() -> T) -> Result<T, Malformed> {
    limit_reports();
    let was_contained = IS_CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_CONTAINED.set(was_contained);
    result.map_err(|_| Malformed::Panicked)
}

/// Lets the panic hook of the program report the first contained panics only, and all others as
/// before.
#[inline]
fn limit_reports() {
    static IS_LIMITED: Once = Once::new();
    static REPORTED: AtomicU64 = AtomicU64::new(0);
    // While a thread panics, the hook cannot be changed.
    if !IS_LIMITED.is_completed() && !std::thread::panicking() {
        IS_LIMITED.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                if !IS_CONTAINED.get() || REPORTED.fetch_add(1, Ordering::Relaxed) < REPORTED_PANICS_MAX {
                    report(panic);
                }
            }));
        });
    }
}

/// The messages of one server that could not be read. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Unreadables(Arc<Reports>);

#[derive(Debug, Default)]
struct Reports {
    count: AtomicU64,
    first: Mutex<Option<Unreadable>>,
}

/// A message that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Where it was published.
    pub topic: String,
    /// Its bookmark, when the log records it.
    pub bookmark: Option<Bookmark>,
    /// Its message type.
    pub message_type: MessageType,
    /// Why it could not be read.
    pub reason: Malformed,
}

impl Unreadables {
    /// The number of failed reads. Each filter, or group of filters, that reads a message again
    /// counts.
    pub fn count(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed)
    }

    /// The first of the messages since the last call.
    pub fn take(&self) -> Option<Unreadable> {
        self.0.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    #[cold]
    fn report(&self, message: &MessageContext<'_>, reason: Malformed) {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        let mut first = self.0.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| Unreadable {
            topic: message.topic.to_owned(),
            bookmark: message.bookmark,
            message_type: message.message_type,
            reason,
        });
    }
}

impl MessageContext<'_> {
    /// Runs work that reads this message. `None` = it is unreadable, which is reported.
    #[inline]
    pub(crate) fn readable<T>(
        &self,
        arena: &Arena,
        work: impl FnOnce() -> Result<T, Malformed>,
    ) -> Option<T> {
        match contained(work) {
            Ok(Ok(done)) => Some(done),
            Ok(Err(reason)) | Err(reason) => {
                self.report(arena, reason);
                None
            }
        }
    }

    /// Reports that expressions take too much effort for the message.
    pub fn report_costly(&self, arena: &Arena) {
        self.report(arena, Malformed::TooCostly);
    }

    /// Reports that the message could not be read.
    #[cold]
    pub(crate) fn report(&self, arena: &Arena, reason: Malformed) {
        if let Some(unreadables) = arena.unreadables() {
            unreadables.report(self, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use quire_types::{Headers, Timestamp};

    use super::*;
    use crate::filter::{Assignments, Expression, Filter, FilterOptions, Stage, SubscriptionIndex};
    use crate::message_type::{
        AssignError, FieldPlan, MergeError, Side, Step, Value, VariantEncoder, difference, merge,
    };
    use crate::select::Select;

    const SOUND: &[u8] = br#"{"a":1,"b":{"c":2}}"#;
    /// The readers panic in it while they are tested.
    const BUG: &[u8] = br#"{"a":1,"b":{"c":"a bug"}}"#;

    fn message(data: &[u8]) -> MessageContext<'_> {
        MessageContext {
            message_type: MessageType::Json,
            data,
            topic: "orders",
            key: None,
            bookmark: Some(Bookmark::new(quire_types::PublisherId::new(7), 9)),
            correlation_id: b"",
            headers: Headers::NONE,
            timestamp: Timestamp(0),
            now: Timestamp(0),
        }
    }

    fn filter(text: &str) -> Filter {
        Filter::parse(text, &FilterOptions::default()).unwrap()
    }

    #[test]
    fn a_panic_in_a_reader_makes_the_message_unreadable() {
        let (mut arena, mut plan) = (Arena::default(), FieldPlan::default());
        let field = plan.add(&[Step::Name((*b"a").into())]);
        for (data, is_read) in [(SOUND, true), (BUG, false), (SOUND, true)] {
            arena.reset();
            let values = MessageType::Json.read(data, &plan, &arena);
            assert_eq!(
                values.map(|values| values[field.index()].is_null()),
                is_read.then_some(false).ok_or(Malformed::Panicked)
            );
            assert_eq!(MessageType::Json.members(data, &arena).is_ok(), is_read);
            assert_eq!(MessageType::Json.check(data, &mut arena).is_ok(), is_read);
            assert_eq!(filter("/a = 1").matches_with(&message(data), &mut arena), is_read);
            let priority = Expression::parse("/a", &FilterOptions::default()).unwrap();
            assert_eq!(matches!(priority.evaluate(&message(data), &mut arena), Value::Number(..)), is_read);
        }
    }

    #[test]
    fn a_panic_in_a_writer_is_an_error_without_a_result() {
        let malformed = |side| MergeError::Malformed { side, reason: Malformed::Panicked };
        let mut out = b"an earlier result".to_vec();
        assert_eq!(merge(MessageType::Json, SOUND, BUG, &mut out), Err(malformed(Side::New)));
        assert!(out.is_empty());
        assert_eq!(difference(MessageType::Json, BUG, SOUND, &[], &mut out), Err(malformed(Side::New)));
        let entries = ["/a + 1 AS /n"];
        let options = FilterOptions::default();
        let assignments =
            Assignments::parse(&entries, MessageType::Json, Stage::Enrichment, &options).unwrap();
        let assigned = assignments.apply(&message(BUG), None, &mut Arena::default(), &mut out);
        assert_eq!(assigned, Err(AssignError::Malformed(Malformed::Panicked)));
        assert!(out.is_empty());
        assert_eq!(assignments.apply(&message(SOUND), None, &mut Arena::default(), &mut out), Ok(()));
        // A select list returns a message whole when it cannot take a part of it.
        let select = Select::parse("-/,+/a").unwrap();
        let mut selected = Vec::new();
        assert_eq!(select.apply(Some(MessageType::Json), BUG, &mut Arena::default(), &mut selected), BUG);
        let (mut encoder, mut value, mut names) = (VariantEncoder::default(), vec![1], vec![2]);
        let encoded = encoder.encode(std::str::from_utf8(BUG).unwrap(), &mut value, &mut names);
        assert_eq!((encoded, value.len(), names.len()), (Err(Malformed::Panicked), 1, 1));
        assert!(encoder.encode("{}", &mut value, &mut names).is_ok());
    }

    #[test]
    fn a_panic_in_a_reader_keeps_no_message_from_other_subscriptions() {
        let mut index = SubscriptionIndex::default();
        for (id, text) in [(1, "/a = 1"), (2, "TOPIC_NAME() = 'orders'"), (3, "/a > 0 OR /b LIKE 'x'")] {
            index.insert(id, Some(filter(text)));
        }
        index.insert(4, None);
        let mut arena = Arena::default();
        for (data, expected) in [(SOUND, vec![1, 2, 3, 4]), (BUG, vec![2, 4]), (SOUND, vec![1, 2, 3, 4])] {
            let mut found = Vec::new();
            index.for_each_match(&message(data), &mut arena, |id| found.push(id));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn an_unreadable_message_is_counted_and_reported_with_its_bookmark() {
        let unreadables = Unreadables::default();
        let mut arena = Arena::reporting_to(&unreadables);
        let mut index = SubscriptionIndex::default();
        index.insert(1, Some(filter("/a = 1")));
        index.insert(2, Some(filter("/b = 1")));
        for data in [SOUND, b"{\"a\"", BUG] {
            filter("/a = 1").matches_with(&message(data), &mut arena);
            index.for_each_match(&message(data), &mut arena, |_| ());
            filter("TOPIC_NAME() = 'a'").matches_with(&message(data), &mut arena);
        }
        // The filter, the index, the filter again. In the index, also each filter that was tried
        // alone.
        assert_eq!(unreadables.count(), 5);
        let first = unreadables.take().unwrap();
        assert_eq!((&*first.topic, first.bookmark), ("orders", message(SOUND).bookmark));
        assert_eq!(first.reason.to_string(), "malformed at byte 4: : expected");
        assert_eq!(unreadables.take(), None);
        let large = "x".repeat(4 << 20);
        assert!(
            filter("LENGTH(/a) > 0")
                .matches_with(&message(format!("{{\"a\":\"\\n{large}\"}}").as_bytes()), &mut arena)
        );
        arena.reset();
        filter("/a = 1").matches_with(&message(b"{"), &mut arena);
        assert_eq!(unreadables.count(), 6, "an arena that gave memory back still reports");
    }
}
