//! [`RootKind`]: whose root a header carries.
//!
//! | the header's time | root | backends |
//! |---|---|---|
//! | before the chain's binary tree time, or it has none | Merkle Patricia trie | [`ethereum_root`](BackendProfile::ethereum_root) |
//! | from then on | partitioned binary tree (EIP-8297) | [`binary_root`](BackendProfile::binary_root) |

use retrie_state::BackendProfile;

/// The kind of state root that a header carries. It follows from the chain and the header's
/// timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootKind {
    /// Of the Merkle Patricia trie.
    Merkle,
    /// Of the partitioned binary tree (EIP-8297).
    Binary,
}

impl RootKind {
    /// The kind of a header with this timestamp, on a chain with this binary tree time.
    pub const fn at(binary_tree_time: Option<u64>, timestamp: u64) -> Self {
        match binary_tree_time {
            Some(time) if timestamp >= time => Self::Binary,
            _ => Self::Merkle,
        }
    }

    /// The other kind.
    pub const fn other(self) -> Self {
        match self {
            Self::Merkle => Self::Binary,
            Self::Binary => Self::Merkle,
        }
    }

    /// Whether a backend with this profile computes it.
    pub const fn is_of(self, profile: &BackendProfile) -> bool {
        match self {
            Self::Merkle => profile.ethereum_root,
            Self::Binary => profile.binary_root,
        }
    }

    /// The tree: `Merkle Patricia trie`, `partitioned binary tree`.
    pub const fn tree(self) -> &'static str {
        match self {
            Self::Merkle => "Merkle Patricia trie",
            Self::Binary => "partitioned binary tree",
        }
    }
}
