//! One member of a gang, whose other members run elsewhere: it waits for them, confirms, runs its
//! command, and ends when all have ended.

use std::time::Duration;

use hyper::Method;
use kofm_net::api::{Code, FailedMember, JoinGang, Joined};
use kofm_net::client::{Client, ClientError};
use kofm_net::{Boottime as _, Moment, duration};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{PATIENCE, Run, path};
use crate::acquire::given_up;
use crate::exit::{BUSY, Exit, LOST, TIMEOUT};
use crate::output::tell;
use crate::run::{End, GuardLink, Signals, start_guard, told};

/// How long a member that waits for others waits for news of them in one call.
const NEWS: Duration = Duration::from_secs(10);
/// How soon it asks again after a call that failed, or for the end of an earlier run of its gang.
const ASK: Duration = Duration::from_millis(200);

/// A member that may start.
struct Start {
    joined: Joined,
    /// When the call was sent whose answer this is.
    sent: Moment,
    guard: GuardLink,
}

/// Ends a guard that has started nothing.
async fn release_guard(prepared: Option<(GuardLink, Option<String>)>) {
    if let Some((mut guard, _)) = prepared {
        guard.until(Moment::now(), Duration::ZERO, Duration::ZERO).await;
    }
}

impl Run {
    pub(super) async fn run_one(&self, client: &Client, member: &str) -> Result<u8, Exit> {
        let mut bytes = [0; 16];
        std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
        let mut spec = JoinGang {
            member: member.to_owned(),
            token: format!("{:032x}", u128::from_le_bytes(bytes)),
            run: None,
            ttl: Some(self.ttl),
            owner: Some(self.who()),
            leave: false,
            code: None,
            confirm: None,
            wait: None,
            principal: None,
        };
        let mut signals = Signals::new()?;
        let met = self.meet(client, &mut spec, &mut signals).await;
        let start = match met {
            Ok(start) => start,
            Err(exit) => {
                (spec.leave, spec.wait) = (true, None);
                // A member that does not say so is missed soon enough.
                self.join(client, &spec).await.ok();
                return Err(exit);
            }
        };
        // Gangs of the configuration neither confirm nor wait for the end of other members.
        let waits = spec.confirm.take().is_some();
        spec.run = waits.then(|| start.joined.run.clone());
        let ended = self.hold_one(client, &spec, start, &mut signals).await;
        let (end, lost) = ended.unwrap_or_else(|exit| (End::before_start(exit), true));
        if !end.over {
            tell("kofm: not leaving, for the command may still run; it will be missed");
            return end.code;
        }
        (spec.leave, spec.wait) = (true, None);
        spec.code = Some(match &end.code {
            Ok(code) => *code,
            Err(exit) => exit.code,
        });
        if lost || !waits {
            // A member that does not say so is missed soon enough.
            self.join(client, &spec).await.ok();
            return end.code;
        }
        self.wait_for_end(client, spec, end.code, &mut signals).await
    }

    /// Leaves, and waits until all members have left. The code is that of the first that did not
    /// end with 0.
    async fn wait_for_end(
        &self,
        client: &Client,
        mut spec: JoinGang,
        own: Result<u8, Exit>,
        signals: &mut Signals,
    ) -> Result<u8, Exit> {
        let mut heard = Moment::now();
        // The code of a command that failed is not replaced by a cause that is not known for sure.
        let unknown = |own: Result<u8, Exit>, exit: Exit| match own {
            Ok(0) => Err(exit),
            own => own,
        };
        loop {
            let asked = tokio::select! {
                asked = self.join(client, &spec) => asked,
                number = signals.next() => return unknown(own, given_up(number)),
            };
            match asked {
                Ok(joined) if joined.state == "ended" => {
                    let failed = joined.failed.filter(|it| it.member != spec.member);
                    let Some(failed) = failed else { return own };
                    return Err(Exit::new(failed.code, self.failure(&failed)));
                }
                Ok(_) => {
                    heard = Moment::now();
                    (spec.leave, spec.code) = (false, None);
                    spec.wait = Some(NEWS.min(self.ttl / 3));
                }
                Err(ClientError::Refused(error)) if error.error == Code::Gone => {
                    return unknown(own, Exit::new(LOST, error.message));
                }
                Err(error) if Moment::now().since(heard) > self.ttl => {
                    let text = format!("the end of gang {} is not known: {error}", self.name);
                    return unknown(own, Exit::new(LOST, text));
                }
                Err(_) => sleep(ASK).await,
            }
        }
    }

    fn failure(&self, failed: &FailedMember) -> String {
        format!("member {} of gang {} ended with code {}", failed.member, self.name, failed.code)
    }

    async fn join(&self, client: &Client, spec: &JoinGang) -> Result<Joined, ClientError> {
        let path = format!("/v1/gangs/{}/join", self.name);
        client.call(Method::POST, &path, Some(spec), PATIENCE).await
    }

    /// Waits until all members are there, have everything, and have confirmed that they can start.
    async fn meet(
        &self,
        client: &Client,
        spec: &mut JoinGang,
        signals: &mut Signals,
    ) -> Result<Start, Exit> {
        path(&self.name)?;
        let since = Moment::now();
        let mut said = String::new();
        // The guard that waits for the start, and the lease that its command is told of.
        let mut prepared: Option<(GuardLink, Option<String>)> = None;
        loop {
            let sent = Moment::now();
            let joined = tokio::select! {
                joined = self.join(client, spec) => joined,
                number = signals.next() => return Err(given_up(number)),
            };
            let left = self.wait.map(|wait| wait.saturating_sub(Moment::now().since(since)));
            let mut pause = Duration::ZERO;
            match joined {
                // Its time counts from when it asked: it asks once more without waiting.
                Ok(joined) if joined.state == "running" => {
                    if spec.wait.take().is_some() {
                        continue;
                    }
                    let guard = match prepared.filter(|it| it.1 == joined.lease) {
                        Some((guard, _)) => guard,
                        None => self.prepare(&joined).await?,
                    };
                    return Ok(Start { joined, sent, guard });
                }
                Ok(joined) => {
                    // The next answer comes when there is news.
                    spec.wait = Some(left.unwrap_or(NEWS).min(NEWS));
                    spec.confirm.clone_from(&joined.confirm);
                    spec.run = joined.confirm.as_ref().map(|_| joined.run.clone());
                    if joined.confirm.is_none() {
                        release_guard(prepared.take()).await;
                    } else if prepared.as_ref().is_none_or(|it| it.1 != joined.lease) {
                        release_guard(prepared.take()).await;
                        prepared = Some((self.prepare(&joined).await?, joined.lease.clone()));
                    }
                    let text = match joined.missing.as_slice() {
                        [] if joined.state == "waiting" => "waiting for its turn".to_owned(),
                        [] if joined.state == "granted" => {
                            "all units are granted; waiting for the members to confirm".to_owned()
                        }
                        [] => "all members are there; waiting for their units".to_owned(),
                        missing => format!("waiting for {}", missing.join(", ")),
                    };
                    if text != said {
                        tell(&text);
                        said = text;
                    }
                }
                Err(ClientError::Refused(error)) if error.error == Code::InUse => pause = ASK,
                Err(error) => return Err(error.into()),
            }
            if let Some(wait) = self.wait.filter(|_| left == Some(Duration::ZERO)) {
                let code = if wait.is_zero() { BUSY } else { TIMEOUT };
                let text = format!("not started within {}", duration::show(wait));
                return Err(Exit::new(code, text));
            }
            tokio::select! {
                () = sleep(pause) => {}
                number = signals.next() => return Err(given_up(number)),
            }
        }
    }

    /// A guard that waits for the start of the command.
    async fn prepare(&self, joined: &Joined) -> Result<GuardLink, Exit> {
        let (lease, fence) = (joined.lease.clone().unwrap_or_default(), joined.fence.unwrap_or(0));
        let env = Self::env(&joined.gang, &joined.member, told(&lease, fence, &joined.units));
        start_guard(&self.command, &env).await
    }

    /// Runs the command. Returns its end, and whether the gang or the lease was lost.
    async fn hold_one(
        &self,
        client: &Client,
        spec: &JoinGang,
        Start { joined, sent, mut guard }: Start,
        signals: &mut Signals,
    ) -> Result<(End, bool), Exit> {
        let mut hears = spec.run.is_some();
        let spec = JoinGang { run: Some(joined.run.clone()), ..spec.clone() };
        let left = |joined: &Joined| Duration::from_millis(joined.expires_in_ms);
        let ttl = Duration::from_millis(joined.ttl_ms).min(left(&joined));
        let wait = Some(NEWS.min(self.ttl / 3));
        let news_spec = JoinGang { wait, ..spec.clone() };
        // Hears between renewals that another member has failed or is lost.
        let news = async {
            loop {
                match self.join(client, &news_spec).await {
                    Ok(joined) if joined.failed.is_none() => {}
                    Ok(joined) => return Ok(joined.failed),
                    Err(ClientError::Refused(error)) if error.error == Code::Gone => {
                        return Err(error.message);
                    }
                    Err(_) => {}
                }
                sleep(ASK).await;
            }
        };
        let mut news = std::pin::pin!(news);
        guard.until(sent.after(ttl), ttl, self.kill_grace).await;
        // A moment, not a pause: signals that come often must not put it off.
        let mut next = Instant::now() + ttl / 3;
        let mut lost = None;
        loop {
            tokio::select! {
                word = guard.word() => {
                    let Some(end) = guard.ended(word, &[]) else { continue };
                    return Ok(match lost {
                        Some(message) => {
                            (End { code: Err(Exit::new(LOST, message)), ..end }, true)
                        }
                        None => (end, false),
                    });
                }
                heard = &mut news, if hears => {
                    hears = false;
                    match heard {
                        Ok(Some(failed)) => {
                            let text = self.failure(&failed);
                            tell(&format!("kofm: {text}; stopping this member"));
                            guard.stop(self.kill_grace).await;
                        }
                        Err(message) if lost.is_none() => {
                            tell(&format!("kofm: {message}; stopping this member"));
                            guard.lost().await;
                            lost = Some(message);
                        }
                        Ok(None) | Err(_) => {}
                    }
                }
                word = signals.word() => guard.say(&word).await,
                () = sleep_until(next), if lost.is_none() => {
                    let sent = Moment::now();
                    let mut pause = (ttl / 20).max(Duration::from_millis(20));
                    match timeout(ttl / 3, self.join(client, &spec)).await {
                        Ok(Ok(joined)) => {
                            guard.until(sent.after(left(&joined)), ttl, self.kill_grace).await;
                            pause = ttl / 3;
                        }
                        Ok(Err(ClientError::Refused(error))) if error.error == Code::Gone => {
                            tell(&format!("kofm: {}; stopping this member", error.message));
                            guard.lost().await;
                            lost = Some(error.message);
                        }
                        Ok(Err(error)) => tell(&format!("kofm: not heard: {error}")),
                        Err(_) => {}
                    }
                    next = Instant::now() + pause;
                }
            }
        }
    }
}
