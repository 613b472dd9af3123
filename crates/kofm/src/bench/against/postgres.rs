//! A client of `PostgreSQL`, by version 3.0 of its protocol, for advisory locks.
//!
//! Recipe: a pool of M units is M advisory locks. A client locks its own one if there are enough
//! for all clients. Otherwise it asks for any lock that is free, and if none is, it waits for one
//! of them, chosen by its number. Locks belong to sessions: `PostgreSQL` releases those of a client
//! that dies. Statements are prepared, and values are binary. There is no recipe for several units
//! at once.

use std::io;

use super::wire::{Wire, malformed};

/// A client of one pool.
#[derive(Debug)]
pub(super) struct Client {
    wire: Wire,
    /// The number of the first lock of the pool.
    base: i64,
    units: i64,
    /// The lock that this client waits for.
    own: i64,
    /// There is a lock for each client.
    plenty: bool,
    held: i64,
}

impl Client {
    pub(super) async fn connect(
        address: &str,
        pool: u16,
        units: u32,
        number: usize,
        clients: usize,
    ) -> io::Result<Self> {
        let mut wire = Wire::connect(address).await?;
        let mut body = 196_608_i32.to_be_bytes().to_vec();
        body.extend(b"user\0postgres\0database\0postgres\0\0");
        let length = i32::try_from(body.len() + 4).unwrap_or(i32::MAX);
        wire.send(&[&length.to_be_bytes()[..], &body].concat()).await?;
        result(&mut wire).await?;
        let statements = [
            ("lock", "SELECT pg_advisory_lock($1)", 1),
            ("unlock", "SELECT pg_advisory_unlock($1)", 1),
            (
                "any",
                "SELECT lock FROM generate_series($1, $1 + $2 - 1) AS lock \
                 WHERE pg_try_advisory_lock(lock) LIMIT 1",
                2,
            ),
        ];
        for (name, text, parameters) in statements {
            let mut body = [name.as_bytes(), b"\0", text.as_bytes(), b"\0"].concat();
            body.extend(i16::to_be_bytes(parameters));
            for _ in 0..parameters {
                // The type bigint.
                body.extend(20_i32.to_be_bytes());
            }
            let mut bytes = Vec::new();
            message(b'P', &body, &mut bytes);
            message(b'S', &[], &mut bytes);
            wire.send(&bytes).await?;
            result(&mut wire).await?;
        }
        let base = i64::from(pool) << 32;
        let units = i64::from(units);
        let number = i64::try_from(number).unwrap_or(0);
        let plenty = usize::try_from(units).is_ok_and(|units| units >= clients);
        Ok(Self { wire, base, units, own: base + number % units, plenty, held: 0 })
    }

    pub(super) async fn acquire(&mut self) -> io::Result<()> {
        if !self.plenty && self.units > 1 {
            let row = self.execute("any", &[self.base, self.units]).await?;
            if let Some(bytes) = row.first_chunk() {
                self.held = i64::from_be_bytes(*bytes);
                return Ok(());
            }
        }
        self.execute("lock", &[self.own]).await?;
        self.held = self.own;
        Ok(())
    }

    pub(super) async fn release(&mut self) -> io::Result<()> {
        let row = self.execute("unlock", &[self.held]).await?;
        if row == [1] { Ok(()) } else { Err(malformed("postgres: the lock was not held")) }
    }

    /// Executes a prepared statement; returns the first column of its row, empty if there is none.
    async fn execute(&mut self, name: &str, values: &[i64]) -> io::Result<Vec<u8>> {
        let count = i16::try_from(values.len()).unwrap_or(i16::MAX).to_be_bytes();
        let mut body = [b"\0", name.as_bytes(), b"\0\0\x01\0\x01", &count[..]].concat();
        for value in values {
            body.extend(8_i32.to_be_bytes());
            body.extend(value.to_be_bytes());
        }
        body.extend(b"\0\x01\0\x01");
        let mut bytes = Vec::new();
        message(b'B', &body, &mut bytes);
        message(b'E', b"\0\0\0\0\0", &mut bytes);
        message(b'S', &[], &mut bytes);
        self.wire.send(&bytes).await?;
        result(&mut self.wire).await
    }
}

fn message(kind: u8, body: &[u8], out: &mut Vec<u8>) {
    let length = i32::try_from(body.len() + 4).unwrap_or(i32::MAX);
    out.push(kind);
    out.extend(length.to_be_bytes());
    out.extend(body);
}

/// Reads until the server is ready for the next query; returns the first column of the last row.
async fn result(wire: &mut Wire) -> io::Result<Vec<u8>> {
    let (mut row, mut trouble) = (Vec::new(), None);
    loop {
        let [kind, length @ ..] = wire.take_array::<5>().await?;
        let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or(0);
        let body = wire.take(length.saturating_sub(4)).await?;
        match kind {
            b'Z' => return trouble.map_or(Ok(row), Err),
            b'E' => {
                let mut fields = body.split(|byte| *byte == 0);
                let text = fields.find_map(|field| field.strip_prefix(b"M"));
                let text = String::from_utf8_lossy(text.unwrap_or(b"unknown error")).into_owned();
                if row.is_empty() && text.contains("starting up") {
                    return Err(malformed("postgres: starting up"));
                }
                trouble = Some(malformed(&format!("postgres: {text}")));
            }
            b'R' if body != [0; 4] => return Err(malformed("postgres: a password is required")),
            b'D' => row = body.get(6..).unwrap_or_default().to_vec(),
            _ => {}
        }
    }
}
