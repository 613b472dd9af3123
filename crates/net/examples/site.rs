//! The smallest daemon that serves a site: `cargo run -p kofm-net --example site -- serve --config
//! site.toml`.

use std::io;

use kofm_net::config::Config;
use kofm_net::{Access, Site};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let filter = tracing_subscriber::EnvFilter::from_env("KOFM_LOG");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let path = std::env::args().next_back().unwrap_or_default();
    let config = Config::parse(&std::fs::read_to_string(path)?)?;
    let http = config.http.clone().unwrap_or_default();
    let site = Site::start(config).await?;
    let listener = TcpListener::bind(http).await?;
    tokio::spawn(kofm_net::http::serve(site.clone(), listener, Access::open()));
    signal(SignalKind::terminate())?.recv().await;
    site.drain(std::time::Duration::from_secs(1)).await;
    site.stop().await;
    Ok(())
}
