//! Logs of the daemon: stderr, filtered by `KOFM_LOG`.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing::error;
use tracing_subscriber::EnvFilter;

use crate::output::tell;

#[derive(Debug, Args)]
pub(crate) struct Log {
    /// Format of the log
    #[arg(long, value_enum, default_value_t = Format::Text)]
    log_format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl Log {
    /// Starts logging; `default` is the level without `KOFM_LOG`.
    pub(crate) fn start(&self, default: &str) {
        let wanted = std::env::var("KOFM_LOG").unwrap_or_default();
        let wanted = if wanted.is_empty() { default } else { &wanted };
        let filter = EnvFilter::try_new(wanted).unwrap_or_else(|error| {
            tell(&format!("kofm: KOFM_LOG is wrong, {default} is logged: {error}"));
            EnvFilter::new(default)
        });
        let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        // It would be told on stderr, which panics if the disk behind stderr is full.
        let log = log.with_ansi(colours).log_internal_errors(false);
        match self.log_format {
            Format::Text => log.with_target(false).init(),
            Format::Json => log.json().init(),
        }
    }
}

/// Ends the process when any thread panics, after a log line. A site whose thread has panicked is
/// in an unknown state: it must not answer clients, and a supervisor must see that it is gone.
pub(crate) fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        error!(%panic, "a thread panicked; the process aborts, please report the message");
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "KOFM_TEST_PANICS";

    /// The test starts itself as a child process, in which a thread panics.
    #[test]
    fn a_panic_in_any_thread_aborts_the_process() {
        if std::env::var_os(CHILD).is_some() {
            Log { log_format: Format::Json }.start("error");
            abort_on_panic();
            std::thread::spawn(|| panic!("as the test wants")).join().ok();
            return;
        }
        let me = std::env::current_exe().expect("a test has a file");
        let test = "log::tests::a_panic_in_any_thread_aborts_the_process";
        let child =
            Command::new(me).args(["--exact", "--nocapture", test]).env(CHILD, "1").output();
        let child = child.expect("a test can start itself");
        let text = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.signal(), Some(6), "{text}");
        assert!(
            text.contains("the process aborts") && text.contains("as the test wants"),
            "{text}"
        );
    }
}
