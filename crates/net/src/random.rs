//! Randomness from the system: ids that cannot be guessed, and jitter.

use std::cell::RefCell;
use std::fmt::Write;
use std::time::Duration;

use kofm_core::SiteId;

/// So many random bytes, in hexadecimal.
pub(crate) fn hex<const N: usize>() -> String {
    let mut text = String::with_capacity(2 * N);
    push_hex::<N>(&mut text);
    text
}

/// An id of so many random bytes: it says what it is, and which site gave it out.
pub(crate) fn id<const N: usize>(kind: char, site: SiteId) -> String {
    let mut text = String::with_capacity(2 * N + 8);
    write!(text, "{kind}{}-", site.0).expect("a string takes everything");
    push_hex::<N>(&mut text);
    text
}

fn push_hex<const N: usize>(text: &mut String) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for byte in bytes::<N>() {
        text.push(DIGITS[usize::from(byte >> 4)].into());
        text.push(DIGITS[usize::from(byte & 15)].into());
    }
}

/// A time in this range.
pub(crate) fn between(min: Duration, max: Duration) -> Duration {
    let range = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
    let nanos = u64::from_le_bytes(bytes::<8>()).checked_rem(range).unwrap_or(0);
    min + Duration::from_nanos(nanos)
}

/// Any number.
pub(crate) fn number() -> u64 {
    u64::from_le_bytes(bytes::<8>())
}

fn bytes<const N: usize>() -> [u8; N] {
    POOL.with_borrow_mut(|pool| {
        if pool.len() < N {
            // Ids are made for every grant; the system is asked once for many.
            pool.resize(4096, 0);
            getrandom::fill(pool).expect("the system has randomness once it is up");
        }
        let mut bytes = [0; N];
        let rest = pool.len() - N;
        bytes.copy_from_slice(&pool[rest..]);
        pool.truncate(rest);
        bytes
    })
}

thread_local! {
    static POOL: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
