//! What only the tree protocol does: tokens stay right, claims wait no longer than they should, and
//! everything heals.

mod closure;
mod healing;
mod waiting;
