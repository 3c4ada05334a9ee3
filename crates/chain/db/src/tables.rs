//! The tables of the chain and their formats, byte by byte.
//!
//! Numbers in keys are big-endian, so that rows sort by height. `id` is a block id: number (8
//! bytes) then ordinal (2 bytes), the position of the block among the stored blocks of the same
//! number. Without forks the ordinal is 0, so an import appends to every table whose key starts
//! with an id. The key has 10 bytes instead of 40 for number and hash.
//!
//! Every row has a checksum of 4 bytes before its value, which this table does not show.
//!
//! | table | key | value |
//! |---|---|---|
//! | `Headers` | id | RLP of the header (yellow paper, appendix B) |
//! | `BlockIndex` | block hash (32) | id |
//! | `Canonical` | number (8) | block hash (32), ordinal (2) |
//! | `Bodies` | id | RLP `[transaction count, [ommer header..]]`, from Shanghai on with a third item `[withdrawal..]` |
//! | `Transactions` | id, index (4) | sender (20), EIP-2718 encoding without blob sidecar |
//! | `Receipts` | id, index (4) | RLP `[type, success, cumulative gas, [log..]]`; the bloom is derived |
//! | `TxLookup` | transaction hash (32) | number (8), index (4); canonical blocks only |
//! | `Codes` | keccak-256 of the code (32) | the code |
//! | `TotalDifficulty` | id | big-endian without leading zeros; sum up to and with this block |
//! | `BackendRoots` | id, backend name | root (32); empty if the backend computed no root because it applied a batch of blocks |
//! | `Metadata` | `identity` | JSON, see [`DatadirMetadata`](crate::DatadirMetadata) |
//! | `Metadata` | `note/` and a name | any bytes; the writer of the note defines them |
//! | `LogSegments` | first block (8) | last block (8), its hash (32), number of postings (4) |
//! | `LogPostings` | first block of the segment (8), term (4), block offset (2) | postings from there on, see [`logs`](crate::LogQuery) |
//! | `IndexTables` | number of blocks (2), first block (8) | hash of the last block (32), number of entries (4), root (32), see [`index_table`](crate::ReadTxn::index_table) |
//! | `IndexEntries` | number of blocks (2), first block (8), chunk (4) | 256 entries (EIP-8304), each as the number of bytes that it shares with the one before (1), and its other bytes |
//! | `IndexEntries` | number of blocks (2), first block (8), 2^31 + group (4) | roots of 256 chunks |
//! | `AddressBlocks` | number (8) | hash (32), whether internal calls are known (1), and the keys of the block's rows in the next three tables, see [`BlockParticipants`](crate::BlockParticipants) |
//! | `AddressHistory` | account (20), number (8) | indexes of the transactions that it takes part in |
//! | `SenderNonces` | sender (20), nonce (8) | number (8), index (4) |
//! | `ContractCreators` | contract (20), number (8) | index (4), creator (20) |
//! | `DevPatches` | id | manual changes to the state before the block (dev chains): see `retrie_pipeline::StatePatch` |
//! | `AccessLists` | id | RLP of the block access list (EIP-7928), from Amsterdam on |
//! | `Preimages` | keccak-256 of an address or slot (32) | the address (20) or the slot (32), see [`KeyPreimage`](crate::KeyPreimage) |
//! | `State` and a name | the state store's | the state store's |
//!
//! Long values of `Transactions`, `Receipts`, `Bodies`, `Codes`, `DevPatches`, `AccessLists` and
//! `AddressBlocks` are cut into pieces of 16,352 bytes. A piece fills four pages; longer sequences of overflow pages would
//! fragment free space. The first piece has the key above. Every piece of full length is followed
//! by another piece, possibly empty, whose key is the key above and the piece's number (2 bytes,
//! from 1).
//!
//! Why RLP and not a denser codec: it is canonical, so that a row can be checked against its hash;
//! its decoder returns errors on damaged rows (reth-codecs' `Compact` panics); it does not change
//! with a library's version; and peers and RPC need exactly these bytes. Receipts are stored
//! without the bloom, their one large redundant part.

/// A table of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChainTable {
    /// Headers of all stored blocks.
    Headers,
    /// Block id by block hash.
    BlockIndex,
    /// The canonical block of each number.
    Canonical,
    /// Ommers, withdrawals and the number of transactions.
    Bodies,
    /// Transactions with their senders.
    Transactions,
    /// Receipts without blooms.
    Receipts,
    /// Position of each canonical transaction by hash.
    TxLookup,
    /// Contract code by hash.
    Codes,
    /// Total difficulty of each stored block.
    TotalDifficulty,
    /// State root that each backend gave each block.
    BackendRoots,
    /// Identity of the datadir, and notes.
    Metadata,
    /// Ranges of blocks whose logs are indexed.
    LogSegments,
    /// In which of their blocks each address and topic occurs.
    LogPostings,
    /// Changes that the user of a dev chain made to the state before a block.
    DevPatches,
    /// Block access lists.
    AccessLists,
    /// Addresses and slots by their hashes.
    Preimages,
    /// Index tables (EIP-8304): their blocks and roots.
    IndexTables,
    /// Their entries.
    IndexEntries,
    /// Blocks whose participants are indexed.
    AddressBlocks,
    /// The transactions that an account takes part in.
    AddressHistory,
    /// The transaction of a sender with a nonce.
    SenderNonces,
    /// The transaction that created a contract.
    ContractCreators,
}

impl ChainTable {
    /// All tables, in the order of their declaration.
    pub const ALL: [Self; 22] = [
        Self::Headers,
        Self::BlockIndex,
        Self::Canonical,
        Self::Bodies,
        Self::Transactions,
        Self::Receipts,
        Self::TxLookup,
        Self::Codes,
        Self::TotalDifficulty,
        Self::BackendRoots,
        Self::Metadata,
        Self::LogSegments,
        Self::LogPostings,
        Self::DevPatches,
        Self::AccessLists,
        Self::Preimages,
        Self::IndexTables,
        Self::IndexEntries,
        Self::AddressBlocks,
        Self::AddressHistory,
        Self::SenderNonces,
        Self::ContractCreators,
    ];

    /// Tables that datadirs of earlier versions lack. The next opening for writing creates them.
    pub(crate) const LATER: [Self; 11] = [
        Self::LogSegments,
        Self::LogPostings,
        Self::DevPatches,
        Self::AccessLists,
        Self::Preimages,
        Self::IndexTables,
        Self::IndexEntries,
        Self::AddressBlocks,
        Self::AddressHistory,
        Self::SenderNonces,
        Self::ContractCreators,
    ];

    /// Name on disk.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Headers => "Headers",
            Self::BlockIndex => "BlockIndex",
            Self::Canonical => "Canonical",
            Self::Bodies => "Bodies",
            Self::Transactions => "Transactions",
            Self::Receipts => "Receipts",
            Self::TxLookup => "TxLookup",
            Self::Codes => "Codes",
            Self::TotalDifficulty => "TotalDifficulty",
            Self::BackendRoots => "BackendRoots",
            Self::Metadata => "Metadata",
            Self::LogSegments => "LogSegments",
            Self::LogPostings => "LogPostings",
            Self::DevPatches => "DevPatches",
            Self::AccessLists => "AccessLists",
            Self::Preimages => "Preimages",
            Self::IndexTables => "IndexTables",
            Self::IndexEntries => "IndexEntries",
            Self::AddressBlocks => "AddressBlocks",
            Self::AddressHistory => "AddressHistory",
            Self::SenderNonces => "SenderNonces",
            Self::ContractCreators => "ContractCreators",
        }
    }
}

/// Prefix of the names of the state store's tables on disk.
pub(crate) const STATE_PREFIX: &str = "State";

/// Short key of a stored block, for all of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockId {
    pub(crate) number: u64,
    pub(crate) ordinal: u16,
}

impl BlockId {
    pub(crate) const LEN: usize = 10;

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..].copy_from_slice(&self.ordinal.to_be_bytes());
        bytes
    }

    /// `None` unless `bytes` has exactly the length of an id.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let (number, ordinal) = bytes.split_first_chunk::<8>()?;
        Some(Self {
            number: u64::from_be_bytes(*number),
            ordinal: u16::from_be_bytes(ordinal.try_into().ok()?),
        })
    }

    /// Key of the `index`-th transaction or receipt.
    pub(crate) fn item(self, index: u32) -> [u8; Self::LEN + 4] {
        let mut key = [0; Self::LEN + 4];
        key[..Self::LEN].copy_from_slice(&self.to_bytes());
        key[Self::LEN..].copy_from_slice(&index.to_be_bytes());
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_disk_and_their_order_do_not_change() {
        for (i, table) in ChainTable::ALL.into_iter().enumerate() {
            assert_eq!(table as usize, i);
            assert!(!table.name().starts_with(STATE_PREFIX), "clashes with a state table");
        }
        let names: Vec<_> = ChainTable::ALL.map(ChainTable::name).into();
        assert_eq!(
            names.join(" "),
            "Headers BlockIndex Canonical Bodies Transactions Receipts TxLookup Codes \
             TotalDifficulty BackendRoots Metadata LogSegments LogPostings DevPatches \
             AccessLists Preimages IndexTables IndexEntries AddressBlocks AddressHistory \
             SenderNonces ContractCreators"
        );
    }

    #[test]
    fn block_ids_are_ten_bytes_that_sort_by_height() {
        let id = BlockId { number: 0x0102, ordinal: 3 };
        assert_eq!(id.to_bytes(), [0, 0, 0, 0, 0, 0, 1, 2, 0, 3]);
        assert_eq!(BlockId::from_bytes(&id.to_bytes()), Some(id));
        assert_eq!(BlockId::from_bytes(&[0; 9]), None);
        assert_eq!(id.item(0x0a0b), [0, 0, 0, 0, 0, 0, 1, 2, 0, 3, 0, 0, 0x0a, 0x0b]);
        assert!(
            BlockId { number: 255, ordinal: 9 }.to_bytes()
                < BlockId { number: 256, ordinal: 0 }.to_bytes()
        );
    }
}
