//! `kofm doctor`: what is wrong with the cluster, and what to type.

use clap::Args;
use kofm_net::api::Health;
use kofm_net::client::Client;

use crate::ask::Server;
use crate::exit::Exit;
use crate::output::{say_line, tell};
use crate::tables::print_json;

const EXIT: &str = "\
Exit code 0 if the site reports no problem, 1 if it reports one, 69 if no site
answers.

Examples:
  kofm doctor
  kofm doctor --addr http://10.0.0.2:7600 --json";

#[derive(Debug, Args)]
#[command(after_help = EXIT)]
pub(crate) struct Doctor {
    #[command(flatten)]
    server: Server,
    /// Print JSON: {"health","site","epoch","problems":[…]}
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let asked = self.server.with(async |client| Ok(client.get::<Health>("/v1/health").await?));
        let health = asked.map_err(|exit| match exit.code {
            crate::exit::UNREACHABLE => {
                let advice = "start a site with `kofm serve --config site.toml` or `kofm up`, or \
                              set KOFM_ADDR to the address of one that runs";
                Exit::new(exit.code, format!("{}; {advice}", exit.message))
            }
            _ => exit,
        })?;
        if self.json {
            print_json(&health)?;
        } else if health.problems.is_empty() {
            say_line(&format!("site {}: {}, epoch {}", health.site, health.health, health.epoch));
        } else {
            say_line(&format!("site {}: {}", health.site, health.health));
            for problem in &health.problems {
                say_line(&format!("\n{}\n  {}", problem.message, problem.action));
            }
        }
        if health.health == "ok" { Ok(()) } else { Err(Exit::silent()) }
    }
}

/// The problems of the site in lines, if its last answer said that there are any.
pub(crate) async fn troubles(client: &Client) -> String {
    if client.health().is_none_or(|health| health == "ok") {
        return String::new();
    }
    let Ok(health) = client.get::<Health>("/v1/health").await else { return String::new() };
    let line = |it: &kofm_net::api::Problem| format!("{}: {}\n", it.code, it.message);
    health.problems.iter().map(line).collect()
}

/// Says on standard error what is wrong with the site, if anything is.
pub(crate) async fn warn(client: &Client) {
    let text = troubles(client).await;
    for line in text.lines() {
        tell(&format!("kofm: {line}"));
    }
    if !text.is_empty() {
        tell("kofm: `kofm doctor` shows what to do");
    }
}
