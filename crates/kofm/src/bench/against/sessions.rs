//! A client of any of the systems that are measured.

use std::io;

use kofm_net::api::{State, Submit};
use kofm_net::client::{Address, Client};
use kofm_net::{FastClient, FastGuard};

use super::{Cell, Row, etcd, floor, postgres, redis, zookeeper};
use crate::exit::{Exit, SYSTEM};

/// The number of the place at which servers are asked whether they are ready.
pub(super) const READY: u16 = 0;

/// The pool of which a client acquires units.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) row: Row,
    pub(super) cell: Cell,
    pub(super) clients: usize,
    pub(super) units: u32,
    /// Different in each round, where the system keeps what a round leaves.
    pub(super) number: u16,
    pub(super) addresses: Vec<String>,
}

impl Place {
    /// The name of the pool or semaphore.
    pub(super) fn name(&self) -> String {
        match self.row {
            Row::Kofm if self.number == READY => "ready".to_owned(),
            Row::Kofm | Row::KofmHttp | Row::KofmSingle => pool("roaming", self.cell, self.clients),
            Row::KofmPermission => pool("permission", self.cell, self.clients),
            Row::Floor | Row::Redis | Row::Postgres | Row::Etcd | Row::Zookeeper => {
                format!("bench{}", self.number)
            }
        }
    }

    /// Makes the semaphore, where clients do not.
    pub(super) async fn prepare(&self) -> Result<(), Exit> {
        if self.row == Row::Redis {
            redis::Client::prepare(&self.addresses[0], &self.name(), self.units).await?;
        }
        Ok(())
    }
}

/// The pool of kofm for a cell.
pub(super) fn pool(protocol: &str, cell: Cell, clients: usize) -> String {
    format!("{protocol}-{}-{clients}", cell.name())
}

pub(super) enum Session {
    Floor(floor::Client),
    Redis(redis::Client),
    Postgres(postgres::Client),
    Etcd(etcd::Client),
    Zookeeper(zookeeper::Client),
    Fast { client: FastClient, pool: String, guard: Option<FastGuard> },
    Http { client: Box<Client>, pool: String, lease: String },
}

impl Session {
    /// Connects the client of this number; clients are spread over the servers.
    pub(super) async fn connect(place: &Place, client: usize) -> Result<Self, Exit> {
        let (name, units, number) = (place.name(), place.units, place.number);
        let address = &place.addresses[client % place.addresses.len()];
        let floor_units = u16::try_from(units).unwrap_or(u16::MAX);
        Ok(match place.row {
            Row::Floor => Self::Floor(floor::Client::connect(address, number, floor_units).await?),
            Row::Redis => {
                let several = place.cell == Cell::Mixed;
                Self::Redis(redis::Client::connect(address, &name, client, several).await?)
            }
            Row::Postgres => Self::Postgres(
                postgres::Client::connect(address, number, units, client, place.clients).await?,
            ),
            Row::Etcd => Self::Etcd(etcd::Client::connect(address, &name, client, units).await?),
            Row::Zookeeper => {
                Self::Zookeeper(zookeeper::Client::connect(address, &name, units).await?)
            }
            Row::Kofm | Row::KofmPermission | Row::KofmSingle => {
                let client = Client::new(parse(address)?, None).fast().await?;
                Self::Fast { client, pool: name, guard: None }
            }
            Row::KofmHttp => {
                let client = Box::new(Client::new(parse(address)?, None));
                Self::Http { client, pool: name, lease: String::new() }
            }
        })
    }

    /// Waits until this client has k units.
    pub(super) async fn acquire(&mut self, k: u32) -> Result<(), Exit> {
        match self {
            Self::Floor(client) => client.acquire(u16::try_from(k).unwrap_or(u16::MAX)).await?,
            Self::Redis(client) => client.acquire(k).await?,
            Self::Postgres(client) => client.acquire().await?,
            Self::Etcd(client) => client.acquire(k).await?,
            Self::Zookeeper(client) => client.acquire(k).await?,
            Self::Fast { client, pool, guard } => {
                *guard = Some(client.acquire(&ask(pool, k)).await?);
            }
            Self::Http { client, pool, lease } => {
                let request = client.wait(client.submit(&ask(pool, k)).await?).await?;
                let granted = request.lease.filter(|_| request.state == State::Granted);
                *lease = granted.ok_or_else(|| Exit::new(SYSTEM, "not granted"))?.id;
            }
        }
        Ok(())
    }

    /// Returns the k units; waits until the server says that they are back.
    pub(super) async fn release(&mut self, k: u32) -> Result<(), Exit> {
        match self {
            Self::Floor(client) => client.release(u16::try_from(k).unwrap_or(u16::MAX)).await?,
            Self::Redis(client) => client.release(k).await?,
            Self::Postgres(client) => client.release().await?,
            Self::Etcd(client) => client.release().await?,
            Self::Zookeeper(client) => client.release().await?,
            Self::Fast { guard, .. } => {
                let guard = guard.take().ok_or_else(|| io::Error::other("nothing is held"))?;
                guard.release().await?;
            }
            Self::Http { client, lease, .. } => client.release(lease).await?,
        }
        Ok(())
    }
}

fn parse(address: &str) -> Result<Address, Exit> {
    Address::parse(address).map_err(|text| Exit::new(SYSTEM, text))
}

fn ask(pool: &str, k: u32) -> Submit {
    Submit { want: [(pool.to_owned(), k)].into(), ..Submit::default() }
}
