//! The choice of an index for a filter.

use super::walk::{Part, Walk, Which};
use super::{Indexes, hash_of_texts, number_bits, prefix_of, value_of};
use quire_expression::filter::{Equality, Filter, Range, path_of};
use quire_expression::message_type::{Number, Step, Value};

/// The most combinations of texts of `IN` lists that are looked up.
const COMBINATIONS_MAX: usize = 1_024;

/// A walk over the slots of the index with the fewest results, and their number.
pub(super) fn best(indexes: &Indexes, filter: &Filter) -> Option<(Walk, usize)> {
    if indexes.is_empty() {
        return None;
    }
    let equalities = with_paths(filter.equalities(), |equality| equality.field);
    let ranges = with_paths(filter.ranges(), |range| range.field);
    let mut walks = Vec::new();
    let mut paths = indexes.fields.paths();
    for (number, index) in indexes.hash.iter().enumerate() {
        let (own, others) = paths.split_at(index.width);
        paths = others;
        if indexes.is_whole(Which::Hash(number)) {
            walks.extend(by_hash(number, own, &equalities));
        }
    }
    for (number, path) in paths.iter().enumerate() {
        if indexes.is_whole(Which::Ordered(number)) {
            let by_range = |is_text| by_range(number, path, &ranges, is_text);
            walks.extend([false, true].into_iter().filter_map(by_range));
        }
    }
    let counted = walks.into_iter().map(|walk| {
        let count = walk.count(indexes);
        (walk, count)
    });
    counted.min_by_key(|(_, count)| *count)
}

/// Conditions, each with the path of its field. A path identifies a field in any notation.
pub(super) fn with_paths<T>(conditions: Vec<T>, field: impl Fn(&T) -> &str) -> Vec<(Vec<Step>, T)> {
    conditions.into_iter().map(|condition| (path_of(field(&condition)), condition)).collect()
}

/// The slots with the wanted texts in all fields of a hash index.
fn by_hash(number: usize, paths: &[Vec<Step>], equalities: &[(Vec<Step>, Equality<'_>)]) -> Option<Walk> {
    let texts_of = |path: &Vec<Step>| {
        let mut own = equalities.iter().filter(|(known, _)| known == path);
        own.find_map(|(_, equality)| equality.plain_texts())
    };
    let texts = paths.iter().map(texts_of).collect::<Option<Vec<_>>>()?;
    let mut parts = Vec::new();
    for_each_combination(&texts, |texts| {
        let hash = hash_of_texts(texts);
        parts.push(Part::Hash([hash, 0]..=[hash, u32::MAX]));
    })?;
    Some(Walk::new(Which::Hash(number), parts))
}

/// Calls `each` with every choice of one text of each list. `None`: there are too many.
pub(super) fn for_each_combination<T: AsRef<[u8]>>(
    lists: &[Vec<T>],
    mut each: impl FnMut(&mut dyn Iterator<Item = &[u8]>),
) -> Option<()> {
    let count = lists.iter().try_fold(1_usize, |count, texts| count.checked_mul(texts.len()))?;
    if count > COMBINATIONS_MAX {
        return None;
    }
    for combination in 0..count {
        // The digits of the number of the combination choose one text of each list.
        let mut rest = combination;
        each(&mut lists.iter().map(|texts| {
            let text = texts[rest % texts.len()].as_ref();
            rest /= texts.len();
            text
        }));
    }
    Some(())
}

/// The slots whose value is within all ranges of the field with bounds of one type, numbers or
/// texts. Ranges with bounds of the other type are left out: a text that is a number may satisfy
/// one bound as a number, and the other one as a text.
fn by_range(number: usize, path: &[Step], ranges: &[(Vec<Step>, Range<'_>)], is_text: bool) -> Option<Walk> {
    let mut within = Within::default();
    for (known, range) in ranges {
        if known == path {
            range.low.iter().for_each(|low| within.raise(*low, is_text));
            range.high.iter().for_each(|high| within.lower(*high, is_text));
        }
    }
    if !within.is_restricted {
        return None;
    }
    let values = |range: Option<(u64, u64)>| {
        let (low, high) = range.filter(|(low, high)| low <= high)?;
        Some(value_of(low, 0)..=value_of(high, u32::MAX))
    };
    let parts = [values(within.numbers).map(Part::Numbers), values(within.texts).map(Part::Texts)];
    Some(Walk::new(Which::Ordered(number), parts.into_iter().flatten().collect()))
}

/// Slots that were found, up to a limit.
pub(super) struct Found {
    slots: Vec<u32>,
    count_max: usize,
}

impl Found {
    pub fn new(count_max: usize) -> Self {
        Found { slots: Vec::new(), count_max }
    }

    /// Adds a slot. Returns whether more may follow.
    pub fn push(&mut self, slot: u32) -> bool {
        // One slot above the limit is kept, which shows that the limit is exceeded.
        if self.slots.len() <= self.count_max {
            self.slots.push(slot);
        }
        self.slots.len() <= self.count_max
    }

    pub fn slots(self) -> Option<Vec<u32>> {
        (self.slots.len() <= self.count_max).then_some(self.slots)
    }
}

/// The range of a value as a number, and its range as a text. `None`: the value is of the other
/// kind.
struct Within {
    numbers: Option<(u64, u64)>,
    texts: Option<(u64, u64)>,
    is_restricted: bool,
}

impl Default for Within {
    fn default() -> Self {
        Within { numbers: Some((0, u64::MAX)), texts: Some((0, u64::MAX)), is_restricted: false }
    }
}

impl Within {
    /// The value is this or greater.
    fn raise(&mut self, low: Value<'_>, is_text: bool) {
        match bound_of(low) {
            Some(Bound::Number(number)) if !is_text => {
                // A text that is not a number is greater than every number.
                self.is_restricted = true;
                raise(&mut self.numbers, number_bits(number));
            }
            Some(Bound::Text(text, number)) if is_text => {
                self.is_restricted = true;
                match number {
                    Some(number) => raise(&mut self.numbers, number_bits(number)),
                    None => self.numbers = None,
                }
                raise(&mut self.texts, prefix_of(text));
            }
            _ => {}
        }
    }

    /// The value is this or less.
    fn lower(&mut self, high: Value<'_>, is_text: bool) {
        match bound_of(high) {
            Some(Bound::Number(number)) if !is_text => {
                self.is_restricted = true;
                lower(&mut self.numbers, number_bits(number));
                self.texts = None;
            }
            Some(Bound::Text(text, number)) if is_text => {
                self.is_restricted = true;
                if let Some(number) = number {
                    lower(&mut self.numbers, number_bits(number));
                }
                lower(&mut self.texts, prefix_of(text));
            }
            _ => {}
        }
    }
}

enum Bound<'a> {
    Number(Number),
    /// A text that is a number, and this number.
    Text(&'a [u8], Option<Number>),
}

/// A bound for comparisons as numbers or as texts. `None` for Booleans, and for texts that are the
/// name of one.
fn bound_of(value: Value<'_>) -> Option<Bound<'_>> {
    match value {
        Value::Number(number, _) if !number.is_nan() => Some(Bound::Number(number)),
        Value::Text(text) if !text.eq_ignore_ascii_case(b"true") && !text.eq_ignore_ascii_case(b"false") => {
            Some(Bound::Text(text, Number::parse(text)))
        }
        _ => None,
    }
}

fn raise(range: &mut Option<(u64, u64)>, low: u64) {
    *range = range.map(|(known, high)| (known.max(low), high));
}

fn lower(range: &mut Option<(u64, u64)>, high: u64) {
    *range = range.map(|(low, known)| (low, known.min(high)));
}
