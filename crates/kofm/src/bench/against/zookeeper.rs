//! A client of `ZooKeeper`, by its protocol: records of Jute behind a length.
//!
//! Recipe, the one of its documentation, for k units: create an ephemeral, sequential node
//! whose name begins with k; list the nodes; the units are held if the sum of k up to this node is
//! M at most. Otherwise wait and list again: for the node before it if M = 1, for any change of the
//! list if not. The nodes of a client that dies go with its session.

use std::io;

use super::wire::{Wire, malformed};

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const LIST: i32 = 8;
/// A notification's number, instead of that of a request.
const NOTICE: i32 = -1;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
const EPHEMERAL_SEQUENTIAL: i32 = 3;

/// A client of one pool.
#[derive(Debug)]
pub(super) struct Client {
    wire: Wire,
    number: i32,
    folder: String,
    units: u32,
    /// The node of this client's request.
    node: String,
    /// Watches that have fired since the last request for one.
    notices: usize,
}

impl Client {
    pub(super) async fn connect(address: &str, pool: &str, units: u32) -> io::Result<Self> {
        let mut wire = Wire::connect(address).await?;
        let mut body = Vec::new();
        body.extend(0_i32.to_be_bytes());
        body.extend(0_i64.to_be_bytes());
        body.extend(40_000_i32.to_be_bytes());
        body.extend(0_i64.to_be_bytes());
        string(&[0; 16], &mut body);
        body.push(0);
        send(&mut wire, &body).await?;
        receive(&mut wire).await?;
        let folder = format!("/{pool}");
        let mut client = Self { wire, number: 0, folder, units, node: String::new(), notices: 0 };
        let folder = client.folder.clone();
        let (error, _) = client.create(&folder, 0).await?;
        if error == 0 || error == NODE_EXISTS { Ok(client) } else { Err(failed(error)) }
    }

    pub(super) async fn acquire(&mut self, k: u32) -> io::Result<()> {
        let path = format!("{}/{k}-", self.folder);
        let (error, answer) = self.create(&path, EPHEMERAL_SEQUENTIAL).await?;
        if error != 0 {
            return Err(failed(error));
        }
        let node = text(&answer)?.0;
        node.rsplit('/').next().unwrap_or_default().clone_into(&mut self.node);
        loop {
            let watches_list = self.units > 1;
            let nodes = self.list(watches_list).await?;
            let mut earlier: Vec<&String> =
                nodes.iter().filter(|it| sequence(it) < sequence(&self.node)).collect();
            earlier.sort_unstable_by_key(|it| sequence(it));
            let sum: u32 = earlier.iter().map(|it| amount(it)).sum();
            if sum + k <= self.units {
                return Ok(());
            }
            let Some(last) = earlier.last() else { return Err(malformed("zookeeper: too few")) };
            if watches_list || self.exists(&format!("{}/{last}", self.folder)).await? {
                self.notice().await?;
            }
        }
    }

    pub(super) async fn release(&mut self) -> io::Result<()> {
        let mut body = Vec::new();
        string(format!("{}/{}", self.folder, self.node).as_bytes(), &mut body);
        body.extend((-1_i32).to_be_bytes());
        let (error, _) = self.call(DELETE, &body).await?;
        if error == 0 { Ok(()) } else { Err(failed(error)) }
    }

    async fn create(&mut self, path: &str, flags: i32) -> io::Result<(i32, Vec<u8>)> {
        let mut body = Vec::new();
        string(path.as_bytes(), &mut body);
        string(&[], &mut body);
        // One entry: all clients may do everything.
        body.extend(1_i32.to_be_bytes());
        body.extend(31_i32.to_be_bytes());
        string(b"world", &mut body);
        string(b"anyone", &mut body);
        body.extend(flags.to_be_bytes());
        self.call(CREATE, &body).await
    }

    async fn list(&mut self, watch: bool) -> io::Result<Vec<String>> {
        let mut body = Vec::new();
        string(self.folder.as_bytes(), &mut body);
        body.push(u8::from(watch));
        // A list that was watched before has one watch, however often it was listed.
        self.notices = 0;
        let (error, answer) = self.call(LIST, &body).await?;
        if error != 0 {
            return Err(failed(error));
        }
        let (count, mut rest) = number(&answer)?;
        let mut nodes = Vec::new();
        for _ in 0..count {
            let (node, more) = text(rest)?;
            nodes.push(node);
            rest = more;
        }
        Ok(nodes)
    }

    async fn exists(&mut self, path: &str) -> io::Result<bool> {
        let mut body = Vec::new();
        string(path.as_bytes(), &mut body);
        body.push(1);
        self.notices = 0;
        let (error, _) = self.call(EXISTS, &body).await?;
        match error {
            0 => Ok(true),
            NO_NODE => Ok(false),
            _ => Err(failed(error)),
        }
    }

    /// Waits until a watch has fired.
    async fn notice(&mut self) -> io::Result<()> {
        while self.notices == 0 {
            let message = receive(&mut self.wire).await?;
            if number(&message)?.0 == NOTICE {
                self.notices += 1;
            }
        }
        Ok(())
    }

    async fn call(&mut self, verb: i32, body: &[u8]) -> io::Result<(i32, Vec<u8>)> {
        self.number += 1;
        let head = [self.number.to_be_bytes(), verb.to_be_bytes()].concat();
        send(&mut self.wire, &[&head, body].concat()).await?;
        loop {
            let message = receive(&mut self.wire).await?;
            let (number_of, rest) = number(&message)?;
            if number_of == NOTICE {
                self.notices += 1;
                continue;
            }
            if number_of != self.number {
                return Err(malformed("zookeeper: an answer to another request"));
            }
            let rest = rest.get(8..).ok_or_else(short)?;
            let (error, rest) = number(rest)?;
            return Ok((error, rest.to_vec()));
        }
    }
}

/// The number that `ZooKeeper` gave a node.
fn sequence(node: &str) -> u64 {
    node.rsplit('-').next().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}

/// The units for which a node stands.
fn amount(node: &str) -> u32 {
    node.split('-').next().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend(i32::try_from(bytes.len()).unwrap_or(i32::MAX).to_be_bytes());
    out.extend(bytes);
}

fn number(bytes: &[u8]) -> io::Result<(i32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk().ok_or_else(short)?;
    Ok((i32::from_be_bytes(*number), rest))
}

fn text(bytes: &[u8]) -> io::Result<(String, &[u8])> {
    let (length, rest) = number(bytes)?;
    let length = usize::try_from(length).unwrap_or(0);
    let (text, rest) = rest.split_at_checked(length).ok_or_else(short)?;
    Ok((String::from_utf8_lossy(text).into_owned(), rest))
}

async fn send(wire: &mut Wire, body: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::new();
    string(body, &mut bytes);
    wire.send(&bytes).await
}

async fn receive(wire: &mut Wire) -> io::Result<Vec<u8>> {
    let length = i32::from_be_bytes(wire.take_array().await?);
    wire.take(usize::try_from(length).unwrap_or(0)).await
}

fn short() -> io::Error {
    malformed("zookeeper: a message that is too short")
}

fn failed(error: i32) -> io::Error {
    malformed(&format!("zookeeper: error {error}"))
}
