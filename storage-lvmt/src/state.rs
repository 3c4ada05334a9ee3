//! The decoded in-memory structure of one block's state.
//!
//! As in section 5 of the paper the commitments of the root AMT and of the second level are in
//! memory. They belong to one block: a child's are a copy that shares what did not change. Blocks need
//! them; values and proofs of an old block come from its rows.

use crate::{
    amt,
    cache::{Memo, Shared},
    collect::Collection,
    merkle::{Group, Range},
    point::Point,
    record::{AMTS, Amt, Meta, RANGE, amts_below, corrupt, range_key, read_amt_key},
    shard::ProofShard,
    tree::ProofTree,
};
use retrie_state::{Direction, KeyRange, NodeRead, StateError, prefix_end};
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
    /// Sub-AMTs right below the root AMT, by their entry there.
    pub(crate) second: Shared<Amt>,
    /// Right edge of the tree over all blocks.
    pub(crate) range: Range,
}

impl Ground {
    fn read(view: &dyn NodeRead, meta: &Meta, height: u8) -> Result<Self, StateError> {
        let (second, range) = if meta.blocks == 0 {
            (Shared::new(1 << height, Amt::NONE), Range::default())
        } else {
            let range = Range::open(meta.blocks, |level, group, size| {
                let row = view.get(RANGE, &range_key(level, group))?;
                Ok(row.and_then(|row| Group::decode(&row, size)))
            })?;
            let range = range.ok_or_else(|| {
                corrupt(RANGE, "the last groups are missing or contradict each other")
            })?;
            (second_level(view, height)?, range)
        };
        Ok(Self { second, range })
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

    /// What proofs of an old block need beside its rows; `None` without a proof shard.
    pub(crate) fn thinned(&self, shard: ProofShard, slack: u64) -> Option<Self> {
        let tree = Some(self.tree.as_ref()?.thinned(self.height));
        let collection = Collection::new(slack, shard);
        let (ground, memo) = Default::default();
        Some(Self { meta: self.meta, height: self.height, ground, tree, collection, memo })
    }

    /// What the next block goes on from; `view` shows this state.
    pub(crate) fn ground(&self, view: &dyn NodeRead) -> Result<&Ground, StateError> {
        if let Some(ground) = self.ground.get() {
            return Ok(ground);
        }
        let ground = Ground::read(view, &self.meta, self.height)?;
        Ok(self.ground.get_or_init(|| ground))
    }

    /// The sub-AMT at `way`.
    pub(crate) fn amt(&self, view: &dyn NodeRead, way: &[u16]) -> Result<Amt, StateError> {
        match (way, self.ground.get()) {
            ([entry], Some(ground)) => Ok(*ground.second.get(*entry as usize)),
            _ => Amt::get(view, way),
        }
    }

    /// Bytes that one of them takes at most, what it shares with others included.
    pub(crate) fn bytes(height: u8, shard: ProofShard) -> u64 {
        let entries = 1u64 << height;
        let nodes = shard.prefix().map_or(0, |(bits, _)| amt::node_count(height, bits) as u64);
        entries * size_of::<Amt>() as u64 + nodes * size_of::<Point>() as u64
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// The second level's commitments, from their rows.
fn second_level(view: &dyn NodeRead, height: u8) -> Result<Shared<Amt>, StateError> {
    let len = 1 << height;
    let start = amts_below(&[]);
    let end = prefix_end(&start);
    let range = KeyRange { start: &start, end: end.as_deref() };
    let mut second = vec![Amt::NONE; len];
    for row in view.scan(AMTS, range, Direction::Forward)? {
        let (key, row) = row?;
        let way = read_amt_key(&key).filter(|way| usize::from(way[0]) < len);
        let way = way.ok_or_else(|| corrupt(AMTS, format!("row {key} names no AMT")))?;
        second[usize::from(way[0])] = Amt::decode(&way, &row)?;
    }
    Ok(Shared::from_slice(&second, Amt::NONE))
}
