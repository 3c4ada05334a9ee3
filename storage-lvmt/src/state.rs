//! [`LvmtState`]: the structure in memory of one block's state.
//!
//! As in section 5 of the paper, the commitments of the root AMT and of the second level are in
//! memory. Blocks and proofs need them. Values, and all other parts of a proof, come from rows.

use crate::{
    amt,
    cache::RecordMemo,
    entries::root_occupancy,
    garbage::GarbageCollection,
    merkle::{MerkleGroup, RangeEdge},
    params::LvmtParams,
    point::G1Point,
    proof_tree::ProofTree,
    record::{LvmtMeta, RANGE, SubAmt, corrupt, range_key},
    second_level::{LevelArray, LevelLog, StoredLevel},
    shard::ProofShard,
    state_array::StateArray,
    sub_trees::SubAmtTrees,
};
use retrie_state::{NodeRead, StateError};
use std::{fmt, sync::OnceLock};

/// The structure in memory of one block's state.
pub struct LvmtState {
    pub(crate) meta: LvmtMeta,
    height: u8,
    /// The structures that the next block builds on; read from rows at first use.
    apply_base: OnceLock<ApplyBase>,
    /// The root AMT's proof tree, as far as the proof shard needs it.
    pub(crate) tree: Option<ProofTree>,
    /// The upper parts of the sub-AMTs' proof trees, as far as the proof shard needs them.
    pub(crate) sub_trees: Option<SubAmtTrees>,
    /// Garbage collection under way.
    pub(crate) collection: GarbageCollection,
    /// Records read from this state.
    pub(crate) memo: RecordMemo,
}

/// The structures in memory that a block changes.
#[derive(Clone)]
pub(crate) struct ApplyBase {
    pub(crate) second: LevelArray,
    /// The log of the second level.
    pub(crate) log: LevelLog,
    /// Right edge of the tree over all blocks.
    pub(crate) range: RangeEdge,
    /// How many slots of each entry of the root AMT keys occupy. Only new keys need it; the first
    /// one reads it from rows.
    pub(crate) occupied: OnceLock<StateArray<u8>>,
}

impl ApplyBase {
    fn read(params: &LvmtParams, view: &dyn NodeRead, meta: &LvmtMeta) -> Result<Self, StateError> {
        let stored = StoredLevel::read(view, params.height())?;
        let log = stored.log;
        let range = RangeEdge::open(meta.blocks, |level, group, size| {
            let row = view.get(RANGE, &range_key(level, group))?;
            Ok(row.and_then(|row| MerkleGroup::decode(&row, size)))
        })?;
        let range = range.ok_or_else(|| {
            corrupt(RANGE, "the last groups are missing or contradict each other")
        })?;
        let second = LevelArray::new(stored.into_amts(params));
        Ok(Self { second, log, range, occupied: OnceLock::new() })
    }

    /// The number of occupied slots of each entry of the root AMT. `view` must show this state, at
    /// least of these slots.
    pub(crate) fn occupied(
        &self,
        params: &LvmtParams,
        view: &dyn NodeRead,
    ) -> Result<&StateArray<u8>, StateError> {
        if let Some(occupied) = self.occupied.get() {
            return Ok(occupied);
        }
        let occupied = root_occupancy(params.height(), view, &self.second)?;
        Ok(self.occupied.get_or_init(|| StateArray::new(occupied)))
    }
}

impl LvmtState {
    /// The state that `view` shows. Its proof tree is made at first use. A garbage collection that
    /// was under way starts again.
    pub(crate) fn open(
        view: &dyn NodeRead,
        height: u8,
        shard: ProofShard,
        slack: u64,
    ) -> Result<Self, StateError> {
        let meta = LvmtMeta::get(view)?;
        let tree = ProofTree::new(height, shard, meta.keys == 0);
        let sub_trees = SubAmtTrees::new(height, shard, meta.keys == 0);
        let collection = GarbageCollection::new(slack, shard);
        let (ground, memo) = Default::default();
        Ok(Self { meta, height, apply_base: ground, tree, sub_trees, collection, memo })
    }

    /// The state after a block on `self`.
    pub(crate) fn child(
        &self,
        meta: LvmtMeta,
        ground: ApplyBase,
        (tree, sub_trees): (Option<ProofTree>, Option<SubAmtTrees>),
        collection: GarbageCollection,
    ) -> Self {
        let memo = RecordMemo::like(&self.memo);
        Self {
            meta,
            height: self.height,
            apply_base: OnceLock::from(ground),
            tree,
            sub_trees,
            collection,
            memo,
        }
    }

    /// The part that proofs of an old block need beside the block's rows, and about how many bytes
    /// of it are not shared. `None` without a proof shard. The trees of sub-AMTs are dropped: a
    /// proof computes their quotients from rows.
    pub(crate) fn compacted(&self, shard: ProofShard, slack: u64) -> Option<(Self, u64)> {
        let tree = Some(self.tree.as_ref()?.compacted(self.height));
        let own = self.apply_base.get().map_or(0, |ground| ground.second.own_bytes());
        let (ground, memo) = (self.apply_base.clone(), RecordMemo::default());
        let collection = GarbageCollection::new(slack, shard);
        let thinned = Self {
            meta: self.meta,
            height: self.height,
            apply_base: ground,
            tree,
            sub_trees: SubAmtTrees::new(self.height, shard, false),
            collection,
            memo,
        };
        Some((thinned, own + ProofTree::compacted_bytes(self.height, shard)))
    }

    /// The structures that the next block builds on. `view` must show this state.
    pub(crate) fn apply_base(
        &self,
        params: &LvmtParams,
        view: &dyn NodeRead,
    ) -> Result<&ApplyBase, StateError> {
        if let Some(ground) = self.apply_base.get() {
            return Ok(ground);
        }
        let ground = ApplyBase::read(params, view, &self.meta)?;
        Ok(self.apply_base.get_or_init(|| ground))
    }

    /// The sub-AMT at the path `way`.
    pub(crate) fn amt(
        &self,
        params: &LvmtParams,
        view: &dyn NodeRead,
        way: &[u16],
    ) -> Result<SubAmt, StateError> {
        match way {
            [entry] => Ok(self.apply_base(params, view)?.second.get((*entry).into())),
            _ => SubAmt::get(view, way),
        }
    }

    /// Bytes of `count` such structures at most, if they share only the arrays of the second level
    /// and of the proof trees below.
    pub(crate) fn bytes(height: u8, shard: ProofShard, count: u64) -> u64 {
        let nodes = shard.prefix().map_or(0, |(bits, _)| amt::node_count(height, bits) as u64);
        let entries = 1 << height;
        let shared = LevelArray::bytes(entries) + StateArray::<u8>::bytes(entries);
        let own = LevelArray::difference_bytes(entries)
            + StateArray::<u8>::difference_bytes(entries)
            + nodes * size_of::<G1Point>() as u64;
        shared + count * own + SubAmtTrees::bytes(height, shard, count)
    }
}

impl fmt::Debug for LvmtState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LvmtState").field("meta", &self.meta).finish_non_exhaustive()
    }
}
