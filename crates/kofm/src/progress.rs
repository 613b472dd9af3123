//! Output of long runs: a progress line, and files that appear only when they are complete.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::exit::Exit;
use crate::output::mutter;

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
/// standard error is not a terminal.
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
        // After `finish` it is gone already; otherwise it is half a trace, which is of no use.
        let _gone = std::fs::remove_file(&self.partial);
    }
}
