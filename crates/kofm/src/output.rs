//! What people look at while and after a command runs.

use std::io::{self, Write};

/// Prints to standard output; a reader that has gone away ends the program quietly, as pipes do.
pub(crate) fn say(text: &str) {
    if let Err(error) = try_say(text) {
        let gone = error.kind() == io::ErrorKind::BrokenPipe;
        if !gone {
            tell(&format!("kofm: cannot write to standard output: {error}"));
        }
        std::process::exit(i32::from(!gone));
    }
}

/// The same for a line.
pub(crate) fn say_line(text: &str) {
    say(&format!("{text}\n"));
}

/// The same, where there is something to do before the program ends, or where it goes on.
pub(crate) fn try_say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// A line on standard error. It is talk: the work goes on where nobody can hear it.
pub(crate) fn tell(text: &str) {
    mutter(&format!("{text}\n"));
}

/// Writes to standard error as it is.
pub(crate) fn mutter(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}
