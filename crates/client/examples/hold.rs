//! Holds two units for a second, and stops when the lease is lost.
//!
//! `kofm up &`, then `cargo run -p kofm-client --example hold`.

use std::time::Duration;

use kofm_client::Client;
use kofm_client::api::Submit;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // KOFM_ADDR may have several addresses: the client moves on when a site does not answer.
    let client = Client::from_env()?;
    let spec = Submit {
        want: [("gpu".to_owned(), 2)].into(),
        wait: Some(Duration::from_mins(1)),
        owner: Some("example".to_owned()),
        ..Submit::default()
    };
    let lease = client.acquire(&spec).await?;
    println!("running on {}, fence {}", lease.lease().units["gpu"].join(","), lease.lease().fence);
    tokio::select! {
        () = work() => println!("done"),
        // Another holder may have the units soon: the work is dropped, and has to stop.
        () = lease.lost() => println!("the lease is lost"),
    }
    lease.release().await?;
    Ok(())
}

async fn work() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}
