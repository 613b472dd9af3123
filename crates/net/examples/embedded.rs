//! The price of a local acquire and release at a site that is part of a program: time, messages to
//! other sites, and calls that read or write.
//! `cargo run --release -p kofm-net --example embedded -- 100000`

use std::error::Error;
use std::time::Instant;

use kofm_net::Site;
use kofm_net::config::Config;

const CONFIG: &str = r#"
cluster = "embedded"
site = "a"
http = "127.0.0.1:0"
[members]
a = "127.0.0.1:0"
[pools]
slot = 4
"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let count: u32 = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse())?;
    let site = Site::start(Config::parse(CONFIG)?).await?;
    site.ready().await;
    // Tables and caches get their size.
    pairs(&site, count.div_ceil(10)).await?;
    let (messages, calls) = (messages(&site).await?, calls()?);
    let start = Instant::now();
    pairs(&site, count).await?;
    let time = start.elapsed();
    let (messages, calls) = (self::messages(&site).await? - messages, self::calls()? - calls);
    println!("{count} pairs, {:.0} ns each", time.as_secs_f64() * 1e9 / f64::from(count));
    println!("{messages} messages, {calls} calls that read or write, those of this count too");
    site.stop().await;
    Ok(())
}

/// Acquires one unit and releases it, again and again.
async fn pairs(site: &Site, count: u32) -> Result<(), Box<dyn Error>> {
    for _ in 0..count {
        drop(site.acquire([("slot", 1)]).await?);
    }
    Ok(())
}

/// Messages to and from other sites so far.
async fn messages(site: &Site) -> Result<u64, Box<dyn Error>> {
    let text = site.metrics().await?;
    let lines = text.lines().filter(|line| line.starts_with("kofm_messages_total"));
    Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}

/// Calls of this process that read or write, as the kernel counts them.
fn calls() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let counts = text.lines().filter_map(|line| {
        let number = line.strip_prefix("syscr: ").or_else(|| line.strip_prefix("syscw: "))?;
        number.parse::<u64>().ok()
    });
    Ok(counts.sum())
}
