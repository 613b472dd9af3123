//! Randomness: ids that cannot be guessed, and jitter.
//!
//! A site draws all its numbers from one [`Random`], whose seed is an argument: the same seed and
//! inputs give the same ids.

use std::fmt::Write;
use std::time::Duration;

use kofm_core::SiteId;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Two streams of random numbers from one seed, so that jitter does not change ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    ids: ChaCha12Rng,
    jitter: ChaCha12Rng,
}

impl Random {
    pub fn new(seed: [u8; 32]) -> Self {
        let ids = ChaCha12Rng::from_seed(seed);
        let mut jitter = ids.clone();
        jitter.set_stream(1);
        Self { ids, jitter }
    }

    /// `N` random bytes in hexadecimal.
    pub fn hex<const N: usize>(&mut self) -> String {
        let mut text = String::with_capacity(2 * N);
        self.push_hex::<N>(&mut text);
        text
    }

    /// An id with `N` random bytes. It begins with its kind and the number of its site.
    pub fn id<const N: usize>(&mut self, kind: char, site: SiteId) -> String {
        let mut text = String::with_capacity(2 * N + 8);
        write!(text, "{kind}{}-", site.0).expect("a string takes everything");
        self.push_hex::<N>(&mut text);
        text
    }

    /// Bytes that cannot be guessed.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.ids.fill_bytes(&mut bytes);
        bytes
    }

    fn push_hex<const N: usize>(&mut self, text: &mut String) {
        const DIGITS: [u8; 16] = *b"0123456789abcdef";
        let mut bytes = [0; N];
        self.ids.fill_bytes(&mut bytes);
        for byte in bytes {
            text.push(DIGITS[usize::from(byte >> 4)].into());
            text.push(DIGITS[usize::from(byte & 15)].into());
        }
    }

    /// A time in this range.
    pub fn between(&mut self, min: Duration, max: Duration) -> Duration {
        let range = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
        let nanos = self.number().checked_rem(range).unwrap_or(0);
        min + Duration::from_nanos(nanos)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.jitter.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_the_same_ids_whatever_jitter_was_drawn() {
        let (mut calm, mut busy) = (Random::new([7; 32]), Random::new([7; 32]));
        busy.between(Duration::ZERO, Duration::from_secs(1));
        assert_eq!(calm.id::<8>('R', SiteId(3)), busy.id::<8>('R', SiteId(3)));
        let other = Random::new([8; 32]).hex::<8>();
        assert_ne!(Random::new([7; 32]).hex::<8>(), other);
    }

    #[test]
    fn a_time_lies_in_its_range() {
        let mut random = Random::new([1; 32]);
        let (min, max) = (Duration::from_millis(5), Duration::from_millis(6));
        for _ in 0..1000 {
            let time = random.between(min, max);
            assert!(min <= time && time < max, "{time:?}");
        }
        assert_eq!(random.between(min, min), min);
    }
}
