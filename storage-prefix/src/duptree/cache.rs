//! What a block has in memory: the top, and the subtrees of layers 1 and up that blocks have
//! touched.
//!
//! Subtrees hang below each other as in the tree. A child block shares with its parent all that it
//! has not touched, and copies the ways to what it has.

use super::{
    hash,
    leaf::Leaf,
    meta::Meta,
    shape::{LEVELS, Place, Shape, WIDTH},
    subtree::Subtree,
};
use alloy_primitives::B256;
use retrie_state::{NodeRead, StateError};
use std::{collections::BTreeMap, sync::Arc};

/// Most subtrees kept in memory: those above 2^25 leaves.
pub const MAX_CACHED_SUBTREES: usize = 1 << 15;
/// Of a subtree in memory, bounded from above: its nodes, and links to 32 others.
pub(crate) const CACHED_BYTES: u64 = 64 * 32 + 32 * 8 + 192;

/// The structure of one block's state.
#[derive(Clone, Debug)]
pub struct DupTreeCache {
    pub(crate) shape: Shape,
    pub(crate) top: B256,
    /// The one subtree of the highest layer, if that is not layer 0.
    branch: Option<Arc<Branch>>,
}

/// A subtree of layer 1 or higher.
#[derive(Debug)]
struct Branch {
    subtree: Arc<Subtree>,
    /// By bottom; none in layer 1.
    children: Vec<Option<Arc<Self>>>,
    /// Last block that touched it, or one below.
    block: u64,
    /// Number of subtrees, this one and those below.
    count: usize,
}

impl Branch {
    fn new(subtree: Arc<Subtree>, children: Vec<Option<Arc<Self>>>, block: u64) -> Arc<Self> {
        let count = 1 + children.iter().flatten().map(|child| child.count).sum::<usize>();
        Arc::new(Self { subtree, children, block, count })
    }

    /// Adds up subtrees by block.
    fn ages(&self, ages: &mut BTreeMap<u64, usize>) {
        *ages.entry(self.block).or_default() += 1;
        self.children.iter().flatten().for_each(|child| child.ages(ages));
    }

    /// Without what was touched last before block `first`.
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
    /// That of the state in `view`; subtrees come from rows until a block touches them.
    pub(crate) fn open(view: &dyn NodeRead) -> Result<Self, StateError> {
        let meta = Meta::read(view)?.unwrap_or_else(Self::empty);
        Ok(Self { shape: meta.shape, top: meta.top, branch: None })
    }

    /// What the row of the empty state would say.
    pub(crate) fn empty() -> Meta {
        let mut bytes = Vec::new();
        Leaf::SENTINEL.encode(&mut bytes);
        Meta { shape: Shape { leaves: 1 }, top: hash::leaf(&bytes) }
    }

    /// The root.
    pub(crate) fn root(&self) -> B256 {
        hash::root(self.shape.height(), &self.top)
    }

    /// A subtree, if it is in memory.
    pub(crate) fn subtree(&self, place: Place) -> Option<&Arc<Subtree>> {
        self.find(place).map(|branch| &branch.subtree)
    }

    fn find(&self, Place { layer, index }: Place) -> Option<&Branch> {
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

/// A child's cache in the making, layer by layer from below.
pub(crate) struct Growing<'a> {
    parent: &'a DupTreeCache,
    block: u64,
    /// Subtrees of the last layer, by number.
    below: Vec<(u64, Arc<Branch>)>,
}

impl<'a> Growing<'a> {
    pub(crate) const fn new(parent: &'a DupTreeCache, block: u64) -> Self {
        Self { parent, block, below: Vec::new() }
    }

    /// Takes the touched subtrees of the next layer, by number.
    pub(crate) fn layer(&mut self, layer: u8, touched: impl Iterator<Item = (u64, Subtree)>) {
        if layer == 0 {
            return;
        }
        let mut below = std::mem::take(&mut self.below).into_iter().peekable();
        for (index, subtree) in touched {
            let old = self.parent.find(Place { layer, index });
            let mut children = old.map_or_else(Vec::new, |old| old.children.clone());
            while let Some((child, branch)) = below.next_if(|(child, _)| child / WIDTH == index) {
                children.resize(WIDTH as usize, None);
                children[(child % WIDTH) as usize] = Some(branch);
            }
            self.below.push((index, Branch::new(Arc::new(subtree), children, self.block)));
        }
    }

    /// The child's cache. If it is too large, what was touched longest ago goes, to three quarters.
    pub(crate) fn finish(mut self, shape: Shape, top: B256, most: usize) -> DupTreeCache {
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
