//! `kofm bench`: measure a cluster.
use clap::Args;

use crate::exit::{Exit, USAGE};

#[derive(Debug, Args)]
pub(crate) struct Bench {}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Exit> {
        Err(Exit::new(USAGE, "not yet"))
    }
}
