//! Randomness from the system: ids that cannot be guessed, and jitter.

use std::time::Duration;

/// So many random bytes, in hexadecimal.
pub(crate) fn hex<const N: usize>() -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * N);
    for byte in bytes::<N>() {
        write!(text, "{byte:02x}").expect("a string takes everything");
    }
    text
}

/// A time in this range.
pub(crate) fn between(min: Duration, max: Duration) -> Duration {
    let range = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
    let nanos = u64::from_le_bytes(bytes::<8>()).checked_rem(range).unwrap_or(0);
    min + Duration::from_nanos(nanos)
}

fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has randomness once it is up");
    bytes
}
