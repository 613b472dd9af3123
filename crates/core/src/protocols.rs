//! The list of protocols. A new one is a file beside this one and a line below.
//!
//! The number of a protocol is on the wire, in the record of an epoch and in the file of leases. It
//! never changes, and that of a protocol that is gone is never used again: numbers below 1000 are
//! of protocols for sites, the others run in checker and simulator only.

use serde::{Deserialize, Serialize};

/// The number of a protocol: the same in every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProtocolId(pub u16);

/// Whoever works with a protocol chosen at run time.
pub trait Visitor {
    /// What comes of it.
    type Output;
    /// Called with the protocol that was chosen.
    fn visit<P: crate::Protocol>(self) -> Self::Output;
}

macro_rules! protocols {
    ($($(#[$doc:meta])* $number:literal $module:ident :: $protocol:ident;)*) => {
        $(pub mod $module;)*

        /// A registered protocol. Two with one number do not compile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Kind {
            $($(#[$doc])* $protocol = $number,)*
        }

        impl Kind {
            /// All of them, in the order of the list.
            pub const ALL: &'static [Self] = &[$(Self::$protocol,)*];

            /// Calls `visitor` with the protocol: the only dispatch at run time.
            pub fn visit<V: Visitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Self::$protocol => visitor.visit::<$module::$protocol>(),)*
                }
            }

            /// The name users type.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$protocol => <$module::$protocol as crate::Protocol>::NAME,)*
                }
            }

            /// The faults that a reading of this listing may have.
            pub const fn faults(self) -> &'static [crate::Fault] {
                match self {
                    $(Self::$protocol => <$module::$protocol as crate::Protocol>::FAULTS,)*
                }
            }

            /// What it can do and what it costs.
            pub const fn profile(self) -> crate::Profile {
                match self {
                    $(Self::$protocol => <$module::$protocol as crate::Protocol>::PROFILE,)*
                }
            }
        }
    };
}

protocols! {
    /// Units live where they are used; the default.
    1 roaming::Roaming;
    /// Raynal 1990 §3 and §6: ask everybody, count what they have.
    2 permission::Permission;
    /// Raynal 1990 §5.1, corrected: do not ask whom you know to be using.
    3 permission_lazy::PermissionLazy;
    /// Raynal 1990 §3 to the letter: a site that is alone is never granted.
    1014 permission_as_printed::PermissionAsPrinted;
    /// Raynal 1990 §5.1 to the letter, with its fault.
    1000 permission_lazy_as_printed::PermissionLazyAsPrinted;
    /// Baldoni 1994, corrected: ask arbiters, any too many of whom meet.
    4 quorum::Quorum;
    /// Baldoni 1994 to the letter: its handlers wait for each other.
    1001 quorum_as_printed::QuorumAsPrinted;
    /// Baldoni 1994 with handlers that do not: a late question is answered for the wrong request.
    1002 quorum_as_printed_inquire::QuorumAsPrintedInquire;
    /// Baldoni 1994 (v), Singhal 1991: of each two sites one asks the other.
    1016 quorum_as_printed_singhal::QuorumAsPrintedSinghal;
    /// Raynal 1992 §3.2: a semaphore whose count travels with a token.
    16 sem_token::SemToken;
    /// Raynal 1992 §3.2 to the letter: the token goes along a fixed tree, or round a ring.
    1015 sem_token_as_printed::SemTokenAsPrinted;
    /// Raynal 1992 §3.3, corrected: a semaphore whose sites permit and count.
    17 sem_permission::SemPermission;
    /// Raynal 1992, annex, to the letter: nobody waits for permissions.
    1003 sem_permission_as_printed::SemPermissionAsPrinted;
    /// Raynal 1992 §3.4, corrected: a semaphore with arbiters.
    18 sem_quorum::SemQuorum;
    /// Raynal 1992 §3.4 to the letter: permissions are never called back.
    1004 sem_quorum_as_printed::SemQuorumAsPrinted;
    /// Cheng 1999, appendix, corrected: groups that share processes take turns.
    32 groups::Groups;
    /// Cheng 1999 §5, repaired: only groups that want to work are compared.
    33 groups_hungry::GroupsHungry;
    /// Cheng 1999, appendix, to the letter, read as kindly as it can be.
    1005 groups_as_printed::GroupsAsPrinted;
    /// The same, where a process has to inform itself too.
    1006 groups_as_printed_self::GroupsAsPrintedSelf;
    /// Cheng 1999 §5, as described.
    1007 groups_hungry_as_printed::GroupsHungryAsPrinted;
    /// The same, where a process that has informed gives nothing away.
    1011 groups_hungry_as_printed_holds::GroupsHungryAsPrintedHolds;
    /// The same, where a process informs only a group that leads its competitors' groups.
    1012 groups_hungry_as_printed_leads::GroupsHungryAsPrintedLeads;
    /// The same, where a process keeps what an idle group of its own leads for.
    1013 groups_hungry_as_printed_keeps::GroupsHungryAsPrintedKeeps;
    /// kofm's own: several sites start together, over roaming.
    48 gang::Gang;
    /// Datta 2009, corrected: tokens go round a tree, and heal from anything.
    5 tree::Tree;
    /// Datta 2009 to the letter: its root decides before it has counted its own tokens.
    1008 tree_as_printed::TreeAsPrinted;
    /// Datta 2009 with the pusher's guard as printed: claims wait for ever.
    1009 tree_as_printed_pusher::TreeAsPrintedPusher;
    /// Datta 2009 with the priority token's count as printed: a second one stays.
    1010 tree_as_printed_priority::TreeAsPrintedPriority;
}

macro_rules! site_protocols {
    ($($module:ident :: $protocol:ident $(except $reason:literal)?;)*) => {
        impl Kind {
            /// The protocols that sites run, in the order of their numbers.
            pub const IN_SITES: &'static [Self] = &[$(Self::$protocol,)*];

            /// Calls `visitor` with the protocol, if sites run it. A crate that calls only this
            /// compiles no other protocol.
            pub fn visit_in_site<V: Visitor>(self, visitor: V) -> Option<V::Output> {
                match self {
                    $(Self::$protocol => Some(visitor.visit::<$module::$protocol>()),)*
                    _ => None,
                }
            }
        }

        $(const _: () = assert!(
            outlives_a_crash(Kind::$protocol.profile()) $(|| !$reason.is_empty())?,
            "a protocol of sites survives the crash of a site"
        );)*
    };
}

/// Whether the others go on where a site dies: with the next epoch, or by itself.
const fn outlives_a_crash(profile: crate::Profile) -> bool {
    let goes_on = profile.survives("crash") || profile.survives("arbitrary-start");
    goes_on && profile.full_service && !profile.as_printed
}

site_protocols! {
    roaming::Roaming;
    permission::Permission;
    permission_lazy::PermissionLazy;
    quorum::Quorum;
    tree::Tree;
    sem_token::SemToken;
    sem_permission::SemPermission;
    sem_quorum::SemQuorum;
    groups::Groups except "its members are fixed, and an absence begins it again";
    groups_hungry::GroupsHungry except "its members are fixed, and an absence begins it again";
}

impl Kind {
    /// Its number.
    pub const fn id(self) -> ProtocolId {
        ProtocolId(self as u16)
    }

    /// The protocol of that number.
    pub fn with_id(id: ProtocolId) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.id() == id)
    }

    /// Whether sites run it.
    pub fn runs_in_sites(self) -> bool {
        Self::IN_SITES.contains(&self)
    }

    /// The protocol of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::Kind;

    #[test]
    fn the_numbers_of_protocols_stay() {
        let listed: Vec<(u16, &str)> =
            Kind::IN_SITES.iter().map(|kind| (kind.id().0, kind.name())).collect();
        let known = [
            (1, "roaming"),
            (2, "permission"),
            (3, "permission-lazy"),
            (4, "quorum"),
            (5, "tree"),
            (16, "sem-token"),
            (17, "sem-permission"),
            (18, "sem-quorum"),
            (32, "groups"),
            (33, "groups-hungry"),
        ];
        assert_eq!(listed, known);
        for &kind in Kind::ALL {
            assert_eq!(Kind::with_id(kind.id()), Some(kind));
            assert_eq!(kind.id().0 >= 1000, !kind.runs_in_sites() && kind != Kind::Gang);
        }
    }
}
