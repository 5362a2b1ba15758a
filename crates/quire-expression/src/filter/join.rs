//! The conditions of joins, and fields with the topic that they belong to:
//! `[orders].[/account] = [accounts].[/id]` (docs/views.md, "Joins").

use super::FilterError;
use super::lexer::{Lexer, Token};
use crate::message_type::MessageType;

/// A topic of a join, whose fields expressions name as `[topic].[/field]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedTopic {
    /// Its name.
    pub topic: Box<str>,
    /// The type of its messages.
    pub message_type: MessageType,
}

/// A field of one of several topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicField {
    /// The message type before the topic, if there is one.
    pub message_type: Option<Box<str>>,
    /// The topic.
    pub topic: Box<str>,
    /// The field, as an expression about one topic names it: `/order/id`, or `[/order id]`.
    pub field: Box<str>,
}

/// Two fields that must be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinCondition {
    /// Before the operator.
    pub left: TopicField,
    /// After it.
    pub right: TopicField,
}

impl TopicField {
    /// Reads a token of this kind.
    pub(super) fn of_token(text: &str) -> Self {
        let (front, inner) = split(text);
        let mut names = front.split("].[").map(|part| part.trim_matches(['[', ']']));
        let (first, second) = (names.next().unwrap_or_default(), names.next());
        let (message_type, topic) = match second {
            Some(topic) => (Some(first.into()), topic),
            None => (None, first),
        };
        TopicField { message_type, topic: topic.into(), field: identifier_of(inner) }
    }

    /// The name without the message type.
    pub fn name(&self) -> Box<str> {
        let inner = self.field.strip_prefix('[').and_then(|field| field.strip_suffix(']'));
        format!("[{}].[{}]", self.topic, inner.unwrap_or(&self.field)).into()
    }
}

/// The topic and the field of a name with a topic; `None` for other names.
pub(super) fn split_name(name: &str) -> Option<(&str, Box<str>)> {
    let topic = name.strip_prefix('[').filter(|rest| !rest.starts_with('/'))?;
    let (topic, _) = topic.split_once("].[/")?;
    Some((topic, identifier_of(split(name).1)))
}

/// The names before the field, and the field without its brackets. The field is the part that
/// begins with a slash.
fn split(text: &str) -> (&str, &str) {
    let at = text.find(".[/").unwrap_or_default();
    let inner = text.get(at + 2..text.len() - 1).unwrap_or_default();
    (&text[..at], inner)
}

/// A field as expressions about one topic write it. A name with other characters is in brackets.
fn identifier_of(inner: &str) -> Box<str> {
    match Lexer::new(inner).next() {
        Ok((Token::Identifier(text), 0)) if text.len() == inner.len() => inner.into(),
        _ => format!("[{inner}]").into(),
    }
}

impl JoinCondition {
    /// Parses `[topic].[/field] = [topic].[/field]`. A topic may have its message type before it.
    ///
    /// # Errors
    /// [`FilterError`] with the column and the expected form.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let mut lexer = Lexer::new(text);
        let left = field(&mut lexer)?;
        match lexer.next()? {
            (Token::Symbol("=" | "=="), _) => (),
            (found, start) => return Err(FilterError::at(text, start, "=", found.describe())),
        }
        let right = field(&mut lexer)?;
        match lexer.next()? {
            (Token::End, _) => Ok(JoinCondition { left, right }),
            (found, start) => Err(FilterError::at(
                text,
                start,
                "the end; write each condition as an entry of the list",
                found.describe(),
            )),
        }
    }
}

fn field(lexer: &mut Lexer<'_>) -> Result<TopicField, FilterError> {
    match lexer.next()? {
        (Token::Qualified(text), _) => Ok(TopicField::of_token(text)),
        (found, start) => {
            let expected = "a field with its topic, as in [orders].[/account]";
            Err(FilterError::at(lexer.text, start, expected, found.describe()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        match JoinCondition::parse(text) {
            Ok(JoinCondition { left, right }) => [left, right]
                .map(|side| {
                    format!("{}|{}|{}", side.message_type.unwrap_or_default(), side.topic, side.field)
                })
                .join(" = "),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_condition_names_two_fields_with_their_topics() {
        for (text, expected) in [
            ("[orders].[/account] = [accounts].[/id]", "|orders|/account = |accounts|/id"),
            ("[json].[orders].[/a/b[0]]==[nvfix].[a.b].[/id]", "json|orders|/a/b[0] = nvfix|a.b|/id"),
            ("[o].[/a b] = [p].[/@x]", "|o|[/a b] = |p|/@x"),
            ("[o].[/a]", "column 9: expected =, found the end"),
            (
                "/a = [o].[/b]",
                "column 1: expected a field with its topic, as in [orders].[/account], found /a",
            ),
            (
                "[o].[/a] = [p].[/b] AND [o].[/c] = [p].[/d]",
                "column 21: expected the end; write each condition as an entry of the list, found AND",
            ),
            ("[t].[o].[a] = [p].[/b]", "column 10: expected a field like /id, found 'a'"),
            ("[o].[/] = [p].[/b]", "column 7: expected a field name, found ']'"),
            ("[].[/a] = [p].[/b]", "column 2: expected the name of a topic, found ']'"),
            (
                "[o] = [p].[/b]",
                "column 4: expected a point and a field, as in [orders].[/id]; only fields and topics are in \
                 brackets, found ' '",
            ),
            ("[o].[/a", "column 8: expected ], found the end"),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
    }

    #[test]
    fn a_name_has_no_message_type() {
        for (text, expected) in
            [("[json].[o].[/a[0]]", "[o].[/a[0]]"), ("[o].[/a b]", "[o].[/a b]"), ("[o].[/a]", "[o].[/a]")]
        {
            let field = TopicField::of_token(text);
            assert_eq!(&*field.name(), expected);
            assert_eq!(split_name(expected), Some((&*field.topic, field.field)));
        }
        assert_eq!(split_name("[/a b]"), None);
        assert_eq!(split_name("/a"), None);
    }
}
