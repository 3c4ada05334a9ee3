//! Checking proofs against a root: pure, without storage or `std`.
//!
//! # Why a proof that is accepted tells the truth
//!
//! The root is that of an honestly computed state; who proves is not trusted, and may have written
//! values into that state. Each step below takes a collision of BLAKE2b-256 to break.
//!
//! 1. *One structure.* The root is a hash of the horizon and of the digests of all sources, level by
//!    level: every one of them is in the proof, in its place, or the hash is another. Hashes of
//!    different domains start differently, and a digest of zero, that of an empty group, is no hash:
//!    so a pair cannot pass for a node, nor pairs for nothing.
//! 2. *What a source is.* Its digest binds the blocks of its pairs, the top of its tree, and size and
//!    top of its filter. What is shown of the tree leads to that top: it is that tree, with some
//!    parts hidden. So the pairs shown are pairs of the source, in their order, and whatever the
//!    source has besides is in a hidden part.
//! 3. *Nothing is omitted in a source.* Pairs are ordered by key, then block. Of an asked key the
//!    last pair at or before (key, *lo*) is shown, or the start of the tree, and the first pair after
//!    (key, *hi*), or the end. No part between the two is hidden, so all pairs of the key from its
//!    newest one at or below *lo* up to *hi* are shown; had the source others, they would lie there.
//! 4. *A source that is not searched has nothing to say.* Either its first block, which its digest
//!    binds, is above *hi*. Or its filter, which was built from all its keys, lacks a bit of the key:
//!    the block that is shown is the one of the key, since its place follows from the hash of the
//!    key and the filter's size, and the shape of the filter's tree from size and fanout. The fanout
//!    is a pinned parameter for this reason. Or no key is open any more, for which see the next step.
//! 5. *Nothing is omitted across sources.* Their order in the root is by age: memory before disk, the
//!    writing before the merging group, upper levels before lower ones, newer runs before older ones.
//!    All pairs of a block go into one group, groups and runs move down as a whole, and never past
//!    older ones: so a source's blocks are all above those of the sources behind it. A pair of a key
//!    at or below *lo* thus ends the search: what is behind it is older, and no longer in force at
//!    *lo*.
//! 6. *History that is not there is not mistaken for none.* The horizon, which the root binds, begins
//!    at the store's first block. Merges drop a pair only if at the horizon a newer one of its key is
//!    in force, or if it is a deletion that nothing lies under. A range that begins below the horizon
//!    is refused.
//!
//! So each asked key's versions are all that there are; a key of which no source shows a pair at or
//! below *lo* had no value there: it had never been set, or the deletion was dropped.
//!
//! # What it costs
//!
//! One hash for every node that is shown. Memory is bounded by a small multiple of the length of the
//! proof and of the list of keys, recursion by a depth of 64.

#[cfg(all(test, feature = "std"))]
mod tests;

use crate::{
    Params, filter,
    hash::{self, LevelDigests, Source},
    multi,
    tree::{Node, Pair},
    wire::{Asked, FilterProof, Reader, SourceProof, chosen, malformed},
};
use alloc::{vec, vec::Vec};
use alloy_primitives::B256;
use core::ops::RangeInclusive;
use retrie_state::{ProofError, StateKey, Value, Version};

/// The values of `keys` under `root`, as `proof` shows them: a proof of the versions after the last
/// of all blocks. A key may come twice.
///
/// # Errors
/// As [`verify_versions`].
pub fn verify(
    params: &Params,
    root: B256,
    keys: &[StateKey],
    proof: &[u8],
) -> Result<Vec<Option<Value>>, ProofError> {
    let versions = verify_versions(params, root, keys, u64::MAX..=u64::MAX, proof)?;
    let newest = |versions: Vec<Version>| versions.into_iter().next()?.value;
    Ok(versions.into_iter().map(newest).collect())
}

/// The versions of each of `keys` in `blocks`, newest first, as `proof` shows them under `root`:
/// those that were set in the range but at its first block, and the one in force at that. A key may
/// come twice. That the range does not reach beyond the block of the root is for the caller to see.
///
/// # Errors
/// A [`ProofError`] for a proof that is not canonical, lacks a part or has one too many, is made for
/// other keys, another range or another root, or was made up; for an empty range; for a range that
/// begins before the history that the root still has; for parameters out of their range.
pub fn verify_versions(
    params: &Params,
    root: B256,
    keys: &[StateKey],
    blocks: RangeInclusive<u64>,
    proof: &[u8],
) -> Result<Vec<Vec<Version>>, ProofError> {
    let params = params.checked().map_err(|_| ProofError::WrongKind { what: "parameters" })?;
    if blocks.is_empty() {
        return Err(malformed("the range of blocks is empty"));
    }
    let (lo, hi) = blocks.into_inner();
    let asked = Asked::new(keys);
    let mut search = Search {
        reader: Reader::new(proof, &asked, hi, params.fanout),
        asked: &asked,
        fanout: params.fanout,
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
    let versions = |key: &StateKey| {
        let number = asked.number(&key.encode());
        number.map(|number| search.versions[number].clone()).unwrap_or_default()
    };
    Ok(keys.iter().map(versions).collect())
}

/// The search for the versions of all keys, source by source.
struct Search<'a> {
    reader: Reader<'a>,
    asked: &'a Asked,
    fanout: u8,
    lo: u64,
    hi: u64,
    /// Keys of which no source has shown a pair at or below `lo` yet, ascending.
    open: Vec<usize>,
    /// What was found, by key.
    versions: Vec<Vec<Version>>,
}

impl Search<'_> {
    fn runs(&mut self, count: u8) -> Result<Vec<B256>, ProofError> {
        (0..count).map(|_| self.source(true)).collect()
    }

    /// The digest of the next source.
    fn source(&mut self, is_run: bool) -> Result<B256, ProofError> {
        match self.reader.source(is_run, &self.open)? {
            SourceProof::Closed(digest) => Ok(digest),
            SourceProof::Empty => Ok(B256::ZERO),
            SourceProof::Young(source) => Ok(source.digest()),
            SourceProof::Searched { mut source, excluded, filter, tree } => {
                source.filter_top = self.check_filter(source.filter_blocks, &excluded, filter)?;
                let shown = Shown::of(&tree);
                source.top = shown.top;
                self.check_tree(&source, &excluded, &shown)?;
                Ok(source.digest())
            }
        }
    }

    /// The blocks shown exclude the keys that they are said to exclude, and no others of theirs. The
    /// top of the filter's tree.
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
            // A block that is shown speaks for all its keys.
            let shown = places.binary_search(&filter::block_of(a, blocks));
            let block = shown.ok().and_then(|at| blocks_shown.get(at));
            if block.is_some_and(|block| filter::may_hold(block, b) == *excluded) {
                return Err(malformed("a filter does not exclude what it is said to"));
            }
        }
        let known = places.into_iter().zip(blocks_shown.iter().map(hash::filter_block)).collect();
        multi::top(self.fanout, blocks, known, &hashes).ok_or_else(|| malformed("filter"))
    }

    /// What is shown of a tree is all that it takes, and nothing else. Notes what it says of the keys
    /// that are not excluded.
    fn check_tree(
        &mut self,
        source: &Source,
        excluded: &[bool],
        shown: &Shown<'_>,
    ) -> Result<(), ProofError> {
        let Shown { pairs, hidden, .. } = shown;
        let ascend = pairs.is_sorted_by(|a, b| (&a.key, a.block) < (&b.key, b.block));
        if !ascend {
            return Err(malformed("pairs are out of order"));
        }
        let blocks = source.first_block..=source.last_block;
        if pairs.iter().any(|pair| !blocks.contains(&pair.block)) {
            return Err(malformed("a pair is of another block than its source has"));
        }
        let mut needed = vec![false; pairs.len()];
        let mut open = Vec::with_capacity(self.open.len());
        for (number, excluded) in self.open.iter().zip(excluded) {
            if *excluded {
                open.push(*number);
                continue;
            }
            let key = self.asked.key(*number);
            // The pairs up to (key, lo), those up to (key, hi), the others.
            let up_to =
                |block| pairs.partition_point(|pair| (&pair.key[..], pair.block) <= (key, block));
            let (before, through) = (up_to(self.lo), up_to(self.hi));
            if hidden[before..=through].contains(&true) {
                return Err(ProofError::Missing { what: "pairs next to those of a key" });
            }
            let last = before.saturating_sub(1);
            needed[last..pairs.len().min(through + 1)].fill(true);
            let versions = &mut self.versions[*number];
            versions.extend(pairs[before..through].iter().rev().map(|pair| version(pair)));
            match pairs[..before].last() {
                Some(pair) if pair.key == key => versions.push(version(pair)),
                _ => open.push(*number),
            }
        }
        if needed.contains(&false) || shown.has_idle {
            return Err(ProofError::Unused);
        }
        self.open = open;
        Ok(())
    }
}

fn version(pair: &Pair) -> Version {
    Version { block: pair.block, value: pair.value.clone() }
}

/// A tree as far as it is shown, from left to right.
struct Shown<'a> {
    pairs: Vec<&'a Pair>,
    /// Before each pair, and after the last: is something hidden there?
    hidden: Vec<bool>,
    /// Whether a node is shown by its children although there is no pair below.
    has_idle: bool,
    top: B256,
}

impl<'a> Shown<'a> {
    fn of(tree: &'a Node) -> Self {
        let mut shown =
            Self { pairs: Vec::new(), hidden: vec![false], has_idle: false, top: B256::ZERO };
        shown.top = shown.walk(tree);
        shown
    }

    /// The digest of a node. The [`Reader`] bounds the depth.
    fn walk(&mut self, node: &'a Node) -> B256 {
        match node {
            Node::Hidden(digest) => {
                if let Some(last) = self.hidden.last_mut() {
                    *last = true;
                }
                *digest
            }
            Node::Inner(children) => {
                let before = self.pairs.len();
                let digests: Vec<_> = children.iter().map(|child| self.walk(child)).collect();
                self.has_idle |= self.pairs.len() == before;
                hash::node(&digests)
            }
            Node::Pair(pair) => {
                self.pairs.push(pair);
                self.hidden.push(false);
                hash::pair(&pair.key, pair.block, pair.value.as_ref().map(|value| &value[..]))
            }
        }
    }
}
