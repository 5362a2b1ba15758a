//! The choice of an index for a filter.

use super::{Indexes, OrderedIndex, hash_of_texts, number_bits, prefix_of, value_of};
use quire_expression::filter::{Equality, Filter, Range, path_of};
use quire_expression::message_type::{Number, Step, Value};

/// The most combinations of texts of `IN` lists that are looked up.
const COMBINATIONS_MAX: usize = 1_024;

/// The slots of the index that gives the fewest, if any gives at most `count_max`, or fewer than `best`.
pub(super) fn candidates(
    indexes: &Indexes,
    filter: &Filter,
    mut best: Option<Vec<u32>>,
    count_max: usize,
) -> Option<Vec<u32>> {
    // An index that gives as many slots as the best one replaces it.
    let equalities = with_paths(filter.equalities(), |equality| equality.field);
    let ranges = with_paths(filter.ranges(), |range| range.field);
    let limit = |best: &Option<Vec<u32>>| best.as_ref().map_or(count_max, Vec::len);
    let mut paths = indexes.fields.paths();
    for (number, index) in indexes.hash.iter().enumerate() {
        let (own, others) = paths.split_at(index.width);
        paths = others;
        best = by_hash(indexes, number, own, &equalities, limit(&best)).or(best);
    }
    for (index, path) in indexes.ordered.iter().zip(paths) {
        for is_text in [false, true] {
            best = by_range(index, path, &ranges, is_text, limit(&best)).or(best);
        }
    }
    let mut slots = best?;
    slots.sort_unstable();
    slots.dedup();
    Some(slots)
}

/// Conditions, each with the path of its field. A path identifies a field in any notation.
pub(super) fn with_paths<T>(conditions: Vec<T>, field: impl Fn(&T) -> &str) -> Vec<(Vec<Step>, T)> {
    conditions.into_iter().map(|condition| (path_of(field(&condition)), condition)).collect()
}

/// The slots with the wanted texts in all fields of a hash index.
fn by_hash(
    indexes: &Indexes,
    number: usize,
    paths: &[Vec<Step>],
    equalities: &[(Vec<Step>, Equality<'_>)],
    count_max: usize,
) -> Option<Vec<u32>> {
    let index = &indexes.hash[number];
    let texts_of = |path: &Vec<Step>| {
        let mut own = equalities.iter().filter(|(known, _)| known == path);
        own.find_map(|(_, equality)| equality.plain_texts())
    };
    let texts = paths.iter().map(texts_of).collect::<Option<Vec<_>>>()?;
    let mut found = Found::new(count_max);
    index.irregular.for_each_in(0..=u32::MAX, |slot| found.push(slot));
    for_each_combination(&texts, |texts| {
        let hash = hash_of_texts(texts);
        index.slots.for_each_in([hash, 0]..=[hash, u32::MAX], |[_, slot]| found.push(slot));
    })?;
    found.slots()
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

/// The slots whose value is within all ranges of the field with bounds of one type, numbers or texts. Ranges with bounds of the other type
/// are left out, because a text that spells a number may meet the one as a number and the other as a text.
fn by_range(
    index: &OrderedIndex,
    path: &[Step],
    ranges: &[(Vec<Step>, Range<'_>)],
    is_text: bool,
    count_max: usize,
) -> Option<Vec<u32>> {
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
    let mut found = Found::new(count_max);
    index.irregular.for_each_in(0..=u32::MAX, |slot| found.push(slot));
    for (set, range) in [(&index.numbers, within.numbers), (&index.texts, within.texts)] {
        if let Some((low, high)) = range.filter(|(low, high)| low <= high) {
            set.for_each_in(value_of(low, 0)..=value_of(high, u32::MAX), |[_, _, slot]| found.push(slot));
        }
    }
    found.slots()
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
        // One slot above the limit is kept, so that the limit is known to be passed.
        if self.slots.len() <= self.count_max {
            self.slots.push(slot);
        }
        self.slots.len() <= self.count_max
    }

    pub fn slots(self) -> Option<Vec<u32>> {
        (self.slots.len() <= self.count_max).then_some(self.slots)
    }
}

/// The range of a value as a number, and its range as a text. `None`: the value is of the other kind.
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
                // A text that spells no number is greater than every number.
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
    /// A text, and the number that it spells.
    Text(&'a [u8], Option<Number>),
}

/// A bound that values are compared with as numbers or as texts; `None` for Booleans, and for texts that spell one.
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
