//! Bundles: one real block with the state it touches, as (gzipped) JSON.
//!
//! There are two formats, distinguished by their members. The README of the mainnet data folder
//! describes both member by member.
//!
//! | | witness | prestate |
//! |---|---|---|
//! | state | trie nodes under `preStateRoot`, codes | accounts and slots, codes |
//! | plain pre-state `pre` | optional | always; what is not listed is empty |
//! | ancestors for BLOCKHASH | headers | hashes |
//! | post-state root | checkable | not checkable |
//! | ommers | always | hashes only, when there are any |
//!
//! Loading checks everything that a bundle says about itself: the block hash over the header's RLP,
//! transactionsRoot, withdrawalsRoot, ommersHash (if the ommers are known), every code against its
//! hash, the chain of ancestor headers down to `preStateRoot`, and the summary members. It does not
//! recover senders, execute, or open the trie: the state of a loaded bundle may still be
//! incomplete.

mod folder;
mod json;
mod load;
mod store;

pub use folder::BundleFolder;
pub use store::{encode_prestate, write_json_gz};

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use retrie_chainspec::primitives::{Block, Header};

use crate::{
    check::same_number,
    error::{SourceError, SourceErrorKind, SourcePlace},
    objects::SourceLocation,
    origin::file_name,
};

/// A block together with the state it touches.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Block number.
    pub number: u64,
    /// Block hash, checked against the header.
    pub hash: B256,
    /// Name of the rule set, for people. The fork schedule of the chain counts.
    pub fork: String,
    /// Number of transactions, checked against the block.
    pub tx_count: u64,
    /// Gas used, checked against the header.
    pub gas_used: u64,
    /// The block. Without ommers when [`ommers_known`](Self::ommers_known) is false.
    pub block: Block,
    /// Whether the block's ommers are complete. If false, the header commits to ommers that the
    /// bundle does not hold, so ommersHash cannot be checked and ommer rewards cannot be paid.
    pub ommers_known: bool,
    /// The file that it was read from.
    pub file: PathBuf,
    /// The state, in one of two forms.
    pub kind: BundleKind,
}

/// The state part of a [`Bundle`].
#[derive(Clone, Debug)]
pub enum BundleKind {
    /// Trie nodes: the post-state root can be checked.
    Witness(WitnessBundle),
    /// Plain accounts and slots.
    Prestate(PrestateBundle),
}

/// State as an execution witness (`debug_executionWitness`).
#[derive(Clone, Debug)]
pub struct WitnessBundle {
    /// State root of the parent block, checked against the parent header.
    pub pre_state_root: B256,
    /// State root of the block, checked against its header.
    pub post_state_root: B256,
    /// Ancestors in ascending order without gaps; the last is the parent. Never empty.
    pub headers: Vec<Header>,
    /// RLP of trie nodes, account trie and storage tries mixed, addressed by keccak-256.
    pub state: Vec<Bytes>,
    /// Contract codes, addressed by keccak-256.
    pub codes: Vec<Bytes>,
    /// Plain view of the touched part of the pre-state; `None` where the file has none.
    pub pre: Option<PreState>,
    /// The same keys after the block; `None` where the file has none.
    pub post: Option<PreState>,
}

/// State as plain accounts and slots.
#[derive(Clone, Debug)]
pub struct PrestateBundle {
    /// Sender of each transaction as the source reports it; not recovered here.
    pub senders: Vec<Address>,
    /// Hashes of the block's ommers.
    pub uncle_hashes: Vec<B256>,
    /// Ancestor hashes the block asks for, by number.
    pub block_hashes: BTreeMap<u64, B256>,
    /// The touched state; an address or slot that is not listed is empty.
    pub pre: PreState,
    /// Contract codes by code hash, checked.
    pub codes: BTreeMap<B256, Bytes>,
}

/// A plain view of touched state: address to account, `None` for "no such account".
pub type PreState = BTreeMap<Address, Option<PreAccount>>;

/// An account in a [`PreState`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreAccount {
    /// Nonce.
    pub nonce: u64,
    /// Balance in wei.
    pub balance: U256,
    /// Keccak-256 of the code; the hash of the empty string if the file names none.
    pub code_hash: B256,
    /// Root of the account's storage trie, if the file names it (witness bundles).
    pub storage_root: Option<B256>,
    /// Touched slots and their values; a zero value is an empty slot.
    pub storage: BTreeMap<B256, U256>,
}

impl Bundle {
    /// Reads and checks a bundle from a file, plain or gzipped JSON.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is not a bundle, or contradicts itself; the error names the
    /// member.
    pub fn load(source: impl Into<SourceLocation>) -> Result<Self, SourceError> {
        load::load(&source.into())
    }

    /// Parses and checks a bundle in memory. `file` is for error messages.
    ///
    /// # Errors
    ///
    /// As [`Bundle::load`].
    pub fn parse(file: impl AsRef<Path>, json: &[u8]) -> Result<Self, SourceError> {
        load::parse(file.as_ref(), json)
    }

    /// Hashes of ancestors by block number, for the BLOCKHASH opcode: all that the bundle has, and
    /// always the parent.
    pub fn ancestor_hashes(&self) -> BTreeMap<u64, B256> {
        let header = &self.block.header;
        let parent = header.number.checked_sub(1).map(|number| (number, header.parent_hash));
        match &self.kind {
            // The hash of each header is the parent hash of the next one (checked on load).
            BundleKind::Witness(witness) => witness
                .headers
                .iter()
                .filter_map(|h| Some((h.number.checked_sub(1)?, h.parent_hash)))
                .chain(parent)
                .collect(),
            BundleKind::Prestate(prestate) => {
                prestate.block_hashes.iter().map(|(n, hash)| (*n, *hash)).chain(parent).collect()
            }
        }
    }

    /// Every contract code of the bundle by its keccak-256.
    pub fn codes(&self) -> BTreeMap<B256, Bytes> {
        match &self.kind {
            BundleKind::Witness(witness) => {
                witness.codes.iter().map(|code| (keccak256(code), code.clone())).collect()
            }
            BundleKind::Prestate(prestate) => prestate.codes.clone(),
        }
    }

    /// The plain pre-state, if there is one.
    pub const fn pre(&self) -> Option<&PreState> {
        match &self.kind {
            BundleKind::Witness(witness) => witness.pre.as_ref(),
            BundleKind::Prestate(prestate) => Some(&prestate.pre),
        }
    }
}

/// A bundle file that was found but not read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BundleFile {
    /// Number of its block.
    pub number: u64,
    /// Its location.
    pub path: SourceLocation,
}

impl BundleFile {
    /// Reads and checks the bundle, which must hold the block [`number`](Self::number).
    ///
    /// # Errors
    ///
    /// As [`Bundle::load`].
    pub fn load(&self) -> Result<Bundle, SourceError> {
        let bundle = Bundle::load(&self.path)?;
        same_number("block number", self.number, bundle.number).map_err(|kind| {
            SourceError::new(self.path.name(), SourcePlace::Member("number".to_owned()), kind)
        })?;
        Ok(bundle)
    }
}

/// The bundles of a file or folder, on disk or in a store, by block number (then by name).
///
/// In a folder these are the visible files ending in `.json` or `.json.gz`; other files and
/// subfolders are skipped. The number comes from a name such as `123.json.gz`, and is checked when
/// the bundle is loaded. A file with another name is read for its number, so a file that is not a
/// bundle is an error here or when it is loaded.
///
/// # Errors
///
/// When the path cannot be read, a file is not a bundle, or a folder holds none.
pub fn list_bundles(source: impl Into<SourceLocation>) -> Result<Vec<BundleFile>, SourceError> {
    let location = source.into();
    let Some(entries) = location.entries()? else {
        return Ok(vec![BundleFile { number: load::peek_number(&location)?, path: location }]);
    };
    let mut files = entries
        .into_iter()
        .filter(|path| is_bundle_name(path.key()))
        .map(|path| {
            let number = match number_in_name(path.key()) {
                Some(number) => number,
                None => load::peek_number(&path)?,
            };
            Ok(BundleFile { number, path })
        })
        .collect::<Result<Vec<_>, SourceError>>()?;
    if files.is_empty() {
        return Err(SourceError::new(
            location.name(),
            SourcePlace::File,
            SourceErrorKind::NoBlocks,
        ));
    }
    files.sort();
    Ok(files)
}

/// Whether a file is named like a bundle.
pub(crate) fn is_bundle_name(path: &Path) -> bool {
    let name = file_name(path);
    name.ends_with(".json") || name.ends_with(".json.gz")
}

/// The block number in a name such as `123.json.gz`.
pub(crate) fn number_in_name(path: &Path) -> Option<u64> {
    let name = file_name(path);
    let stem = name.strip_suffix(".gz").unwrap_or(&name).strip_suffix(".json")?;
    if stem.bytes().all(|b| b.is_ascii_digit()) { stem.parse().ok() } else { None }
}
