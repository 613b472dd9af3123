//! Logs of the daemon: stderr, filtered by `KOFM_LOG`.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::output::tell;

#[derive(Debug, Args)]
pub(crate) struct Log {
    /// How logs are written
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
