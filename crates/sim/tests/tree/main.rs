//! What only the tree protocol does: tokens stay right, claims wait no longer than they should, and
//! everything heals.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod closure;
mod healing;
mod hostile;
mod waiting;
