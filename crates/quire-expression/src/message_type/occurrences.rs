//! The found values of a message, in its order, for formats in which several members of one name
//! are an array.
//!
//! They are collected in one list, because lists that grow alternately take memory from the arena
//! several times. At the end each field gets its part.

use bumpalo::collections::Vec as BumpVec;

use super::{Arena, FieldId, FieldPlan, Malformed, Value, push};

/// The number of values that are kept when only the first element of a field is wanted. Two are
/// enough to recognize an array.
pub(super) const FIRST_VALUES: u32 = 2;

pub(super) struct Occurrences<'p, 'a> {
    plan: &'p FieldPlan,
    list: BumpVec<'a, (FieldId, Value<'a>)>,
    /// By field.
    counts: BumpVec<'a, u32>,
}

/// The values of each field.
pub(super) struct ByField<'a> {
    values: &'a [Value<'a>],
    counts: &'a [u32],
    /// Where the values of each field end.
    ends: &'a [u32],
}

impl<'p, 'a> Occurrences<'p, 'a> {
    pub(super) fn new(plan: &'p FieldPlan, arena: &'a Arena) -> Result<Self, Malformed> {
        Ok(Occurrences { plan, list: arena.list(), counts: zeros(plan.len(), arena)? })
    }

    /// Whether another value of the field is wanted.
    #[inline]
    pub(super) fn wants(&self, field: FieldId) -> bool {
        self.counts[field.index()] < FIRST_VALUES || !self.plan.wants_first_of(field)
    }

    #[inline]
    pub(super) fn push(&mut self, field: FieldId, value: Value<'a>) -> Result<(), Malformed> {
        if !self.wants(field) {
            return Ok(());
        }
        self.counts[field.index()] += 1;
        push(&mut self.list, (field, value))
    }

    pub(super) fn by_field(self, arena: &'a Arena) -> Result<ByField<'a>, Malformed> {
        let Occurrences { list, counts, .. } = self;
        let values = arena.nulls(list.len())?;
        let mut ends = zeros(counts.len(), arena)?;
        let mut start = 0;
        for (end, count) in ends.iter_mut().zip(&counts) {
            *end = start;
            start += count;
        }
        for (field, value) in list {
            let end = &mut ends[field.index()];
            values[*end as usize] = value;
            *end += 1;
        }
        Ok(ByField { values, counts: counts.into_bump_slice(), ends: ends.into_bump_slice() })
    }
}

impl<'a> ByField<'a> {
    pub(super) fn of(&self, field: FieldId) -> &'a [Value<'a>] {
        let (end, count) = (self.ends[field.index()] as usize, self.counts[field.index()] as usize);
        &self.values[end - count..end]
    }
}

fn zeros(count: usize, arena: &Arena) -> Result<BumpVec<'_, u32>, Malformed> {
    let mut zeros = arena.list();
    zeros.try_reserve_exact(count).map_err(|_| Malformed::TooLarge)?;
    zeros.resize(count, 0);
    Ok(zeros)
}

#[cfg(test)]
mod tests {
    use super::super::{MessageType, Step};
    use super::*;

    #[test]
    fn of_a_field_whose_first_element_is_wanted_an_array_keeps_its_beginning() {
        let pairs = "55=7\u{1}".repeat(1_000);
        let elements = format!("<m>{}</m>", "<a>7</a>".repeat(1_000));
        let json = format!("{{\"a\":[7{}]}}", ",7".repeat(999));
        for (message_type, data, path) in [
            (MessageType::Fix, pairs, &["55"][..]),
            (MessageType::Xml, elements, &["m", "a"]),
            (MessageType::Json, json, &["a"]),
        ] {
            let path: Vec<_> = path.iter().map(|name| Step::Name(name.as_bytes().into())).collect();
            for (mut plan, expected) in
                [(FieldPlan::default(), 1_000), (FieldPlan::of_first_elements(), FIRST_VALUES as usize)]
            {
                let (field, arena) = (plan.add(&path), Arena::default());
                let values = message_type.read(data.as_bytes(), &plan, &arena).unwrap();
                let Value::Array(elements) = values[field.index()] else { panic!("no array") };
                assert_eq!(elements.len(), expected, "{message_type:?}");
                assert_eq!(arena.text(values[field.index()]), Some(&b"7"[..]));
                // The fields below it are found as for other fields.
                plan.add(&[&*path, &[Step::Index(900)]].concat());
                let values = message_type.read(data.as_bytes(), &plan, &arena).unwrap();
                assert!(matches!(values[field.index()], Value::Array(elements) if elements.len() == 1_000));
            }
        }
    }
}
