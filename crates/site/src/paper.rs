//! The id of a lease, which any site of the cluster can check and read.
//!
//! An id is `L` and the number of the site that granted the lease, a dash, and eight hexadecimal
//! digits, which with what is before them are the lease's name. The rest is in base64 what it takes
//! to go on with the lease at another site, with a keyed hash at its end. The key is in the
//! cluster's record and is never shown. A holder presents the id to a member when the site that
//! granted the lease is gone. An id is as secret as the lease is: who has it may renew.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kofm_core::epoch::{LeaseKey, Paper, PaperPart};
use kofm_core::{SiteId, Stamp, Unit};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::api::Holder;
use crate::plan::Plan;

/// Bytes of the keyed hash in an id.
const TAG: usize = 16;
/// Bytes of it that are in the name.
const NAME: usize = 4;
/// The longest id that names its units. A longer one could not be sent with every call; its lease
/// ends with its site.
const MAX_BODY: usize = 1000;
/// Bytes of each text about the holder.
const MAX_TEXT: usize = 100;

/// The key of the hashes in ids.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PaperKey([u8; 32]);

impl PaperKey {
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// HMAC-SHA-256 of what a site says: RFC 2104, for a key that is shorter than a block.
    fn sign(&self, giver: SiteId, body: &[u8]) -> [u8; 32] {
        let padded = |pad: u8| {
            let mut block = [pad; 64];
            for (byte, key) in block.iter_mut().zip(self.0) {
                *byte ^= key;
            }
            Sha256::new_with_prefix(block)
        };
        let inner = padded(0x36).chain_update(giver.0.to_le_bytes()).chain_update(body);
        padded(0x5c).chain_update(inner.finalize()).finalize().into()
    }
}

impl fmt::Debug for PaperKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PaperKey(…)")
    }
}

/// What is in an id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasePaper {
    pub fence: u64,
    pub epoch: u64,
    pub ttl_ms: u64,
    /// The request, and whether its client chose the id.
    pub request: String,
    pub named: bool,
    pub owner: Option<String>,
    pub reason: Option<String>,
    pub principal: Option<String>,
    pub parts: Vec<LeasePart>,
}

/// A claim of the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasePart {
    pub claim: Stamp,
    /// Runs of numbers, each with its first and its length, by pool.
    pub units: BTreeMap<String, Vec<(u32, u32)>>,
}

impl LeasePaper {
    pub const fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// The id of the lease that `giver` grants.
    pub fn id(&self, giver: SiteId, key: &PaperKey) -> String {
        let mut body = self.encode();
        if body.len() > MAX_BODY {
            body = Self { parts: Vec::new(), ..self.clone() }.encode();
        }
        let tag = key.sign(giver, &body);
        let (tag, rest) = tag.split_at(TAG);
        let name = &rest[..NAME];
        body.extend_from_slice(tag);
        let mut id = format!("L{}-", giver.0);
        for byte in name {
            write!(id, "{byte:02x}").expect("a string takes everything");
        }
        URL_SAFE_NO_PAD.encode_string(body, &mut id);
        id
    }

    fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Reads an id that a site of the cluster made.
    pub fn read(id: &str, key: &PaperKey) -> Option<(SiteId, Self)> {
        let (giver, body) = id.strip_prefix('L')?.split_once('-')?;
        let giver = SiteId(giver.parse().ok()?);
        if body.len() > 2 * (MAX_BODY + TAG) {
            return None;
        }
        let (name, body) = body.split_at_checked(2 * NAME)?;
        let bytes = URL_SAFE_NO_PAD.decode(body).ok()?;
        let (body, tag) = bytes.split_at_checked(bytes.len().checked_sub(TAG)?)?;
        let expected = key.sign(giver, body);
        // How long it takes must not tell how much of a forged tag is right.
        let wrong = expected.iter().zip(tag).fold(0, |wrong, (a, b)| wrong | (a ^ b));
        let digits = expected[TAG..][..NAME].iter().map(|byte| format!("{byte:02x}"));
        if wrong != 0 || digits.collect::<String>() != name {
            return None;
        }
        Some((giver, postcard::from_bytes(body).ok()?))
    }

    /// Whose it is.
    pub fn holder(&self) -> Holder {
        let pools = self.parts.iter().flat_map(|part| part.units.keys().cloned());
        Holder { principal: self.principal.clone(), pools: pools.collect() }
    }

    /// The lease's name among members.
    pub const fn lease(&self, giver: SiteId) -> LeaseKey {
        LeaseKey { giver, fence: self.fence }
    }

    /// The units as this plan numbers them; none where the plan has other pools, or where they are
    /// not named.
    pub fn paper(&self, giver: SiteId, plan: &Plan) -> Option<Paper> {
        let mut parts = Vec::new();
        for part in &self.parts {
            let mut book = None;
            let mut units = Vec::new();
            for (name, runs) in &part.units {
                let pool = plan.pools.get(name)?;
                let group = plan.group_of(pool)?;
                let number = plan.groups().iter().position(|it| *it == group)?;
                if *book.get_or_insert(number) != number {
                    return None;
                }
                for &(first, length) in runs {
                    let end = first.checked_add(length).filter(|&end| end <= pool.units)?;
                    units.extend((first..end).map(|number| Unit { pool: pool.id, number }));
                }
            }
            let book = u16::try_from(book?).ok()?;
            parts.push(PaperPart { book, claim: part.claim, units });
        }
        (!parts.is_empty()).then(|| Paper { lease: self.lease(giver), parts })
    }
}

/// Numbers as runs, in the order in which they were granted.
pub fn runs(numbers: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((first, length)) if *first + *length == number => *length += 1,
            _ => runs.push((number, 1)),
        }
    }
    runs
}

/// A text about a holder, cut to what an id has room for.
pub fn brief(text: Option<&str>) -> Option<String> {
    let text = text?;
    let end = (0..=MAX_TEXT.min(text.len())).rev().find(|&end| text.is_char_boundary(end))?;
    Some(text[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paper() -> LeasePaper {
        LeasePaper {
            fence: 77,
            epoch: 3,
            ttl_ms: 30_000,
            request: "job".into(),
            named: true,
            owner: Some("alice".into()),
            reason: None,
            principal: None,
            parts: vec![LeasePart {
                claim: Stamp { time: 5, site: SiteId(2) },
                units: BTreeMap::from([("gpu".into(), runs(&[3, 4, 9, 1]))]),
            }],
        }
    }

    #[test]
    fn an_id_is_read_with_its_key_only_and_only_as_it_was_made() {
        let key = PaperKey::new([7; 32]);
        let id = paper().id(SiteId(2), &key);
        assert!(id.starts_with("L2-"), "{id}");
        assert_eq!(LeasePaper::read(&id, &key), Some((SiteId(2), paper())));
        assert_eq!(LeasePaper::read(&id, &PaperKey::new([8; 32])), None);
        assert_eq!(LeasePaper::read(&id.replace("L2-", "L1-"), &key), None);
        for place in 3..id.len() {
            let mut other = id.clone().into_bytes();
            other[place] = if other[place] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            // The last character has bits that mean nothing; the decoder refuses them if set.
            assert!(LeasePaper::read(&other, &key).is_none_or(|it| it.1 == paper()), "{place}");
            assert_eq!(LeasePaper::read(&id[..place], &key), None);
        }
        for text in ["", "L", "L2", "L2-", "Lx-AAAA", "R2-AAAA", "L2-é"] {
            assert_eq!(LeasePaper::read(text, &key), None, "{text}");
        }
    }

    /// Case 1 of RFC 4231: its key of 20 bytes is one of 32 with zeros at its end.
    #[test]
    fn the_keyed_hash_is_that_of_the_rfc() {
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let giver = SiteId(u16::from_le_bytes(*b"Hi"));
        let tag = PaperKey::new(key).sign(giver, b" There");
        assert_eq!(tag[..8], 0xb034_4c61_d8db_3853_u64.to_be_bytes());
        assert_eq!(tag[24..], 0x26e9_376c_2e32_cff7_u64.to_be_bytes());
    }

    #[test]
    fn an_id_of_too_many_units_names_none_of_them() {
        let key = PaperKey::new([7; 32]);
        let mut many = paper();
        let even: Vec<u32> = (0..2000).map(|number| number * 2).collect();
        many.parts[0].units.insert("slot".into(), runs(&even));
        let id = many.id(SiteId(0), &key);
        assert!(id.len() < 1000, "{}", id.len());
        assert!(LeasePaper::read(&id, &key).unwrap().1.parts.is_empty());
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(brief(None), None);
        assert_eq!(brief(Some("bob")).as_deref(), Some("bob"));
        assert_eq!(brief(Some(&"é".repeat(80))).unwrap(), "é".repeat(50));
    }
}
