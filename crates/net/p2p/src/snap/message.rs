//! The messages of `snap`.

use super::codec::id;
use alloy_consensus::{EMPTY_ROOT_HASH, TrieAccount};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, U256};
use alloy_rlp::{Decodable, Encodable, RlpDecodable, RlpEncodable};
use std::fmt;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapVersion {
    /// A state is brought forward by trie nodes.
    Snap1,
    /// EIP-8189: a state is brought forward by block access lists.
    Snap2,
}

impl SnapVersion {
    /// All versions, the newest first.
    pub const ALL: [Self; 2] = [Self::Snap2, Self::Snap1];

    /// Its number in hello messages.
    pub const fn number(self) -> u8 {
        match self {
            Self::Snap1 => 1,
            Self::Snap2 => 2,
        }
    }

    /// The version of this number, if this node supports it.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|version| u64::from(version.number()) == number)
    }
}

impl fmt::Display for SnapVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", super::NAME, self.number())
    }
}

/// A request to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapRequest {
    /// `GetAccountRange`.
    Accounts {
        /// Root of the state.
        root: B256,
        /// The smallest hash of an address that is asked for.
        first: B256,
        /// The hash after which the answer may end.
        last: B256,
        /// About how many bytes the answer should have at most.
        bytes: u64,
    },
    /// `GetStorageRanges`.
    Storage {
        /// Root of the state.
        root: B256,
        /// Hashes of the addresses of accounts.
        accounts: Vec<B256>,
        /// The smallest hash of a slot of the first account; none is zero.
        first: Bytes,
        /// The hash of a slot after which the answer for an account may end; none is the largest.
        last: Bytes,
        /// As in [`Accounts`](Self::Accounts).
        bytes: u64,
    },
    /// `GetByteCodes`.
    Codes {
        /// Hashes of codes.
        hashes: Vec<B256>,
        /// As in [`Accounts`](Self::Accounts).
        bytes: u64,
    },
    /// `GetTrieNodes`; in version 1 alone.
    Nodes {
        /// Root of the state.
        root: B256,
        /// The nodes.
        paths: Vec<TrieNodePaths>,
        /// As in [`Accounts`](Self::Accounts).
        bytes: u64,
    },
    /// `GetBlockAccessLists`; from version 2 on.
    AccessLists {
        /// Hashes of blocks.
        hashes: Vec<B256>,
        /// As in [`Accounts`](Self::Accounts).
        bytes: u64,
    },
}

/// Paths of nodes: one path of a node of the account trie, in compact encoding; or the hash of an
/// account's address, and paths of nodes of its storage trie.
pub type TrieNodePaths = Vec<Bytes>;

/// A leaf as an answer has it: its key, and its value in RLP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapLeaf {
    /// Hash of the address or slot.
    pub key: B256,
    /// Of an account a [`SlimAccount`], of a slot its value as in the trie.
    pub value: Bytes,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapResponse {
    /// `AccountRange`.
    Accounts {
        /// The accounts.
        accounts: Vec<SnapLeaf>,
        /// The nodes of the proof.
        proof: Vec<Bytes>,
    },
    /// `StorageRanges`.
    Storage {
        /// The slots of each account, in the order of the request, for as many as fit.
        slots: Vec<Vec<SnapLeaf>>,
        /// The nodes of the proof for the last of these accounts, unless all its slots are there.
        proof: Vec<Bytes>,
    },
    /// `ByteCodes`: those that the peer has, in the order of the request.
    Codes(Vec<Bytes>),
    /// `TrieNodes`: a prefix of those asked for.
    Nodes(Vec<Bytes>),
    /// `BlockAccessLists`: the RLP of each list (EIP-7928), whose keccak-256 its header has; `None`
    /// if it is not available. The entries are those of the first blocks of the request.
    AccessLists(Vec<Option<Bytes>>),
}

/// Any message of the protocol. The answer to a request repeats the request id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapMessage {
    /// A request.
    Request(u64, SnapRequest),
    /// The answer to the request with this id.
    Response(u64, SnapResponse),
}

/// An account in the form that answers have: as the leaf of the trie, but empty strings stand for
/// the root of the empty trie and for the hash of no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlimAccount {
    /// Nonce.
    pub nonce: u64,
    /// Balance in wei.
    pub balance: U256,
    /// Root of the storage trie.
    pub storage_root: B256,
    /// keccak-256 of the code.
    pub code_hash: B256,
}

/// The fields as they are encoded.
#[derive(RlpEncodable, RlpDecodable)]
struct SlimFields {
    nonce: u64,
    balance: U256,
    storage_root: Bytes,
    code_hash: Bytes,
}

impl SlimAccount {
    /// The account's RLP.
    pub fn encode(&self) -> Bytes {
        let unless = |hash: B256, default: B256| match hash == default {
            true => Bytes::new(),
            false => Bytes::copy_from_slice(hash.as_slice()),
        };
        let mut out = Vec::new();
        SlimFields {
            nonce: self.nonce,
            balance: self.balance,
            storage_root: unless(self.storage_root, EMPTY_ROOT_HASH),
            code_hash: unless(self.code_hash, KECCAK256_EMPTY),
        }
        .encode(&mut out);
        out.into()
    }

    /// Reads the leaf of the account in the trie; `None` if it is not canonical.
    pub fn from_leaf(mut leaf: &[u8]) -> Option<Self> {
        let account = TrieAccount::decode(&mut leaf).ok()?;
        let TrieAccount { nonce, balance, storage_root, code_hash } = account;
        leaf.is_empty().then_some(Self { nonce, balance, storage_root, code_hash })
    }

    /// The leaf of the account in the trie.
    pub fn to_leaf(self) -> Bytes {
        let Self { nonce, balance, storage_root, code_hash } = self;
        alloy_rlp::encode(TrieAccount { nonce, balance, storage_root, code_hash }).into()
    }

    /// Reads the account's RLP; `None` if it is not canonical.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let SlimFields { nonce, balance, storage_root, code_hash } =
            SlimFields::decode(&mut bytes).ok()?;
        // A default that is written out would be a second encoding.
        let hash = |bytes: Bytes, default: B256| match bytes.is_empty() {
            true => Some(default),
            false => B256::try_from(&bytes[..]).ok().filter(|hash| *hash != default),
        };
        let storage_root = hash(storage_root, EMPTY_ROOT_HASH)?;
        let code_hash = hash(code_hash, KECCAK256_EMPTY)?;
        bytes.is_empty().then_some(Self { nonce, balance, storage_root, code_hash })
    }
}

impl SnapRequest {
    /// Whether this version has such a request.
    pub const fn is_of(&self, version: SnapVersion) -> bool {
        match self {
            Self::Accounts { .. } | Self::Storage { .. } | Self::Codes { .. } => true,
            Self::Nodes { .. } => matches!(version, SnapVersion::Snap1),
            Self::AccessLists { .. } => matches!(version, SnapVersion::Snap2),
        }
    }

    /// The id of the message that answers it.
    pub(crate) const fn answered_by(&self) -> u8 {
        match self {
            Self::Accounts { .. } => id::ACCOUNT_RANGE,
            Self::Storage { .. } => id::STORAGE_RANGES,
            Self::Codes { .. } => id::BYTE_CODES,
            Self::Nodes { .. } => id::TRIE_NODES,
            Self::AccessLists { .. } => id::ACCESS_LISTS,
        }
    }

    /// How many [items](SnapResponse::items) an answer has at most. Only bytes bound a range.
    pub(crate) fn most_items(&self) -> usize {
        match self {
            Self::Accounts { .. } => usize::MAX,
            Self::Storage { accounts, .. } => accounts.len(),
            Self::Codes { hashes, .. } | Self::AccessLists { hashes, .. } => hashes.len(),
            Self::Nodes { paths, .. } => paths.iter().map(|of| of.len().max(2) - 1).sum(),
        }
    }

    /// The answer of a node that does not have what was asked for.
    pub const fn empty_answer(&self) -> SnapResponse {
        match self {
            Self::Accounts { .. } => {
                SnapResponse::Accounts { accounts: Vec::new(), proof: Vec::new() }
            }
            Self::Storage { .. } => SnapResponse::Storage { slots: Vec::new(), proof: Vec::new() },
            Self::Codes { .. } => SnapResponse::Codes(Vec::new()),
            Self::Nodes { .. } => SnapResponse::Nodes(Vec::new()),
            Self::AccessLists { .. } => SnapResponse::AccessLists(Vec::new()),
        }
    }
}

impl SnapResponse {
    /// Its number of accounts, of accounts with slots, of codes, of nodes, or of access lists.
    pub(crate) const fn items(&self) -> usize {
        match self {
            Self::Accounts { accounts, .. } => accounts.len(),
            Self::Storage { slots, .. } => slots.len(),
            Self::Codes(codes) => codes.len(),
            Self::Nodes(nodes) => nodes.len(),
            Self::AccessLists(lists) => lists.len(),
        }
    }
}
