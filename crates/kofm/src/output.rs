//! What people look at while and after a command runs.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::exit::Exit;

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

fn mutter(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// A number with its thousands apart: 13,353,009.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A line on the terminal that says how far a long run is. Silent for short runs, and where
/// nobody looks.
#[derive(Debug)]
pub(crate) struct Progress {
    visible: bool,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(json: bool) -> Self {
        let visible = !json && io::stderr().is_terminal();
        Self { visible, started: Instant::now(), shown: None }
    }

    /// How long it has been.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shows a bar for `done` out of `total`, or only the text where there is no total.
    pub(crate) fn show(&mut self, done: u64, total: Option<u64>, what: &str) {
        let recently = self.shown.is_some_and(|at| at.elapsed() < Duration::from_millis(100));
        if !self.visible || recently || self.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.shown = Some(Instant::now());
        let bar = total.map_or_else(String::new, |total| {
            let filled = usize::try_from(done.min(total) * 30 / total.max(1)).unwrap_or(30);
            format!("[{}{}] ", "█".repeat(filled), "·".repeat(30 - filled))
        });
        let (done, seconds) = (grouped(done), self.elapsed().as_secs());
        mutter(&format!("\r\x1b[K{bar}{done} {what}, {seconds} s"));
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        if self.shown.take().is_some() {
            mutter("\r\x1b[K");
        }
    }
}

/// A file that appears under its name only when it is whole.
#[derive(Debug)]
pub(crate) struct WholeFile {
    path: PathBuf,
    partial: PathBuf,
    pub(crate) sink: BufWriter<File>,
}

impl WholeFile {
    pub(crate) fn create(path: &Path) -> Result<Self, Exit> {
        let name = path.file_name().ok_or_else(|| {
            Exit::usage(format!("--trace: {} does not name a file", path.display()))
        })?;
        if path.is_dir() {
            return Err(Exit::usage(format!("--trace: {} is a directory", path.display())));
        }
        let mut partial = name.to_owned();
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = path.with_file_name(partial);
        let file = File::create(&partial).map_err(|error| {
            Exit::usage(format!("--trace: cannot write {}: {error}", path.display()))
        })?;
        Ok(Self { path: path.to_owned(), partial, sink: BufWriter::new(file) })
    }

    pub(crate) fn finish(mut self) -> Result<(), Exit> {
        let done = self.sink.flush().and_then(|()| std::fs::rename(&self.partial, &self.path));
        done.map_err(|error| {
            Exit::negative(format!("cannot write {}: {error}", self.path.display()))
        })
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // After `finish` it is gone already; otherwise half a trace helps nobody.
        let _gone = std::fs::remove_file(&self.partial);
    }
}
