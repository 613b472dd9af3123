//! `kofm run`: a command that runs while its units are held, and not a moment longer.
//!
//! ```text
//!   kofm run ── waits, renews, forwards signals
//!      │  a socket: "until …", "signal …"            "exit …", "lost"
//!   kofm __guard ── starts the command, and kills it when the last "until" has passed
//!      │
//!   the command
//! ```
//!
//! Guard and wrapper watch each other. When the wrapper is stopped or dead, or the site is gone,
//! the guard ends the command. When the guard is stopped or dead, the wrapper does. The term of a
//! lease is counted from before its renewal was sent, so the command has ended before the site can
//! grant the units again. The wrapper releases the lease only when no process of the command is
//! left.

use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use kofm_net::api::{Code, Lease, Want};
use kofm_net::client::{Client, ClientError};
use kofm_net::{Boottime, Moment};
use rustix::process::{Pid, getpid, set_child_subreaper};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Origin;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::acquire::{Demand, acquire};
use crate::ask::Server;
use crate::cgroup::Cgroup;
use crate::exit::{Exit, LOST, SYSTEM, USAGE};
use crate::guard::{self, children, ignored, kill_orphans};
use crate::output::tell;

/// The part of the ttl by which the wrapper is early, because clocks differ in rate: 2 %.
const RATE: u32 = 50;
/// The part of the ttl by which the guard is early, so that it acts before the wrapper: 4 %.
const GUARD_RATE: u32 = 25;
/// After the guard was told that the lease is lost, the wrapper gives it this long beyond its
/// grace.
const GUARD_DELAY: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  kofm run gpu -- ./train.sh                     # KOFM_UNITS_GPU names the unit
  kofm run gpu:2 licence --wait 10m -- make sim  # all or nothing
  kofm run gpu:2 --env CUDA_VISIBLE_DEVICES=@gpu -- ./train.sh
  kofm run reboot --wait 0 --reason kernel -- echo 'my turn'

Exit code: the command's own, 128+signal if a signal ended it; 75 busy
(--wait 0), 124 --wait ran out, 76 the lease was lost and the command was
stopped.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    #[command(flatten)]
    demand: Demand,
    /// Variable to set to the units of POOL; may be repeated
    #[arg(long = "env", value_name = "VAR=@POOL")]
    env: Vec<String>,
    /// Time between TERM and KILL, at most a quarter of the ttl
    #[arg(long, value_name = "DUR", default_value = "5s", value_parser = kofm_net::duration::parse)]
    kill_grace: Duration,
    #[command(flatten)]
    server: Server,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Run {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let spec = self.demand.submit()?;
        let extra = self.extra_variables(&spec.want)?;
        let code = self.server.with(async |client| {
            let mut signals = Signals::new()?;
            let lease = acquire(&client, &spec, &self.demand, &mut signals).await?;
            let held = self.hold(&client, &lease, &extra, &mut signals).await;
            give_back(&client, &lease.id, held.unwrap_or_else(End::before_start)).await
        })?;
        if code == 0 { Ok(()) } else { Err(Exit::new(code, "")) }
    }

    /// Variables, and the pools whose units they are to name.
    fn extra_variables(&self, want: &Want) -> Result<Vec<(String, String)>, Exit> {
        let mut extra = Vec::new();
        for text in &self.env {
            let parts = text.split_once("=@").filter(|(variable, _)| !variable.is_empty());
            let (variable, pool) =
                parts.ok_or_else(|| Exit::new(USAGE, format!("--env {text}: write VAR=@POOL")))?;
            if !want.contains_key(pool) {
                return Err(Exit::new(USAGE, format!("--env {text}: {pool} is not asked for")));
            }
            extra.push((variable.to_owned(), pool.to_owned()));
        }
        Ok(extra)
    }

    /// Runs the command under its guard until one of them ends. Errors come before it starts.
    async fn hold(
        &self,
        client: &Client,
        lease: &Lease,
        extra: &[(String, String)],
        signals: &mut Signals,
    ) -> Result<End, Exit> {
        let mut guard = start_guard(&self.command, &Self::variables(lease, extra)).await?;
        // How old the grant is, nobody here knows: this process may have been stopped since. A
        // renewal has a beginning that is known.
        let sent = Moment::now();
        let renewed = client.renew(&lease.id).await?;
        // A lease is good for its ttl, but never for longer than its site is known to be.
        let certain = |renewed: &Lease| millis(lease.ttl_ms.min(renewed.expires_in_ms.max(1)));
        let mut ttl = certain(&renewed);
        let until = sent.after(millis(renewed.expires_in_ms));
        guard.until(until, ttl, self.kill_grace).await;
        // A moment, not a pause: signals that come often must not put it off.
        let mut next = Instant::now() + client.renews_after(ttl);
        let mut lost = false;
        loop {
            tokio::select! {
                word = guard.word() => {
                    if let Some(end) = guard.ended(word, &[]) {
                        return Ok(end);
                    }
                    tell("kofm: the command has ended and left processes; its units stay held \
                          until they have ended");
                }
                word = signals.word() => guard.say(&word).await,
                () = sleep_until(next), if !lost => {
                    let sent = Moment::now();
                    // A site that does not answer must not keep us from trying again.
                    let patience = if client.has_several() { ttl } else { ttl / 3 };
                    let renewed = timeout(patience, client.renew(&lease.id)).await;
                    let mut pause = (ttl / 20).max(Duration::from_millis(20));
                    match renewed {
                        Ok(Ok(renewed)) => {
                            ttl = certain(&renewed);
                            let until = sent.after(millis(renewed.expires_in_ms));
                            guard.until(until, ttl, self.kill_grace).await;
                            pause = client.renews_after(ttl);
                        }
                        Ok(Err(ClientError::Refused(error))) if error.error == Code::Gone => {
                            tell("kofm: the lease is lost; stopping the command");
                            guard.lost().await;
                            lost = true;
                        }
                        Ok(Err(error)) => tell(&format!("kofm: not renewed: {error}")),
                        Err(_) => {}
                    }
                    next = Instant::now() + pause;
                }
            }
        }
    }

    /// What the command is told.
    fn variables(lease: &Lease, extra: &[(String, String)]) -> Vec<(String, String)> {
        let mut env = told(&lease.id, lease.fence, &lease.units);
        for (variable, pool) in extra {
            let units = lease.units.get(pool).map_or(String::new(), |units| units.join(","));
            env.push((variable.clone(), units));
        }
        env
    }
}

/// What a command is told of its lease.
pub(crate) fn told(
    lease: &str,
    fence: u64,
    units: &BTreeMap<String, Vec<String>>,
) -> Vec<(String, String)> {
    let mut env = vec![
        ("KOFM_HELD".to_owned(), "true".to_owned()),
        ("KOFM_LEASE".to_owned(), lease.to_owned()),
        ("KOFM_TOKEN".to_owned(), kofm_net::lease_token(lease)),
        ("KOFM_FENCE".to_owned(), fence.to_string()),
    ];
    for (pool, units) in units {
        env.push((format!("KOFM_UNITS_{}", variable(pool)), units.join(",")));
    }
    env
}

/// Starts a command under a guard of its own.
pub(crate) async fn start_guard(
    words: &[String],
    env: &[(String, String)],
) -> Result<GuardLink, Exit> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    let name = format!("kofm-run-{:032x}", u128::from_le_bytes(bytes));
    let listener = StdUnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    listener.set_nonblocking(true)?;
    // What a guard leaves behind when it is killed becomes the wrapper's, which can kill it.
    set_child_subreaper(Some(getpid())).map_err(std::io::Error::from)?;
    let strangers = children().unwrap_or_default();
    let listener = UnixListener::from_std(listener)?;
    let mut command = Command::new(std::env::current_exe()?);
    let cgroup = Cgroup::create(&name);
    command.args([guard::NAME, "--socket", &name]);
    if let Some(cgroup) = &cgroup {
        command.arg("--cgroup").arg(cgroup.path());
    }
    command.arg("--").args(words);
    // A group of its own: a terminal's Ctrl-Z must not stop the guard.
    command.process_group(0).stdin(Stdio::inherit());
    // The command gets its units, and not the rights of its caller. `told` adds a token for its
    // lease.
    for credential in ["KOFM_TOKEN", "KOFM_CERT", "KOFM_KEY"] {
        command.env_remove(credential);
    }
    command.envs(env.iter().map(|it| (&it.0, &it.1)));
    let child = command.spawn()?;
    let limit = Duration::from_secs(10);
    loop {
        let accepted = timeout(limit, listener.accept()).await;
        let text = "the guard process does not answer";
        let (stream, _) = accepted.map_err(|_| Exit::new(SYSTEM, text))??;
        // Names of such sockets are public: only the process that was started counts.
        let pid = stream.peer_cred()?.pid();
        if pid.is_some_and(|pid| u32::try_from(pid) == Ok(child.id())) {
            let pid = pid.and_then(Pid::from_raw).ok_or(std::io::ErrorKind::Other);
            let pid = pid.map_err(std::io::Error::from)?;
            return Ok(GuardLink::new(stream, pid, cgroup, strangers));
        }
    }
}

/// Gives the lease back, if nothing runs any more that it was for.
pub(crate) async fn give_back(client: &Client, lease: &str, end: End) -> Result<u8, Exit> {
    if !end.over {
        tell("kofm: not released, for the command may still run; it will expire");
        return end.code;
    }
    // Who has lost the lease finds nothing to release, and that is harmless.
    if let Err(error) = client.release(lease).await {
        tell(&format!("kofm: not released, it will expire: {error}"));
    }
    end.code
}

/// What a command came to.
pub(crate) struct End {
    pub code: Result<u8, Exit>,
    /// Nothing of it runs any more.
    pub over: bool,
}

impl End {
    pub(crate) const fn before_start(exit: Exit) -> Self {
        Self { code: Err(exit), over: true }
    }

    /// The last word of the guard, as an exit code.
    pub(crate) fn told(word: &str) -> Self {
        let (kind, rest) = word.split_once(' ').unwrap_or((word, ""));
        let number = |text: &str| text.parse::<u8>().unwrap_or(u8::MAX);
        let code = match kind {
            "exit" => Ok(number(rest)),
            "killed" => Ok(number(rest).saturating_add(128)),
            "lost" => Err(Exit::new(LOST, "the lease was lost; the command was stopped")),
            "stuck" => Err(Exit::new(LOST, "the lease was lost; the command cannot be stopped")),
            _ => Err(Exit::new(126, format!("cannot run: {rest}"))),
        };
        Self { code, over: kind != "stuck" }
    }
}

/// What a wrapper learns of a guard.
pub(crate) enum Word {
    /// The command's first process has ended, and others of it run.
    Left(String),
    /// No process of the command is left, or it cannot be killed.
    Last(String),
    /// The guard has ended without a word.
    Gone,
    /// The guard should have ended the command by now: it is stopped.
    Overdue,
}

impl Word {
    pub(crate) fn read(line: Option<String>) -> Self {
        match line {
            None => Self::Gone,
            Some(line) => match line.strip_prefix("left ") {
                Some(left) => Self::Left(left.to_owned()),
                None => Self::Last(line),
            },
        }
    }
}

/// The line to a guard.
pub(crate) struct GuardLink {
    pub(crate) words: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
    pub(crate) pid: Pid,
    /// When the wrapper ends the command itself.
    pub(crate) limit: Option<Instant>,
    cgroup: Option<Cgroup>,
    /// Children that this process had before: a process that becomes kofm by `exec` may have some.
    strangers: Vec<Pid>,
}

impl GuardLink {
    fn new(stream: UnixStream, pid: Pid, cgroup: Option<Cgroup>, strangers: Vec<Pid>) -> Self {
        let (reader, writer) = stream.into_split();
        let words = BufReader::new(reader).lines();
        Self { words, writer, pid, limit: None, cgroup, strangers }
    }

    pub(crate) async fn say(&mut self, word: &str) {
        // A stopped guard reads nothing; its wrapper must not wait for it. A guard that is gone has
        // left its last word to be read.
        let line = format!("{word}\n");
        drop(timeout(GUARD_DELAY, self.writer.write_all(line.as_bytes())).await);
    }

    /// The lease lives until then: TERM comes before, and KILL just before.
    pub(crate) async fn until(&mut self, until: Moment, ttl: Duration, grace: Duration) {
        let now = Moment::now();
        let left = until.since(now);
        let kill = now.after(left.saturating_sub(ttl / GUARD_RATE));
        let term = now.after(left.saturating_sub(ttl / GUARD_RATE + grace.min(ttl / 4)));
        self.limit = Some(Instant::now() + left.saturating_sub(ttl / RATE));
        self.say(&format!("until {} {}", term.nanos(), kill.nanos())).await;
    }

    /// The lease is lost: the command is ended now.
    pub(crate) async fn lost(&mut self) {
        self.limit_to(guard::SHORT_GRACE);
        self.say("lost").await;
    }

    /// The command is ended now: TERM, and KILL after `grace`.
    pub(crate) async fn stop(&mut self, grace: Duration) {
        self.limit_to(grace);
        self.say(&format!("stop {}", grace.as_millis())).await;
    }

    fn limit_to(&mut self, grace: Duration) {
        let limit = Instant::now() + grace + GUARD_DELAY;
        self.limit = Some(self.limit.map_or(limit, |it| it.min(limit)));
    }

    /// The guard's next word.
    pub(crate) async fn word(&mut self) -> Word {
        let overdue = async {
            match self.limit {
                Some(limit) => sleep_until(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            line = self.words.next_line() => Word::read(line.ok().flatten()),
            () = overdue => Word::Overdue,
        }
    }

    /// How the command ended; none if it still runs. The wrapper kills the command of a guard that
    /// does not work any more; `others` are guards that still work.
    pub(crate) fn ended(&self, word: Word, others: &[Pid]) -> Option<End> {
        let kill = || {
            let except = [&self.strangers, others].concat();
            kill_orphans(self.pid, self.cgroup.as_ref(), &except)
        };
        let result =
            |over| if over { "the command was stopped" } else { "the command may still run" };
        match word {
            Word::Left(_) => None,
            Word::Last(word) => Some(End::told(&word)),
            Word::Gone => {
                let over = kill();
                let text = format!("the guard process is gone; {}", result(over));
                Some(End { code: Err(Exit::new(SYSTEM, text)), over })
            }
            Word::Overdue => {
                let over = kill();
                let text = format!("the lease was lost; {}", result(over));
                Some(End { code: Err(Exit::new(LOST, text)), over })
            }
        }
    }
}

/// Signals that are the command's.
pub(crate) struct Signals(mpsc::Receiver<Origin>);

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        // What is ignored stays so, as after `nohup`.
        let heard = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|it| !ignored(*it));
        let mut signals = SignalsInfo::<WithOrigin>::new(heard)?;
        let (sender, receiver) = mpsc::channel(16);
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for origin in signals.forever() {
                if sender.blocking_send(origin).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self(receiver))
    }

    pub(crate) async fn next(&mut self) -> i32 {
        self.receive().await.signal
    }

    /// The next one, as the guard is told of it.
    pub(crate) async fn word(&mut self) -> String {
        let origin = self.receive().await;
        // Those of a terminal come from the kernel.
        let sent = if origin.process.is_some() { "sent" } else { "typed" };
        format!("signal {} {sent}", origin.signal)
    }

    async fn receive(&mut self) -> Origin {
        match self.0.recv().await {
            Some(origin) => origin,
            // The thread lives as long as this.
            None => std::future::pending().await,
        }
    }
}

const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A pool's name as a part of a variable's.
fn variable(pool: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    pool.chars().map(letter).collect()
}
