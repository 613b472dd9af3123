//! Questions outside the sessions: whoever must agree on who is dead cannot wait for the dead.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::connection::{Connection, LinkError};
use super::lives::Lives;
use crate::tls::Tls;
use crate::wire::{Call, Frame};

/// Addresses of one site that are tried.
const MAX_ADDRESSES: usize = 4;

/// Asks any site of a cluster, by name.
#[derive(Debug)]
pub(crate) struct Callers {
    cluster: String,
    lives: Arc<Lives>,
    tls: Option<Tls>,
    /// Addresses from the configuration, which come first.
    configured: BTreeMap<String, String>,
    made: Mutex<BTreeMap<String, Arc<Caller>>>,
}

impl Callers {
    pub(crate) fn new(
        cluster: &str,
        lives: Arc<Lives>,
        tls: Option<Tls>,
        configured: BTreeMap<String, String>,
    ) -> Self {
        let cluster = cluster.to_owned();
        Self { cluster, lives, tls, configured, made: Mutex::default() }
    }

    /// Asks the site of this name, which may be at this address.
    pub(crate) fn of(&self, name: &str, address: &str) -> Arc<Caller> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(caller) = made.get(name) {
            caller.also_at(address);
            return Arc::clone(caller);
        }
        let first = self.configured.get(name).map_or(address, String::as_str);
        let caller = Caller::new(&self.cluster, name, first, Arc::clone(&self.lives));
        let caller = Arc::new(caller.with_tls(self.tls.clone()));
        caller.also_at(address);
        made.insert(name.to_owned(), Arc::clone(&caller));
        caller
    }
}

/// Asks one site, outside any session. One question at a time; the connection is kept.
#[derive(Debug)]
pub(crate) struct Caller {
    /// Where the site may be; one after the other is tried.
    addresses: Mutex<Vec<String>>,
    /// The place of the address that is tried next.
    next: AtomicUsize,
    cluster: String,
    to: String,
    lives: Arc<Lives>,
    tls: Option<Tls>,
    connection: tokio::sync::Mutex<Option<Connection>>,
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "in a greeting, any frame but the expected one is refused, those to come too"
)]
impl Caller {
    /// Asks the site `to` at `address`.
    pub(crate) fn new(cluster: &str, to: &str, address: &str, lives: Arc<Lives>) -> Self {
        Self {
            addresses: Mutex::new(vec![address.to_owned()]),
            next: AtomicUsize::new(0),
            cluster: cluster.to_owned(),
            to: to.to_owned(),
            lives,
            tls: None,
            connection: tokio::sync::Mutex::default(),
        }
    }

    /// The site may be at this address, too.
    pub(crate) fn also_at(&self, address: &str) {
        let mut known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if known.iter().any(|it| it == address) {
            return;
        }
        if known.len() == MAX_ADDRESSES {
            // The first is from the configuration.
            known.remove(1);
        }
        known.push(address.to_owned());
    }

    /// The address to try now. Before it is known whether it is good, the next one has its turn.
    fn address(&self) -> (usize, String) {
        let known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let place = self.next.fetch_add(1, Ordering::Relaxed) % known.len().max(1);
        (place, known.get(place).cloned().unwrap_or_default())
    }

    /// The same, with certificates.
    pub(crate) fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Asks, and waits for the answer. A caller that gives up loses the connection, so that no
    /// late answer is taken for another.
    pub(crate) async fn ask(&self, question: Vec<u8>) -> io::Result<Bytes> {
        let mut slot = self.connection.lock().await;
        let question = Frame::Note(Bytes::from(question));
        if let Some(mut kept) = slot.take()
            && kept.send(&question).await.is_ok()
            && let Ok(answer) = kept.note().await
        {
            *slot = Some(kept);
            return Ok(answer);
        }
        // Questions may be repeated.
        let mut fresh = self.connect().await.map_err(io::Error::other)?;
        fresh.send(&question).await?;
        let answer = fresh.note().await.map_err(io::Error::other)?;
        *slot = Some(fresh);
        Ok(answer)
    }

    async fn connect(&self) -> Result<Connection, LinkError> {
        if let Some(address) = self.lives.address_of(&self.to) {
            self.also_at(&address);
        }
        let (place, address) = self.address();
        let (mut connection, _) = Connection::dial(&address, self.tls.as_ref(), &self.to).await?;
        let (cluster, to) = (self.cluster.clone(), self.to.clone());
        let call = Call { cluster, to, who: self.lives.who() };
        connection.send(&Frame::Call(call)).await?;
        match connection.greeting().await? {
            Frame::Welcome => {
                self.next.store(place, Ordering::Relaxed);
                Ok(connection)
            }
            Frame::Refuse(refuse) => {
                let error = LinkError::from(refuse);
                if let LinkError::Twin(text) = &error {
                    self.lives.refused(text);
                }
                Err(error)
            }
            frame => Err(LinkError::unexpected(&frame)),
        }
    }
}
