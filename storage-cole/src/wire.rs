//! A proof and its bytes; `docs/formats/cole.md` has them one by one.
//!
//! What follows from the question and from other parts is left out: the keys that are asked for, the
//! digests of what is shown, which keys are still open at a source. So a proof is read with the
//! question at hand, source by source, by the [`Reader`].

mod reader;
#[cfg(feature = "std")]
mod writer;

use crate::{
    filter,
    hash::{self, Source},
    tree::Node,
};
use alloc::vec::Vec;
use alloy_primitives::B256;
pub(crate) use reader::{Reader, malformed};
use retrie_state::StateKey;

/// First byte of a proof.
const KIND: u8 = 1;

const CLOSED: u8 = 0;
const EMPTY: u8 = 1;
const YOUNG: u8 = 2;
const SEARCHED: u8 = 3;

const HIDDEN: u8 = 0;
const INNER: u8 = 1;
const PAIR: u8 = 2;

/// Tags of keys that are asked for begin here.
const ASKED: u64 = 2;

/// What shows the versions of some keys in a range of blocks under a root.
#[cfg(feature = "std")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    /// States from this block on can be read.
    pub(crate) horizon: u64,
    /// The writing and the merging group of the memory level.
    pub(crate) memory: [SourceProof; 2],
    /// By level up to the last one with a run: the runs of the writing group, newest first, and those
    /// of the merging group, newest first.
    pub(crate) levels: Vec<(Vec<SourceProof>, Vec<SourceProof>)>,
}

/// What a proof shows of a source. A key is *open* as long as no source before has shown its newest
/// pair at or below the first block of the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceProof {
    /// No key is open: its digest.
    Closed(B256),
    /// A group in memory without pairs.
    Empty,
    /// All its pairs are above the last block of the range.
    Young(Source),
    /// It is searched for all open keys.
    Searched {
        /// What the root says of it. The tops are those of `filter` and `tree`, and not encoded.
        source: Source,
        /// For each open key, in order: does the filter exclude it?
        excluded: Vec<bool>,
        /// What shows that.
        filter: FilterProof,
        /// The tree, as far as the other keys need it; the top alone if there is none.
        tree: Node,
    },
}

/// What is shown of the filter of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FilterProof {
    /// There is none, in memory.
    None,
    /// It excludes no open key: the top of its tree.
    Top(B256),
    /// The blocks of the keys that it excludes, each once.
    Blocks {
        /// Ascending.
        blocks: Vec<[u8; 64]>,
        /// Their [multi-proof](multi).
        hashes: Vec<B256>,
    },
}

/// The keys that are asked for: distinct, in order.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    keys: Vec<Vec<u8>>,
    /// What filters look for.
    filters: Vec<(u64, u64)>,
}

impl Asked {
    /// The distinct ones of `keys`.
    pub(crate) fn new(keys: &[StateKey]) -> Self {
        let mut keys: Vec<_> = keys.iter().map(|key| key.encode().to_vec()).collect();
        keys.sort_unstable();
        keys.dedup();
        let filters = keys.iter().map(|key| hash::filter_key(key)).collect();
        Self { keys, filters }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// A key, encoded, by its number.
    pub(crate) fn key(&self, number: usize) -> &[u8] {
        &self.keys[number]
    }

    /// What a filter looks for to find a key.
    pub(crate) fn filter(&self, number: usize) -> (u64, u64) {
        self.filters[number]
    }

    /// The number of a key, if it is asked for.
    pub(crate) fn number(&self, key: &[u8]) -> Option<usize> {
        self.keys.binary_search_by(|other| other[..].cmp(key)).ok()
    }

    /// Of a filter of so many blocks, those that the keys of these numbers are in; ascending, each
    /// once.
    pub(crate) fn blocks(&self, numbers: impl Iterator<Item = usize>, blocks: u64) -> Vec<u64> {
        let block = |number: usize| filter::block_of(self.filters[number].0, blocks);
        let mut found: Vec<_> = numbers.map(block).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Those of `all` for which the flag is set.
pub(crate) fn chosen(all: &[usize], flags: &[bool]) -> impl Iterator<Item = usize> {
    all.iter().zip(flags).filter_map(|(one, flag)| flag.then_some(*one))
}
