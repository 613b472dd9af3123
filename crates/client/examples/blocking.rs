//! Holds a unit while a loop runs, in a program without an event loop.
//!
//! `kofm up &`, then `cargo run -p kofm-client --example blocking`.

use std::thread::sleep;
use std::time::Duration;

use kofm_client::api::Submit;
use kofm_client::blocking::Client;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env()?;
    let want = [("licence".to_owned(), 1)].into();
    let lease = client.acquire(&Submit { want, ..Submit::default() })?;
    println!("licence {}", lease.lease().units["licence"].join(","));
    for step in 1..=3 {
        // Checked before every step that uses the licence.
        if lease.is_lost() {
            return Err("the lease is lost".into());
        }
        println!("step {step}");
        sleep(Duration::from_millis(100));
    }
    lease.release()?;
    Ok(())
}
