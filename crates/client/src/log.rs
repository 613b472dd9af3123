//! Messages to the operator of the program: events of `tracing` with the feature `log`, else
//! nothing.

use std::fmt::Display;

#[cfg(feature = "log")]
macro_rules! levels {
    ($($level:ident)*) => {$(
        pub(crate) fn $level(text: &dyn Display) {
            tracing::$level!("{text}");
        }
    )*};
}

#[cfg(not(feature = "log"))]
macro_rules! levels {
    ($($level:ident)*) => {$(
        pub(crate) fn $level(_text: &dyn Display) {}
    )*};
}

levels!(error warn debug);
