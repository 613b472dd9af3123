//! The client for programs without an event loop: every call blocks its thread.
//!
//! Clients and guards may be used from any thread, but not from an asynchronous task: a call would
//! stop the task's event loop, and panics. Renewals are made by a thread of the client's own.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use kofm_client::api::Submit;
//! use kofm_client::blocking::Client;
//!
//! let client = Client::from_env()?;
//! let want = [("gpu".to_owned(), 2)].into();
//! let lease = client.acquire(&Submit { want, ..Submit::default() })?;
//! println!("running on {:?}", lease.lease().units["gpu"]);
//! lease.release()?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::api::{self, AddSpec, Submit, TakeSpec, Taken};
use crate::{Address, ClientError};

/// Calls a site, or one of several. Cheap to clone; connections are kept and shared.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    runtime: Arc<Runtime>,
}

impl Client {
    /// A client that makes the calls of `client`, which no other code uses.
    pub fn new(client: crate::Client) -> Result<Self, String> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no event loop: {error}"))?;
        Ok(Self { client, runtime: Arc::new(runtime) })
    }

    /// A client of the sites at `addresses`, which belong to one cluster.
    pub fn of_several(addresses: Vec<Address>, token: Option<String>) -> Result<Self, String> {
        let client = crate::Client::of_several(addresses, token);
        Self::new(client.ok_or("at least one address is needed")?)
    }

    /// A client of the sites in `KOFM_ADDR`, as [`crate::Client::from_env`] makes it.
    pub fn from_env() -> Result<Self, String> {
        Self::new(crate::Client::from_env()?)
    }

    /// Waits for the units, and holds them until the guard is dropped.
    pub fn acquire(&self, spec: &Submit) -> Result<LeaseGuard, ClientError> {
        let guard = self.runtime.block_on(self.client.acquire(spec))?;
        Ok(LeaseGuard { guard, runtime: Arc::clone(&self.runtime) })
    }

    /// Asks for units; the request may be granted or wait.
    pub fn submit(&self, spec: &Submit) -> Result<api::Request, ClientError> {
        self.runtime.block_on(self.client.submit(spec))
    }

    /// A request, after at most `wait`.
    pub fn watch(&self, id: &str, wait: Duration) -> Result<api::Request, ClientError> {
        self.runtime.block_on(self.client.watch(id, wait))
    }

    /// Gives up a request.
    pub fn cancel(&self, id: &str) -> Result<api::Request, ClientError> {
        self.runtime.block_on(self.client.cancel(id))
    }

    /// Renews a lease.
    pub fn renew(&self, id: &str) -> Result<api::Lease, ClientError> {
        self.runtime.block_on(self.client.renew(id))
    }

    /// Gives a lease back.
    pub fn release(&self, id: &str) -> Result<(), ClientError> {
        self.runtime.block_on(self.client.release(id))
    }

    /// P: takes from a semaphore as soon as it is this call's turn and there are enough units.
    pub fn p(&self, name: &str, spec: &TakeSpec) -> Result<Taken, ClientError> {
        self.runtime.block_on(self.client.p(name, spec))
    }

    /// V: adds to a semaphore.
    pub fn v(&self, name: &str, spec: &AddSpec) -> Result<serde_json::Value, ClientError> {
        self.runtime.block_on(self.client.v(name, spec))
    }

    /// `GET` of a path, as JSON.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.runtime.block_on(self.client.get(path))
    }

    /// All entries of a list of the API, as `/v1/leases`.
    pub fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        self.runtime.block_on(self.client.list(path))
    }

    /// Any other call of the API; the answer is read as JSON.
    pub fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
        patience: Duration,
    ) -> Result<T, ClientError> {
        self.runtime.block_on(self.client.call(method, path, body, patience))
    }
}

/// A lease that is renewed until it is dropped, and then released.
#[derive(Debug)]
#[must_use = "the units are given back when this is dropped"]
pub struct LeaseGuard {
    guard: crate::LeaseGuard,
    runtime: Arc<Runtime>,
}

impl LeaseGuard {
    /// The lease as it was granted.
    pub const fn lease(&self) -> &api::Lease {
        self.guard.lease()
    }

    /// Returns true if the lease is lost: its units may belong to another holder soon.
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Waits until the lease is lost, for at most `wait`; returns true if it is.
    pub fn wait_lost(&self, wait: Duration) -> bool {
        let lost = self.guard.lost();
        self.runtime.block_on(async { timeout(wait, lost).await.is_ok() })
    }

    /// Gives the units back; when this returns without an error, they are. A lease that is lost is
    /// an error with the code `gone`.
    pub fn release(self) -> Result<(), ClientError> {
        let Self { guard, runtime } = self;
        runtime.block_on(guard.release())
    }
}
