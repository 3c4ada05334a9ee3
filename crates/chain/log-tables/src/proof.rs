//! Proofs of runs of entries under the root of a table.

use crate::{
    EntryKey, IndexEntry, TableReader,
    merkle::{depth, empty_subtree, join, list_root},
};
use alloc::{collections::VecDeque, vec::Vec};
use alloy_primitives::B256;
use core::ops::Range;

/// Most entries of a table in a proof: 2^40, which no chain reaches.
const MOST_ENTRIES: u64 = 1 << 40;

/// Consecutive entries of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRange {
    /// Index of the first one.
    pub start: u64,
    /// The entries, at least one.
    pub entries: Vec<IndexEntry>,
}

impl EntryRange {
    fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.entries.len() as u64)
    }
}

/// Some entries of a table, and the nodes of its tree that lead from them to its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableProof {
    /// Number of entries of the table.
    pub count: u64,
    /// The entries, in order; there is at least one between two runs.
    pub runs: Vec<EntryRange>,
    /// The nodes beside the entries, from left to right.
    pub nodes: Vec<B256>,
}

/// Why a proof of a table is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableProofError {
    /// The runs are not in order, empty, or beyond the end of the table.
    #[error("its entries are not in order, or lie beyond its end")]
    Disorder,
    /// A node is left out.
    #[error("it lacks a node of the tree")]
    MissingNode,
    /// A node is not needed.
    #[error("it has a node too many")]
    SurplusNode,
}

/// All entries of a key in a table, as a proof shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntries<'a> {
    /// The entries.
    pub entries: &'a [IndexEntry],
    /// Indices of the entries that show it: these, and one on each side.
    pub needed: Range<u64>,
}

/// Joins ranges that overlap or touch, and leaves out empty ones.
pub fn merge_ranges(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup_by(|next, before| {
        let touches = next.start <= before.end;
        if touches {
            before.end = before.end.max(next.end);
        }
        touches
    });
    ranges
}

/// The entries that show that those of `found` are all of a key: one more on each side.
fn with_neighbours(found: Range<u64>, count: u64) -> Range<u64> {
    found.start.saturating_sub(1)..found.end.saturating_add(1).min(count)
}

impl TableProof {
    /// The proof that has all entries of each key of `complete`, and the entries with the indices
    /// `single`.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn of<R: TableReader>(
        table: &R,
        complete: &[EntryKey],
        single: &[u64],
    ) -> Result<Self, R::Error> {
        let count = table.count();
        let mut ranges: Vec<_> = single.iter().map(|index| *index..index + 1).collect();
        for key in complete {
            ranges.push(with_neighbours(table.range_of(key)?, count));
        }
        let ranges = merge_ranges(ranges);
        let mut nodes = Vec::new();
        if count > 0 {
            collect(table, &ranges, depth(count), 0, &mut nodes)?;
        }
        let mut runs = Vec::new();
        for range in ranges {
            runs.push(EntryRange { start: range.start, entries: table.entries(range)? });
        }
        Ok(Self { count, runs, nodes })
    }

    /// The root to which it leads.
    ///
    /// # Errors
    /// A [`TableProofError`] unless entries are in order and exactly the nodes beside them are
    /// there.
    pub fn root(&self) -> Result<B256, TableProofError> {
        let mut next = Some(0);
        let mut before: Option<&IndexEntry> = None;
        let mut leaves = VecDeque::new();
        for run in &self.runs {
            let range = run.range();
            let follows = next.is_some_and(|next| range.start >= next);
            if !follows || range.is_empty() || range.end > self.count {
                return Err(TableProofError::Disorder);
            }
            // One entry at least lies between two runs.
            next = range.end.checked_add(1);
            for (index, entry) in range.zip(&run.entries) {
                if before.is_some_and(|before| before >= entry) {
                    return Err(TableProofError::Disorder);
                }
                before = Some(entry);
                leaves.push_back((index, entry.leaf()));
            }
        }
        if self.count > MOST_ENTRIES {
            return Err(TableProofError::Disorder);
        }
        let mut fold = ProofFold { count: self.count, leaves, nodes: self.nodes.iter() };
        let tree = fold.node(depth(self.count), 0)?;
        if fold.nodes.next().is_some() {
            return Err(TableProofError::SurplusNode);
        }
        Ok(list_root(&tree, self.count))
    }

    /// All entries of a key; `None` if the proof does not show that they are all.
    pub fn complete(&self, key: &EntryKey) -> Option<KeyEntries<'_>> {
        if self.count == 0 {
            return Some(KeyEntries { entries: &[], needed: 0..0 });
        }
        // The run that begins below the key, or with the table.
        let after = self.runs.partition_point(|run| {
            run.entries.first().is_some_and(|entry| entry.as_bytes() < key.as_bytes())
        });
        let run = self.runs.get(after.saturating_sub(1))?;
        let low = run.entries.partition_point(|entry| entry.as_bytes() < key.as_bytes());
        let of_key = run.entries[low..].iter().take_while(|entry| key.has(entry)).count();
        let high = low + of_key;
        let has_start = low > 0 || run.start == 0;
        let has_end = high < run.entries.len() || run.range().end == self.count;
        let found = run.start + low as u64..run.start + high as u64;
        (has_start && has_end).then(|| KeyEntries {
            entries: &run.entries[low..high],
            needed: with_neighbours(found, self.count),
        })
    }

    /// Entries with their indices, in order.
    pub fn entries(&self) -> impl Iterator<Item = (u64, &IndexEntry)> {
        self.runs.iter().flat_map(|run| run.range().zip(&run.entries))
    }

    /// Whether its entries are those of `needed`, and no others.
    pub fn is_exactly(&self, needed: Vec<Range<u64>>) -> bool {
        merge_ranges(needed).into_iter().eq(self.runs.iter().map(EntryRange::range))
    }
}

/// First and last leaf, exclusively, below a node.
const fn leaves_below(height: u32, index: u64) -> Range<u64> {
    index << height..(index + 1) << height
}

/// Adds the nodes beside the entries of `ranges`, from left to right.
fn collect<R: TableReader>(
    table: &R,
    ranges: &[Range<u64>],
    height: u32,
    index: u64,
    nodes: &mut Vec<B256>,
) -> Result<(), R::Error> {
    let below = leaves_below(height, index);
    if below.start >= table.count() {
        return Ok(());
    }
    // The first range that ends above the start of these leaves.
    let at = ranges.partition_point(|range| range.end <= below.start);
    match ranges.get(at).filter(|range| range.start < below.end) {
        None => nodes.push(table.node(height, index)?),
        Some(_) if height == 0 => {}
        Some(_) => {
            collect(table, &ranges[at..], height - 1, 2 * index, nodes)?;
            collect(table, &ranges[at..], height - 1, 2 * index + 1, nodes)?;
        }
    }
    Ok(())
}

/// Computes a root from leaves and the nodes beside them.
struct ProofFold<'a> {
    count: u64,
    leaves: VecDeque<(u64, B256)>,
    nodes: core::slice::Iter<'a, B256>,
}

impl ProofFold<'_> {
    /// The node at this place. Its depth, and the number of its steps, are bounded by that of the
    /// leaves, and the height of the tree.
    fn node(&mut self, height: u32, index: u64) -> Result<B256, TableProofError> {
        let below = leaves_below(height, index);
        if below.start >= self.count {
            return Ok(empty_subtree(height));
        }
        match self.leaves.front().filter(|(leaf, _)| *leaf < below.end) {
            None => self.nodes.next().copied().ok_or(TableProofError::MissingNode),
            Some((_, leaf)) if height == 0 => {
                let leaf = *leaf;
                self.leaves.pop_front();
                Ok(leaf)
            }
            Some(_) => {
                let left = self.node(height - 1, 2 * index)?;
                Ok(join(&left, &self.node(height - 1, 2 * index + 1)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IndexTable, TableBuilder};
    use alloy_primitives::{Address, Log, LogData};

    /// A table of blocks 1 to `blocks`, a transaction in each, whose logs have three addresses in
    /// turn.
    fn table(blocks: u64) -> IndexTable {
        let mut builder = TableBuilder::default();
        for number in 1..=blocks {
            let address = Address::repeat_byte(1 + (number % 3) as u8);
            let topics = [B256::repeat_byte(9), B256::left_padding_from(&[number as u8])];
            let log = Log { address, data: LogData::new_unchecked(topics.into(), [].into()) };
            let hash = B256::repeat_byte(number as u8);
            builder.add_block(number, &hash, [(hash, &[log][..])]);
        }
        builder.finish()
    }

    fn key(address: u8) -> EntryKey {
        EntryKey::address(&Address::repeat_byte(address))
    }

    #[test]
    fn roots_are_those_of_ssz_lists() {
        let empty = IndexTable::new(Vec::new());
        let zeros = join(&B256::ZERO, &B256::ZERO);
        assert_eq!(empty.root(), zeros);
        // Five leaves, filled up to eight.
        let all = table(1);
        assert_eq!(all.count(), 5);
        let leaves: Vec<_> = all.all().iter().map(IndexEntry::leaf).collect();
        let left = join(&join(&leaves[0], &leaves[1]), &join(&leaves[2], &leaves[3]));
        let right = join(&join(&leaves[4], &B256::ZERO), &zeros);
        let mut five = B256::ZERO;
        five[0] = 5;
        assert_eq!(all.root(), join(&join(&left, &right), &five));
    }

    #[test]
    fn proofs_lead_to_the_root_and_show_all_entries_of_a_key() {
        for blocks in [1, 2, 7, 16, 50] {
            let table = table(blocks);
            let keys = [key(0), key(1), key(2), key(3), key(4), EntryKey::any_address()];
            for wanted in keys {
                let proof = TableProof::of(&table, &[wanted], &[]).unwrap();
                assert_eq!(proof.root(), Ok(table.root()));
                let shown = proof.complete(&wanted).unwrap();
                let all = table.all().iter().filter(|entry| wanted.has(entry));
                assert!(shown.entries.iter().eq(all));
                assert!(proof.is_exactly([shown.needed].into()));
            }
            let proof = TableProof::of(&table, &[key(1)], &[0, table.count() - 1]).unwrap();
            assert_eq!(proof.root(), Ok(table.root()));
            assert_eq!(proof.entries().next(), Some((0, &table.all()[0])));
        }
        let empty = IndexTable::new(Vec::new());
        let proof = TableProof::of(&empty, &[key(1)], &[]).unwrap();
        assert_eq!((proof.root(), proof.complete(&key(1)).is_some()), (Ok(empty.root()), true));
    }

    #[test]
    fn forged_proofs_lead_elsewhere_or_show_less() {
        let table = table(30);
        let proof = TableProof::of(&table, &[key(2)], &[1]).unwrap();
        let root = table.root();
        let change = |change: &dyn Fn(&mut TableProof)| {
            let mut forged = proof.clone();
            change(&mut forged);
            forged
        };
        let wrong = |forged: &TableProof| forged.root() != Ok(root);
        assert!(wrong(&change(&|proof| {
            proof.runs[1].entries.remove(3);
        })));
        assert!(wrong(&change(&|proof| proof.runs[1].start += 1)));
        assert!(wrong(&change(&|proof| proof.count -= 1)));
        assert!(wrong(&change(&|proof| proof.count = u64::MAX)));
        assert!(wrong(&change(&|proof| proof.runs[1].entries[2] = proof.runs[0].entries[0])));
        assert!(wrong(&change(&|proof| proof.nodes.swap(0, 1))));
        assert!(wrong(&change(&|proof| proof.runs.swap(0, 1))));
        assert!(wrong(&change(&|proof| proof.runs.clear())));
        assert!(wrong(&change(&|proof| proof.runs[0].entries.clear())));
        assert!(wrong(&change(&|proof| proof.runs[1].start = u64::MAX)));
        let fewer = change(&|proof| {
            proof.nodes.pop();
        });
        assert_eq!(fewer.root(), Err(TableProofError::MissingNode));
        let more = change(&|proof| proof.nodes.push(root));
        assert_eq!(more.root(), Err(TableProofError::SurplusNode));

        // An honest proof without the entry beside the key's does not show that they are all.
        let range = table.range_of(&key(2)).unwrap();
        let singles: Vec<_> = range.clone().collect();
        let bare = TableProof::of(&table, &[], &singles).unwrap();
        assert_eq!((bare.root(), bare.complete(&key(2))), (Ok(root), None));
        let one_short = TableProof::of(&table, &[], &singles[1..]).unwrap();
        assert_eq!((one_short.root(), one_short.complete(&key(2))), (Ok(root), None));
        assert!(!proof.is_exactly([range].into()), "there is more than this");
    }
}
