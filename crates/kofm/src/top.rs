//! `kofm top`: pools, leases and the queue, live in the terminal.

use std::time::Duration;

use clap::Args;
use kofm_net::api;

use crate::ask::Server;
use crate::doctor::troubles;
use crate::exit::Exit;
use crate::output::say;
use crate::serve::stop_signal;
use crate::tables::{leases_table, pools_table, queue_table};

/// Lines of each list; a screen has no more.
const LINES: usize = 15;

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// How often the screen is drawn
    #[arg(long, default_value = "1s", value_parser = kofm_net::duration::parse)]
    every: Duration,
    /// Draw once and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    server: Server,
}

impl Top {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let every = self.every.max(Duration::from_millis(100));
        self.server.with(async |client| {
            let stop = stop_signal();
            tokio::pin!(stop);
            loop {
                let pools: Vec<api::Pool> = client.get("/v1/pools").await?;
                let mut leases: Vec<api::Lease> = client.get("/v1/leases").await?;
                let mut queue: Vec<api::Request> = client.get("/v1/queue").await?;
                let health = troubles(&client).await;
                let (held, waiting) = (leases.len(), queue.len());
                leases.truncate(LINES);
                queue.truncate(LINES);
                let clear = if self.once { "" } else { "\x1b[H\x1b[2J" };
                say(&format!(
                    "{clear}{health}{}\n{held} leases\n{}\n{waiting} waiting\n{}",
                    pools_table(&pools),
                    leases_table(&leases),
                    queue_table(&queue)
                ));
                if self.once {
                    return Ok(());
                }
                tokio::select! {
                    () = tokio::time::sleep(every) => {}
                    stopped = &mut stop => return Ok(stopped?),
                }
            }
        })
    }
}
