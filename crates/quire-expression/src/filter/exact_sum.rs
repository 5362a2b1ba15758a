//! Sums of floats without an error.
//!
//! A sum is an *expansion*: floats of which each one is much smaller than the next, and whose exact
//! sum is the exact sum of all added values (Shewchuk, "Adaptive Precision Floating-Point
//! Arithmetic", 1997). So a value that is added and removed again leaves no trace, and the order of
//! the additions has no effect on the result. Most sums have one to three parts, and none has more
//! than about 40: a part has 53 of the 2,098 bits of the range of floats.

use smallvec::SmallVec;

use super::aggregate::{Stored, put_number};

/// A float of at least this size is kept smaller by [`SCALE`], so that no sum overflows.
const LARGE: f64 = f64::from_bits((1023 + 900) << 52);

/// 2^-200, and 2^200.
const SCALE: f64 = f64::from_bits((1023 - 200) << 52);
const UNSCALE: f64 = f64::from_bits((1023 + 200) << 52);

/// The exact sum of floats.
#[derive(Clone, Debug, Default)]
pub(super) struct ExactSum {
    parts: Expansion,
    /// For values that few sums have.
    rare: Option<Box<Rare>>,
}

/// Values that are large or infinite.
#[derive(Clone, Debug, Default)]
struct Rare {
    /// The sum of the large values, times [`SCALE`].
    large: Expansion,
    /// The infinite values: how many of the positive and the negative one.
    infinite: [i64; 2],
}

/// Floats of increasing size that do not overlap, without zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct Expansion(SmallVec<[f64; 2]>);

impl ExactSum {
    /// Adds a value, which is not NaN.
    pub fn add(&mut self, value: f64) {
        if value.abs() < LARGE {
            return self.parts.add(value);
        }
        self.add_rare(value, 1);
    }

    /// Removes a value that was added.
    pub fn remove(&mut self, value: f64) {
        if value.abs() < LARGE {
            return self.parts.add(-value);
        }
        self.add_rare(value, -1);
    }

    #[cold]
    fn add_rare(&mut self, value: f64, count: i64) {
        let rare = self.rare.get_or_insert_default();
        if value.is_infinite() {
            rare.infinite[usize::from(value < 0.0)] += count;
        } else {
            rare.large.add(value * SCALE * count as f64);
        }
        if rare.large.0.is_empty() && rare.infinite == [0, 0] {
            self.rare = None;
        }
    }

    /// Adds an integer, which may have more bits than a float.
    pub fn add_integer(&mut self, integer: i128) {
        const BITS: u32 = 43;
        let part = |number: i128, place: i32| number as f64 * 2f64.powi(BITS as i32 * place);
        let lower = |number: i128| number & ((1 << BITS) - 1);
        self.add(part(lower(integer), 0));
        self.add(part(lower(integer >> BITS), 1));
        self.add(part(integer >> (2 * BITS), 2));
    }

    /// The sum, rounded once. NaN: it has both infinities.
    pub fn rounded(&self) -> f64 {
        let Some(rare) = &self.rare else { return self.parts.rounded() };
        match rare.infinite {
            [0, 0] => (),
            [_, 0] => return f64::INFINITY,
            [0, _] => return f64::NEG_INFINITY,
            _ => return f64::NAN,
        }
        let mut all = rare.large.clone();
        self.parts.0.iter().for_each(|part| all.add(part * SCALE));
        all.rounded() * UNSCALE
    }

    /// Appends the sum. The rare values follow if there are any.
    pub fn store(&self, out: &mut Vec<u8>) {
        self.parts.store(out);
        out.push(self.rare.is_some().into());
        if let Some(rare) = &self.rare {
            rare.large.store(out);
            rare.infinite.iter().for_each(|count| out.extend_from_slice(&count.to_le_bytes()));
        }
    }

    /// Reads a sum; `None`: the bytes are not one.
    pub fn restore(stored: &mut Stored<'_>) -> Option<Self> {
        let parts = Expansion::restore(stored)?;
        let [is_rare] = stored.array()?;
        let rare = match is_rare {
            0 => None,
            _ => Some(Box::new(Rare {
                large: Expansion::restore(stored)?,
                infinite: [i64::from_le_bytes(stored.array()?), i64::from_le_bytes(stored.array()?)],
            })),
        };
        Some(ExactSum { parts, rare })
    }
}

impl Expansion {
    /// Adds a float. The caller keeps the sum in the range of floats.
    pub fn add(&mut self, value: f64) {
        let mut sum = value;
        let mut count = 0;
        for place in 0..self.0.len() {
            let (larger, error) = two_sum(sum, self.0[place]);
            if error != 0.0 {
                self.0[count] = error;
                count += 1;
            }
            sum = larger;
        }
        self.0.truncate(count);
        if sum != 0.0 {
            self.0.push(sum);
        }
    }

    /// Adds the product of two floats, times `sign`.
    pub fn add_product(&mut self, left: f64, right: f64, sign: f64) {
        let (product, error) = two_product(left, right);
        self.add(sign * error);
        self.add(sign * product);
    }

    /// The parts, the smallest first.
    pub fn parts(&self) -> &[f64] {
        &self.0
    }

    /// Appends the number of parts, and the parts.
    pub fn store(&self, out: &mut Vec<u8>) {
        put_number(self.0.len() as u64, out);
        self.0.iter().for_each(|part| out.extend_from_slice(&part.to_bits().to_le_bytes()));
    }

    /// Reads an expansion; `None`: the bytes are not one.
    pub fn restore(stored: &mut Stored<'_>) -> Option<Self> {
        let count = stored.number()?;
        let part = |_| Some(f64::from_bits(u64::from_le_bytes(stored.array()?)));
        (0..count).map(part).collect::<Option<_>>().map(Expansion)
    }

    /// The sum, rounded to the nearest float, and to the even one of two.
    pub fn rounded(&self) -> f64 {
        let Some((largest, mut rest)) = self.0.split_last() else { return 0.0 };
        let mut sum = *largest;
        while let Some((next, smaller)) = rest.split_last() {
            let (rounded, error) = two_sum(sum, *next);
            (sum, rest) = (rounded, smaller);
            if error == 0.0 {
                continue;
            }
            // Exactly between two floats, the next part decides.
            let is_beyond = rest.last().is_some_and(|next| (*next < 0.0) == (error < 0.0));
            let other = sum + 2.0 * error;
            if is_beyond && other - sum == 2.0 * error {
                sum = other;
            }
            break;
        }
        sum
    }
}

/// The rounded sum, and its error. Their sum is exact.
fn two_sum(left: f64, right: f64) -> (f64, f64) {
    let sum = left + right;
    let of_right = sum - left;
    let of_left = sum - of_right;
    (sum, (left - of_left) + (right - of_right))
}

/// The rounded product, and its error. Their sum is exact for products between 2^-960 and 2^990.
fn two_product(left: f64, right: f64) -> (f64, f64) {
    let product = left * right;
    let ((high, low), (other_high, other_low)) = (split(left), split(right));
    let error = low * other_low - (((product - high * other_high) - low * other_high) - high * other_low);
    (product, error)
}

/// The upper 26 bits of a float, and the rest.
fn split(float: f64) -> (f64, f64) {
    const UPPER: f64 = ((1_u64 << 27) + 1) as f64;
    let scaled = UPPER * float;
    let high = scaled - (scaled - float);
    (high, float - high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers without a pattern.
    fn numbers(count: usize) -> impl Iterator<Item = u64> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        })
        .take(count)
    }

    #[test]
    fn a_sum_is_exact_and_rounded_once() {
        // Multiples of 2^-40 up to 2^60, so that a sum is an integer of 128 bits.
        let mut sum = ExactSum::default();
        let mut exact = 0_i128;
        for number in numbers(2_000) {
            let float = (number >> 11) as f64 * 2f64.powi((number % 60) as i32 - 40);
            let float = if number & 1 == 0 { float } else { -float };
            sum.add(float);
            exact += (float * 2f64.powi(40)) as i128;
            assert_eq!(sum.rounded(), exact as f64 * 2f64.powi(-40));
        }
    }

    #[test]
    fn what_is_removed_leaves_no_trace() {
        let mut sum = ExactSum::default();
        let floats: Vec<f64> = numbers(3_000).map(f64::from_bits).filter(|float| !float.is_nan()).collect();
        sum.add(0.1);
        floats.iter().for_each(|float| sum.add(*float));
        floats.iter().rev().step_by(2).for_each(|float| sum.remove(*float));
        floats.iter().rev().skip(1).step_by(2).for_each(|float| sum.remove(*float));
        assert_eq!(sum.parts.parts(), [0.1]);
        assert!(sum.rare.is_none());
        sum.remove(0.1);
        assert_eq!(sum.rounded(), 0.0);
        assert!(sum.parts.parts().is_empty());
    }

    #[test]
    fn large_and_infinite_values_do_not_damage_a_sum() {
        let mut sum = ExactSum::default();
        sum.add(1.5);
        (0..10).for_each(|_| sum.add(f64::MAX));
        assert_eq!(sum.rounded(), f64::INFINITY);
        (0..9).for_each(|_| sum.remove(f64::MAX));
        assert_eq!(sum.rounded(), f64::MAX);
        sum.add(f64::INFINITY);
        assert_eq!(sum.rounded(), f64::INFINITY);
        sum.add(f64::NEG_INFINITY);
        assert!(sum.rounded().is_nan());
        sum.remove(f64::INFINITY);
        assert_eq!(sum.rounded(), f64::NEG_INFINITY);
        sum.remove(f64::NEG_INFINITY);
        sum.remove(f64::MAX);
        assert_eq!(sum.rounded(), 1.5);
    }

    #[test]
    fn a_sum_between_two_floats_is_rounded_by_its_smallest_part() {
        let (one, half) = (1.0, f64::EPSILON / 2.0);
        for (rest, expected) in [(0.0, one), (1e-300, one + f64::EPSILON), (-1e-300, one)] {
            let mut sum = ExactSum::default();
            [rest, half, one].into_iter().for_each(|float| sum.add(float));
            assert_eq!(sum.rounded(), expected);
        }
    }

    #[test]
    fn integers_of_128_bits_are_added_exactly() {
        for integer in [i128::MAX, i128::MIN, i128::MIN + 1, (1 << 100) + 1, -(1 << 64) - 1, 7, 0] {
            let mut sum = ExactSum::default();
            sum.add_integer(integer);
            assert_eq!(sum.rounded(), integer as f64);
        }
    }
}
