//! The nodes of a block's tree that are in memory: the top, and the subtrees of layers 1 and up
//! that recent blocks touched.
//!
//! Cached subtrees are linked as in the tree. A child block shares all untouched subtrees with its
//! parent, and copies the paths to the touched ones.

use super::{
    hash,
    leaf::IndexedLeaf,
    meta::DupTreeMeta,
    shape::{LEVELS, SubtreePlace, TreeShape, WIDTH},
    subtree::Subtree,
};
use alloy_primitives::B256;
use retrie_state::{LookupCounter, NodeRead, StateError};
use std::{collections::BTreeMap, sync::Arc};

/// Upper bound of subtrees in memory: enough for all subtrees above 2^25 leaves.
pub(super) const MAX_CACHED_SUBTREES: usize = 1 << 15;
/// Upper bound of a cached subtree's bytes: its nodes, and links to 32 others.
pub(crate) const CACHED_BYTES: u64 = 64 * 32 + 32 * 8 + 192;

/// How many subtrees fit into `bytes`, by default at most.
pub(super) fn cached_subtrees(bytes: u64) -> usize {
    usize::try_from(bytes / CACHED_BYTES)
        .map_or(MAX_CACHED_SUBTREES, |n| n.min(MAX_CACHED_SUBTREES))
}

/// How many subtrees may be in memory, and how often they were found there. All blocks of a store
/// share it.
#[derive(Debug)]
pub(crate) struct SubtreeRoom {
    pub(crate) most: usize,
    pub(crate) lookups: LookupCounter,
}

/// The tree of one block's state, as far as it is in memory.
#[derive(Clone, Debug)]
pub struct DupTreeCache {
    pub(crate) shape: TreeShape,
    pub(crate) top: B256,
    /// The only subtree of the highest layer, if that is not layer 0.
    branch: Option<Arc<CachedSubtree>>,
}

/// A cached subtree of layer 1 or higher.
#[derive(Debug)]
struct CachedSubtree {
    subtree: Arc<Subtree>,
    /// By bottom; none in layer 1.
    children: Vec<Option<Arc<Self>>>,
    /// Last block that touched it, or a subtree below it.
    block: u64,
    /// Number of cached subtrees from this one down, this one included.
    count: usize,
}

impl CachedSubtree {
    fn new(subtree: Arc<Subtree>, children: Vec<Option<Arc<Self>>>, block: u64) -> Arc<Self> {
        let count = 1 + children.iter().flatten().map(|child| child.count).sum::<usize>();
        Arc::new(Self { subtree, children, block, count })
    }

    /// Counts subtrees by the last block that touched them.
    fn ages(&self, ages: &mut BTreeMap<u64, usize>) {
        *ages.entry(self.block).or_default() += 1;
        self.children.iter().flatten().for_each(|child| child.ages(ages));
    }

    /// This subtree and the subtrees below it, without those last touched before block `first`.
    fn since(self: &Arc<Self>, first: u64) -> Option<Arc<Self>> {
        if self.block < first {
            return None;
        }
        let children: Vec<_> =
            self.children.iter().map(|child| child.as_ref()?.since(first)).collect();
        let same = |(a, b): (&Option<Arc<Self>>, &Option<Arc<Self>>)| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        match children.iter().zip(&self.children).all(same) {
            true => Some(self.clone()),
            false => Some(Self::new(self.subtree.clone(), children, self.block)),
        }
    }
}

impl DupTreeCache {
    /// Opens the state in `view`. Subtrees are read from rows until a block touches them.
    pub(crate) fn open(view: &dyn NodeRead) -> Result<Self, StateError> {
        let meta = DupTreeMeta::read(view)?.unwrap_or_else(Self::empty);
        Ok(Self { shape: meta.shape, top: meta.top, branch: None })
    }

    /// Size and top of the empty state's tree, which has no row.
    pub(crate) fn empty() -> DupTreeMeta {
        let mut bytes = Vec::new();
        IndexedLeaf::SENTINEL.encode(&mut bytes);
        DupTreeMeta { shape: TreeShape { leaves: 1 }, top: hash::leaf(&bytes) }
    }

    /// The root.
    pub(crate) fn root(&self) -> B256 {
        hash::root(self.shape.height(), &self.top)
    }

    /// A subtree, if it is in memory.
    pub(crate) fn subtree(&self, place: SubtreePlace) -> Option<&Arc<Subtree>> {
        self.find(place).map(|branch| &branch.subtree)
    }

    fn find(&self, SubtreePlace { layer, index }: SubtreePlace) -> Option<&CachedSubtree> {
        let mut at = self.branch.as_deref()?;
        let above = self.shape.layers().checked_sub(layer + 1)?;
        if index >> (LEVELS * above) != 0 {
            return None;
        }
        for above in (0..above).rev() {
            let child = (index >> (LEVELS * above)) % WIDTH;
            at = at.children.get(child as usize)?.as_deref()?;
        }
        Some(at)
    }

    /// Number of subtrees in memory.
    pub(crate) fn count(&self) -> usize {
        self.branch.as_ref().map_or(0, |branch| branch.count)
    }
}

/// Builds the cache of a child block, layer by layer from below.
pub(crate) struct CacheBuilder<'a> {
    parent: &'a DupTreeCache,
    block: u64,
    /// The touched subtrees of the last layer, by number.
    below: Vec<(u64, Arc<CachedSubtree>)>,
}

impl<'a> CacheBuilder<'a> {
    pub(crate) const fn new(parent: &'a DupTreeCache, block: u64) -> Self {
        Self { parent, block, below: Vec::new() }
    }

    /// Adds the touched subtrees of the next layer, sorted by number.
    pub(crate) fn layer(&mut self, layer: u8, touched: impl Iterator<Item = (u64, Subtree)>) {
        if layer == 0 {
            return;
        }
        let mut below = std::mem::take(&mut self.below).into_iter().peekable();
        for (index, subtree) in touched {
            let old = self.parent.find(SubtreePlace { layer, index });
            let mut children = old.map_or_else(Vec::new, |old| old.children.clone());
            while let Some((child, branch)) = below.next_if(|(child, _)| child / WIDTH == index) {
                children.resize(WIDTH as usize, None);
                children[(child % WIDTH) as usize] = Some(branch);
            }
            self.below.push((index, CachedSubtree::new(Arc::new(subtree), children, self.block)));
        }
    }

    /// The child's cache. If it has more than `most` subtrees, the longest untouched ones are
    /// dropped, until at most three quarters of `most` remain.
    pub(crate) fn finish(mut self, shape: TreeShape, top: B256, most: usize) -> DupTreeCache {
        let mut branch = self.below.pop().map(|(_, branch)| branch);
        if let Some(all) = branch.take_if(|branch| branch.count > most) {
            let mut ages = BTreeMap::new();
            all.ages(&mut ages);
            let mut kept = 0;
            let young = ages.into_iter().rev().take_while(|(_, count)| {
                kept += count;
                kept <= most / 4 * 3
            });
            branch = young.last().and_then(|(first, _)| all.since(first));
        }
        DupTreeCache { shape, top, branch }
    }
}
