//! The model: all versions of all rows, and the result of each query computed at its instant.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use quire_expression::filter::{Filter, FilterOptions, MessageContext};
use quire_expression::message_type::MessageType;
use quire_journal::{Headers, HeadersBuffer, Position, Timestamp};
use quire_table::*;

/// A row that owns its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub key: Vec<u8>,
    pub position: Position,
    pub timestamp: Timestamp,
    pub expires: Option<Timestamp>,
    pub correlation_id: Vec<u8>,
    pub headers: HeadersBuffer,
    pub data: Vec<u8>,
}

impl Version {
    pub fn of(row: &Row<'_>) -> Self {
        Version {
            key: row.key.into(),
            position: row.position,
            timestamp: row.timestamp,
            expires: row.expires,
            correlation_id: row.correlation_id.into(),
            headers: row.headers.into(),
            data: row.data.into(),
        }
    }

    pub fn row(&self) -> Row<'_> {
        Row {
            key: &self.key,
            position: self.position,
            timestamp: self.timestamp,
            stamp: None,
            expires: self.expires,
            correlation_id: &self.correlation_id,
            headers: self.headers.as_headers(),
            data: &self.data,
        }
    }

    /// The bytes of the row.
    pub fn size(&self) -> usize {
        let numbers = [self.data.len() as u64, self.position.get()];
        let numbers = numbers.map(|number| (1..8).find(|size| number < 1 << (8 * size)).unwrap_or(8));
        let headers = self.headers.as_headers().as_bytes().len();
        let optional = [(self.expires.is_some(), 8), (!self.correlation_id.is_empty(), 4), (headers > 0, 4)];
        let optional: usize = optional.iter().filter(|(is_there, _)| *is_there).map(|(_, size)| size).sum();
        let parts = self.correlation_id.len() + headers + self.key.len() + self.data.len();
        // Flags, size of the key, and time.
        1 + 1 + 8 + numbers.iter().sum::<usize>() + optional + parts
    }
}

/// The value of a field that rows are sorted by.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    Missing,
    Null,
    Boolean(bool),
    Integer(i32),
    Float(f32),
    /// Texts without characters that JSON escapes.
    Text(String),
    Array(Vec<Field>),
    Object,
}

impl Field {
    pub fn json(&self) -> Option<String> {
        Some(match self {
            Field::Missing => return None,
            Field::Null => "null".into(),
            Field::Boolean(value) => value.to_string(),
            Field::Integer(number) => number.to_string(),
            Field::Float(number) => format!("{number:?}"),
            Field::Text(text) => format!("\"{text}\""),
            Field::Array(fields) => {
                let elements: Vec<_> = fields.iter().filter_map(Field::json).collect();
                format!("[{}]", elements.join(","))
            }
            Field::Object => r#"{"x":1}"#.into(),
        })
    }

    /// The rules of `order_by`: the kind, then the number or the text.
    fn sorted(&self, is_text: bool) -> (u8, f64, String) {
        let text = |text: &str| (2, 0.0, text.to_owned());
        match self {
            Field::Missing | Field::Null | Field::Object => (0, 0.0, String::new()),
            Field::Array(fields) => fields
                .iter()
                .find(|field| !matches!(field, Field::Missing))
                .map_or((0, 0.0, String::new()), |field| field.sorted(is_text)),
            Field::Text(value) if value.is_empty() => (0, 0.0, String::new()),
            Field::Text(value) => match value.parse::<f64>() {
                Ok(number) if !is_text && value.starts_with(|first: char| first.is_ascii_digit()) => {
                    (1, number, String::new())
                }
                _ => text(value),
            },
            _ if is_text => text(&self.json().unwrap_or_default()),
            Field::Boolean(value) => (1, f64::from(u8::from(*value)), String::new()),
            Field::Integer(number) => (1, f64::from(*number), String::new()),
            Field::Float(number) => (1, number.to_string().parse().unwrap(), String::new()),
        }
    }

    pub fn compare(&self, other: &Field, is_text: bool) -> Ordering {
        self.sorted(is_text).partial_cmp(&other.sorted(is_text)).unwrap()
    }
}

/// One field of an order.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// Which of the fields of a row.
    pub field: usize,
    pub is_descending: bool,
    pub is_text: bool,
}

/// A query of the model.
#[derive(Clone, Debug)]
pub struct Asked {
    pub filter: Option<String>,
    pub keys: Option<Vec<String>>,
    pub order: Vec<Term>,
    pub skip_n: u64,
    pub top_n: Option<u64>,
    pub copies_size_max: usize,
}

/// The names of the fields of a row.
pub const NAMES: [&str; 3] = ["a", "b", "c"];

impl Asked {
    pub fn query(&self) -> Query {
        let options = FilterOptions::default();
        let term = |term: &Term| {
            let descending = if term.is_descending { " DESC" } else { "" };
            let text = if term.is_text { " TEXT" } else { "" };
            format!("/{}{descending}{text}", NAMES[term.field])
        };
        let order: Vec<_> = self.order.iter().map(term).collect();
        Query {
            filter: self.filter.as_ref().map(|text| Filter::parse(text, &options).unwrap()),
            as_of: None,
            keys: self.keys.as_ref().map(|keys| keys.iter().map(|key| key.as_bytes().into()).collect()),
            order: (!order.is_empty()).then(|| Order::parse(&order.join(","), &options).unwrap()),
            skip_n: self.skip_n,
            top_n: self.top_n,
            copies_size_max: self.copies_size_max,
        }
    }

    fn compare(&self, left: &[Field; 3], right: &[Field; 3]) -> Ordering {
        self.order.iter().fold(Ordering::Equal, |decided, term| {
            let order = left[term.field].compare(&right[term.field], term.is_text);
            decided.then(if term.is_descending { order.reverse() } else { order })
        })
    }
}

/// All rows, and the fields from which their data was made.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub rows: BTreeMap<Vec<u8>, (Version, [Field; 3])>,
}

/// The result that a scan must give.
#[derive(Clone, Debug)]
pub struct Expected {
    asked: Asked,
    /// The rows that match, in the order of the result.
    matching: Vec<(Version, [Field; 3])>,
}

impl Model {
    pub fn expected(&self, asked: &Asked, now: Timestamp) -> Expected {
        let filter = asked.query().filter;
        let matches = |version: &Version| {
            let context = MessageContext {
                message_type: MessageType::Json,
                data: &version.data,
                topic: "orders",
                key: Some(&version.key),
                bookmark: None,
                correlation_id: &version.correlation_id,
                headers: version.headers.as_headers(),
                timestamp: version.timestamp,
                now,
            };
            version.expires.is_none_or(|expires| expires > now)
                && filter.as_ref().is_none_or(|filter| filter.matches(&context))
                && asked.keys.as_ref().is_none_or(|keys| keys.iter().any(|key| key.as_bytes() == version.key))
        };
        let mut matching: Vec<_> =
            self.rows.values().filter(|(version, _)| matches(version)).cloned().collect();
        matching.sort_by(|left, right| asked.compare(&left.1, &right.1));
        Expected { asked: asked.clone(), matching }
    }
}

impl Expected {
    /// Checks a result that is complete.
    pub fn check(&self, result: &[Version], matched: u64) {
        assert_eq!(matched, self.matching.len() as u64, "{:?}", self.asked);
        let skip = self.asked.skip_n as usize;
        let top = self.asked.top_n.map_or(usize::MAX, |top| top as usize);
        let wanted: Vec<_> = self.matching.iter().skip(skip).take(top).collect();
        assert_eq!(result.len(), wanted.len(), "{:?}", self.asked);
        let distinct: BTreeSet<_> = result.iter().map(|version| &version.key).collect();
        assert_eq!(distinct.len(), result.len(), "a row twice");
        for (index, version) in result.iter().enumerate() {
            let found = self.matching.iter().find(|(known, _)| known == version);
            let (_, fields) =
                found.unwrap_or_else(|| panic!("{version:?} is not in the result of {:?}", self.asked));
            // The order of equal rows is not defined, and they are equal only to each other.
            let expected = &wanted[index].1;
            assert_eq!(
                self.asked.compare(fields, expected),
                Ordering::Equal,
                "place {index} of {:?}",
                self.asked
            );
        }
    }

    /// Checks the rows that a page shows, in any order.
    pub fn check_page<'v>(&self, shown: impl Iterator<Item = &'v Version>) {
        let fields_of = |version: &Version| {
            let known = self.matching.iter().find(|(known, _)| known == version);
            known.map(|(_, fields)| fields.clone()).unwrap_or_else(|| panic!("{version:?} is not newest"))
        };
        let mut shown: Vec<_> = shown.map(|version| (version.clone(), fields_of(version))).collect();
        shown.sort_by(|left, right| self.asked.compare(&left.1, &right.1));
        let shown: Vec<_> = shown.into_iter().map(|(version, _)| version).collect();
        let (skip, top) =
            (self.asked.skip_n as usize, self.asked.top_n.map_or(usize::MAX, |top| top as usize));
        let all: Vec<_> = self.matching.iter().map(|(version, _)| version.clone()).collect();
        assert_eq!(shown.len(), all.len().saturating_sub(skip).min(top), "{:?}", self.asked);
        Expected { asked: self.asked.clone(), matching: self.matching.clone() }
            .check(&shown, all.len() as u64);
    }

    /// Checks that rows are of the result, of a scan that did not end.
    pub fn check_part(&self, result: &[Version]) {
        for version in result {
            assert!(self.matching.iter().any(|(known, _)| known == version), "{version:?}");
        }
    }
}

/// The rows of a table, by their keys.
pub fn version(key: &str, position: u64, now: u64, fields: &[Field; 3]) -> Version {
    let members: Vec<_> = NAMES
        .iter()
        .zip(fields)
        .filter_map(|(name, field)| field.json().map(|json| format!("\"{name}\":{json}")))
        .collect();
    Version {
        key: key.into(),
        position: Position(position),
        timestamp: Timestamp(now),
        expires: None,
        correlation_id: Vec::new(),
        headers: Headers::NONE.into(),
        data: format!("{{{}}}", members.join(",")).into(),
    }
}
