//! `kofm top` in a terminal: it shows the lists, obeys keys, and leaves the terminal as it was.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::harness::{Cluster, KOFM, exit_code, temp_dir, until};

/// `kofm top` under `script`, which gives it a terminal of 80 columns and 24 lines.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    dir: PathBuf,
}

impl Terminal {
    fn start(cluster: &Cluster, fault: bool) -> Option<Self> {
        if Command::new("script").arg("--version").output().is_err() {
            eprintln!("NOT RUN: kofm top in a terminal: `script` (util-linux) is missing");
            return None;
        }
        let dir = temp_dir();
        let inner = "stty rows 24 cols 80; stty -g > before; \"$KOFM\" top --every 100ms & \
                     echo $! > pid; wait $!; echo $? > code; stty -g > after";
        fs::write(dir.join("inner.sh"), inner).unwrap();
        let mut command = Command::new("script");
        command.args(["-qfec", "sh inner.sh", "screen"]).current_dir(&dir);
        command.env("KOFM", KOFM).env("KOFM_ADDR", &cluster.http[0]).env("TERM", "xterm");
        if fault {
            command.env("KOFM_TEST_FAULTS", "1");
        } else {
            command.env_remove("KOFM_TEST_FAULTS");
        }
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let keys = child.stdin.take().unwrap();
        Some(Self { child, keys, dir })
    }

    fn text(&self, file: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join(file)).unwrap_or_default()).into_owned()
    }

    fn shows(&self, text: &str) {
        until(text, || self.text("screen").contains(text));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// The exit code of `kofm top`, after which the terminal is as before.
    fn end(mut self) -> String {
        exit_code(&mut self.child);
        let screen = self.text("screen");
        assert!(screen.contains("\x1b[?1049h"), "it used the other screen");
        let left = screen.rfind("\x1b[?1049l").expect("it left the other screen");
        assert!(
            screen[left..].contains("\x1b[?25h")
                || screen.rfind("\x1b[?25h") > screen.rfind("\x1b[?25l")
        );
        assert_eq!(self.text("before"), self.text("after"), "the modes of the terminal");
        let code = self.text("code").trim().to_owned();
        fs::remove_dir_all(&self.dir).ok();
        code
    }
}

fn cluster() -> Cluster {
    let cluster = Cluster::start(1, "[pools.gpu]\nunits = [\"gpu-0\", \"gpu-1\"]\n");
    let acquire = ["acquire", "gpu", "--owner", "alice", "--ttl", "10m"];
    assert!(cluster.run(0, &acquire).status.success());
    cluster
}

#[test]
fn top_shows_pools_and_units_and_ends_with_q() {
    let cluster = cluster();
    let Some(mut terminal) = Terminal::start(&cluster, false) else { return };
    terminal.shows("Healthy: the site reports no problem.");
    terminal.press("\r");
    terminal.shows("gpu-1");
    terminal.shows("alice");
    terminal.press("q");
    assert_eq!(terminal.end(), "0");
}

#[test]
fn top_restores_the_terminal_after_a_signal_and_after_a_panic() {
    let cluster = cluster();
    for name in ["TERM", "INT", "HUP"] {
        let Some(terminal) = Terminal::start(&cluster, false) else { return };
        terminal.shows("Healthy");
        let pid = terminal.text("pid").trim().to_owned();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
        assert_eq!(terminal.end(), "0", "{name}");
    }
    let Some(mut terminal) = Terminal::start(&cluster, true) else { return };
    terminal.shows("Healthy");
    terminal.press("!");
    assert_eq!(terminal.end(), "101");
}

#[test]
fn top_prints_text_if_there_is_no_terminal() {
    let cluster = cluster();
    let output = cluster.run(0, &["top", "--once"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("alice"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    let mut command = cluster.command(0, &["top", "--every", "100ms"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut heads = 0;
    let mut line = String::new();
    while heads < 2 {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0, "it goes on");
        assert!(!line.contains('\x1b'), "{line}");
        heads += usize::from(line.starts_with("POOL "));
    }
    crate::harness::signal(&child, "TERM");
    assert_eq!(exit_code(&mut child), 0);
}
