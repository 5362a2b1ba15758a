//! Content filters and expressions: which messages a subscriber wants, and values computed from a
//! message (`docs/filters.md`).
//!
//! A text is parsed once, into a tree and the list of the fields that it names. Evaluation reads
//! those fields of the message in one pass, and then evaluates the tree. Intermediate values are in
//! an [`Arena`], which is reused for the next message. A filter matches when it is TRUE. A
//! comparison with a missing field gives NULL, and NULL does not match.
//!
//! No input of a client or a message can cause a panic, recursion without limit, or more than
//! linear time. Nesting, size, patterns, fields and computed texts have limits, and patterns run on
//! an engine without backtracking.
//!
//! - `lexer`, `parse`, `node`: from text to the compiled form, with errors that name the column.
//! - `evaluate`, `like`, `function`: from fields to a result.
//! - `view`: conditions of a filter that an index of values can look up.
//! - `assignments`: fields of a message that are computed from it.
//! - `projection`, `aggregate`, `exact_sum`: records of groups, computed from the messages of each
//!   group.
//! - `join`: the conditions of joins, and fields with their topics.
//! - `index`: the filters of the subscriptions of a topic, of which only those are evaluated that
//!   can match.

mod aggregate;
mod assignments;
mod error;
mod evaluate;
mod exact_sum;
mod function;
mod index;
mod join;
mod lexer;
mod like;
mod node;
mod parse;
mod projection;
mod view;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use quire_types::{Bookmark, Headers, Timestamp};

use crate::message_type::{Arena, FieldId, FieldPlan, Malformed, MessageType, Step, Truth, Value};
use crate::select::Select;
use evaluate::Evaluation;
use node::{Literal, Node};
use parse::Parsed;

pub use aggregate::{
    Accumulator, AggregateKind, ENGINE_VERSION, OwnedValue, Stored, ValueKey, put_bytes, put_number,
};
pub use assignments::{ASSIGNMENT_COUNT_MAX, AssignmentError, Assignments, Stage};
pub use error::{FilterError, caret};
pub use evaluate::ARRAY_PAIR_COUNT_MAX;
pub use function::similar;
pub use index::{Decision, SubscriptionIndex};
pub use join::{JoinCondition, JoinedTopic, TopicField};
pub use node::NESTING_MAX;
pub use parse::path_of;
pub use projection::Projection;
pub use view::{Equality, Range};

/// The longest filter, in bytes. Filters of hundreds of predicates are normal. A larger text is a
/// mistake.
pub const FILTER_SIZE_MAX: usize = 1024 * 1024;

/// Effort of a filter, in addition to the effort of its parts and of reading the message (1 per
/// byte).
const FILTER_EFFORT: u64 = 100;

/// The most effort of one filter for one message on a thread where no other work waits: about a
/// second. A subscription whose filter takes more is ended.
pub const EVALUATION_EFFORT_MAX: u64 = 1_000_000_000;

/// The most effort of the filters of all subscriptions for one message, while all other work waits:
/// some hundred microseconds. The remaining filters are evaluated on another thread.
pub const TURN_EFFORT_MAX: u64 = 200_000;

/// The functions and values that an expression may use.
#[derive(Clone, Debug, Default)]
pub struct FilterOptions {
    /// Patterns with back-references and look-around may be used. Their steps are limited, and a
    /// text that needs more steps does not match. They slow down all clients long before that
    /// limit, so only a configuration should allow them.
    pub allow_backtracking: bool,
    /// The values of `CLIENT_NAME()` and similar functions.
    pub client: ClientFacts,
    /// The values of `INSTANCE_NAME()` and similar functions.
    pub instance: InstanceFacts,
    /// The fields that expressions see. A field that the list hides, or that has a hidden part, is
    /// NULL. `None`: all fields.
    pub hidden: Option<Select>,
    /// The topics of a view with joins. Each field in an expression has its topic then. `None`:
    /// expressions are about one message.
    pub joined: Option<Arc<[JoinedTopic]>>,
}

/// The connection whose command has the expression. Unknown values are NULL.
#[derive(Clone, Debug, Default)]
pub struct ClientFacts {
    /// The name that it logged on with.
    pub client_name: Option<String>,
    /// The name that the server gives to the connection.
    pub connection_name: Option<String>,
    /// The user as whom it logged on.
    pub user: Option<String>,
    /// The address of the peer.
    pub remote_address: Option<String>,
}

/// The server that evaluates. Unknown values are NULL.
#[derive(Clone, Debug, Default)]
pub struct InstanceFacts {
    /// Its name.
    pub name: Option<String>,
    /// Its group for replication.
    pub group: Option<String>,
    /// Its version.
    pub version: Option<String>,
}

/// The input of an expression, other than its text.
#[derive(Clone, Copy, Debug)]
pub struct MessageContext<'a> {
    /// The message type of `data`.
    pub message_type: MessageType,
    /// The message.
    pub data: &'a [u8],
    /// Where it was published.
    pub topic: &'a str,
    /// Its key in a last-value topic; `None` for a message of another topic.
    pub key: Option<&'a [u8]>,
    /// Its bookmark, when the log records it.
    pub bookmark: Option<Bookmark>,
    /// As it was published; empty when there is none.
    pub correlation_id: &'a [u8],
    /// As published.
    pub headers: Headers<'a>,
    /// When this instance received it.
    pub timestamp: Timestamp,
    /// The time of the evaluation.
    pub now: Timestamp,
}

impl<'a> MessageContext<'a> {
    /// The values of the fields of `plan`, from [`MessageType::read`]. `None` = the message is
    /// unreadable, which the arena reports.
    pub fn read(&self, plan: &FieldPlan, arena: &'a Arena) -> Option<&'a [Value<'a>]> {
        self.readable(arena, || self.message_type.read_bare(self.data, plan, arena))
    }
}

/// A parsed filter. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Filter(Expression);

/// A parsed expression: a filter, a priority, a projection. Cloning shares it.
#[derive(Clone)]
pub struct Expression(Arc<Text>);

struct Text {
    text: Box<str>,
    parsed: Parsed,
    /// The plan to read the fields of this expression alone. Made at the first use, because an
    /// index reads the fields for all filters at once.
    reading: OnceLock<Box<(FieldPlan, Box<[FieldId]>)>>,
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// [`FilterError`] with the column and the expected form.
    pub fn parse(text: &str, options: &FilterOptions) -> Result<Self, FilterError> {
        Expression::parse(text, options).map(Filter)
    }

    /// A filter that is TRUE when all of these are: the guard, and the texts. With
    /// `is_unambiguous`, it is not TRUE for a message that cannot be read to its end, or that has a
    /// key twice: readers could understand such a message in different ways.
    ///
    /// # Errors
    /// As [`Filter::parse`], for the first text with a mistake.
    pub fn all(
        guard: Option<Arc<dyn TopicGuard>>,
        texts: &[(&str, &FilterOptions)],
        is_unambiguous: bool,
        shown: &str,
    ) -> Result<Self, FilterError> {
        Ok(Filter::of(parse::parse_all(texts, guard, is_unambiguous)?, shown))
    }

    /// A filter that is never TRUE.
    pub fn never() -> Self {
        let root = Node::Literal(Literal::Boolean(false));
        Filter::of(Parsed { root, names: Box::default(), canonical: "FALSE".into() }, "FALSE")
    }

    fn of(parsed: Parsed, shown: &str) -> Self {
        Filter(Expression(Arc::new(Text { text: shown.into(), parsed, reading: OnceLock::new() })))
    }

    /// The text that it was parsed from. For [`Filter::all`], the text to show.
    pub fn text(&self) -> &str {
        self.0.text()
    }

    /// The names of the fields that it reads, each once, in their first spelling.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.fields()
    }

    /// Whether the message matches. An unreadable message matches no filter that reads fields.
    ///
    /// Allocates memory for each call. For many messages, use [`Filter::matches_with`].
    pub fn matches(&self, message: &MessageContext<'_>) -> bool {
        self.matches_with(message, &mut Arena::default())
    }

    /// As [`Filter::matches`], with memory that is kept between calls.
    pub fn matches_with(&self, message: &MessageContext<'_>, arena: &mut Arena) -> bool {
        self.decide(message, arena) == Some(true)
    }

    /// Whether the message matches; `None` when that takes more effort than [`Arena::allow`] has
    /// left.
    pub fn decide(&self, message: &MessageContext<'_>, arena: &mut Arena) -> Option<bool> {
        arena.reset();
        let parsed = self.0.parsed();
        let reading = if parsed.names.is_empty() { 0 } else { message.data.len() as u64 };
        if !arena.spend(FILTER_EFFORT + reading) {
            return None;
        }
        let arena = &*arena;
        let truth = message.readable(arena, || Ok(self.0.evaluation(message, arena)?.truth(&parsed.root)));
        (arena.effort_left() > 0).then_some(truth == Some(Truth::True))
    }

    /// The patterns that it searches for. Patterns make filters large and slow.
    pub fn pattern_count(&self) -> usize {
        self.parsed().root.pattern_count()
    }

    /// Its truth for a message, in memory that another expression uses, too.
    fn truth(&self, message: &MessageContext<'_>, arena: &Arena) -> Truth {
        let reading = if self.parsed().names.is_empty() { 0 } else { message.data.len() as u64 };
        if !arena.spend(FILTER_EFFORT + reading) {
            return Truth::Unknown;
        }
        match self.0.evaluation(message, arena) {
            Ok(evaluation) => evaluation.truth(&self.parsed().root),
            Err(_) => Truth::Unknown,
        }
    }

    fn parsed(&self) -> &Parsed {
        self.0.parsed()
    }
}

/// Filters that depend on the topic of a message, as the rights of a user do.
pub trait TopicGuard: fmt::Debug + Send + Sync {
    /// A number that no other guard with other filters has.
    fn number(&self) -> u64;

    /// The filters that a message of the topic must match, all of them; `None`: no message of the
    /// topic matches.
    fn filters_of(&self, topic: &str) -> Option<Arc<[Filter]>>;
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// [`FilterError`] with the column and the expected form.
    pub fn parse(text: &str, options: &FilterOptions) -> Result<Self, FilterError> {
        let parsed = parse::parse(text, options)?;
        Ok(Expression(Arc::new(Text { text: text.into(), parsed, reading: OnceLock::new() })))
    }

    /// The text that it was parsed from.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The names of the fields that it reads, each once, in their first spelling.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.parsed().names.iter().map(AsRef::as_ref)
    }

    /// The path of the field, when the expression is only the name of a field.
    pub fn path(&self) -> Option<Vec<Step>> {
        self.fields().eq([self.text()]).then(|| path_of(self.text()))
    }

    /// Its value for the message. NULL when it reads fields and the message is unreadable. The
    /// value is valid as long as the arguments.
    pub fn evaluate<'a>(&'a self, message: &'a MessageContext<'a>, arena: &'a mut Arena) -> Value<'a> {
        arena.reset();
        let arena = &*arena;
        let value =
            message.readable(arena, || Ok(self.evaluation(message, arena)?.value(&self.parsed().root)));
        value.unwrap_or(Value::Null)
    }

    fn evaluation<'a>(
        &'a self,
        message: &'a MessageContext<'a>,
        arena: &'a Arena,
    ) -> Result<Evaluation<'a>, Malformed> {
        if self.parsed().names.is_empty() {
            return Ok(Evaluation { values: &[], fields: &[], message, arena });
        }
        let (plan, fields) = &**self.0.reading.get_or_init(|| {
            let mut plan = FieldPlan::default();
            let fields = self.parsed().names.iter().map(|name| plan.add(&path_of(name))).collect();
            Box::new((plan, fields))
        });
        let values = message.message_type.read_bare(message.data, plan, arena)?;
        Ok(Evaluation { values, fields, message, arena })
    }

    fn parsed(&self) -> &Parsed {
        &self.0.parsed
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.text()).finish()
    }
}

/// Filters are equal when they differ only in blanks, case of keywords and spelling of operators.
impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.parsed().canonical == other.parsed().canonical
    }
}

impl Eq for Filter {}

impl Hash for Filter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parsed().canonical.hash(state);
    }
}
