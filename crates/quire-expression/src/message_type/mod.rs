//! Message types: how the fields of a message are found in its bytes.
//!
//! [`MessageType`] is the closed list of formats with their stable codes. [`MessageType::read`]
//! reads the paths of a [`FieldPlan`] from one message in one pass, and returns a value for each.
//! Its promises:
//!
//! - The text before the wanted fields, and the fields themselves, are checked. JSON is not read
//!   after the last wanted field. The other formats are read whole.
//! - A malformed message is an error, never half a result. So is a message in which a reader panics
//!   ([`contained`]).
//! - Memory is bounded by [`ARENA_SIZE_MAX`], depth by [`DOCUMENT_DEPTH_MAX`].
//!
//! [`merge`] and [`difference`] are the write side.
//!
//! Each format is one file, and implements the trait `Format`: the members of one object, in order.
//! Everything above one object (paths through arrays, indexes, repeated names) is the same for all
//! formats and is written here once.

mod arena;
mod binary;
mod bson;
mod json;
mod markup;
mod msgpack;
mod nvfix;
mod occurrences;
mod packed;
mod plan;
mod repeated;
mod selection;
mod special;
mod value;
mod variant;
mod write;
mod xml;

use bumpalo::collections::Vec as BumpVec;

use crate::unreadable::contained;

pub use self::arena::{ARENA_SIZE_MAX, Arena, TEXT_SIZE_MAX};
pub(crate) use self::arena::{TextBuilder, push};
use self::occurrences::{ByField, Occurrences};
pub(crate) use self::packed::{Unpacking, pack};
pub use self::plan::{FieldId, FieldPlan, PATH_STEP_COUNT_MAX, Step};
pub use self::selection::Selection;
pub(crate) use self::value::boolean_text;
pub use self::value::{Number, Truth, Value, compare};
pub use self::variant::{VARIANT_DEPTH_MAX, VARIANT_SIZE_MAX, VariantEncoder};
pub use self::write::{
    AssignError, CONSTRUCTED_SIZE_MAX, MergeError, Side, TranslateError, difference, merge, translate,
};
pub(crate) use self::write::{Fields, assign, expected_path};

/// The deepest nesting of objects and arrays in a message. Real messages stay below ten. Readers
/// recurse, or keep a bit per level.
pub const DOCUMENT_DEPTH_MAX: usize = 256;

/// The formats that messages can have. The codes are stored in the journal and never change
/// meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageType {
    /// JSON text (RFC 8259).
    Json = 1,
    /// Opaque bytes: every field is NULL.
    Binary = 2,
    /// `name=value` pairs, each ended by SOH.
    Nvfix = 3,
    /// `tag=value` pairs with numeric tags, each ended by SOH.
    Fix = 4,
    /// MessagePack with a map at the root.
    Msgpack = 5,
    /// BSON documents.
    Bson = 6,
    /// XML without document types.
    Xml = 7,
}

/// Why the fields of a message cannot be read. Filters that read fields do not match such a
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes are not of the format.
    #[error("malformed at byte {offset}: {expected} expected")]
    Syntax {
        /// Where, from the beginning of the message, in bytes.
        offset: usize,
        /// The text that is expected there.
        expected: &'static str,
    },
    /// Nested deeper than [`DOCUMENT_DEPTH_MAX`].
    #[error("nested deeper than {DOCUMENT_DEPTH_MAX} levels")]
    TooDeep,
    /// The wanted fields need more than [`ARENA_SIZE_MAX`] bytes of memory.
    #[error("the fields need more than {ARENA_SIZE_MAX} bytes of memory")]
    TooLarge,
    /// The expressions take more than the limit of effort for one message.
    #[error("the expressions take more than the limit of effort for one message")]
    TooCostly,
    /// A reader panicked, which is a bug of quire.
    #[error(
        "not readable because of a bug in quire (a panic; the error output has its place): please report it"
    )]
    Panicked,
}

impl MessageType {
    /// Every format, in the order of the codes.
    pub const ALL: &[MessageType] = &[
        MessageType::Json,
        MessageType::Binary,
        MessageType::Nvfix,
        MessageType::Fix,
        MessageType::Msgpack,
        MessageType::Bson,
        MessageType::Xml,
    ];

    /// The code in journals.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The format with this code, if there is one.
    pub fn from_code(code: u8) -> Option<MessageType> {
        MessageType::ALL.iter().copied().find(|known| known.code() == code)
    }

    /// The name in configurations and commands.
    pub const fn name(self) -> &'static str {
        match self {
            MessageType::Json => "json",
            MessageType::Binary => "binary",
            MessageType::Nvfix => "nvfix",
            MessageType::Fix => "fix",
            MessageType::Msgpack => "msgpack",
            MessageType::Bson => "bson",
            MessageType::Xml => "xml",
        }
    }

    /// The format with this name, if there is one.
    pub fn from_name(name: &str) -> Option<MessageType> {
        MessageType::ALL.iter().copied().find(|known| known.name() == name)
    }

    /// Whether messages have fields, so that filters are possible.
    pub const fn has_fields(self) -> bool {
        !matches!(self, MessageType::Binary)
    }

    /// Whether a part of a message is a message, so that select lists are possible.
    pub const fn has_parts(self) -> bool {
        !matches!(self, MessageType::Binary | MessageType::Xml)
    }

    /// The values of the fields of `plan` in the message `data`, by [`FieldId::index`]; NULL where
    /// there is none.
    ///
    /// A root that is not an object has no fields.
    ///
    /// # Errors
    /// The part of the message that was read is malformed; see [`Malformed`].
    pub fn read<'a>(
        self,
        data: &'a [u8],
        plan: &FieldPlan,
        arena: &'a Arena,
    ) -> Result<&'a [Value<'a>], Malformed> {
        contained(|| self.read_bare(data, plan, arena))?
    }

    /// As [`MessageType::read`], and the message is read to its end.
    ///
    /// # Errors
    /// The message is malformed; see [`Malformed`].
    pub fn read_whole<'a>(
        self,
        data: &'a [u8],
        plan: &FieldPlan,
        arena: &'a Arena,
    ) -> Result<&'a [Value<'a>], Malformed> {
        contained(|| self.read_with(data, plan, arena, true))?
    }

    /// Reads a message to its end, without its values.
    ///
    /// # Errors
    /// The message is malformed; see [`Malformed`].
    pub fn check(self, data: &[u8], arena: &mut Arena) -> Result<(), Malformed> {
        arena.reset();
        self.read_whole(data, &FieldPlan::default(), arena).map(drop)
    }

    /// Reads a message to its end. Returns whether no object in it has a key twice. In formats
    /// where several values of one name are an array, no key is there twice.
    ///
    /// # Errors
    /// The message is malformed; see [`Malformed`].
    pub(crate) fn is_unambiguous(self, data: &[u8], arena: &Arena) -> Result<bool, Malformed> {
        let mut names = repeated::Names::new(arena);
        match self {
            MessageType::Json => json::check_names(data, &mut names)?,
            MessageType::Msgpack => msgpack::check_names(data, &mut names)?,
            MessageType::Bson => bson::check_names(data, &mut names)?,
            MessageType::Binary | MessageType::Nvfix | MessageType::Fix | MessageType::Xml => {
                self.read_with(data, &FieldPlan::default(), arena, true)?;
            }
        }
        Ok(!names.is_any_repeated())
    }

    /// As [`MessageType::read`], for work that is contained as a whole.
    #[inline]
    pub(crate) fn read_bare<'a>(
        self,
        data: &'a [u8],
        plan: &FieldPlan,
        arena: &'a Arena,
    ) -> Result<&'a [Value<'a>], Malformed> {
        self.read_with(data, plan, arena, false)
    }

    fn read_with<'a>(
        self,
        data: &'a [u8],
        plan: &FieldPlan,
        arena: &'a Arena,
        is_whole: bool,
    ) -> Result<&'a [Value<'a>], Malformed> {
        #[cfg(test)]
        tests::panic_at_bug(data);
        let mut reading = Reading { plan, arena, values: arena.nulls(plan.len())?, is_whole };
        match self {
            MessageType::Json => json::read_document(data, &mut reading)?,
            MessageType::Binary => binary::Binary.document(data, &mut reading)?,
            MessageType::Nvfix => nvfix::NVFIX.document(data, &mut reading)?,
            MessageType::Fix => nvfix::FIX.document(data, &mut reading)?,
            MessageType::Msgpack => msgpack::Msgpack.document(data, &mut reading)?,
            MessageType::Bson => bson::Bson.document(data, &mut reading)?,
            MessageType::Xml => xml::Xml.document(data, &mut reading)?,
        }
        Ok(reading.values)
    }

    /// The names and values of all members of a [`Value::Compound`] of this format, in order. Each
    /// name occurs once: as in [`MessageType::read`], the last of several values counts, and in XML
    /// they are an array.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn members<'a>(
        self,
        raw: &'a [u8],
        arena: &'a Arena,
    ) -> Result<&'a [(&'a [u8], Value<'a>)], Malformed> {
        contained(|| self.members_bare(raw, arena))?
    }

    fn members_bare<'a>(
        self,
        raw: &'a [u8],
        arena: &'a Arena,
    ) -> Result<&'a [(&'a [u8], Value<'a>)], Malformed> {
        #[cfg(test)]
        tests::panic_at_bug(raw);
        let mut members: BumpVec<'a, NamedMember<'a>> = arena.list();
        let mut visit = |name, value| {
            let order = members.len() as u32;
            push(&mut members, (name, order, value))
        };
        match self {
            MessageType::Json => json::all_members(raw, arena, &mut visit)?,
            MessageType::Msgpack => msgpack::all_members(raw, arena, &mut visit)?,
            MessageType::Bson => bson::all_members(raw, arena, &mut visit)?,
            MessageType::Xml => xml::all_members(raw, arena, &mut visit)?,
            // Their messages have no objects.
            MessageType::Binary | MessageType::Nvfix | MessageType::Fix => {}
        }
        members.sort_unstable_by_key(|(name, order, _)| (*name, *order));
        let mut named: BumpVec<'a, NamedMember<'a>> = arena.list();
        for group in members.into_bump_slice().chunk_by(|left, right| left.0 == right.0) {
            let (name, order, _) = group[0];
            let value = if group.len() > 1 && self == MessageType::Xml {
                let elements = arena.nulls(group.len())?;
                elements.iter_mut().zip(group).for_each(|(element, (.., value))| *element = *value);
                Value::Array(elements)
            } else {
                group[group.len() - 1].2
            };
            push(&mut named, (name, order, value))?;
        }
        named.sort_unstable_by_key(|(_, order, _)| *order);
        let mut found = arena.list();
        found.try_reserve_exact(named.len()).map_err(|_| Malformed::TooLarge)?;
        found.extend(named.iter().map(|(name, _, value)| (*name, *value)));
        Ok(found.into_bump_slice())
    }
}

/// The names of the members of a whole JSON message, in their order, including repetitions. A root
/// that is not an object has none.
///
/// # Errors
/// The message is not JSON.
pub fn json_member_names<'a>(data: &'a [u8], arena: &'a Arena) -> Result<&'a [&'a [u8]], Malformed> {
    json::member_names(data, arena)
}

/// Receives the members of a compound value.
type Visit<'f, 'a> = &'f mut dyn FnMut(&'a [u8], Value<'a>) -> Result<(), Malformed>;

/// A member of a compound value: its name, its index, its value.
type NamedMember<'a> = (&'a [u8], u32, Value<'a>);

/// One format.
trait Format {
    /// Calls `found` with each wanted member of the compound value `raw`, in order. `raw` is the
    /// whole message for the plan's root, otherwise a [`Value::Compound`] of this format.
    /// Everything in `raw` is checked.
    fn members<'a>(
        &self,
        raw: &'a [u8],
        level: &Level<'_, 'a>,
        found: Found<'_, 'a>,
    ) -> Result<(), Malformed>;

    /// Whether several members of one name are an array (in text formats without arrays), or only
    /// the last one counts.
    const REPEATED_NAMES_ARE_ARRAYS: bool;

    /// The value of the compound `raw` itself, for formats whose compounds can also have text.
    fn value_of_compound<'a>(&self, raw: &'a [u8], arena: &'a Arena) -> Result<Value<'a>, Malformed> {
        let _ = arena;
        Ok(Value::Compound(raw))
    }

    /// Reads the whole message.
    fn document<'a>(&self, data: &'a [u8], reading: &mut Reading<'_, 'a>) -> Result<(), Malformed>
    where
        Self: Sized,
    {
        reading.object(self, FieldPlan::ROOT, data)
    }
}

/// Receives the members that a format finds.
type Found<'f, 'a> = &'f mut dyn FnMut(FieldId, Value<'a>) -> Result<(), Malformed>;

/// The state of a format that lists members: the wanted names, and memory for decoded values.
struct Level<'p, 'a> {
    plan: &'p FieldPlan,
    at: FieldId,
    arena: &'a Arena,
}

impl Level<'_, '_> {
    fn child(&self, name: &[u8]) -> Option<FieldId> {
        self.plan.names(self.at).find(name)
    }
}

/// The state of reading one message.
struct Reading<'p, 'a> {
    plan: &'p FieldPlan,
    arena: &'a Arena,
    values: &'a mut [Value<'a>],
    /// The text after the last wanted field is read too.
    is_whole: bool,
}

/// A member on a path into an array: the field, the compound value that contains it, its index, its
/// value.
type Member<'a> = (FieldId, u32, u32, Value<'a>);

impl<'a> Reading<'_, 'a> {
    /// Takes the wanted members of one object.
    fn object<F: Format>(&mut self, format: &F, at: FieldId, raw: &'a [u8]) -> Result<(), Malformed> {
        let level = Level { plan: self.plan, at, arena: self.arena };
        if !F::REPEATED_NAMES_ARE_ARRAYS {
            return format.members(raw, &level, &mut |field, value| self.set(format, field, value));
        }
        let mut found = Occurrences::new(self.plan, self.arena)?;
        format.members(raw, &level, &mut |field, value| found.push(field, value))?;
        let found = found.by_field(self.arena)?;
        for field in self.plan.names(at).fields() {
            match found.of(field) {
                [] => {}
                [value] => self.set(format, field, *value)?,
                values => self.set(format, field, Value::Array(values))?,
            }
        }
        Ok(())
    }

    /// Sets the values of the fields below `at`, when the format has found all of them in one pass.
    /// `is_array`: a field on the way is an array, so each field below it is one too. Recursion is
    /// bounded by the steps of the longest path.
    fn set_all<F: Format>(
        &mut self,
        format: &F,
        at: FieldId,
        is_array: bool,
        found: &ByField<'a>,
    ) -> Result<(), Malformed> {
        let plan = self.plan;
        for field in plan.names(at).fields() {
            let values = found.of(field);
            let is_array = is_array || values.len() > 1;
            let value = match values {
                [] => continue,
                [value] if !is_array => *value,
                values => Value::Array(values),
            };
            if plan.indexes(field).is_empty() {
                self.values[field.index()] = value;
            } else {
                self.values[field.index()] = self.own_value(format, value)?;
                self.set_elements(format, field, value)?;
            }
            self.set_all(format, field, is_array, found)?;
        }
        Ok(())
    }

    /// Sets the value of `field`, and the values of the fields below it.
    fn set<F: Format>(&mut self, format: &F, field: FieldId, value: Value<'a>) -> Result<(), Malformed> {
        if self.plan.is_leaf(field) {
            self.values[field.index()] = self.own_value(format, value)?;
            return Ok(());
        }
        self.clear(field);
        // The value of a field on the way to others is not visible.
        let own_value = if self.plan.is_end(field) { self.own_value(format, value)? } else { value };
        self.values[field.index()] = own_value;
        self.set_elements(format, field, value)?;
        if !self.plan.has_names(field) {
            return Ok(());
        }
        match value {
            Value::Compound(raw) => self.object(format, field, raw),
            Value::Array(elements) => self.set_through_array(format, field, elements),
            _ => Ok(()),
        }
    }

    /// The value of the field itself, without the fields below it.
    fn own_value<F: Format>(&self, format: &F, value: Value<'a>) -> Result<Value<'a>, Malformed> {
        match value {
            Value::Compound(raw) => format.value_of_compound(raw, self.arena),
            Value::Array(elements)
                if F::REPEATED_NAMES_ARE_ARRAYS
                    && elements.iter().any(|element| matches!(element, Value::Compound(_))) =>
            {
                let own = self.arena.nulls(elements.len())?;
                for (own, element) in own.iter_mut().zip(elements) {
                    *own = self.own_value(format, *element)?;
                }
                Ok(Value::Array(own))
            }
            value => Ok(value),
        }
    }

    /// `/a[0]` is the first element of an array, and any other value itself.
    fn set_elements<F: Format>(
        &mut self,
        format: &F,
        field: FieldId,
        value: Value<'a>,
    ) -> Result<(), Malformed> {
        let plan = self.plan;
        for &(index, child) in plan.indexes(field) {
            let element = match value {
                Value::Array(elements) => elements.get(index as usize).copied().unwrap_or(Value::Null),
                value if index == 0 => value,
                _ => Value::Null,
            };
            self.set(format, child, element)?;
        }
        Ok(())
    }

    /// `/a/b` through an array of objects is the array of their members.
    fn set_through_array<F: Format>(
        &mut self,
        format: &F,
        field: FieldId,
        elements: &[Value<'a>],
    ) -> Result<(), Malformed> {
        let level = Level { plan: self.plan, at: field, arena: self.arena };
        let mut members: BumpVec<'_, Member<'a>> = self.arena.list();
        for (number, element) in elements.iter().enumerate() {
            if let Value::Compound(raw) = element {
                format.members(raw, &level, &mut |child, value| {
                    let order = members.len() as u32;
                    push(&mut members, (child, number as u32, order, value))
                })?;
            }
        }
        if !F::REPEATED_NAMES_ARE_ARRAYS {
            members.sort_unstable_by_key(|(child, number, order, _)| {
                (*child, *number, std::cmp::Reverse(*order))
            });
            members.dedup_by_key(|(child, number, ..)| (*child, *number));
        }
        members.sort_unstable_by_key(|(child, number, order, _)| (*child, *number, *order));
        for group in members.into_bump_slice().chunk_by(|left, right| left.0 == right.0) {
            let elements = self.arena.nulls(group.len())?;
            elements.iter_mut().zip(group).for_each(|(element, (.., value))| *element = *value);
            self.set(format, group[0].0, Value::Array(elements))?;
        }
        Ok(())
    }

    /// Removes the values of an earlier member of the same name, because the last one counts.
    fn clear(&mut self, field: FieldId) {
        if !self.values[field.index()].is_null() {
            self.values[field.index()] = Value::Null;
            let plan = self.plan;
            plan.for_each_child(field, |child| self.clear(child));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The bug that the tests of the boundary need. Every reader of a message calls it.
    pub(crate) fn panic_at_bug(data: &[u8]) {
        assert!(memchr::memmem::find(data, b"a bug").is_none(), "as a bug would");
    }

    /// The members of the field `a`, printed.
    fn members(message_type: MessageType, data: &[u8]) -> String {
        let (mut plan, arena) = (FieldPlan::default(), Arena::default());
        let field = match message_type {
            MessageType::Xml => plan.add(&[Step::Name((*b"m").into()), Step::Name((*b"a").into())]),
            _ => plan.add(&[Step::Name((*b"a").into())]),
        };
        let values = message_type.read(data, &plan, &arena).unwrap();
        let Value::Compound(raw) = values[field.index()] else { panic!("no compound value") };
        let shown = |value: &Value<'_>| match value {
            Value::Array(elements) => format!("{} elements", elements.len()),
            value => arena.text(*value).map_or("-".into(), |text| String::from_utf8_lossy(text).into_owned()),
        };
        let members = message_type.members(raw, &arena).unwrap();
        let shown = |(name, value): &(&[u8], Value<'_>)| {
            format!("{}={}", String::from_utf8_lossy(name), shown(value))
        };
        members.iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_members_of_an_object_come_in_order_and_each_name_once() {
        let json =
            br#"{"a": {"z": 1, "\u0062": "x", "z": [2, 3], "c": {"d": 1}, "e": null, "": true}, "z": 9}"#;
        assert_eq!(members(MessageType::Json, json), "z=2 elements b=x c=- e=- =true");
        assert_eq!(members(MessageType::Json, br#"{"a": { } }"#), "");
        let xml = b"<m><a x='1'><b>2</b>\n<c>t</c><b>3</b><d><e/></d></a></m>";
        assert_eq!(members(MessageType::Xml, xml), "@x=1 b=2 elements c=t d=-");
        // {"a": {"z": 1, 7: true, "z": "x", [1]: 2}}
        let msgpack = b"\x81\xa1a\x84\xa1z\x01\x07\xc3\xa1z\xa1x\x91\x01\x02";
        assert_eq!(members(MessageType::Msgpack, msgpack), "z=x 7=true");
        let inner = [&23_u32.to_le_bytes()[..], b"\x10z\0\x01\0\0\0\x08b\0\x01\x10z\0\x02\0\0\0\0"].concat();
        let size = (4 + 3 + inner.len() + 1) as u32;
        let bson = [&size.to_le_bytes()[..], b"\x03a\0", &inner, b"\0"].concat();
        assert_eq!(members(MessageType::Bson, &bson), "z=2 b=true");
        assert!(MessageType::Json.members(b"[]", &Arena::default()).is_err());
    }

    #[test]
    fn an_array_is_no_name_of_a_member_in_msgpack() {
        // {[7]: 1, 7: 2} and {7: 2, [7]: 1}
        for data in [b"\x82\x91\x07\x01\x07\x02", b"\x82\x07\x02\x91\x07\x01"] {
            let (mut plan, arena) = (FieldPlan::default(), Arena::default());
            let field = plan.add(&[Step::Name((*b"7").into())]);
            let values = MessageType::Msgpack.read(data, &plan, &arena).unwrap();
            assert!(matches!(values[field.index()], Value::Number(Number::Integer(2), _)));
        }
    }

    #[test]
    fn codes_and_names_lead_back_to_their_type() {
        for known in MessageType::ALL {
            assert_eq!(MessageType::from_code(known.code()), Some(*known));
            assert_eq!(MessageType::from_name(known.name()), Some(*known));
        }
        // Journals hold these.
        let codes: Vec<_> = MessageType::ALL.iter().map(|known| (known.code(), known.name())).collect();
        let expected =
            [(1, "json"), (2, "binary"), (3, "nvfix"), (4, "fix"), (5, "msgpack"), (6, "bson"), (7, "xml")];
        assert_eq!(codes, expected);
        assert_eq!((MessageType::from_code(0), MessageType::from_name("JSON")), (None, None));
    }
}
