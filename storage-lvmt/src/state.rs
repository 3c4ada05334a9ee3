//! [`LvmtState`]: the structure in memory of one block's state.
//!
//! As in section 5 of the paper, the commitments of the root AMT and of the second level are in
//! memory. Blocks and proofs need them. Values, and all other parts of a proof, come from rows.

use crate::{
    amt,
    cache::RecordMemo,
    garbage::GarbageCollection,
    merkle::{MerkleGroup, RangeEdge},
    params::LvmtParams,
    point::G1Point,
    proof_tree::ProofTree,
    record::{LvmtMeta, RANGE, SubAmt, corrupt, range_key},
    second_level::{LevelArray, LevelLog, StoredLevel},
    shard::ProofShard,
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
        Ok(Self { second: LevelArray::new(stored.into_amts(params)), log, range })
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
        let collection = GarbageCollection::new(slack, shard);
        let (ground, memo) = Default::default();
        Ok(Self { meta, height, apply_base: ground, tree, collection, memo })
    }

    /// The state after a block on `self`.
    pub(crate) fn child(
        &self,
        meta: LvmtMeta,
        ground: ApplyBase,
        tree: Option<ProofTree>,
        collection: GarbageCollection,
    ) -> Self {
        let memo = RecordMemo::like(&self.memo);
        Self {
            meta,
            height: self.height,
            apply_base: OnceLock::from(ground),
            tree,
            collection,
            memo,
        }
    }

    /// The part that proofs of an old block need beside the block's rows, and about how many bytes
    /// of it are not shared. `None` without a proof shard.
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
            [entry] => Ok(self.apply_base(params, view)?.second.get(*entry)),
            _ => SubAmt::get(view, way),
        }
    }

    /// Bytes of `count` such structures at most, if they share only the array of the second level.
    pub(crate) fn bytes(height: u8, shard: ProofShard, count: u64) -> u64 {
        let nodes = shard.prefix().map_or(0, |(bits, _)| amt::node_count(height, bits) as u64);
        let (array, own) = LevelArray::bytes(1 << height);
        array + count * (own + nodes * size_of::<G1Point>() as u64)
    }
}

impl fmt::Debug for LvmtState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LvmtState").field("meta", &self.meta).finish_non_exhaustive()
    }
}
