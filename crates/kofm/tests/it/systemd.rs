//! `kofm serve` under a supervisor that speaks systemd's protocol.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use crate::harness::{KOFM, LONG, exit_code, signal, temp_dir};

fn next_state(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 256];
    let size = socket.recv(&mut buffer).expect("the site tells its state");
    String::from_utf8_lossy(&buffer[..size]).into_owned()
}

#[test]
fn a_site_tells_systemd_that_it_is_ready_alive_and_stopping() {
    let dir = temp_dir();
    let (path, config) = (dir.join("notify"), dir.join("site.toml"));
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    fs::write(&config, "site = \"one\"\nhttp = \"127.0.0.1:0\"\n[pools]\nx = 1\n").unwrap();
    let mut child = Command::new(KOFM)
        .args(["serve", "--config"])
        .arg(&config)
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "100000")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(next_state(&socket), "READY=1");
    for _ in 0..3 {
        assert_eq!(next_state(&socket), "WATCHDOG=1");
    }
    signal(&child, "TERM");
    while next_state(&socket) != "STOPPING=1" {}
    assert_eq!(exit_code(&mut child), 0);
    fs::remove_dir_all(dir).unwrap();
}
