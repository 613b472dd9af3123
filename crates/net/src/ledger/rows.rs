//! Rows of the ledger as bytes. Texts are written once per segment and named by number after that;
//! times, numbers and fences are written as differences to the row before.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::api::{Happening, Units, Want};

/// Units of one pool that a row names at most; `want` says how many there are.
const MAX_UNITS_NAMED: usize = 1024;

/// One entry of a block.
#[derive(Serialize, Deserialize)]
enum Entry {
    /// The next text of the segment.
    Text(String),
    Row(Row),
}

#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    at: i64,
    seq: i64,
    pub event: u32,
    request: Option<Id>,
    lease: Option<Name>,
    pub owner: Option<u32>,
    reason: Option<u32>,
    principal: Option<u32>,
    pub want: Vec<(u32, u32)>,
    pub units: Vec<(u32, Names)>,
    fence: Option<i64>,
    pub waited: Option<u64>,
    pub held: Option<u64>,
    cause: Option<u32>,
}

/// The id of a request: one that a site made, or the client's own.
#[derive(Serialize, Deserialize)]
enum Id {
    Made(u16, [u8; 8]),
    Text(u32),
}

/// The name of a lease.
#[derive(Serialize, Deserialize)]
enum Name {
    Made(u16, [u8; 4]),
    Text(u32),
}

/// Names of units: runs of numbers, or texts.
#[derive(Serialize, Deserialize)]
pub(super) enum Names {
    Runs(Vec<(u32, u32)>),
    Texts(Vec<u32>),
}

/// What rows of a segment are relative to.
#[derive(Clone, Copy, Default)]
struct Last {
    at: u64,
    seq: u64,
    fence: u64,
}

/// Writes the rows of one segment.
#[derive(Default)]
pub(super) struct Encoder {
    texts: HashMap<Box<str>, u32>,
    last: Last,
}

impl Encoder {
    /// Appends a row, and the texts that are new.
    pub(super) fn put(&mut self, it: &Happening, out: &mut Vec<u8>) {
        let row = Row {
            at: difference(it.at_ms, &mut self.last.at),
            seq: difference(it.seq, &mut self.last.seq),
            event: self.text(&it.event, out),
            request: it.request.as_ref().map(|id| match made::<8>(id, 'R') {
                Some((site, bytes)) => Id::Made(site, bytes),
                None => Id::Text(self.text(id, out)),
            }),
            lease: it.lease.as_ref().map(|name| match made::<4>(name, 'L') {
                Some((site, bytes)) => Name::Made(site, bytes),
                None => Name::Text(self.text(name, out)),
            }),
            owner: it.owner.as_ref().map(|text| self.text(text, out)),
            reason: it.reason.as_ref().map(|text| self.text(text, out)),
            principal: it.principal.as_ref().map(|text| self.text(text, out)),
            want: it.want.iter().map(|(pool, &units)| (self.text(pool, out), units)).collect(),
            units: it
                .units
                .iter()
                .map(|(pool, units)| (self.text(pool, out), self.names(units, out)))
                .collect(),
            fence: it.fence.map(|fence| difference(fence, &mut self.last.fence)),
            waited: it.waited_ms,
            held: it.held_ms,
            cause: it.cause.as_ref().map(|text| self.text(text, out)),
        };
        push(&Entry::Row(row), out);
    }

    fn text(&mut self, text: &str, out: &mut Vec<u8>) -> u32 {
        if let Some(&number) = self.texts.get(text) {
            return number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        push(&Entry::Text(text.to_owned()), out);
        self.texts.insert(text.into(), number);
        number
    }

    fn names(&mut self, units: &[String], out: &mut Vec<u8>) -> Names {
        let units = units.get(..MAX_UNITS_NAMED).unwrap_or(units);
        // `007` is a name, not a number.
        let number = |name: &String| name.parse().ok().filter(|it: &u32| it.to_string() == *name);
        let Some(numbers) = units.iter().map(number).collect::<Option<Vec<u32>>>() else {
            return Names::Texts(units.iter().map(|name| self.text(name, out)).collect());
        };
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some((first, length)) if first.checked_add(*length) == Some(number) => *length += 1,
                _ => runs.push((number, 1)),
            }
        }
        Names::Runs(runs)
    }
}

fn push(entry: &Entry, out: &mut Vec<u8>) {
    out.extend(postcard::to_stdvec(entry).unwrap_or_default());
}

fn difference(value: u64, last: &mut u64) -> i64 {
    value.wrapping_sub(std::mem::replace(last, value)).cast_signed()
}

fn sum(difference: i64, last: &mut u64) -> u64 {
    *last = last.wrapping_add(difference.cast_unsigned());
    *last
}

/// The parts of a name that a site made: its number, and `N` bytes in hexadecimal.
fn made<const N: usize>(text: &str, kind: char) -> Option<(u16, [u8; N])> {
    let (site, digits) = text.strip_prefix(kind)?.split_once('-')?;
    let number: u16 = site.parse().ok()?;
    let mut bytes = [0; N];
    if digits.len() != 2 * N || !digits.is_ascii() {
        return None;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * place..2 * place + 2], 16).ok()?;
    }
    (shown(kind, number, &bytes) == text).then_some((number, bytes))
}

fn shown(kind: char, site: u16, bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}{site}-{}", digits.concat())
}

/// Reads the rows of one segment, in their order.
#[derive(Default)]
pub(super) struct Decoder {
    texts: Vec<Arc<str>>,
    last: Last,
}

/// A row with the texts that it names.
pub(super) struct View<'a> {
    pub row: &'a Row,
    pub at_ms: u64,
    pub seq: u64,
    fence: Option<u64>,
    texts: &'a [Arc<str>],
}

impl Decoder {
    /// Reads a block. Fails if it is not one that an [`Encoder`] wrote after the blocks before.
    pub(super) fn block(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(View<'_>),
    ) -> Result<(), postcard::Error> {
        while !bytes.is_empty() {
            let (entry, rest) = postcard::take_from_bytes::<Entry>(bytes)?;
            bytes = rest;
            match entry {
                Entry::Text(text) => self.texts.push(text.into()),
                Entry::Row(row) => {
                    let at_ms = sum(row.at, &mut self.last.at);
                    let seq = sum(row.seq, &mut self.last.seq);
                    let fence = row.fence.map(|fence| sum(fence, &mut self.last.fence));
                    each(View { row: &row, at_ms, seq, fence, texts: &self.texts });
                }
            }
        }
        Ok(())
    }
}

impl View<'_> {
    pub(super) fn text(&self, number: u32) -> &str {
        self.shared(number).map_or("", |text| text)
    }

    fn shared(&self, number: u32) -> Option<&Arc<str>> {
        self.texts.get(usize::try_from(number).unwrap_or(usize::MAX))
    }

    pub(super) fn owner(&self) -> &str {
        self.row.owner.map_or("", |number| self.text(number))
    }

    /// The names of the units of one pool.
    pub(super) fn names(&self, names: &Names) -> Vec<String> {
        match names {
            Names::Texts(texts) => texts.iter().map(|&it| self.text(it).to_owned()).collect(),
            Names::Runs(runs) => {
                let numbers =
                    runs.iter().flat_map(|&(first, length)| first..first.saturating_add(length));
                numbers.take(MAX_UNITS_NAMED).map(|number| number.to_string()).collect()
            }
        }
    }

    pub(super) fn happening(&self, site: &Arc<str>) -> Happening {
        let row = self.row;
        let owned = |number: u32| self.text(number).to_owned();
        let shared = |number: Option<u32>| number.and_then(|it| self.shared(it).cloned());
        let want: Want = row.want.iter().map(|&(pool, units)| (owned(pool), units)).collect();
        let units: Units =
            row.units.iter().map(|(pool, names)| (owned(*pool), self.names(names))).collect();
        Happening {
            at_ms: self.at_ms,
            seq: self.seq,
            event: owned(row.event).into(),
            site: Arc::clone(site),
            request: match &row.request {
                Some(Id::Made(site, bytes)) => Some(shown('R', *site, bytes).into()),
                Some(Id::Text(number)) => shared(Some(*number)),
                None => None,
            },
            lease: match &row.lease {
                Some(Name::Made(site, bytes)) => Some(shown('L', *site, bytes).into()),
                Some(Name::Text(number)) => shared(Some(*number)),
                None => None,
            },
            owner: shared(row.owner),
            reason: shared(row.reason),
            want: Arc::new(want),
            units: Arc::new(units),
            fence: self.fence,
            waited_ms: row.waited,
            held_ms: row.held,
            cause: row.cause.map(|number| owned(number).into()),
            principal: shared(row.principal),
        }
    }

    /// Units of each pool: those that were granted, or else those that were asked for.
    pub(super) fn counts(&self) -> BTreeMap<&str, u32> {
        self.row.want.iter().map(|&(pool, units)| (self.text(pool), units)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written() {
        let site: Arc<str> = "s0".into();
        let rows: Vec<Happening> = (0..40_u64)
            .map(|number| Happening {
                at_ms: 1_700_000_000_000 + number * 7 - (number % 3) * 100,
                seq: (5 << 32) + number,
                event: if number % 2 == 0 { "granted" } else { "released" }.into(),
                site: Arc::clone(&site),
                request: Some(match number % 4 {
                    0 => "R3-00112233445566ff".into(),
                    1 => "mine, ü".into(),
                    2 => "R03-00112233445566ff".into(),
                    _ => "R3-00112233445566FF".into(),
                }),
                lease: (number % 2 == 0).then(|| "L7-89abcdef".into()),
                owner: (number % 3 != 0).then(|| "alice".into()),
                reason: None,
                want: Arc::new([("gpu".to_owned(), 5), ("licence".to_owned(), 1)].into()),
                units: Arc::new(
                    [
                        ("gpu".to_owned(), ["3", "4", "5", "9", "0"].map(str::to_owned).to_vec()),
                        ("licence".to_owned(), vec!["007".to_owned()]),
                    ]
                    .into(),
                ),
                fence: number.checked_sub(3).map(|it| u64::MAX - it),
                waited_ms: Some(number),
                held_ms: (number % 2 == 1).then_some(u64::MAX),
                cause: Some("why".into()),
                principal: None,
            })
            .collect();
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let mut read = Vec::new();
        for part in rows.chunks(7) {
            let mut block = Vec::new();
            for it in part {
                encoder.put(it, &mut block);
            }
            decoder.block(&block, |view| read.push(view.happening(&site))).unwrap();
        }
        assert_eq!(read, rows);
    }
}
