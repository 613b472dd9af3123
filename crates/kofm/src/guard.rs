//! `kofm __guard`: starts a command and kills it when its lease is over.
//!
//! Small on purpose: no network, one loop over three files (the wrapper's socket, the command's
//! pidfd, a timer that runs during suspend). It needs nobody to do its work, and whoever tells all
//! of kofm to end, as `pkill kofm` does, does not end it: it ends when its command has ended.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use clap::Parser;
use kofm_net::Moment;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpgid, getpid, getppid, kill_process,
    kill_process_group, pidfd_open, set_child_subreaper, waitpid,
};
use rustix::termios::{isatty, tcgetpgrp};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Exit, SYSTEM};

/// After the wrapper has died or the lease is lost for certain.
const SHORT_GRACE: Duration = Duration::from_secs(1);
/// How often, a millisecond apart, it is looked whether what was killed is dead.
const PATIENCE: u32 = 1000;

/// The first word for those who start one.
pub(crate) const NAME: &str = "__guard";

#[derive(Debug, Parser)]
pub(crate) struct Guard {
    /// The wrapper's socket
    #[arg(long)]
    socket: String,
    #[arg(last = true, required = true)]
    command: Vec<String>,
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
        // What can fail comes before the command, which must not run without its guard.
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags).map_err(io::Error::from)?;
        match Watch::start(&self.command, parent) {
            Ok((pid, group)) => {
                let mut watch = Watch::new(wrapper, timer, pid, group)?;
                watch.hear(&until);
                Ok(watch.watch().inspect_err(|_| watch.give_up())?)
            }
            Err(error) => {
                let missing = error.kind() == io::ErrorKind::NotFound;
                let word = if missing { "missing" } else { "cannot" };
                writeln!(wrapper, "{word} {}: {error}", self.command[0])?;
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
    pidfd: OwnedFd,
    pid: Pid,
    /// Whether the command leads a group of its own; on a terminal it is in the wrapper's.
    group: bool,
    term: Moment,
    kill: Moment,
    done: Done,
    /// Nobody waits for the command any more.
    abandoned: bool,
}

/// What was done to end the command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    Nothing,
    Term,
    Kill,
}

impl Watch {
    fn start(command: &[String], parent: Option<Pid>) -> io::Result<(Pid, bool)> {
        let terminal = isatty(rustix::stdio::stdin());
        let group = if terminal { getpgid(parent)?.as_raw_nonzero().get() } else { 0 };
        let child = Command::new(&command[0]).args(&command[1..]).process_group(group).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok((pid.ok_or(io::ErrorKind::Other)?, !terminal))
    }

    fn new(wrapper: UnixStream, timer: OwnedFd, pid: Pid, group: bool) -> io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            kill_process(pid, Signal::KILL).ok();
        })?;
        Ok(Self {
            wrapper,
            heard: Vec::new(),
            timer,
            pidfd,
            pid,
            group,
            term: Moment::now(),
            kill: Moment::now(),
            done: Done::Nothing,
            abandoned: false,
        })
    }

    /// Until the command has ended.
    fn watch(&mut self) -> io::Result<()> {
        loop {
            self.act();
            if let Some(status) = self.reap()? {
                let stuck = self.done >= Done::Term && !self.kill_all();
                return self.report(status, stuck);
            }
            self.set_timer()?;
            self.wait()?;
            self.listen();
        }
    }

    /// Does what is due.
    fn act(&mut self) {
        let now = Moment::now();
        if now >= self.term && self.done == Done::Nothing {
            self.done = Done::Term;
            self.signal(Signal::TERM);
            // A stopped command cannot act on TERM.
            self.signal(Signal::CONT);
        }
        if now >= self.kill && self.done == Done::Term {
            self.done = Done::Kill;
            self.kill_all();
        }
    }

    fn signal(&self, signal: Signal) {
        // It may be gone already; then its end is read next.
        if self.group {
            kill_process_group(self.pid, signal).ok();
        } else {
            kill_process(self.pid, signal).ok();
        }
    }

    /// Ctrl-C goes to the group in the foreground, so the command has it when the wrapper has it,
    /// unless it leads a group of its own.
    fn told_by_terminal(&self) -> bool {
        let Ok(front) = tcgetpgrp(rustix::stdio::stdin()) else { return false };
        let inside = |pid| getpgid(pid).is_ok_and(|group| group == front);
        !self.group && inside(getppid()) && inside(Some(self.pid))
    }

    /// Kills the command and everything it started, whatever group it went to; says whether
    /// nothing of it is left.
    fn kill_all(&self) -> bool {
        self.signal(Signal::KILL);
        kill_children(&[self.pid])
    }

    /// A guard that cannot watch leaves no command behind; what resists is left to the wrapper.
    fn give_up(&self) {
        self.kill_all();
    }

    fn reap(&self) -> io::Result<Option<WaitStatus>> {
        let ended = waitpid(Some(self.pid), WaitOptions::NOHANG)?;
        Ok(ended.map(|(_, status)| status))
    }

    fn report(&mut self, status: WaitStatus, stuck: bool) -> io::Result<()> {
        if self.abandoned {
            return Ok(());
        }
        let word = if stuck {
            "stuck".to_owned()
        } else if self.done >= Done::Term {
            "lost".to_owned()
        } else if let Some(code) = status.exit_status() {
            format!("exit {code}")
        } else {
            format!("killed {}", status.terminating_signal().unwrap_or(9))
        };
        self.wrapper.set_nonblocking(false)?;
        writeln!(self.wrapper, "{word}")
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
            vec![PollFd::new(&self.pidfd, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        if !self.abandoned {
            files.push(PollFd::new(&self.wrapper, PollFlags::IN));
        }
        match poll(&mut files, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
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

    /// The wrapper is dead: nobody renews, nobody waits for the command.
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
            None if word == "lost" => {
                let now = Moment::now();
                self.term = self.term.min(now);
                self.kill = self.kill.min(now.after(SHORT_GRACE));
            }
            Some(_) | None => {}
        }
    }
}

/// `until TERM KILL`: when the command is told to end, and when it is killed.
fn deadlines(word: &str) -> Option<(Moment, Moment)> {
    let (term, kill) = word.strip_prefix("until ")?.split_once(' ')?;
    Some((Moment::from_nanos(term.parse().ok()?), Moment::from_nanos(kill.parse().ok()?)))
}

/// For the wrapper, whose guard is gone without a last word: kills what the guard left behind. Says
/// whether nothing of it is left.
pub(crate) fn kill_orphans(guard: Pid, except: &[Pid]) -> bool {
    kill_process(guard, Signal::KILL).ok();
    for _ in 0..PATIENCE {
        // Its children become the wrapper's only when it is dead.
        if !matches!(waitpid(Some(guard), WaitOptions::NOHANG), Ok(None)) {
            return kill_children(except);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Kills the children of this process except some, and theirs, which become its own when it is a
/// subreaper. Says whether none is left.
fn kill_children(except: &[Pid]) -> bool {
    for _ in 0..PATIENCE {
        let Ok(mut left) = children() else { return false };
        left.retain(|pid| !except.contains(pid));
        if left.is_empty() {
            return true;
        }
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
    let path = format!("/proc/self/task/{}/children", getpid().as_raw_nonzero());
    let text = std::fs::read_to_string(path)?;
    Ok(text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}
