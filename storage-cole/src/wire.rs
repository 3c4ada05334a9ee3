//! A proof and its bytes; `docs/formats/cole.md` describes each byte.
//!
//! The bytes leave out all that follows from the question and from other parts: the requested keys,
//! the digests of parts that are shown, which keys are still open at a source. So the
//! [`ProofReader`] reads a proof together with the question, source by source.

mod reader;
#[cfg(feature = "std")]
mod writer;

use crate::{
    filter,
    hash::{self, SourceHeader},
    shown_tree::ShownNode,
};
use alloc::vec::Vec;
use alloy_primitives::B256;
pub(crate) use reader::{ProofReader, malformed};
use retrie_state::{BackendKey, KeyForm};

/// First byte of a proof.
const KIND: u8 = 1;

const CLOSED: u8 = 0;
const EMPTY: u8 = 1;
const YOUNG: u8 = 2;
const SEARCHED: u8 = 3;

const HIDDEN: u8 = 0;
const INNER: u8 = 1;
const PAIR: u8 = 2;
const VERSIONS: u8 = 3;

/// Tags of requested keys begin here.
const ASKED: u64 = 2;

/// A proof of the versions of some keys in a range of blocks under a root.
#[cfg(feature = "std")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ColeProof {
    /// States from this block on can be read.
    pub(crate) horizon: u64,
    /// The writing and the merging group of the memory level.
    pub(crate) memory: [SourceProof; 2],
    /// By level, up to the last level with a run: the runs of the writing group, newest first, and
    /// the runs of the merging group, newest first.
    pub(crate) levels: Vec<(Vec<SourceProof>, Vec<SourceProof>)>,
}

/// The part of a source that a proof shows. A key is *open* until a source has shown its newest
/// pair at or below the first block of the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceProof {
    /// No key is open: only the digest.
    Closed(B256),
    /// A group in memory without pairs.
    Empty,
    /// All pairs are above the last block of the range.
    Young(SourceHeader),
    /// The source is searched for all open keys.
    Searched {
        /// What the root says about it. The tops follow from `filter` and `tree`, and are not
        /// encoded.
        source: SourceHeader,
        /// For each open key, in order: whether the filter excludes it.
        excluded: Vec<bool>,
        /// The proof of that.
        filter: FilterProof,
        /// The tree, as far as the other keys need it; only the top if there is no other key.
        tree: ShownNode,
    },
}

/// The part of a source's filter that a proof shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FilterProof {
    /// No filter: the source is in memory.
    None,
    /// It excludes no open key: only the top of its tree.
    Top(B256),
    /// The blocks of the keys that it excludes, each once.
    Blocks {
        /// Ascending.
        blocks: Vec<[u8; 64]>,
        /// Their [multi-proof](crate::multi_proof).
        hashes: Vec<B256>,
    },
}

/// The requested keys: distinct, in order.
#[derive(Clone, Debug)]
pub(crate) struct AskedKeys {
    keys: Vec<Vec<u8>>,
    /// The numbers that locate each key in a filter.
    filters: Vec<(u64, u64)>,
}

impl AskedKeys {
    /// The distinct keys among `keys`.
    pub(crate) fn new(keys: &[BackendKey]) -> Self {
        let mut keys: Vec<_> = keys.iter().map(|key| key.encode().to_vec()).collect();
        keys.sort_unstable();
        keys.dedup();
        let filters = keys.iter().map(|key| hash::filter_key(key)).collect();
        Self { keys, filters }
    }

    /// The number of distinct keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The form of the keys.
    pub(crate) fn form(&self) -> KeyForm {
        let first = self.keys.first().and_then(|key| BackendKey::decode(key));
        first.map_or(KeyForm::Plain, |key| key.form())
    }

    /// A key, encoded, by its number.
    pub(crate) fn key(&self, number: usize) -> &[u8] {
        &self.keys[number]
    }

    /// The numbers that locate a key in a filter.
    pub(crate) fn filter(&self, number: usize) -> (u64, u64) {
        self.filters[number]
    }

    /// The number of a key, if it is requested.
    pub(crate) fn number(&self, key: &[u8]) -> Option<usize> {
        self.keys.binary_search_by(|other| other[..].cmp(key)).ok()
    }

    /// The blocks, of a filter of `blocks` blocks, that contain the keys with these numbers;
    /// ascending, each once.
    pub(crate) fn blocks(&self, numbers: impl Iterator<Item = usize>, blocks: u64) -> Vec<u64> {
        let block = |number: usize| filter::block_of(self.filters[number].0, blocks);
        let mut found: Vec<_> = numbers.map(block).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The elements of `all` whose flag is set.
pub(crate) fn chosen(all: &[usize], flags: &[bool]) -> impl Iterator<Item = usize> {
    all.iter().zip(flags).filter_map(|(one, flag)| flag.then_some(*one))
}
