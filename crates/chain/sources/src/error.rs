//! The error of this crate: the file, the place in it, and the fault.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use alloy_primitives::{Address, B256, U256};

use crate::objects::error::ObjectError;

/// Why a block or bundle could not be read or written.
///
/// Displays as one line: file, place, reason and, if there is one, the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{}{place}: {kind}", file.display())]
pub struct SourceError {
    /// The file (or folder) concerned.
    pub file: PathBuf,
    /// The place in the file.
    pub place: SourcePlace,
    /// The fault.
    pub kind: Box<SourceErrorKind>,
}

impl SourceError {
    pub(crate) fn new(file: &Path, place: SourcePlace, kind: SourceErrorKind) -> Self {
        Self { file: file.to_owned(), place, kind: Box::new(kind) }
    }

    /// A failed operation on the whole file.
    pub(crate) fn io(file: &Path, action: &'static str, error: io::Error) -> Self {
        Self::new(file, SourcePlace::File, SourceErrorKind::of_io(action, error))
    }
}

/// A place in a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourcePlace {
    /// The file as a whole.
    File,
    /// An item of a concatenated block stream.
    Item {
        /// First byte of the item, counted in the decompressed stream.
        offset: u64,
        /// Position of the item in the file, from 0.
        index: u64,
    },
    /// An entry of an era1 or ere file.
    Entry {
        /// First byte of the entry, counted in the file.
        offset: u64,
        /// Number of the block the entry belongs to, if it belongs to one.
        block: Option<u64>,
    },
    /// A block that is being written.
    Block(u64),
    /// A member of a bundle, as a path such as `codes[3]`.
    Member(String),
    /// A line, from 1.
    Line(u64),
    /// An account of a preimage file.
    Account {
        /// Position of the account in the file, from 0.
        index: u64,
        /// The byte at which reading the file stopped.
        offset: u64,
    },
}

impl fmt::Display for SourcePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => Ok(()),
            Self::Item { offset, index } => {
                write!(f, ", block index {index} at byte {offset} of the RLP stream")
            }
            Self::Entry { offset, block: Some(block) } => {
                write!(f, ", entry at byte {offset} (block {block})")
            }
            Self::Entry { offset, block: None } => write!(f, ", entry at byte {offset}"),
            Self::Block(block) => write!(f, ", block {block}"),
            Self::Member(path) => write!(f, ", member `{path}`"),
            Self::Line(line) => write!(f, ", line {line}"),
            Self::Account { index, offset } => write!(f, ", account {index} at byte {offset}"),
        }
    }
}

/// The fault at a [`SourcePlace`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceErrorKind {
    /// An object store, or the connection to it, failed.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The operating system refused.
    #[error("cannot {action}: {error}")]
    Io {
        /// What was attempted, as a verb phrase.
        action: &'static str,
        /// The operating system's error.
        error: io::Error,
    },
    /// The bytes end before the structure does.
    #[error("the data ends inside {what}: the file is truncated, fetch or export it again")]
    Truncated {
        /// The unfinished structure.
        what: &'static str,
    },
    /// The gzip container is damaged: bad header, bad deflate data or a checksum mismatch.
    #[error("damaged gzip stream ({0}): fetch or export the file again")]
    Gzip(io::Error),
    /// The snappy frame of an era1 or ere entry is damaged.
    #[error("damaged snappy frame ({0}): fetch the file again")]
    Snappy(io::Error),
    /// A structure claims more bytes than this crate is willing to hold in memory.
    #[error("{what} claims {claimed} bytes, the limit is {limit}: the file is damaged or hostile")]
    TooLarge {
        /// The structure.
        what: &'static str,
        /// Bytes claimed.
        claimed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The byte where a block should start cannot start one.
    #[error(
        "byte {byte:#04x} does not start a block (an RLP list): trailing garbage or not a block file"
    )]
    NotABlock {
        /// The byte found.
        byte: u8,
    },
    /// The bytes are not valid RLP.
    #[error("{what} is not valid RLP: {error}")]
    Rlp {
        /// What was being decoded.
        what: &'static str,
        /// The decoder's reason.
        error: alloy_rlp::Error,
    },
    /// Bytes that are not an EIP-2718 transaction.
    #[error("not an EIP-2718 transaction: {0}")]
    Transaction(alloy_eips::eip2718::Eip2718Error),
    /// A hash or root does not match its content.
    #[error("{what} is {got}, expected {expected}: the data is damaged or inconsistent")]
    HashMismatch {
        /// Name of the hash.
        what: &'static str,
        /// The hash required by the rest of the file.
        expected: B256,
        /// The hash that was found or computed.
        got: B256,
    },
    /// A number (block number, count, gas) does not match.
    #[error("{what} is {got}, expected {expected}: the data is damaged or inconsistent")]
    NumberMismatch {
        /// Name of the number.
        what: &'static str,
        /// The number required by the rest of the file.
        expected: u64,
        /// The number that was found.
        got: u64,
    },
    /// The total difficulty of a block is not its parent's plus its own difficulty.
    #[error("total difficulty is {got}, expected {expected}: the data is damaged")]
    TotalDifficulty {
        /// Parent's total difficulty plus the block's difficulty.
        expected: U256,
        /// The value in the file.
        got: U256,
    },
    /// An era1 or ere entry has another type than the format requires.
    #[error(
        "entry has type {got:#06x}, expected {expected:#06x} ({what}): of another format, or damaged"
    )]
    EntryType {
        /// Name of the expected entry.
        what: &'static str,
        /// The expected type.
        expected: u16,
        /// The type that was found.
        got: u16,
    },
    /// A pipe yields something else than blocks.
    #[error(
        "from a pipe only block RLP can be read, plain or gzipped: write anything else into a file first"
    )]
    NotFromPipe,
    /// A structural rule of a format is broken.
    #[error("{0}")]
    Format(&'static str),
    /// A bundle member has malformed JSON.
    #[error("{0}")]
    Json(serde_json::Error),
    /// A line has malformed JSON.
    #[error("{what}, at column {column}")]
    LineJson {
        /// The fault.
        what: String,
        /// Column of the fault.
        column: usize,
    },
    /// An account of a state dump has only a hashed address.
    #[error(
        "the account with the hashed address {key} has no `address`: the node that wrote the dump \
         does not know it; dump on a node that keeps preimages from its first block on (geth \
         --cache.preimages)"
    )]
    NoAddress {
        /// The hash, as it is in the dump.
        key: String,
    },
    /// The slots of an account in a state dump do not have its storage root.
    #[error(
        "the slots of {address} have the storage root {got}, the dump says {expected}: slots are \
         missing or wrong. geth leaves them out with --nostorage, and loses those whose keys it \
         knows by their hashes alone: dump on a node that keeps preimages from its first block on \
         (geth --cache.preimages)"
    )]
    DumpedStorage {
        /// The account.
        address: Address,
        /// The root in the dump.
        expected: B256,
        /// The root of the slots.
        got: B256,
    },
    /// A bundle lacks a member.
    #[error("missing: the bundle is incomplete")]
    MissingMember,
    /// A JSON file that is not a bundle.
    #[error(
        "not a bundle: neither a witness (block, headers, state, codes) nor a prestate bundle \
         (header, transactions, blockHashes, pre, codes); remove it from the folder"
    )]
    NotABundle,
    /// A file of unknown kind.
    #[error(
        "unknown kind of file: expected block RLP (.rlp, .rlp.gz), .era1, .ere, or a bundle (.json, \
         .json.gz)"
    )]
    UnknownKind,
    /// A file or folder of another kind than requested.
    #[error("this is {got}, but {expected} was asked for")]
    WrongKind {
        /// The requested kind.
        expected: &'static str,
        /// The kind of the path.
        got: &'static str,
    },
    /// A source without blocks.
    #[error("contains no block: empty or truncated")]
    NoBlocks,
    /// A folder that holds both block files and bundles.
    #[error("the folder holds both block files and bundles: name the files to read")]
    MixedFolder,
}

impl SourceErrorKind {
    /// Converts an error of a reader of a file or an object.
    pub(crate) fn of_io(action: &'static str, error: io::Error) -> Self {
        match ObjectError::of_io(error) {
            Ok(error) => Self::Object(error),
            Err(error) => Self::Io { action, error },
        }
    }

    /// A line that does not parse. The place has the number of the line.
    pub(crate) fn line_json(error: serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        let what = error.to_string();
        let place = format!(" at line {line} column {column}");
        Self::LineJson { what: what.strip_suffix(&place).unwrap_or(&what).to_owned(), column }
    }
}
