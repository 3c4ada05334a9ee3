//! Checking proofs against a root: pure, without storage or `std`.
//!
//! # Why an accepted proof is true
//!
//! The root is the root of an honestly computed state. The prover is not trusted, and may have
//! written values into that state. To break a step below takes a collision of BLAKE2b-256.
//!
//! 1. *One structure.* The root is a hash of the horizon and of the digests of all sources, level
//!    by level. Every source is in the proof at its place, or the hash differs. Inputs of hashes of
//!    different domains start differently; zero, the digest of an empty group, is no hash. So a
//!    pair cannot pass for a node, nor pairs for an empty group.
//! 2. *What a source is.* Its digest binds the blocks of its pairs, the top of its tree, and size
//!    and top of its filter. The part of the tree that is shown leads to that top: it is that tree,
//!    with some parts hidden. So the pairs shown are pairs of the source, in their order, and all
//!    other pairs of the source are in a hidden part.
//! 3. *No pair of a source is omitted.* Pairs are ordered by key, then block. For a requested key
//!    the proof shows the last pair at or before (key, *lo*), or the start of the tree, and the
//!    first pair after (key, *hi*), or the end. No part between the two is hidden. So all pairs of
//!    the key are shown, from its newest one at or below *lo* up to *hi*: other pairs of the key
//!    would be between the two. In a run with version trees each key has one leaf, all its pairs in the
//!    run are below that, and the leaf of several pairs binds the key. So the place before all pairs of
//!    a key shown, and the place after them, do as well as pairs of its neighbours.
//! 4. *A source that is not searched has no version of the key in the range.* Either its first
//!    block, which its digest binds, is above *hi*. Or its filter, which was built from all its
//!    keys, lacks a bit of the key. The block shown is the block of the key: its place follows from
//!    the hash of the key and the filter's size, and the shape of the filter's tree from size and
//!    fanout. (For this reason the verifier must know the fanout.) Or no key is open any more; see
//!    the next step.
//! 5. *No source is omitted.* The order of sources in the root is by age: memory before disk, the
//!    writing before the merging group, upper levels before lower ones, newer runs before older
//!    ones. All pairs of a block go into one group; groups and runs move down as a whole, and never
//!    past older ones. So all blocks of a source are above the blocks of the sources after it. A
//!    pair of a key at or below *lo* thus ends the search: all further pairs are older, and no
//!    longer valid at *lo*.
//! 6. *Dropped history is not mistaken for missing history.* The horizon, which the root binds,
//!    starts at the store's first block. Merges drop a pair only if a newer pair of its key is
//!    valid at the horizon, or if it is a deletion with no older pair below. The verifier rejects a
//!    range that begins below the horizon. With version trees nothing under the root changes when a
//!    pair is dropped, and the horizon stays the first block: a part that was dropped is hidden, so by
//!    3 no proof passes over it.
//!
//! So the versions of each requested key are complete. A key for which no source shows a pair at or
//! below *lo* had no value there: it had never been set, or its deletion was dropped.
//!
//! # Costs
//!
//! One hash for every node shown. Memory is bounded by a small multiple of the lengths of the proof
//! and of the list of keys; recursion is bounded by a depth of 64.

#[cfg(all(test, feature = "std"))]
mod tests;

use crate::{
    ColeParams, filter,
    hash::{self, LevelDigests, SourceHeader},
    multi_proof,
    shown_tree::{CompoundPair, ShownNode},
    wire::{AskedKeys, FilterProof, ProofReader, SourceProof, chosen, malformed},
};
use alloc::{vec, vec::Vec};
use alloy_primitives::B256;
use core::ops::{Range, RangeInclusive};
use retrie_state::{BackendKey, ProofError, StateValue, ValueVersion};

/// The values of `keys` under `root`, as `proof` shows them. The proof is one of the versions after
/// the last block. A key may occur twice.
///
/// # Errors
/// As [`verify_versions`].
pub fn verify(
    params: &ColeParams,
    root: B256,
    keys: &[BackendKey],
    proof: &[u8],
) -> Result<Vec<Option<StateValue>>, ProofError> {
    let versions = verify_versions(params, root, keys, u64::MAX..=u64::MAX, proof)?;
    let newest = |versions: Vec<ValueVersion>| versions.into_iter().next()?.value;
    Ok(versions.into_iter().map(newest).collect())
}

/// The versions of each of `keys` in `blocks`, newest first, as `proof` shows them under `root`:
/// the version valid at the first block of the range, and all versions set later in the range. A
/// key may occur twice. The caller must check that the range does not end after the block of the
/// root.
///
/// # Errors
/// A [`ProofError`] for a proof that is not canonical, lacks a part or has an unused part, is made
/// for other keys, another range or another root, or is forged; for an empty range; for a range
/// that begins before the history that the root still has; for parameters out of their range.
pub fn verify_versions(
    params: &ColeParams,
    root: B256,
    keys: &[BackendKey],
    blocks: RangeInclusive<u64>,
    proof: &[u8],
) -> Result<Vec<Vec<ValueVersion>>, ProofError> {
    let params = params.checked().map_err(|_| ProofError::WrongKind { what: "parameters" })?;
    if blocks.is_empty() {
        return Err(malformed("the range of blocks is empty"));
    }
    let (lo, hi) = blocks.into_inner();
    let asked = AskedKeys::new(keys);
    let mut search = VersionSearch {
        reader: ProofReader::new(proof, &asked, hi, &params),
        asked: &asked,
        params: &params,
        lo,
        hi,
        open: (0..asked.len()).collect(),
        versions: vec![Vec::new(); asked.len()],
    };
    let horizon = search.reader.horizon()?;
    if lo < horizon {
        return Err(ProofError::Missing { what: "blocks before the history that is kept" });
    }
    let memory = [search.source(false)?, search.source(false)?];
    let counts = search.reader.levels()?;
    let mut levels = Vec::with_capacity(counts.len());
    for [writing, merging] in counts {
        let (writing, merging) = (search.runs(*writing)?, search.runs(*merging)?);
        levels.push(LevelDigests { writing, merging });
    }
    search.reader.end()?;
    if hash::root(horizon, memory, &levels) != root {
        return Err(ProofError::RootMismatch);
    }
    let versions = |key: &BackendKey| {
        let number = asked.number(&key.encode());
        number.map(|number| search.versions[number].clone()).unwrap_or_default()
    };
    Ok(keys.iter().map(versions).collect())
}

/// The search for the versions of all keys, source by source.
struct VersionSearch<'a> {
    reader: ProofReader<'a>,
    asked: &'a AskedKeys,
    params: &'a ColeParams,
    lo: u64,
    hi: u64,
    /// Keys for which no source has shown a pair at or below `lo` yet, ascending.
    open: Vec<usize>,
    /// The versions found, by key.
    versions: Vec<Vec<ValueVersion>>,
}

impl VersionSearch<'_> {
    fn runs(&mut self, count: u8) -> Result<Vec<B256>, ProofError> {
        (0..count).map(|_| self.source(true)).collect()
    }

    /// Reads the next source and returns its digest.
    fn source(&mut self, is_run: bool) -> Result<B256, ProofError> {
        match self.reader.source(is_run, &self.open)? {
            SourceProof::Closed(digest) => Ok(digest),
            SourceProof::Empty => Ok(B256::ZERO),
            SourceProof::Young(source) => Ok(source.digest()),
            SourceProof::Searched { mut source, excluded, filter, tree } => {
                source.filter_top = self.check_filter(source.filter_blocks, &excluded, filter)?;
                let shown = ShownPairs::of(&tree, is_run && self.params.version_trees);
                source.top = shown.top;
                self.check_tree(&source, &excluded, &shown)?;
                Ok(source.digest())
            }
        }
    }

    /// Checks that the filter blocks shown exclude the keys marked as excluded, and no other open
    /// keys in these blocks. Returns the top of the filter's tree.
    fn check_filter(
        &self,
        blocks: u64,
        excluded: &[bool],
        proof: FilterProof,
    ) -> Result<B256, ProofError> {
        let (blocks_shown, hashes) = match proof {
            FilterProof::None => return Ok(B256::ZERO),
            FilterProof::Top(top) => return Ok(top),
            FilterProof::Blocks { blocks, hashes } => (blocks, hashes),
        };
        let places = self.asked.blocks(chosen(&self.open, excluded), blocks);
        for (key, excluded) in self.open.iter().zip(excluded) {
            let (a, b) = self.asked.filter(*key);
            // A block that is shown decides for all its keys.
            let shown = places.binary_search(&filter::block_of(a, blocks));
            let block = shown.ok().and_then(|at| blocks_shown.get(at));
            if block.is_some_and(|block| filter::may_hold(block, b) == *excluded) {
                return Err(malformed("a filter does not exclude a key as claimed"));
            }
        }
        let known = places.into_iter().zip(blocks_shown.iter().map(hash::filter_block)).collect();
        multi_proof::top(self.params.fanout, blocks, known, &hashes)
            .ok_or_else(|| malformed("filter"))
    }

    /// Checks that the tree shows exactly the pairs that the keys need. Records the versions of the
    /// keys that are not excluded.
    fn check_tree(
        &mut self,
        source: &SourceHeader,
        excluded: &[bool],
        shown: &ShownPairs<'_>,
    ) -> Result<(), ProofError> {
        let ShownPairs { places, hidden, .. } = shown;
        if !places.is_sorted_by(|a, b| a.id() < b.id()) {
            return Err(malformed("pairs are out of order"));
        }
        let blocks = source.first_block..=source.last_block;
        let mut pairs = places.iter().filter_map(|place| place.pair);
        if pairs.any(|pair| !blocks.contains(&pair.block)) {
            return Err(malformed("a pair is of another block than its source has"));
        }
        let mut needed = vec![false; places.len()];
        let mut open = Vec::with_capacity(self.open.len());
        for (number, excluded) in self.open.iter().zip(excluded) {
            if *excluded {
                open.push(*number);
                continue;
            }
            let key = self.asked.key(*number);
            // The places up to (key, lo), the places up to (key, hi), the other places.
            let up_to = |block| {
                places.partition_point(|place| place.id() <= (key, PlaceInKey::Pair(block)))
            };
            let (before, through) = (up_to(self.lo), up_to(self.hi));
            if hidden[before..=through].contains(&true) {
                return Err(ProofError::Missing { what: "the pairs next to a key's pairs" });
            }
            let last = before.saturating_sub(1);
            needed[last..places.len().min(through + 1)].fill(true);
            let versions = &mut self.versions[*number];
            let later = places[before..through].iter().rev();
            versions.extend(later.filter_map(|place| place.pair).map(version));
            match places[..before].last() {
                Some(ShownPlace { key: of, pair: Some(pair), .. }) if *of == key => {
                    versions.push(version(pair));
                }
                _ => open.push(*number),
            }
        }
        let is_needed = |places: &Range<usize>| needed[places.clone()].contains(&true);
        if !shown.parts.iter().all(is_needed) || shown.has_idle {
            return Err(ProofError::Unused);
        }
        self.open = open;
        Ok(())
    }
}

fn version(pair: &CompoundPair) -> ValueVersion {
    ValueVersion { block: pair.block, value: pair.value.clone() }
}

/// A place among the pairs of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PlaceInKey {
    /// Before all pairs of the key.
    Start,
    /// The pair of this block.
    Pair(u64),
    /// After all pairs of the key.
    End,
}

/// A place that is shown: a pair, or an end of a key's pairs.
struct ShownPlace<'a> {
    key: &'a [u8],
    at: PlaceInKey,
    pair: Option<&'a CompoundPair>,
}

impl<'a> ShownPlace<'a> {
    const fn id(&self) -> (&'a [u8], PlaceInKey) {
        (self.key, self.at)
    }
}

/// The shown part of a tree, from left to right.
struct ShownPairs<'a> {
    places: Vec<ShownPlace<'a>>,
    /// Before each place, and after the last one: whether a part is hidden there.
    hidden: Vec<bool>,
    /// Of each part that is shown for itself, a pair or a leaf of a key: its places, of which one must
    /// be needed.
    parts: Vec<Range<usize>>,
    /// Whether a node is shown by its children although nothing below it is shown.
    has_idle: bool,
    /// Whether the tree is one over keys, with version trees.
    has_trees: bool,
    top: B256,
}

impl<'a> ShownPairs<'a> {
    fn of(tree: &'a ShownNode, has_trees: bool) -> Self {
        let (places, parts, hidden) = (Vec::new(), Vec::new(), vec![false]);
        let top = B256::ZERO;
        let mut shown = Self { places, hidden, parts, has_idle: false, has_trees, top };
        shown.top = shown.walk(tree);
        shown
    }

    fn push(&mut self, key: &'a [u8], at: PlaceInKey, pair: Option<&'a CompoundPair>) {
        self.places.push(ShownPlace { key, at, pair });
        self.hidden.push(false);
    }

    /// The leaf of a key, and what `below` shows of its pairs.
    fn leaf(&mut self, key: &'a [u8], below: impl FnOnce(&mut Self) -> B256) -> B256 {
        let start = self.places.len();
        self.push(key, PlaceInKey::Start, None);
        let digest = below(self);
        self.push(key, PlaceInKey::End, None);
        self.parts.push(start..self.places.len());
        digest
    }

    fn pair(&mut self, pair: &'a CompoundPair) -> B256 {
        self.push(&pair.key, PlaceInKey::Pair(pair.block), Some(pair));
        hash::pair(&pair.key, pair.block, pair.value.as_ref().map(|value| &value[..]))
    }

    /// The digest of a node, which is in no version tree. The [`ProofReader`] bounds the depth.
    fn walk(&mut self, node: &'a ShownNode) -> B256 {
        match node {
            ShownNode::Pair(pair) if self.has_trees => {
                self.leaf(&pair.key, |shown| shown.pair(pair))
            }
            ShownNode::Versions(key, tree) => {
                let top = self.leaf(key, |shown| shown.walk_versions(tree));
                hash::versions(key, &top)
            }
            node => self.walk_inner(node, Self::walk),
        }
    }

    /// The digest of a node of a version tree.
    fn walk_versions(&mut self, node: &'a ShownNode) -> B256 {
        self.walk_inner(node, Self::walk_versions)
    }

    fn walk_inner(
        &mut self,
        node: &'a ShownNode,
        walk: fn(&mut Self, &'a ShownNode) -> B256,
    ) -> B256 {
        match node {
            ShownNode::Hidden(digest) => {
                if let Some(last) = self.hidden.last_mut() {
                    *last = true;
                }
                *digest
            }
            ShownNode::Inner(children) => {
                let before = self.places.len();
                let digests: Vec<_> = children.iter().map(|child| walk(self, child)).collect();
                self.has_idle |= self.places.len() == before;
                hash::node(&digests)
            }
            ShownNode::Pair(pair) => {
                let at = self.places.len();
                self.parts.push(at..at + 1);
                self.pair(pair)
            }
            // A version tree has no keys below; the reader accepts none.
            ShownNode::Versions(key, tree) => hash::versions(key, &walk(self, tree)),
        }
    }
}
