//! What is said in `eth/69`, `eth/70` and `eth/71`.

use alloy_consensus::{EthereumTxEnvelope, TxEip4844WithSidecar};
use alloy_eip2124::ForkId;
use alloy_eips::{BlockHashOrNumber, eip7594::BlobTransactionSidecarVariant};
use alloy_primitives::{B256, B512, Bytes};
use retrie_chainspec::primitives::{BlockBody, Header, TxType};
use std::fmt;

/// Public key of a node: x and y of a point on secp256k1, 32 bytes each.
pub type PeerId = B512;

/// A transaction as it is sent around: one of type 3 with its sidecar.
pub type PooledTransaction =
    EthereumTxEnvelope<TxEip4844WithSidecar<BlobTransactionSidecarVariant>>;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// EIP-7642: no bloom in receipts, ranges of blocks.
    Eth69,
    /// EIP-7975: receipts of a block in parts.
    Eth70,
    /// EIP-8159: block access lists.
    Eth71,
}

impl Version {
    /// All of them, the newest first.
    pub const ALL: [Self; 3] = [Self::Eth71, Self::Eth70, Self::Eth69];

    /// The number in hello and status messages.
    pub const fn number(self) -> u8 {
        match self {
            Self::Eth69 => 69,
            Self::Eth70 => 70,
            Self::Eth71 => 71,
        }
    }

    /// The version of this number, if it is spoken here.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|version| u64::from(version.number()) == number)
    }

    /// How many message ids it takes.
    pub const fn message_count(self) -> u8 {
        match self {
            Self::Eth69 | Self::Eth70 => 0x12,
            Self::Eth71 => 0x14,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "eth/{}", self.number())
    }
}

/// Blocks that a node serves: bodies and receipts of `earliest..=latest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockRange {
    /// Number of the lowest one.
    pub earliest: u64,
    /// Number of its head.
    pub latest: u64,
    /// Hash of its head.
    pub latest_hash: B256,
}

/// The first message in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The version that the two have agreed on.
    pub version: Version,
    /// Network id; on public networks the chain id.
    pub network: u64,
    /// Hash of block 0.
    pub genesis: B256,
    /// Which forks the node has passed, and which it awaits (EIP-2124).
    pub fork_id: ForkId,
    /// What it serves.
    pub range: BlockRange,
}

/// Transactions that a peer has: the lists are of one length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewPooledTransactionHashes {
    /// EIP-2718 type of each.
    pub types: Vec<u8>,
    /// Length of each in bytes, in its pooled form, without the RLP string around it.
    pub sizes: Vec<u64>,
    /// Hash of each.
    pub hashes: Vec<B256>,
}

impl NewPooledTransactionHashes {
    /// Keeps the first `most`.
    pub fn truncate(&mut self, most: usize) {
        self.types.truncate(most);
        self.sizes.truncate(most);
        self.hashes.truncate(most);
    }

    /// Takes out all after the first `most`.
    pub fn split_off(&mut self, most: usize) -> Self {
        let most = most.min(self.hashes.len());
        Self {
            types: self.types.split_off(most),
            sizes: self.sizes.split_off(most),
            hashes: self.hashes.split_off(most),
        }
    }
}

/// Which headers a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadersFrom {
    /// The first one, by hash or number.
    pub start: BlockHashOrNumber,
    /// How many at most.
    pub limit: u64,
    /// How many blocks to leave out between two.
    pub skip: u64,
    /// Whether numbers fall.
    pub reverse: bool,
}

/// A receipt on the wire: without a bloom, and with its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReceipt {
    /// Type of the transaction.
    pub tx_type: TxType,
    /// State root (before Byzantium) or status, gas and logs.
    pub receipt: alloy_consensus::Receipt,
}

/// Something that a peer wants to have. Hashes are those of blocks, but for transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `GetBlockHeaders`.
    Headers(HeadersFrom),
    /// `GetBlockBodies`.
    Bodies(Vec<B256>),
    /// `GetPooledTransactions`, by the hashes of transactions.
    PooledTransactions(Vec<B256>),
    /// `GetReceipts`.
    Receipts {
        /// How many receipts of the first block to leave out; 0 on eth/69.
        first_index: u64,
        /// Hashes of the blocks.
        hashes: Vec<B256>,
    },
    /// `GetBlockAccessLists`; not before eth/71.
    AccessLists(Vec<B256>),
}

/// What a peer answers. Fewer items than were asked for are an answer too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// `BlockHeaders`.
    Headers(Vec<Header>),
    /// `BlockBodies`, in the order of the hashes; unknown blocks are left out.
    Bodies(Vec<BlockBody>),
    /// `PooledTransactions`, in the order of the hashes; unknown ones are left out.
    PooledTransactions(Vec<PooledTransaction>),
    /// `Receipts`, a list for each block.
    Receipts {
        /// Whether the last list ends before its block does; never on eth/69.
        last_incomplete: bool,
        /// Receipts of each block.
        lists: Vec<Vec<BlockReceipt>>,
    },
    /// `BlockAccessLists`: RLP of each list, as its header commits to it; none if it is not there.
    AccessLists(Vec<Option<Bytes>>),
}

impl Request {
    /// Keeps the first `most` hashes, so that it takes no more memory than they do.
    pub fn truncate(&mut self, most: usize) {
        match self {
            Self::Headers(_) => {}
            Self::Bodies(hashes)
            | Self::PooledTransactions(hashes)
            | Self::Receipts { hashes, .. }
            | Self::AccessLists(hashes) => {
                hashes.truncate(most);
                hashes.shrink_to_fit();
            }
        }
    }

    /// The answer of somebody who has nothing of it.
    pub const fn nothing(&self) -> Response {
        match self {
            Self::Headers(_) => Response::Headers(Vec::new()),
            Self::Bodies(_) => Response::Bodies(Vec::new()),
            Self::PooledTransactions(_) => Response::PooledTransactions(Vec::new()),
            Self::Receipts { .. } => {
                Response::Receipts { last_incomplete: false, lists: Vec::new() }
            }
            Self::AccessLists(_) => Response::AccessLists(Vec::new()),
        }
    }
}

/// What is told without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gossip {
    /// `Transactions`: whole ones, none of type 3.
    Transactions(Vec<PooledTransaction>),
    /// `NewPooledTransactionHashes`.
    Hashes(NewPooledTransactionHashes),
}

/// Any message of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// `Status`.
    Status(Status),
    /// Transactions.
    Gossip(Gossip),
    /// `BlockRangeUpdate`.
    BlockRangeUpdate(BlockRange),
    /// A request, and the id that its answer shall have.
    Request(u64, Request),
    /// The answer to the request of this id.
    Response(u64, Response),
}
