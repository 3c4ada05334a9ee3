//! The messages of `eth/69` to `eth/72`.

use alloy_consensus::{EthereumTxEnvelope, TxEip4844WithSidecar};
use alloy_eip2124::ForkId;
use alloy_eips::{
    BlockHashOrNumber,
    eip7594::{BlobTransactionSidecarVariant, Cell},
};
use alloy_primitives::{B256, B512, Bytes};
use retrie_chainspec::{
    CellMask,
    primitives::{BlockBody, Header, TxType},
};
use std::fmt;

/// The public key of a node: x and y of a point on secp256k1, 32 bytes each.
pub type PeerId = B512;

/// A transaction in its pooled form: a blob transaction (type 3) has its sidecar. On eth/72 a
/// sidecar with cell proofs has no blobs there.
pub type PooledTransaction =
    EthereumTxEnvelope<TxEip4844WithSidecar<BlobTransactionSidecarVariant>>;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EthVersion {
    /// EIP-7642: receipts without a bloom, block ranges.
    Eth69,
    /// EIP-7975: the receipts of a block may come in parts.
    Eth70,
    /// EIP-8159: block access lists.
    Eth71,
    /// EIP-8070: blobs in cells.
    Eth72,
}

impl EthVersion {
    /// All versions, the newest first.
    pub const ALL: [Self; 4] = [Self::Eth72, Self::Eth71, Self::Eth70, Self::Eth69];

    /// Its number in hello and status messages.
    pub const fn number(self) -> u8 {
        match self {
            Self::Eth69 => 69,
            Self::Eth70 => 70,
            Self::Eth71 => 71,
            Self::Eth72 => 72,
        }
    }

    /// The version of this number, if this node supports it.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|version| u64::from(version.number()) == number)
    }

    /// How many message ids the version uses.
    pub(crate) const fn message_count(self) -> u8 {
        match self {
            Self::Eth69 | Self::Eth70 => 0x12,
            Self::Eth71 => 0x14,
            Self::Eth72 => 0x16,
        }
    }

    /// Whether blobs with cell proofs travel apart from their transactions, in cells.
    pub const fn elides_blobs(self) -> bool {
        matches!(self, Self::Eth72)
    }
}

impl fmt::Display for EthVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "eth/{}", self.number())
    }
}

/// The blocks that a node serves: bodies and receipts of `earliest..=latest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockRange {
    /// Number of the lowest block.
    pub earliest: u64,
    /// Number of its head block.
    pub latest: u64,
    /// Hash of its head block.
    pub latest_hash: B256,
}

/// The first message in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The version that both sides have agreed on.
    pub version: EthVersion,
    /// The network id; on public networks it is the chain id.
    pub network: u64,
    /// Hash of block 0.
    pub genesis: B256,
    /// The forks that the node has passed, and the next one it knows (EIP-2124).
    pub fork_id: ForkId,
    /// The blocks that the node serves.
    pub range: BlockRange,
}

/// Announces transactions that a peer has. The three lists have the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewPooledTransactionHashes {
    /// EIP-2718 type of each transaction.
    pub types: Vec<u8>,
    /// Length of each transaction in bytes, in its pooled form, without the RLP string around it.
    /// On eth/72 without the blobs that travel apart.
    pub sizes: Vec<u64>,
    /// Hash of each transaction.
    pub hashes: Vec<B256>,
    /// The cells that the announcer has of each blob of these transactions; from eth/72 on.
    pub cells: CellMask,
}

impl NewPooledTransactionHashes {
    /// Keeps the first `most` transactions.
    pub fn truncate(&mut self, most: usize) {
        self.types.truncate(most);
        self.sizes.truncate(most);
        self.hashes.truncate(most);
    }

    /// Splits off all transactions after the first `most`.
    pub(crate) fn split_off(&mut self, most: usize) -> Self {
        let most = most.min(self.hashes.len());
        Self {
            types: self.types.split_off(most),
            sizes: self.sizes.split_off(most),
            hashes: self.hashes.split_off(most),
            cells: self.cells,
        }
    }
}

/// The parameters of `GetBlockHeaders`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetBlockHeaders {
    /// The first header, by hash or number.
    pub start: BlockHashOrNumber,
    /// How many headers at most.
    pub limit: u64,
    /// How many blocks to skip between two headers.
    pub skip: u64,
    /// Whether block numbers go down.
    pub reverse: bool,
}

/// A receipt on the wire: without a bloom, and with its transaction type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReceipt {
    /// Type of the transaction.
    pub tx_type: TxType,
    /// State root (before Byzantium) or status, gas and logs.
    pub receipt: alloy_consensus::Receipt,
}

/// A request to a peer. Hashes are block hashes, except for transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EthRequest {
    /// `GetBlockHeaders`.
    Headers(GetBlockHeaders),
    /// `GetBlockBodies`.
    Bodies(Vec<B256>),
    /// `GetPooledTransactions`, by transaction hashes.
    PooledTransactions(Vec<B256>),
    /// `GetReceipts`.
    Receipts {
        /// How many receipts of the first block to skip; 0 on eth/69.
        first_index: u64,
        /// Hashes of the blocks.
        hashes: Vec<B256>,
    },
    /// `GetBlockAccessLists`; from eth/71 on.
    AccessLists(Vec<B256>),
    /// `GetCells`; from eth/72 on.
    Cells {
        /// Transaction hashes.
        hashes: Vec<B256>,
        /// The cells of each of their blobs.
        mask: CellMask,
    },
}

/// The answer to a request. It may have fewer items than the request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EthResponse {
    /// `BlockHeaders`.
    Headers(Vec<Header>),
    /// `BlockBodies`, in the order of the hashes. Unknown blocks are skipped.
    Bodies(Vec<BlockBody>),
    /// `PooledTransactions`, in the order of the hashes. Unknown ones are skipped.
    PooledTransactions(Vec<PooledTransaction>),
    /// `Receipts`, one list for each block.
    Receipts {
        /// Whether the last list ends before its block does; never true on eth/69.
        last_incomplete: bool,
        /// Receipts of each block.
        lists: Vec<Vec<BlockReceipt>>,
    },
    /// `BlockAccessLists`: the RLP of each list, as its header commits to it; `None` if it is not
    /// available.
    AccessLists(Vec<Option<Bytes>>),
    /// `Cells`, in the order of the hashes. Transactions whose cells are not available are skipped.
    Cells {
        /// Each transaction, and its cells: by index, and those of one index in the order of its
        /// blobs.
        cells: Vec<(B256, Vec<Cell>)>,
        /// The cells of each blob.
        mask: CellMask,
    },
}

impl EthRequest {
    /// Keeps the first `most` hashes, and frees the memory of the others.
    pub fn truncate(&mut self, most: usize) {
        match self {
            Self::Headers(_) => {}
            Self::Bodies(hashes)
            | Self::PooledTransactions(hashes)
            | Self::Receipts { hashes, .. }
            | Self::AccessLists(hashes)
            | Self::Cells { hashes, .. } => {
                hashes.truncate(most);
                hashes.shrink_to_fit();
            }
        }
    }

    /// The answer that has no items.
    pub const fn empty_response(&self) -> EthResponse {
        match self {
            Self::Headers(_) => EthResponse::Headers(Vec::new()),
            Self::Bodies(_) => EthResponse::Bodies(Vec::new()),
            Self::PooledTransactions(_) => EthResponse::PooledTransactions(Vec::new()),
            Self::Receipts { .. } => {
                EthResponse::Receipts { last_incomplete: false, lists: Vec::new() }
            }
            Self::AccessLists(_) => EthResponse::AccessLists(Vec::new()),
            Self::Cells { mask, .. } => EthResponse::Cells { cells: Vec::new(), mask: *mask },
        }
    }
}

/// A message about transactions that is sent without a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxGossip {
    /// `Transactions`: full transactions, none of type 3.
    Transactions(Vec<PooledTransaction>),
    /// `NewPooledTransactionHashes`.
    Hashes(NewPooledTransactionHashes),
}

/// Any message of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EthMessage {
    /// `Status`.
    Status(Status),
    /// A gossip message.
    Gossip(TxGossip),
    /// `BlockRangeUpdate`.
    BlockRangeUpdate(BlockRange),
    /// A request, and the request id that its answer must repeat.
    Request(u64, EthRequest),
    /// The answer to the request with this id.
    Response(u64, EthResponse),
}
