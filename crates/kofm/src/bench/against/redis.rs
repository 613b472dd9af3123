//! A client of Redis, by its protocol RESP 2.
//!
//! Recipes: for k = 1 a list of tokens, taken with `BLPOP` and put back with `RPUSH`: one command
//! each, and Redis serves waiting clients in order. For larger k two scripts: one takes k units or
//! joins a list of waiting clients, the other returns k and wakes the clients at the head of the
//! list that can be served, each through a list of its own. Neither has leases: the units of a
//! client that dies are lost. With leases Redis would do more work for each pair.

use std::io;

use super::wire::{Wire, malformed};

const TAKE: &str = "local k = tonumber(ARGV[1])
if redis.call('llen', KEYS[2]) == 0 and tonumber(redis.call('get', KEYS[1])) >= k then
  redis.call('decrby', KEYS[1], k)
  return 1
end
redis.call('rpush', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])
return 0";

const PUT: &str = "local free = redis.call('incrby', KEYS[1], ARGV[1])
while true do
  local head = redis.call('lindex', KEYS[2], 0)
  if not head then return free end
  local k, key = string.match(head, '(%d+) (.*)')
  if tonumber(k) > free then return free end
  redis.call('lpop', KEYS[2])
  free = redis.call('decrby', KEYS[1], k)
  redis.call('rpush', key, 1)
end";

/// A client of one semaphore.
#[derive(Debug)]
pub(super) struct Client {
    wire: Wire,
    recipe: Recipe,
}

#[derive(Debug)]
enum Recipe {
    /// One unit at a time, of a list of tokens.
    Tokens { take: Vec<u8>, put: Vec<u8> },
    /// Several units at once.
    Scripts { free: String, queue: String, own: String, take: String, put: String },
}

impl Client {
    /// Writes the semaphore `name` as it is when no unit is taken.
    pub(super) async fn prepare(address: &str, name: &str, units: u32) -> io::Result<()> {
        let mut wire = Wire::connect(address).await?;
        let free = format!("{name}:free");
        call(&mut wire, &["DEL", name, &free, &format!("{name}:queue")]).await?;
        call(&mut wire, &["SET", &free, &units.to_string()]).await?;
        for token in 0..units {
            call(&mut wire, &["RPUSH", name, &token.to_string()]).await?;
        }
        Ok(())
    }

    pub(super) async fn connect(
        address: &str,
        name: &str,
        number: usize,
        several: bool,
    ) -> io::Result<Self> {
        let mut wire = Wire::connect(address).await?;
        let recipe = if several {
            let own = format!("{name}:client:{number}");
            call(&mut wire, &["DEL", &own]).await?;
            let (free, queue) = (format!("{name}:free"), format!("{name}:queue"));
            let take = load(&mut wire, TAKE).await?;
            let put = load(&mut wire, PUT).await?;
            Recipe::Scripts { free, queue, own, take, put }
        } else {
            let (take, put) = (encode(&["BLPOP", name, "0"]), encode(&["RPUSH", name, "0"]));
            Recipe::Tokens { take, put }
        };
        Ok(Self { wire, recipe })
    }

    pub(super) async fn acquire(&mut self, k: u32) -> io::Result<()> {
        match &self.recipe {
            Recipe::Tokens { take, .. } => {
                self.wire.send(take).await?;
                reply(&mut self.wire).await?;
            }
            Recipe::Scripts { free, queue, own, take, .. } => {
                let words = ["EVALSHA", take, "2", free, queue, &k.to_string(), own];
                if call(&mut self.wire, &words).await? != b"1" {
                    call(&mut self.wire, &["BLPOP", own, "0"]).await?;
                }
            }
        }
        Ok(())
    }

    pub(super) async fn release(&mut self, k: u32) -> io::Result<()> {
        match &self.recipe {
            Recipe::Tokens { put, .. } => {
                self.wire.send(put).await?;
                reply(&mut self.wire).await?;
            }
            Recipe::Scripts { free, queue, put, .. } => {
                let words = ["EVALSHA", put, "2", free, queue, &k.to_string()];
                call(&mut self.wire, &words).await?;
            }
        }
        Ok(())
    }
}

async fn load(wire: &mut Wire, script: &str) -> io::Result<String> {
    let digest = call(wire, &["SCRIPT", "LOAD", script]).await?;
    String::from_utf8(digest).map_err(|_| malformed("redis: a digest that is not text"))
}

fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

async fn call(wire: &mut Wire, words: &[&str]) -> io::Result<Vec<u8>> {
    wire.send(&encode(words)).await?;
    reply(wire).await
}

/// The last value of a reply; an error of the server is an error here.
async fn reply(wire: &mut Wire) -> io::Result<Vec<u8>> {
    let (mut left, mut last) = (1, Vec::new());
    while left > 0 {
        left -= 1;
        let line = wire.take_line().await?;
        let (Some(kind), Some(text)) = (line.first(), line.get(1..)) else {
            return Err(malformed("redis: an empty line"));
        };
        let number = || -> io::Result<i64> {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
            number.ok_or_else(|| malformed("redis: a length that is not a number"))
        };
        match kind {
            b'-' => return Err(malformed(&format!("redis: {}", String::from_utf8_lossy(text)))),
            b'+' | b':' => last = text.to_vec(),
            b'*' => left += usize::try_from(number()?).unwrap_or(0),
            b'$' => {
                if let Ok(length) = usize::try_from(number()?) {
                    last = wire.take(length + 2).await?;
                    last.truncate(length);
                }
            }
            _ => return Err(malformed("redis: an unknown type")),
        }
    }
    Ok(last)
}
