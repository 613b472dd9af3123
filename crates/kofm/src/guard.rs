//! `kofm __guard`: starts a command and ends it with its lease.
//!
//! The guard has no network: it waits for the wrapper's words, for the end of processes, and for a
//! timer that also runs during suspend. Signals such as those of `pkill kofm` do not end it.
//!
//! The guard owns every process of the command. It is a child subreaper: a process whose parent has
//! ended becomes a child of the guard. So the command has ended when the guard has no child left.
//! Where cgroup v2 can be used, the processes are in a cgroup of their own as well, which kills all
//! of them at once. The guard reports the end of the command only when no process of it is left.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Parser;
use kofm_net::{Boottime, Moment};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, getppid, kill_process,
    kill_process_group, set_child_subreaper, set_parent_process_death_signal, wait, waitpid,
};
use rustix::termios::{isatty, tcgetpgrp};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use signal_hook::consts::SIGCHLD;
use tokio::signal::unix::{SignalKind, signal};

use crate::cgroup::Cgroup;
use crate::exit::{Exit, SYSTEM};

/// After the wrapper has died or the lease is lost for certain.
pub(crate) const SHORT_GRACE: Duration = Duration::from_secs(1);
/// How often, a millisecond apart, it is looked whether what was killed is dead.
const PATIENCE: u32 = 1000;

/// The first argument of a guard.
pub(crate) const NAME: &str = "__guard";
/// The first argument of a process that becomes the command.
pub(crate) const STARTER: &str = "__start";

#[derive(Debug, Parser)]
pub(crate) struct Guard {
    /// The wrapper's socket
    #[arg(long)]
    socket: String,
    /// The cgroup of the command
    #[arg(long)]
    cgroup: Option<PathBuf>,
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// The process that becomes the command: what a process can only do to itself, before `exec`.
#[derive(Debug, Parser)]
pub(crate) struct Starter {
    /// The guard's process id
    #[arg(long)]
    guard: i32,
    /// The cgroup to enter
    #[arg(long)]
    cgroup: Option<PathBuf>,
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

impl Starter {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let cannot = |error: io::Error| Exit::new(126, format!("cannot run: {error}"));
        if let Some(path) = &self.cgroup {
            Cgroup::enter(path).map_err(cannot)?;
        }
        // If all processes of kofm are killed at once, the kernel still kills the command.
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| cannot(error.into()))?;
        if getppid() != Pid::from_raw(self.guard) {
            return Err(Exit::new(
                SYSTEM,
                "the guard process is gone; the command was not started",
            ));
        }
        let error = Command::new(&self.command[0]).args(&self.command[1..]).exec();
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        Err(Exit::new(code, format!("cannot run: {}: {error}", self.command[0])))
    }
}

impl Guard {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let address = SocketAddr::from_abstract_name(&self.socket)?;
        let mut wrapper = UnixStream::connect_addr(&address)?;
        let parent = getppid();
        let peer = rustix::net::sockopt::socket_peercred(&wrapper).map_err(io::Error::from)?;
        if parent != Some(peer.pid) {
            return Err(Exit::new(SYSTEM, "the guard is started by `kofm run` only"));
        }
        survive_signals()?;
        // What the command leaves behind becomes the guard's, so that it can be killed, too.
        set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
        let until = first_word(&mut wrapper)?;
        wrapper.set_nonblocking(true)?;
        if deadlines(&until).is_none_or(|(term, _)| Moment::now() >= term) {
            // Too late to begin.
            writeln!(wrapper, "lost")?;
            return Ok(());
        }
        // Everything that can fail comes before the command, which must not run without its guard.
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags).map_err(io::Error::from)?;
        let cgroup = self.cgroup.as_deref().map(Cgroup::open).transpose()?;
        let (ends, sender) = UnixStream::pair()?;
        ends.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(SIGCHLD, sender)?;
        match Watch::start(&self.command, self.cgroup.as_deref(), parent) {
            Ok((pid, group)) => {
                let mut watch = Watch::new(wrapper, timer, ends, cgroup, pid, group);
                watch.hear(&until);
                Ok(watch.watch().inspect_err(|_| watch.give_up())?)
            }
            Err(error) => {
                writeln!(wrapper, "cannot {}: {error}", self.command[0])?;
                Ok(())
            }
        }
    }
}

/// Only the wrapper and the clock decide when the command ends. Handlers that do nothing: what is
/// ignored would be ignored by the command, too, and handlers are not inherited.
fn survive_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _inside = runtime.enter();
    let mut kinds = vec![
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
        SignalKind::quit(),
    ];
    // What is ignored already stays so for the command, as without kofm.
    kinds.retain(|kind| !ignored(kind.as_raw_value()));
    for kind in kinds {
        // The handler stays after what would listen to it is dropped.
        drop(signal(kind)?);
    }
    Ok(())
}

/// Whether this process was started with a signal ignored.
pub(crate) fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal - 1) != 0
}

/// The first deadline: without one the command is not started.
fn first_word(wrapper: &mut UnixStream) -> io::Result<String> {
    let mut word = Vec::new();
    let mut byte = [0];
    while word.last() != Some(&b'\n') {
        wrapper.read_exact(&mut byte)?;
        word.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&word).trim().to_owned())
}

struct Watch {
    wrapper: UnixStream,
    heard: Vec<u8>,
    timer: OwnedFd,
    /// Readable after a child has ended.
    ends: UnixStream,
    cgroup: Option<Cgroup>,
    pid: Pid,
    /// Whether the command leads a group of its own; on a terminal it is in the wrapper's.
    group: bool,
    term: Moment,
    kill: Moment,
    done: Done,
    /// The status of the command's first process, once it has ended.
    ended: Option<WaitStatus>,
    /// Whether the guard has no child, and so the command no process.
    childless: bool,
    /// Whether the wrapper knows that the first process has ended and others run.
    left: bool,
    /// The wrapper has ended.
    abandoned: bool,
}

/// The strongest signal that was sent to end the command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    Nothing,
    Term,
    Kill,
}

impl Watch {
    fn start(
        words: &[String],
        cgroup: Option<&Path>,
        parent: Option<Pid>,
    ) -> io::Result<(Pid, bool)> {
        let terminal = isatty(rustix::stdio::stdin());
        let group = if terminal { getpgid(parent)?.as_raw_nonzero().get() } else { 0 };
        let mut command = Command::new(std::env::current_exe()?);
        command.args([STARTER, "--guard", &getpid().as_raw_nonzero().to_string()]);
        if let Some(cgroup) = cgroup {
            command.arg("--cgroup").arg(cgroup);
        }
        let child = command.arg("--").args(words).process_group(group).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok((pid.ok_or(io::ErrorKind::Other)?, !terminal))
    }

    fn new(
        wrapper: UnixStream,
        timer: OwnedFd,
        ends: UnixStream,
        cgroup: Option<Cgroup>,
        pid: Pid,
        group: bool,
    ) -> Self {
        Self {
            wrapper,
            heard: Vec::new(),
            timer,
            ends,
            cgroup,
            pid,
            group,
            term: Moment::now(),
            kill: Moment::now(),
            done: Done::Nothing,
            ended: None,
            childless: false,
            left: false,
            abandoned: false,
        }
    }

    /// Waits until no process of the command is left.
    fn watch(&mut self) -> io::Result<()> {
        loop {
            self.act()?;
            self.reap()?;
            if let Some(status) = self.ended {
                let over = self.is_over();
                if over || self.done == Done::Kill {
                    return self.report(status, !over);
                }
                self.report_left(status)?;
            }
            self.set_timer()?;
            self.wait()?;
            self.listen();
        }
    }

    /// Sends the signals that are due.
    fn act(&mut self) -> io::Result<()> {
        let now = Moment::now();
        if now >= self.term && self.done == Done::Nothing {
            self.done = Done::Term;
            self.signal_all(Signal::TERM);
            // A stopped process cannot act on TERM.
            self.signal_all(Signal::CONT);
        }
        if now >= self.kill && self.done >= Done::Term {
            self.done = Done::Kill;
            self.kill_all()?;
        }
        Ok(())
    }

    /// Sends a signal to the command: to its group, or to its first process on a terminal. Once
    /// that process has ended, the signal goes to all others.
    fn signal(&self, signal: Signal) {
        if self.ended.is_some() {
            self.signal_all(signal);
        } else if self.group {
            // It may be gone already; then its end is read next.
            kill_process_group(self.pid, signal).ok();
        } else {
            kill_process(self.pid, signal).ok();
        }
    }

    /// Sends a signal once to every process of the command, including those in other groups.
    fn signal_all(&self, signal: Signal) {
        let group = self.group && self.ended.is_none();
        if group {
            kill_process_group(self.pid, signal).ok();
        }
        for pid in self.processes() {
            if !(group && getpgid(Some(pid)) == Ok(self.pid)) {
                kill_process(pid, signal).ok();
            }
        }
    }

    /// All processes of the command.
    fn processes(&self) -> Vec<Pid> {
        let mut pids = descendants();
        pids.extend(self.cgroup.iter().flat_map(Cgroup::processes));
        pids.sort_unstable_by_key(|pid| pid.as_raw_nonzero());
        pids.dedup();
        pids
    }

    /// Returns true if no process of the command is left.
    fn is_over(&self) -> bool {
        self.childless && self.cgroup.as_ref().is_none_or(Cgroup::is_empty)
    }

    /// Ctrl-C goes to the group in the foreground, so the command has it when the wrapper has it,
    /// unless it leads a group of its own.
    fn told_by_terminal(&self) -> bool {
        let Ok(front) = tcgetpgrp(rustix::stdio::stdin()) else { return false };
        let inside = |pid| getpgid(pid).is_ok_and(|group| group == front);
        !self.group && inside(getppid()) && inside(Some(self.pid))
    }

    /// Kills every process of the command, for at most a second.
    fn kill_all(&mut self) -> io::Result<()> {
        for _ in 0..PATIENCE {
            self.reap()?;
            if self.is_over() {
                return Ok(());
            }
            self.cgroup.iter().for_each(Cgroup::kill);
            // Children of a killed process become children of the guard, and follow.
            for pid in children()? {
                kill_process(pid, Signal::KILL).ok();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A guard that cannot watch leaves no command behind; the wrapper kills the rest.
    fn give_up(&mut self) {
        self.kill_all().ok();
    }

    /// Collects the status of children that have ended.
    fn reap(&mut self) -> io::Result<()> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.pid => self.ended = Some(status),
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => {
                    self.childless = false;
                    return Ok(());
                }
                Err(rustix::io::Errno::CHILD) => {
                    self.childless = true;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Tells the wrapper once that the command has ended except for processes that it left.
    fn report_left(&mut self, status: WaitStatus) -> io::Result<()> {
        if self.left || self.abandoned || self.done >= Done::Term {
            return Ok(());
        }
        self.left = true;
        self.say(&format!("left {}", ended_as(status)))
    }

    fn report(&mut self, status: WaitStatus, stuck: bool) -> io::Result<()> {
        if self.abandoned {
            return Ok(());
        }
        let word = if stuck {
            "stuck".to_owned()
        } else if self.done >= Done::Term {
            "lost".to_owned()
        } else {
            ended_as(status)
        };
        self.say(&word)
    }

    fn say(&mut self, word: &str) -> io::Result<()> {
        self.wrapper.set_nonblocking(false)?;
        let said = writeln!(self.wrapper, "{word}");
        self.wrapper.set_nonblocking(true)?;
        said
    }

    fn set_timer(&self) -> io::Result<()> {
        let next = match self.done {
            Done::Nothing => self.term,
            Done::Term => self.kill,
            Done::Kill => Moment::now().after(SHORT_GRACE),
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value: next.timespec() };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let mut files =
            vec![PollFd::new(&self.ends, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        if !self.abandoned {
            files.push(PollFd::new(&self.wrapper, PollFlags::IN));
        }
        // With children left, their ends are enough.
        if let Some(cgroup) = self.cgroup.as_ref().filter(|_| self.childless) {
            files.push(PollFd::new(cgroup.events(), PollFlags::PRI));
        }
        match poll(&mut files, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Which child has ended is asked of the kernel.
        while (&self.ends).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        Ok(())
    }

    fn listen(&mut self) {
        if self.abandoned {
            return;
        }
        let mut buffer = [0; 512];
        match self.wrapper.read(&mut buffer) {
            Ok(0) => self.abandoned(),
            Ok(count) => self.heard.extend(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.abandoned(),
        }
        while let Some(end) = self.heard.iter().position(|&byte| byte == b'\n') {
            let word: Vec<u8> = self.heard.drain(..=end).collect();
            self.hear(String::from_utf8_lossy(&word).trim());
        }
    }

    /// The wrapper has ended, and the lease is not renewed any more.
    fn abandoned(&mut self) {
        self.abandoned = true;
        self.hear("lost");
    }

    fn hear(&mut self, word: &str) {
        if let Some(deadlines) = deadlines(word) {
            // What has begun to end is not called back.
            if self.done == Done::Nothing {
                (self.term, self.kill) = deadlines;
            }
            return;
        }
        match word.split_once(' ') {
            Some(("signal", rest)) => {
                let (number, origin) = rest.split_once(' ').unwrap_or((rest, ""));
                let signal = number.parse().ok().and_then(Signal::from_named_raw);
                if let Some(signal) = signal
                    && !(signal == Signal::INT && origin == "typed" && self.told_by_terminal())
                {
                    self.signal(signal);
                }
            }
            None if word == "lost" => self.stop(SHORT_GRACE),
            Some(("stop", grace)) => {
                self.stop(grace.parse().map_or(SHORT_GRACE, Duration::from_millis));
            }
            Some(_) | None => {}
        }
    }
}

impl Watch {
    fn stop(&mut self, grace: Duration) {
        let now = Moment::now();
        self.term = self.term.min(now);
        self.kill = self.kill.min(now.after(grace));
    }
}

/// `until TERM KILL`: when the command is told to end, and when it is killed.
fn deadlines(word: &str) -> Option<(Moment, Moment)> {
    let (term, kill) = word.strip_prefix("until ")?.split_once(' ')?;
    Some((Moment::from_nanos(term.parse().ok()?), Moment::from_nanos(kill.parse().ok()?)))
}

/// How a process ended, as the wrapper reads it.
fn ended_as(status: WaitStatus) -> String {
    match status.exit_status() {
        Some(code) => format!("exit {code}"),
        None => format!("killed {}", status.terminating_signal().unwrap_or(9)),
    }
}

/// For a wrapper whose guard does not work any more: kills the guard and the processes of its
/// command. Returns true if none is left.
pub(crate) fn kill_orphans(guard: Pid, cgroup: Option<&Cgroup>, except: &[Pid]) -> bool {
    kill_process(guard, Signal::KILL).ok();
    for _ in 0..PATIENCE {
        cgroup.into_iter().for_each(Cgroup::kill);
        // Its children become the wrapper's only when it is dead.
        if !matches!(waitpid(Some(guard), WaitOptions::NOHANG), Ok(None)) {
            return kill_children(cgroup, except);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Kills the children of this process except some, and theirs, which become its own when it is a
/// subreaper. Returns true if none is left.
fn kill_children(cgroup: Option<&Cgroup>, except: &[Pid]) -> bool {
    for _ in 0..PATIENCE {
        let Ok(mut left) = children() else { return false };
        left.retain(|pid| !except.contains(pid));
        if left.is_empty() && cgroup.is_none_or(Cgroup::is_empty) {
            return true;
        }
        cgroup.into_iter().for_each(Cgroup::kill);
        for pid in left {
            kill_process(pid, Signal::KILL).ok();
            waitpid(Some(pid), WaitOptions::NOHANG).ok();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// The processes whose parent is this one.
pub(crate) fn children() -> io::Result<Vec<Pid>> {
    let pid = getpid();
    let path = format!("/proc/self/task/{}/children", pid.as_raw_nonzero());
    Ok(pids(&std::fs::read_to_string(path)?))
}

/// All processes below this one.
fn descendants() -> Vec<Pid> {
    let mut found = children().unwrap_or_default();
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        next += 1;
        let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
        for task in tasks.into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(task.path().join("children"));
            found.extend(pids(&text.unwrap_or_default()));
        }
    }
    found
}

fn pids(text: &str) -> Vec<Pid> {
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}
