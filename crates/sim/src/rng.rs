//! One small seeded generator.

/// A stream of numbers that its seed decides (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent stream, for one purpose.
    #[must_use]
    pub fn fork(&mut self, purpose: u64) -> Self {
        Self(self.bits() ^ purpose.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not zero. The bias is below 2^-32 for all that is asked here.
    pub fn below(&mut self, n: u64) -> u64 {
        let wide = u128::from(self.bits()) * u128::from(n);
        u64::try_from(wide >> 64).expect("the high half has 64 bits")
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A real number in (0, 1].
    pub fn unit(&mut self) -> f64 {
        let bits = ((self.bits() >> 11) + 1) as f64;
        bits / 9_007_199_254_740_992.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_its_published_stream() {
        // The first values of splitmix64 with seed 1234567, as in its reference implementation.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.bits(), 6_457_827_717_110_365_317);
        assert_eq!(rng.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn every_value_of_a_range_comes_up() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 5];
        for _ in 0..1_000 {
            seen[usize::try_from(rng.between(3, 7)).unwrap() - 3] += 1;
        }
        assert!(seen.iter().all(|&count| count > 150), "{seen:?}");
    }
}
