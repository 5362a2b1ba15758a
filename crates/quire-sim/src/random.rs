//! The one source of chance: a small generator (xorshift64*), so that the seed decides everything.

/// A generator whose numbers depend on its seed alone.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator; neighbouring seeds give unrelated numbers.
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..4 {
            random.number();
        }
        random
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.number() >> 11) % bound
    }

    /// True with this probability, in percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
