//! Randomness: ids that cannot be guessed, and jitter.
//!
//! A site draws all its numbers from one [`Random`], whose seed is an argument: the same seed and
//! inputs give the same ids. The functions beside it are for tasks outside the core.

use std::cell::RefCell;
use std::time::Duration;

use kofm_core::SiteId;
use kofm_site::random::Random;

/// A seed from the system.
pub(crate) fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).expect("the system has randomness once it is up");
    seed
}

/// A new token of 256 random bits, for one principal.
pub fn new_token() -> String {
    kofm_site::rules::make_token(seed())
}

/// A random time in this range.
pub(crate) fn between(min: Duration, max: Duration) -> Duration {
    SHARED.with_borrow_mut(|random| random.between(min, max))
}

/// Random bytes that cannot be guessed.
pub(crate) fn secret() -> [u8; 16] {
    let mut secret = [0; 16];
    secret.copy_from_slice(&seed()[..16]);
    secret
}

/// A random number.
pub(crate) fn number() -> u64 {
    SHARED.with_borrow_mut(Random::number)
}

/// A random id, see [`Random::id`].
pub(crate) fn id<const N: usize>(kind: char, site: SiteId) -> String {
    SHARED.with_borrow_mut(|random| random.id::<N>(kind, site))
}

thread_local! {
    static SHARED: RefCell<Random> = RefCell::new(Random::new(seed()));
}
