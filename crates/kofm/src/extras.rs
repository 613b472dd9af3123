//! Completion scripts and manual pages, from the definitions of the commands.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::definition;
use crate::exit::Exit;
use crate::output::say;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut definition(), "kofm", &mut script);
        say(&String::from_utf8_lossy(&script));
    }
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Where to write the pages; without it, kofm(1) goes to stdout
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let command = definition();
        if let Some(dir) = self.dir {
            std::fs::create_dir_all(&dir)?;
            clap_mangen::generate_to(command, dir)?;
        } else {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            say(&String::from_utf8_lossy(&page));
        }
        Ok(())
    }
}
