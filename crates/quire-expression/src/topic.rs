//! The topic of a subscription: one topic, or a pattern over topics.
//!
//! A text is a pattern when it contains any of `^ $ * + ? [ ] ( ) { } | \`; a `.` alone does not,
//! because it is common in names. A pattern is searched for anywhere in a name. The engine is
//! linear in the length of the name, so that no pattern can stall the broker.

use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use regex_syntax::ast::{AssertionKind, Ast, RepetitionKind};
use regex_syntax::hir::Look;
use regex_syntax::hir::literal::Extractor;

use quire_types::{TopicNameError, check_topic_name};

/// The limit of the compiled form of a pattern, in bytes: a thousand times the size of patterns for
/// names, and small enough for a connection with many subscriptions.
const PATTERN_SIZE_MAX: usize = 256 * 1024;

/// The cache of one pattern's lazy automaton, in bytes. Beyond it the engine falls back to a slower
/// search, still linear.
const PATTERN_CACHE_SIZE_MAX: usize = 256 * 1024;

/// Topics whose names begin so are those of the server: only the server publishes to them.
pub const RESERVED_PREFIX: &str = "/quire/";

/// Whether a topic is one of the server.
pub fn is_reserved(topic: &str) -> bool {
    topic.starts_with(RESERVED_PREFIX)
}

/// Whether a pattern matches topics of the server, too: it begins with [`RESERVED_PREFIX`], perhaps
/// after `^`.
fn takes_reserved(pattern: &str) -> bool {
    // The pattern of a container is `^(?:…)$`.
    let text = pattern.strip_prefix("^(?:").unwrap_or(pattern);
    is_reserved(text.strip_prefix('^').unwrap_or(text))
}

/// Why a text is not the name of a topic. The caller has to correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// A topic is UTF-8.
    #[error("the topic is not UTF-8 text")]
    NotText,
    /// The text is not a name.
    #[error(transparent)]
    Name(#[from] TopicNameError),
    /// Wildcards of another system. As a name, the text would match no topic.
    #[error(
        "{topic:?} looks like a wildcard of NATS or MQTT: a pattern is a regular expression, here {instead:?}"
    )]
    Wildcard {
        /// The topic.
        topic: Box<str>,
        /// The pattern with that meaning.
        instead: Box<str>,
    },
    /// The topic belongs to the server.
    #[error("{topic:?} begins with \"/quire/\": only the server publishes to such topics")]
    Reserved {
        /// The topic.
        topic: Box<str>,
    },
    /// The pattern does not compile, or its compiled form is above the limit.
    #[error(
        "the topic pattern {pattern:?} cannot be used: {reason}; write a backslash before a character that is part of a name"
    )]
    Pattern {
        /// The pattern.
        pattern: Box<str>,
        /// The error of the regular expression engine.
        reason: String,
    },
}

/// Whether `topic` is a pattern rather than a name.
pub fn is_pattern(topic: &str) -> bool {
    topic.bytes().any(|byte| b"^$*+?[](){}|\\".contains(&byte))
}

/// Whether every alternative of a pattern begins with `^` or `.*`, so that its author has decided
/// whether a name may begin with another text.
pub fn is_anchored(pattern: &str) -> bool {
    regex_syntax::ast::parse::Parser::new().parse(pattern).is_ok_and(|ast| begins_anchored(&ast))
}

fn begins_anchored(ast: &Ast) -> bool {
    match ast {
        Ast::Alternation(alternatives) => alternatives.asts.iter().all(begins_anchored),
        Ast::Concat(parts) => parts.asts.first().is_some_and(begins_anchored),
        Ast::Group(group) => begins_anchored(&group.ast),
        Ast::Assertion(assertion) => assertion.kind == AssertionKind::StartLine,
        Ast::Repetition(repetition) => {
            let is_any = matches!(*repetition.ast, Ast::Dot(_));
            is_any && repetition.op.kind == RepetitionKind::ZeroOrMore
        }
        _ => false,
    }
}

/// The checked name of a topic to publish to.
///
/// # Errors
/// [`TopicError::NotText`] and [`TopicError::Name`].
pub fn check_name(topic: &[u8]) -> Result<&str, TopicError> {
    let topic = std::str::from_utf8(topic).map_err(|_| TopicError::NotText)?;
    check_topic_name(topic)?;
    Ok(topic)
}

/// The checked name of a topic that clients may publish to.
///
/// # Errors
/// Those of [`check_name`], and [`TopicError::Reserved`].
pub fn check_published(topic: &[u8]) -> Result<&str, TopicError> {
    match check_name(topic)? {
        topic if is_reserved(topic) => Err(TopicError::Reserved { topic: topic.into() }),
        topic => Ok(topic),
    }
}

/// Refuses a name that ends with a wildcard of another system: `a.>` of NATS, `a/#` of MQTT.
fn check_wildcard(topic: &str) -> Result<(), TopicError> {
    let Some((parent, _)) = topic.split_once(".>").or_else(|| topic.split_once("/#")) else { return Ok(()) };
    if parent.len() + 2 != topic.len() {
        return Ok(());
    }
    let separator = if topic.ends_with('>') { "[.]" } else { "/" };
    let instead = format!("^{}{separator}", regex::escape(parent)).into();
    Err(TopicError::Wildcard { topic: topic.into(), instead })
}

/// A compiled pattern. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TopicPattern(Arc<Compiled>);

/// One allocation, because each subscription has a selector.
#[derive(Debug)]
struct Compiled {
    regex: Regex,
    prefix: Box<str>,
    takes_reserved: bool,
}

impl TopicPattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// [`TopicError::Pattern`].
    pub fn new(pattern: &str) -> Result<Self, TopicError> {
        RegexBuilder::new(pattern)
            .size_limit(PATTERN_SIZE_MAX)
            .dfa_size_limit(PATTERN_CACHE_SIZE_MAX)
            .build()
            .map(|regex| {
                let (prefix, takes_reserved) = (prefix_of(pattern).into(), takes_reserved(pattern));
                TopicPattern(Arc::new(Compiled { regex, prefix, takes_reserved }))
            })
            .map_err(|error| TopicError::Pattern { pattern: pattern.into(), reason: in_one_line(&error) })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        self.0.regex.as_str()
    }

    /// A prefix of every topic in which the pattern is found: the plain text after `^`.
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// Whether the pattern is found in `topic`. A topic of the server is found only by a pattern
    /// that begins with [`RESERVED_PREFIX`].
    pub fn matches(&self, topic: &str) -> bool {
        (self.0.takes_reserved || !is_reserved(topic)) && self.0.regex.is_match(topic)
    }

    /// Whether the pattern can match topics of the server.
    pub fn takes_reserved(&self) -> bool {
        self.0.takes_reserved
    }
}

fn prefix_of(pattern: &str) -> String {
    let Ok(parsed) = regex_syntax::parse(pattern) else { return String::new() };
    if !parsed.properties().look_set_prefix().contains(Look::Start) {
        return String::new();
    }
    let beginnings = Extractor::new().extract(&parsed);
    let bytes = beginnings.longest_common_prefix().unwrap_or_default();
    // Characters with a common beginning are cut off.
    String::from_utf8_lossy(bytes).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned()
}

/// One topic, or all topics in which a pattern is found.
#[derive(Clone, Debug)]
pub enum TopicSelector {
    /// The topic with this name.
    Name(Arc<str>),
    /// Every topic that matches.
    Pattern(TopicPattern),
}

impl TopicSelector {
    /// Parses the text of a subscription or a configuration.
    ///
    /// # Errors
    /// [`TopicError`].
    pub fn new(topic: &str) -> Result<Self, TopicError> {
        let topic = check_name(topic.as_bytes())?;
        if is_pattern(topic) {
            return TopicPattern::new(topic).map(TopicSelector::Pattern);
        }
        check_wildcard(topic)?;
        Ok(TopicSelector::Name(topic.into()))
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        match self {
            TopicSelector::Name(name) => name,
            TopicSelector::Pattern(pattern) => pattern.text(),
        }
    }

    /// Whether it can select topics of the server.
    pub fn takes_reserved(&self) -> bool {
        match self {
            TopicSelector::Name(name) => is_reserved(name),
            TopicSelector::Pattern(pattern) => pattern.takes_reserved(),
        }
    }

    /// Whether it selects `topic`.
    pub fn matches(&self, topic: &str) -> bool {
        match self {
            TopicSelector::Name(name) => **name == *topic,
            TopicSelector::Pattern(pattern) => pattern.matches(topic),
        }
    }
}

/// The error of the regular expression engine has several lines with a drawing. The last line
/// contains the reason.
fn in_one_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use quire_types::TOPIC_SIZE_MAX;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_dot_alone_does_not_make_a_pattern() {
        assert!(!is_pattern("orders.eu/equity-1"));
        for pattern in ["^a", "a$", "a*", "a+", "a?", "[a]", "(a)", "a{2}", "a|b", r"a\.b"] {
            assert!(is_pattern(pattern), "{pattern}");
        }
        assert!(TopicSelector::new("a.b").unwrap().matches("a.b"));
        assert!(!TopicSelector::new("a.b").unwrap().matches("aXb"));
    }

    #[test]
    fn a_pattern_is_searched_for_anywhere_in_the_name() {
        let pattern = TopicSelector::new("rd[e]rs").unwrap();
        assert!(pattern.matches("eu/orders/1"));
        assert!(!pattern.matches("eu/trades"));
        assert!(!TopicSelector::new("^orders$").unwrap().matches("orders2"));
    }

    #[test]
    fn a_pattern_knows_how_its_topics_begin() {
        for (pattern, prefix) in [
            ("^orders[.]eu$", "orders.eu"),
            ("^orders[.](eu|us)", "orders."),
            ("^orders.*", "orders"),
            ("orders$", ""),
            ("^a|^b", ""),
            ("^ab|^ac", "a"),
            ("(^a|b)", ""),
            ("(?m)^a", ""),
            ("(?i)^a", ""),
            ("^(é|è)", ""),
            ("^x(é|è)", "x"),
            ("^", ""),
        ] {
            assert_eq!(TopicPattern::new(pattern).unwrap().prefix(), prefix, "{pattern}");
        }
    }

    #[test]
    fn only_a_pattern_that_begins_with_the_prefix_matches_topics_of_the_server() {
        for pattern in ["^/quire/", "/quire/.*", "^/quire/(ClientStatus|Action)$", "^(?:/quire/.*)$"] {
            let selector = TopicSelector::new(pattern).unwrap();
            assert!(selector.matches("/quire/Action") && selector.takes_reserved(), "{pattern}");
        }
        for pattern in ["^", ".*", "Action$", "^/", "^/[q]uire/", "(/quire/.*)", "^/quire/|^a"] {
            let selector = TopicSelector::new(pattern).unwrap();
            let is_meant = pattern == "^/quire/|^a";
            assert_eq!(selector.matches("/quire/Action"), is_meant, "{pattern}");
        }
        assert!(TopicSelector::new("/quire/Action").unwrap().matches("/quire/Action"));
        let error = TopicError::Reserved { topic: "/quire/x".into() };
        assert_eq!(check_published(b"/quire/x"), Err(error));
        assert_eq!(check_published(b"quire/x"), Ok("quire/x"));
    }

    #[test]
    fn an_anchored_pattern_says_how_each_alternative_begins() {
        for pattern in ["^", "^orders", ".*", ".*eu$", "^a|^b", "^a|.*b", "(^a|^b)c", "^(a|b)"] {
            assert!(is_anchored(pattern), "{pattern}");
        }
        for pattern in ["a$", "^a|b", "(^a|b)", "a|^b", "(?i)^a", ".+", "^a|", "()^a", "(^)?a", ".", "a("] {
            assert!(!is_anchored(pattern), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn no_topic_is_found_that_does_not_begin_so(
            parts in proptest::collection::vec(prop::sample::select(vec![
                "^", "$", "a", "b", "ab", "é", "è", "|", "(", ")", "(?:a|b)", "*", "?", "+", ".", "[ab]", "{2}", "(?i)", "(?m)", "\\b",
            ]), 1..8),
            topic in "[abé\n]{0,6}",
        ) {
            if let Ok(pattern) = TopicPattern::new(&parts.concat()) {
                prop_assert!(!pattern.matches(&topic) || topic.starts_with(pattern.prefix()), "{:?}", pattern.prefix());
            }
        }
    }

    #[test]
    fn what_is_no_topic_is_refused_with_its_reason() {
        assert_eq!(TopicSelector::new("").unwrap_err(), TopicNameError::Empty.into());
        assert_eq!(
            TopicSelector::new(&"x".repeat(TOPIC_SIZE_MAX + 1)).unwrap_err(),
            TopicNameError::TooLong { size: TOPIC_SIZE_MAX + 1 }.into()
        );
        assert_eq!(check_name(b"\xff"), Err(TopicError::NotText));
        assert_eq!(check_name(b"a\nb"), Err(TopicNameError::Control { topic: "a\nb".into(), at: 1 }.into()));
        for (topic, instead) in
            [("orders.>", "^orders[.]"), ("eu/orders/#", "^eu/orders/"), ("a.b.>", r"^a\.b[.]")]
        {
            let error = TopicError::Wildcard { topic: topic.into(), instead: instead.into() };
            assert_eq!(TopicSelector::new(topic).unwrap_err(), error);
            assert!(TopicSelector::new(instead).is_ok());
        }
        assert!(TopicSelector::new("a.>b").is_ok() && TopicSelector::new("#").is_ok());
        assert_eq!(
            TopicSelector::new("a(b").unwrap_err(),
            TopicError::Pattern { pattern: "a(b".into(), reason: "unclosed group".into() }
        );
        assert!(matches!(TopicSelector::new(r"\w{1000}{1000}"), Err(TopicError::Pattern { .. })));
    }
}
