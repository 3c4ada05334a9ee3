//! A chunk of which some entries, and some nodes of its hash tree, are known.

use super::WitnessFault;
use crate::{chunk::levels, hash};
use alloy_primitives::B256;
use parking_lot::Mutex;
use retrie_state::{BackendKey, StateValue, WitnessError};
use std::{
    collections::BTreeMap,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// An entry that a witness shows.
#[derive(Clone, Debug)]
pub(super) struct WitnessEntry {
    pub(super) key: BackendKey,
    pub(super) value: StateValue,
}

impl WitnessEntry {
    pub(super) fn hash(&self) -> B256 {
        hash::entry(&self.key.encode(), &self.value)
    }
}

/// Nodes of a chunk's hash tree, by level and index. Each known node has all nodes above it.
pub(super) type ChunkNodes = BTreeMap<(u32, usize), B256>;

/// A chunk in a partial tree.
#[derive(Debug)]
pub(super) struct PartialChunk {
    pub(super) count: usize,
    pub(super) top: B256,
    /// The entries that are shown, by position.
    shown: Mutex<BTreeMap<usize, WitnessEntry>>,
    nodes: OnceLock<ChunkNodes>,
    /// The position from which on all hashes of entries are needed; the number of entries if none.
    tail: AtomicUsize,
}

/// A change at a position of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct PositionChange {
    /// The entry that is replaced or removed, or before which the new one goes.
    pub(super) at: usize,
    /// Whether the entry at this position goes.
    pub(super) removes: bool,
    /// The hash of the new entry.
    pub(super) adds: Option<B256>,
}

impl PositionChange {
    /// Whether the entries behind shift.
    pub(super) const fn moves(&self) -> bool {
        self.removes != self.adds.is_some()
    }
}

impl PartialChunk {
    /// A chunk of which only this is known.
    pub(super) fn new(count: usize, top: B256) -> Self {
        let (shown, nodes) = (Mutex::default(), OnceLock::new());
        Self { count, top, shown, nodes, tail: AtomicUsize::new(count) }
    }

    /// A chunk with these shown entries and known nodes.
    pub(super) fn known(
        count: usize,
        top: B256,
        shown: BTreeMap<usize, WitnessEntry>,
        nodes: ChunkNodes,
    ) -> Self {
        let chunk = Self::new(count, top);
        Self { shown: Mutex::new(shown), nodes: OnceLock::from(nodes), ..chunk }
    }

    pub(super) fn hash(&self) -> B256 {
        hash::chunk(self.count as u32, &self.top)
    }

    /// Whether its nodes are known.
    pub(super) fn is_loaded(&self) -> bool {
        self.nodes.get().is_some()
    }

    /// Makes all nodes known, from the hashes of all entries.
    pub(super) fn load(&self, hashes: Vec<B256>) {
        self.nodes.get_or_init(|| {
            let levels = levels(hashes).into_iter().enumerate();
            let nodes = levels.flat_map(|(level, nodes)| {
                nodes.into_iter().enumerate().map(move |(at, node)| ((level as u32, at), node))
            });
            nodes.collect()
        });
    }

    /// Shows an entry.
    pub(super) fn show(&self, position: usize, entry: WitnessEntry) {
        self.shown.lock().insert(position, entry);
    }

    /// The entries that are shown, by position.
    pub(super) fn shown(&self) -> BTreeMap<usize, WitnessEntry> {
        self.shown.lock().clone()
    }

    /// The position from which on all hashes of entries were needed.
    pub(super) fn tail(&self) -> usize {
        self.tail.load(Ordering::Relaxed)
    }

    pub(super) fn node(&self, level: u32, index: usize) -> Result<B256, WitnessFault> {
        let known = self.nodes.get().and_then(|nodes| nodes.get(&(level, index)));
        known.copied().ok_or_else(|| {
            let what =
                format!("node {index} of level {level} in a chunk of {} entries", self.count);
            WitnessError::Incomplete { what }.into()
        })
    }

    /// The hashes of the entries from `position` on.
    fn hashes_from(&self, position: usize) -> Result<Vec<B256>, WitnessFault> {
        self.tail.fetch_min(position, Ordering::Relaxed);
        (position..self.count).map(|at| self.node(0, at)).collect()
    }

    /// The hashes of all entries after `changes`, which are in key order.
    pub(super) fn entries_after(
        &self,
        changes: &[PositionChange],
    ) -> Result<Vec<B256>, WitnessFault> {
        Ok(tail_after(0, &self.hashes_from(0)?, changes))
    }

    /// The chunk after `changes`, which leave entries in it.
    pub(super) fn after(&self, changes: &[PositionChange]) -> Result<Self, WitnessFault> {
        let moved = changes.iter().filter(|change| change.moves()).map(|change| change.at).min();
        let start = moved.unwrap_or(self.count);
        let tail = match moved {
            Some(start) => tail_after(start, &self.hashes_from(start)?, changes),
            None => Vec::new(),
        };
        let replaced = changes.iter().filter(|change| change.at < start);
        let replaced = replaced.filter_map(|change| Some((change.at, change.adds?))).collect();
        let count = start + tail.len();
        let after = ChunkAfter { before: self, start, replaced, tail };
        let top = after.node(hash::levels(count), 0)?;
        Ok(Self::new(count, top))
    }
}

/// The hashes from position `start` on, which were `before`, after `changes`.
fn tail_after(start: usize, before: &[B256], changes: &[PositionChange]) -> Vec<B256> {
    let mut after = Vec::with_capacity(before.len() + changes.len());
    let mut changes = changes.iter().skip_while(|change| change.at < start).peekable();
    for at in start..=start + before.len() {
        let mut stays = before.get(at - start).copied();
        while let Some(change) = changes.next_if(|change| change.at == at) {
            if change.removes {
                stays = None;
            }
            after.extend(change.adds);
        }
        after.extend(stays);
    }
    after
}

/// A chunk after a block: the entries before `start` stay, except `replaced` ones.
struct ChunkAfter<'a> {
    before: &'a PartialChunk,
    start: usize,
    replaced: BTreeMap<usize, B256>,
    tail: Vec<B256>,
}

impl ChunkAfter<'_> {
    fn node(&self, level: u32, index: usize) -> Result<B256, WitnessFault> {
        let (first, end) = (index << level, (index + 1) << level);
        let is_replaced = self.replaced.range(first..end).next().is_some();
        // A node of the same entries is the same, if it is full or the chunk has as many as before.
        let is_like_before = self.tail.is_empty() && self.start == self.before.count;
        if (end <= self.start || is_like_before) && !is_replaced {
            return self.before.node(level, index);
        }
        let Some(below) = level.checked_sub(1) else {
            let own = self.replaced.get(&first).or_else(|| self.tail.get(first - self.start));
            return own.copied().ok_or_else(|| {
                let what = format!("the entry at position {first} of a chunk");
                WitnessError::Incomplete { what }.into()
            });
        };
        let left = self.node(below, 2 * index)?;
        if 2 * index + 1 == hash::nodes_at(self.start + self.tail.len(), below) {
            return Ok(left);
        }
        Ok(hash::pair(&left, &self.node(below, 2 * index + 1)?))
    }
}
