//! kofm from outside, as a user meets it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod lab;
