//! The properties that hold for any bytes: in the corpus, in its mutations, and in the fuzzer
//! (`fuzz/`).

use quire_expression::filter::{
    Assignments, Expression, Filter, FilterOptions, MessageContext, Stage, SubscriptionIndex, path_of,
};
use quire_expression::message_type::*;
use quire_expression::select::Select;
use quire_expression::unreadable::Unreadables;
use quire_types::{Headers, Timestamp};

/// The paths, filters and lists with which the messages of one type are read.
pub struct Law {
    message_type: MessageType,
    plan: FieldPlan,
    /// The field that the expression names.
    field: FieldId,
    arena: Arena,
    unreadables: Unreadables,
    filters: Vec<Filter>,
    index: SubscriptionIndex<usize>,
    expression: Expression,
    assignments: Option<Assignments>,
    select: Select,
}

/// Whether a message is sound, and the message.
pub type Entry = (bool, Vec<u8>);

/// The corpus: a verdict and bytes with escapes in each line.
pub fn corpus(message_type: MessageType) -> Vec<Entry> {
    let text = match message_type {
        MessageType::Json => include_str!("json.txt"),
        MessageType::Binary => include_str!("binary.txt"),
        MessageType::Nvfix => include_str!("nvfix.txt"),
        MessageType::Fix => include_str!("fix.txt"),
        MessageType::Msgpack => include_str!("msgpack.txt"),
        MessageType::Bson => include_str!("bson.txt"),
        MessageType::Xml => include_str!("xml.txt"),
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let entries = lines.map(|line| match line.split_once(' ') {
        Some(("sound", bytes)) => (true, unescaped(bytes)),
        Some(("malformed", bytes)) => (false, unescaped(bytes)),
        _ => panic!("{line:?} has no verdict"),
    });
    entries.collect()
}

/// `\xNN` is a byte, and `\\` a backslash.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match (first, rest) {
            (b'\\', [b'\\', after @ ..]) => {
                bytes.push(b'\\');
                rest = after;
            }
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |digit: &u8| char::from(*digit).to_digit(16).expect("a digit") as u8;
                bytes.push(digit(high) << 4 | digit(low));
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    bytes
}

impl Law {
    pub fn new(message_type: MessageType) -> Self {
        let unreadables = Unreadables::default();
        let root = if message_type == MessageType::Xml { "/a" } else { "" };
        let (a, b, at) = match message_type {
            MessageType::Fix => ("/96".to_owned(), "/55".to_owned(), "/95".to_owned()),
            MessageType::Nvfix => ("/a".to_owned(), "/b".to_owned(), "/symbol".to_owned()),
            _ => (format!("{root}/a"), format!("{root}/b/c"), format!("{root}/@b")),
        };
        let options = FilterOptions::default();
        let filters = [
            format!("{a} = 1 OR {b} LIKE 'x' OR {a}[0] = {b}"),
            format!("{b} IN ('x', 2)"),
            format!("ARRAY_COUNT({a}) > 1 OR {at} IS NULL"),
            "MESSAGE_SIZE() > 3".to_owned(),
        ];
        let filters: Vec<_> =
            filters.iter().map(|text| Filter::parse(text, &options).expect("a filter")).collect();
        let mut index = SubscriptionIndex::default();
        filters.iter().enumerate().for_each(|(id, filter)| index.insert(id, Some(filter.clone())));
        let mut plan = FieldPlan::default();
        let [field, ..] = [&a, &b, &at].map(|path| plan.add(&path_of(path)));
        let target = match message_type {
            MessageType::Fix => "7".to_owned(),
            _ => format!("{}/n", &root[..root.len().min(2)]).trim_start_matches('/').to_owned(),
        };
        let entries = [format!("{a} AS /{target}"), format!("{b} AS {a}")];
        Law {
            message_type,
            plan,
            field,
            arena: Arena::reporting_to(&unreadables),
            unreadables,
            index,
            filters,
            expression: Expression::parse(&a, &options).expect("an expression"),
            assignments: Assignments::parse(&entries, message_type, Stage::Enrichment, &options).ok(),
            select: Select::parse(&format!("-/,+{a},+{b}")).expect("a list"),
        }
    }

    fn context<'a>(&self, data: &'a [u8]) -> MessageContext<'a> {
        MessageContext {
            message_type: self.message_type,
            data,
            topic: "t",
            key: None,
            bookmark: None,
            correlation_id: b"",
            headers: Headers::NONE,
            timestamp: Timestamp(0),
            now: Timestamp(0),
        }
    }

    /// The fields, and the whole message: whether it is sound. This is all that the fuzzer does
    /// with most inputs.
    pub fn reads(&mut self, data: &[u8]) -> bool {
        let Law { message_type, plan, arena, .. } = self;
        arena.reset();
        let part = message_type.read(data, plan, arena);
        let whole = message_type.read_whole(data, plan, arena);
        for result in [&part, &whole] {
            assert!(!matches!(result, Err(Malformed::Panicked)), "a reader panicked");
        }
        match (&part, &whole) {
            (Ok(part), Ok(whole)) => assert_eq!(part.len(), whole.len()),
            (Err(_), Ok(_)) => panic!("malformed for its fields, and sound as a whole"),
            (Ok(_), Err(_)) => assert_eq!(*message_type, MessageType::Json, "read whole, and taken"),
            (Err(_), Err(_)) => {}
        }
        whole.is_ok()
    }

    /// All paths that read a message end in a value, or in malformed, alike. Returns whether the
    /// message is sound.
    pub fn agrees(&mut self, data: &[u8]) -> bool {
        let is_sound = self.reads(data);
        let shown = |values: Result<&[Value<'_>], Malformed>| values.map(|values| format!("{values:?}"));
        self.arena.reset();
        let part = shown(self.message_type.read(data, &self.plan, &self.arena));
        let whole = shown(self.message_type.read_whole(data, &self.plan, &self.arena));
        assert_eq!(self.message_type.check(data, &mut self.arena).is_ok(), is_sound);
        let context = self.context(data);
        let alone: Vec<_> = (0..self.filters.len())
            .filter(|id| self.filters[*id].matches_with(&context, &mut self.arena))
            .collect();
        let mut together = Vec::new();
        self.index.for_each_match(&context, &mut self.arena, |id| together.push(id));
        let value = format!("{:?}", self.expression.evaluate(&context, &mut self.arena));
        if is_sound {
            assert_eq!(part, whole);
            assert_eq!(alone, together);
            self.arena.reset();
            let values = self.message_type.read(data, &self.plan, &self.arena);
            let first = values.map(|values| format!("{:?}", values[self.field.index()]));
            assert_eq!(first, Ok(value));
        } else if self.message_type != MessageType::Json {
            let without_fields: Vec<_> = (3..4).filter(|_| data.len() > 3).collect();
            assert_eq!((alone, together, &*value), (without_fields.clone(), without_fields, "Null"));
        }
        self.members(data);
        self.writes(data, is_sound);
        while let Some(unreadable) = self.unreadables.take() {
            assert_ne!(unreadable.reason, Malformed::Panicked);
        }
        is_sound
    }

    /// The members of objects in a sound message can be read.
    fn members(&mut self, data: &[u8]) {
        self.arena.reset();
        let Ok(values) = self.message_type.read(data, &self.plan, &self.arena) else { return };
        for value in values {
            if let Value::Compound(raw) = value {
                let members = self.message_type.members(raw, &self.arena);
                assert_ne!(members.err(), Some(Malformed::Panicked));
            }
        }
    }

    /// Merges, differences, constructed fields, select lists and variants.
    fn writes(&mut self, data: &[u8], is_sound: bool) {
        let message_type = self.message_type;
        let mut out = Vec::new();
        let results = [
            merge(message_type, data, data, &mut out),
            difference(message_type, data, data, &[], &mut Vec::new()).map(drop),
        ];
        for result in results {
            match result {
                Ok(()) | Err(MergeError::NotAnObject { .. }) => assert!(is_sound, "a merge takes it"),
                Err(MergeError::Malformed { reason, .. }) => {
                    assert_ne!(reason, Malformed::Panicked);
                    // The result of a merge is malformed where a size of a data field was wrong
                    // before.
                    let is_fix = message_type == MessageType::Fix;
                    assert!(is_fix || !is_sound, "a merge does not take it: {reason}");
                }
                Err(MergeError::DifferentRoots) => panic!("it has one root"),
            }
        }
        if !out.is_empty() {
            let check = message_type.check(&out, &mut self.arena);
            assert!(
                check.is_ok(),
                "{check:?} {message_type:?} {} {}",
                data.escape_ascii(),
                out.escape_ascii()
            );
        }
        if let Some(assignments) = &self.assignments {
            let context = self.context(data);
            match assignments.apply(&context, None, &mut self.arena, &mut out) {
                Ok(()) => {
                    let check = message_type.check(&out, &mut self.arena);
                    let shown = || format!("{message_type:?} {} {}", data.escape_ascii(), out.escape_ascii());
                    assert!(is_sound && check.is_ok(), "{check:?} {}", shown());
                }
                Err(AssignError::Malformed(reason)) => {
                    assert_ne!(reason, Malformed::Panicked);
                    // A constructed field can be too deep.
                    let is_fix = message_type == MessageType::Fix;
                    assert!(is_fix || !is_sound || reason == Malformed::TooDeep, "{reason}");
                }
                Err(_) => assert!(is_sound),
            }
        }
        let mut selected = Vec::new();
        let left = self.select.apply(Some(message_type), data, &mut self.arena, &mut selected).to_vec();
        if left != data {
            assert!(is_sound && message_type.has_parts());
            let field = |data: &[u8], arena: &mut Arena| {
                arena.reset();
                let values = message_type.read_whole(data, &self.plan, arena);
                values.map(|values| format!("{:?}", values[self.field.index()]))
            };
            let shown = || format!("{message_type:?} {} {}", data.escape_ascii(), left.escape_ascii());
            assert_eq!(field(&left, &mut self.arena), field(data, &mut self.arena), "{}", shown());
        }
        if let (MessageType::Json, Ok(text)) = (message_type, std::str::from_utf8(data)) {
            let variant = VariantEncoder::default().encode(text, &mut Vec::new(), &mut Vec::new());
            assert_ne!(variant.err(), Some(Malformed::Panicked));
        }
    }
}
