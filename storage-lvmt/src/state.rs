//! The decoded in-memory structure of one block's state.
//!
//! As in section 5 of the paper the commitments of the root AMT and of the second level are in
//! memory. Blocks and proofs need them; values, and all else that a proof of an old block shows, come
//! from its rows.

use crate::{
    amt,
    cache::Memo,
    collect::Collection,
    merkle::{Group, Range},
    params::Params,
    point::Point,
    record::{Amt, Meta, RANGE, corrupt, range_key},
    second::{Level, Log, Second},
    shard::ProofShard,
    tree::ProofTree,
};
use retrie_state::{NodeRead, StateError};
use std::{fmt, sync::OnceLock};

/// The structure of one block's state.
pub struct State {
    pub(crate) meta: Meta,
    height: u8,
    /// What the next block goes on from; read from the rows when it comes.
    ground: OnceLock<Ground>,
    /// The root AMT's proof tree, as far as this node keeps it.
    pub(crate) tree: Option<ProofTree>,
    /// Garbage collection under way.
    pub(crate) collection: Collection,
    /// Rows read from this very state.
    pub(crate) memo: Memo,
}

/// What a block changes of structures that are in memory.
#[derive(Clone)]
pub(crate) struct Ground {
    pub(crate) second: Second,
    /// The rows of the second level.
    pub(crate) log: Log,
    /// Right edge of the tree over all blocks.
    pub(crate) range: Range,
}

impl Ground {
    fn read(params: &Params, view: &dyn NodeRead, meta: &Meta) -> Result<Self, StateError> {
        let stored = Level::read(view, params.height())?;
        let log = stored.log;
        let range = Range::open(meta.blocks, |level, group, size| {
            let row = view.get(RANGE, &range_key(level, group))?;
            Ok(row.and_then(|row| Group::decode(&row, size)))
        })?;
        let range = range.ok_or_else(|| {
            corrupt(RANGE, "the last groups are missing or contradict each other")
        })?;
        Ok(Self { second: Second::new(stored.into_amts(params)), log, range })
    }
}

impl State {
    /// The state that `view` shows. Its proof tree is made once somebody asks for it, and what was
    /// being collected is marked again.
    pub(crate) fn open(
        view: &dyn NodeRead,
        height: u8,
        shard: ProofShard,
        slack: u64,
    ) -> Result<Self, StateError> {
        let meta = Meta::get(view)?;
        let tree = ProofTree::new(height, shard, meta.keys == 0);
        let collection = Collection::new(slack, shard);
        let (ground, memo) = Default::default();
        Ok(Self { meta, height, ground, tree, collection, memo })
    }

    /// The state after a block on `self`.
    pub(crate) fn child(
        &self,
        meta: Meta,
        ground: Ground,
        tree: Option<ProofTree>,
        collection: Collection,
    ) -> Self {
        let memo = Memo::like(&self.memo);
        Self { meta, height: self.height, ground: OnceLock::from(ground), tree, collection, memo }
    }

    /// What proofs of an old block need beside its rows, and about how many bytes that takes of its own;
    /// `None` without a proof shard.
    pub(crate) fn thinned(&self, shard: ProofShard, slack: u64) -> Option<(Self, u64)> {
        let tree = Some(self.tree.as_ref()?.thinned(self.height));
        let own = self.ground.get().map_or(0, |ground| ground.second.own_bytes());
        let (ground, memo) = (self.ground.clone(), Memo::default());
        let collection = Collection::new(slack, shard);
        let thinned = Self { meta: self.meta, height: self.height, ground, tree, collection, memo };
        Some((thinned, own + ProofTree::thinned_bytes(self.height, shard)))
    }

    /// What the next block goes on from; `view` shows this state.
    pub(crate) fn ground(
        &self,
        params: &Params,
        view: &dyn NodeRead,
    ) -> Result<&Ground, StateError> {
        if let Some(ground) = self.ground.get() {
            return Ok(ground);
        }
        let ground = Ground::read(params, view, &self.meta)?;
        Ok(self.ground.get_or_init(|| ground))
    }

    /// The sub-AMT at `way`.
    pub(crate) fn amt(
        &self,
        params: &Params,
        view: &dyn NodeRead,
        way: &[u16],
    ) -> Result<Amt, StateError> {
        match way {
            [entry] => Ok(self.ground(params, view)?.second.get(*entry)),
            _ => Amt::get(view, way),
        }
    }

    /// Bytes that `count` of them take at most, if they share none but the array of the second level.
    pub(crate) fn bytes(height: u8, shard: ProofShard, count: u64) -> u64 {
        let nodes = shard.prefix().map_or(0, |(bits, _)| amt::node_count(height, bits) as u64);
        let (array, own) = Second::bytes(1 << height);
        array + count * (own + nodes * size_of::<Point>() as u64)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("meta", &self.meta).finish_non_exhaustive()
    }
}
