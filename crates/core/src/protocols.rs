//! The list of protocols. A new one is a file beside this one and a line below.

/// Whoever works with a protocol chosen at run time.
pub trait Visitor {
    /// What comes of it.
    type Output;
    /// Called with the protocol that was chosen.
    fn visit<P: crate::Protocol>(self) -> Self::Output;
}

macro_rules! protocols {
    ($($(#[$doc:meta])* $module:ident :: $protocol:ident;)*) => {
        $(pub mod $module;)*

        /// A registered protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[$doc])* $protocol,)*
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
    roaming::Roaming;
    /// Raynal 1990 §3 and §6: ask everybody, count what they have.
    permission::Permission;
    /// Raynal 1990 §5.1, corrected: do not ask whom you know to be using.
    permission_lazy::PermissionLazy;
    /// Raynal 1990 §5.1 to the letter, with its fault.
    permission_lazy_as_printed::PermissionLazyAsPrinted;
    /// Baldoni 1994, corrected: ask arbiters, any too many of whom meet.
    quorum::Quorum;
    /// Baldoni 1994 to the letter: its handlers wait for each other.
    quorum_as_printed::QuorumAsPrinted;
    /// Baldoni 1994 with handlers that do not: a late question is answered for the wrong request.
    quorum_as_printed_inquire::QuorumAsPrintedInquire;
    /// Raynal 1992 §3.2: a semaphore whose count travels with a token.
    sem_token::SemToken;
    /// Raynal 1992 §3.3, corrected: a semaphore whose sites permit and count.
    sem_permission::SemPermission;
    /// Raynal 1992, annex, to the letter: nobody waits for permissions.
    sem_permission_as_printed::SemPermissionAsPrinted;
    /// Raynal 1992 §3.4, corrected: a semaphore with arbiters.
    sem_quorum::SemQuorum;
    /// Raynal 1992 §3.4 to the letter: permissions are never called back.
    sem_quorum_as_printed::SemQuorumAsPrinted;
    /// Cheng 1999, appendix, corrected: groups that share processes take turns.
    groups::Groups;
    /// Cheng 1999 §5, repaired: only groups that want to work are compared.
    groups_hungry::GroupsHungry;
    /// Cheng 1999, appendix, to the letter, read as kindly as it can be.
    groups_as_printed::GroupsAsPrinted;
    /// The same, where a process has to inform itself too.
    groups_as_printed_self::GroupsAsPrintedSelf;
    /// Cheng 1999 §5, as described.
    groups_hungry_as_printed::GroupsHungryAsPrinted;
    /// kofm's own: several sites start together, over roaming.
    gang::Gang;
    /// Datta 2009, corrected: tokens go round a tree, and heal from anything.
    tree::Tree;
    /// Datta 2009 to the letter: its root decides before it has counted its own tokens.
    tree_as_printed::TreeAsPrinted;
    /// Datta 2009 with the pusher's guard as printed: claims wait for ever.
    tree_as_printed_pusher::TreeAsPrintedPusher;
    /// Datta 2009 with the priority token's count as printed: a second one stays.
    tree_as_printed_priority::TreeAsPrintedPriority;
}

impl Kind {
    /// The protocol of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}
