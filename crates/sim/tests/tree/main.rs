//! What only the tree protocol does.

mod closure;
