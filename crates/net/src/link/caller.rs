//! Questions outside the sessions: whoever must agree on who is dead cannot wait for the dead.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::connection::{Connection, LinkError};
use super::lives::Lives;
use crate::tls::Tls;
use crate::wire::{Call, Frame};

/// Asks one site, outside any session. One question at a time; the connection is kept.
#[derive(Debug)]
pub(crate) struct Caller {
    address: String,
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
            address: address.to_owned(),
            cluster: cluster.to_owned(),
            to: to.to_owned(),
            lives,
            tls: None,
            connection: tokio::sync::Mutex::default(),
        }
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
        let (mut connection, _) =
            Connection::dial(&self.address, self.tls.as_ref(), &self.to).await?;
        let (cluster, to) = (self.cluster.clone(), self.to.clone());
        let call = Call { cluster, to, who: self.lives.who() };
        connection.send(&Frame::Call(call)).await?;
        match connection.greeting().await? {
            Frame::Welcome => Ok(connection),
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
