//! What servers have used: processor time, and segments of TCP.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

/// Counters that grow while servers run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// Processor time of all threads, in nanoseconds.
    cpu_ns: u64,
    /// Segments with data and their bytes, if the program `ss` is installed.
    sent: Option<(u64, u64)>,
}

impl Usage {
    /// Reads the counters of these processes, of their children, and of these ports: the
    /// connections of clients, and those between servers, in both directions.
    pub(super) fn read(pids: &[u32], ports: &[u16]) -> Self {
        Self { cpu_ns: family(pids).into_iter().map(cpu_ns).sum(), sent: segments(ports) }
    }

    /// Processor time, segments and bytes since then, for each of `pairs`.
    pub(super) fn since(self, then: Self, pairs: f64) -> (f64, Option<(f64, f64)>) {
        #[expect(clippy::cast_precision_loss, reason = "averages for people")]
        let part = |now: u64, then: u64| now.saturating_sub(then) as f64 / pairs.max(1.0);
        let cpu_us = part(self.cpu_ns, then.cpu_ns) / 1e3;
        let sent = self.sent.zip(then.sent);
        (cpu_us, sent.map(|(now, then)| (part(now.0, then.0), part(now.1, then.1))))
    }
}

/// These processes and all that they have started.
fn family(pids: &[u32]) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name of the program is in parentheses; the state and the parent follow.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if let Some(parent) = parent.and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut open) = (BTreeSet::new(), pids.to_vec());
    while let Some(pid) = open.pop() {
        if found.insert(pid) {
            open.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

/// The time of all threads of a process, as the scheduler has counted it.
fn cpu_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let times = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    times.sum()
}

/// What `ss` says of all connections to and from these ports: segments with data, and bytes.
fn segments(ports: &[u16]) -> Option<(u64, u64)> {
    let ends = ports.iter().map(|port| format!("sport = :{port} or dport = :{port}"));
    let filter = format!("( {} )", ends.collect::<Vec<_>>().join(" or "));
    let mut command = Command::new("ss");
    command.args(["-tinH", "state", "established", &filter]).stdin(Stdio::null());
    let output = command.stderr(Stdio::null()).output().ok().filter(|it| it.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let sum = |name: &str| -> u64 {
        let words = text.split_whitespace().filter_map(|word| word.strip_prefix(name));
        words.filter_map(|number| number.parse::<u64>().ok()).sum()
    };
    Some((sum("data_segs_out:"), sum("bytes_sent:")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_used_time_and_has_its_children() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let me = std::process::id();
        assert!(family(&[me]).contains(&child.id()));
        assert!(!family(&[child.id()]).contains(&me));
        assert!(cpu_ns(me) > 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
