//! Short names of leases. The id of a lease is a secret: a client that has it may renew and
//! release. Lists, events and logs show the name, which is the beginning of the id.

/// Hexadecimal digits of the id that are in the name.
const SHOWN: usize = 8;

/// The name of the lease with this id.
pub fn lease_name(id: &str) -> &str {
    let site = id.find('-').map_or(0, |place| place + 1);
    id.char_indices().nth(site + SHOWN).map_or(id, |(end, _)| &id[..end])
}

/// Whether a text has the form of a lease's name.
pub fn is_lease_name(text: &str) -> bool {
    let parts = text.strip_prefix('L').and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(site, start)| {
        site.parse::<u16>().is_ok()
            && start.len() == SHOWN
            && start.bytes().all(|it| it.is_ascii_digit() || (b'a'..=b'f').contains(&it))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_beginning_of_an_id_and_no_id() {
        let id = "L12-3fa9c2d1b4e0f7a68855aabbccddeeff";
        assert_eq!(lease_name(id), "L12-3fa9c2d1");
        assert!(is_lease_name(lease_name(id)));
        assert_eq!(lease_name("L12-3fa9c2d1"), "L12-3fa9c2d1");
        for other in [id, "", "L", "L-3fa9c2d1", "R0-3fa9c2d1", "L0-3fa9c2g1", "L0-3FA9C2D1", "é"]
        {
            assert!(!is_lease_name(other), "{other}");
        }
        for short in ["", "é", "L0", "L0-", "é-ü"] {
            assert_eq!(lease_name(short), short);
        }
    }
}
