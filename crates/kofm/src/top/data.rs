//! The lists of `kofm top`, as a site answers them.

use kofm_net::api::{self, Health};
use kofm_net::client::{Client, escape};

use crate::doctor::troubles;
use crate::exit::Exit;
use crate::tables::{leases_table, pools_table, queue_table};

/// Events that the list of events has.
const EVENTS: usize = 200;

/// A list, or the details of one of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Pools,
    Queue,
    Leases,
    Semaphores,
    Gangs,
    Sites,
    History,
    /// The units of a pool.
    Pool(String),
    /// The blockers of a request.
    Request(String),
}

/// The answer to a subject.
#[derive(Clone, Debug)]
pub(super) enum List {
    Pools(Vec<api::Pool>),
    Queue(Vec<api::Request>),
    Leases(Vec<api::Lease>),
    Semaphores(Vec<api::Semaphore>),
    Gangs(Vec<api::Gang>),
    Sites(Vec<api::Member>),
    History(Vec<api::Happening>),
    Pool(Box<api::Pool>, Vec<api::Lease>),
    Request(Box<api::Request>),
}

/// A subject, its list, and how the site is.
#[derive(Clone, Debug)]
pub(super) struct Data {
    pub subject: Subject,
    pub list: List,
    pub health: Health,
}

pub(super) async fn fetch(client: &Client, subject: &Subject) -> Result<Data, Exit> {
    let list = match subject {
        Subject::Pools => List::Pools(client.get("/v1/pools").await?),
        Subject::Queue => List::Queue(client.list("/v1/queue").await?),
        Subject::Leases => List::Leases(client.list("/v1/leases").await?),
        Subject::Semaphores => List::Semaphores(client.get("/v1/semaphores").await?),
        Subject::Gangs => List::Gangs(client.get("/v1/gangs").await?),
        Subject::Sites => List::Sites(client.list("/v1/members").await?),
        Subject::History => {
            let path = format!("/v1/history?limit={EVENTS}");
            List::History(client.get::<api::HistoryPage>(&path).await?.history)
        }
        Subject::Pool(name) => {
            let name = escape(name);
            let pool = Box::new(client.get(&format!("/v1/pools/{name}")).await?);
            List::Pool(pool, client.list(&format!("/v1/leases?pool={name}")).await?)
        }
        Subject::Request(id) => {
            List::Request(Box::new(client.get(&format!("/v1/requests/{}", escape(id))).await?))
        }
    };
    let health = client.get("/v1/health").await?;
    Ok(Data { subject: subject.clone(), list, health })
}

/// Pools, leases and queue as text, at most `lines` of each of the last two.
pub(super) async fn text(client: &Client, lines: usize) -> Result<String, Exit> {
    let pools: Vec<api::Pool> = client.get("/v1/pools").await?;
    let mut leases: Vec<api::Lease> = client.list("/v1/leases").await?;
    let mut queue: Vec<api::Request> = client.list("/v1/queue").await?;
    let health = troubles(client).await;
    let (held, waiting) = (leases.len(), queue.len());
    leases.truncate(lines);
    queue.truncate(lines);
    Ok(format!(
        "{health}{}\n{held} leases\n{}\n{waiting} waiting\n{}",
        pools_table(&pools),
        leases_table(&leases),
        queue_table(&queue)
    ))
}
