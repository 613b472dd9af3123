//! The floor: a semaphore server with nothing but a queue, and its client.
//!
//! It has no leases, no replication and no disk. The task of the connection that releases units
//! writes the grant to the socket of the waiting client itself. Each frame has 8 bytes.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{TcpListener, TcpStream};

use super::wire::Wire;
use crate::output::say_line;

const FRAME: usize = 8;
const ACQUIRE: u8 = 1;
const RELEASE: u8 = 2;

type Pools = Mutex<HashMap<u16, Pool>>;

/// The units of one semaphore, and the waiting clients in the order of their requests.
struct Pool {
    free: u32,
    queue: VecDeque<(u32, Arc<TcpStream>)>,
}

/// Answers clients until the process ends.
pub(crate) async fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    say_line(&format!("floor {}", listener.local_addr()?));
    let pools = Arc::new(Pools::default());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let pools = Arc::clone(&pools);
        tokio::spawn(async move { converse(Arc::new(stream), &pools).await });
    }
}

async fn converse(stream: Arc<TcpStream>, pools: &Pools) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(64 * FRAME);
    loop {
        stream.readable().await?;
        match stream.try_read_buf(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        let (frames, rest) = buffer.as_chunks::<FRAME>();
        for frame in frames {
            obey(*frame, &stream, pools)?;
        }
        buffer = rest.to_vec();
        buffer.reserve(64 * FRAME);
    }
}

fn obey(frame: [u8; FRAME], stream: &Arc<TcpStream>, pools: &Pools) -> io::Result<()> {
    let [verb, _, a, b, units @ ..] = frame;
    let (number, units) = (u16::from_le_bytes([a, b]), u32::from_le_bytes(units));
    let (k, capacity) = (units >> 16, units & 0xffff);
    let mut pools = pools.lock().unwrap_or_else(PoisonError::into_inner);
    let new = || Pool { free: capacity, queue: VecDeque::new() };
    let pool = pools.entry(number).or_insert_with(new);
    match verb {
        ACQUIRE => pool.queue.push_back((k, Arc::clone(stream))),
        RELEASE => {
            pool.free += k;
            // A socket that was just read has room for one frame.
            stream.try_write(&frame)?;
        }
        _ => return Err(super::wire::malformed("unknown verb")),
    }
    while let Some((k, waiting)) = pool.queue.pop_front_if(|it| it.0 <= pool.free) {
        pool.free -= k;
        waiting.try_write(&frame).ok();
    }
    Ok(())
}

/// A client of one semaphore.
#[derive(Debug)]
pub(super) struct Client {
    wire: Wire,
    number: u16,
    units: u16,
}

impl Client {
    pub(super) async fn connect(address: &str, number: u16, units: u16) -> io::Result<Self> {
        Ok(Self { wire: Wire::connect(address).await?, number, units })
    }

    pub(super) async fn acquire(&mut self, k: u16) -> io::Result<()> {
        self.call(ACQUIRE, k).await
    }

    pub(super) async fn release(&mut self, k: u16) -> io::Result<()> {
        self.call(RELEASE, k).await
    }

    async fn call(&mut self, verb: u8, k: u16) -> io::Result<()> {
        let numbers = [self.number, self.units, k].map(u16::to_le_bytes);
        self.wire.send(&[&[verb, 0][..], numbers.as_flattened()].concat()).await?;
        self.wire.take_array::<FRAME>().await?;
        Ok(())
    }
}
