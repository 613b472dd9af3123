//! `kofm member recover`: one site goes on where the majority of the voters is lost for good.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use kofm_net::config::Config;
use kofm_net::recover::recover;

use crate::exit::{CONFIG, Exit, USAGE};
use crate::output::{say_line, tell};

const HELP: &str = "\
Only if a majority of the voters is lost for good, with its disks. If they
only do not answer, start them or repair the network instead. Run this at one
site that is left, while that site is stopped. Units that the lost sites have
granted will be granted again: first stop everything that uses them.

Without --cluster the command only says what would be done.

Example: of the sites a, b and c, a and b have burnt:
  systemctl stop kofm
  kofm member recover --lost a,b --cluster lab
  systemctl start kofm";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Recover {
    /// All sites that are lost
    #[arg(long, value_name = "SITE,…", value_delimiter = ',', required = true)]
    lost: Vec<String>,
    /// Configuration of this site
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the cluster, typed to confirm
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    #[command(flatten)]
    dir: crate::member::Dir,
}

impl Recover {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let path = match self.config {
            Some(path) => path,
            None => self.dir.site_file()?,
        };
        let shown = path.display();
        let text = fs::read_to_string(&path)
            .map_err(|error| Exit::new(CONFIG, format!("{shown}: {error}; give --config")))?;
        let config = Config::parse(&text)
            .map_err(|mistakes| Exit::new(CONFIG, format!("{shown}: {mistakes}")))?;
        let lost = self.lost.join(", ");
        let Config { site, cluster, .. } = &config;
        if self.cluster.as_deref() != Some(cluster) {
            let given = self.cluster.map(|it| format!("--cluster {it}: this is {cluster}; "));
            return Err(Exit::new(
                USAGE,
                format!(
                    "WARNING: {}site {site} would go on without {lost}, as the only voter of \
                     cluster {cluster}. This cannot be taken back. It is safe only if {lost} never \
                     run again with their disks, and if no client uses a unit that they granted: \
                     otherwise one unit gets two holders. Nothing was changed; to do it, add \
                     --cluster {cluster}",
                    given.unwrap_or_default()
                ),
            ));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let lost_sites = self.lost.iter().cloned().collect();
        let done = runtime.block_on(recover(&config, &lost_sites));
        let done =
            done.map_err(|text| Exit::new(CONFIG, format!("{text}; nothing was changed")))?;
        tell(&format!(
            "WARNING: cluster {cluster} goes on from epoch {} as epoch {}, without {lost}: never \
             start them again with their disks",
            done.before, done.epoch
        ));
        say_line(&format!("next: kofm serve --config {shown}"));
        if !done.left.is_empty() {
            say_line(&format!("{} join by themselves when they run", done.left.join(", ")));
        }
        Ok(())
    }
}
