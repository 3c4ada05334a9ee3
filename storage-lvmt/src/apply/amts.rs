//! The AMTs that a block changes.

use super::{KeyWrite, next_version};
use crate::{
    params::LvmtParams,
    point::G1Point,
    proof_tree::RootRise,
    record::{AMTS, EntryPath, SubAmt, TuplePosition, amt_key},
    second_level::{LevelArray, LevelLog, VersionRise},
    state::{ApplyBase, LvmtState},
};
use alloy_primitives::Bytes;
use hashbrown::HashMap;
use retrie_state::{NodeWrite, StateError};
use std::ops::Range;

/// The AMTs that a block changes, the root AMT first.
pub(super) struct TouchedAmts<'a> {
    params: &'a LvmtParams,
    parent: &'a LvmtState,
    index: HashMap<EntryPath, u32>,
    pub(super) ways: Vec<EntryPath>,
    before: Vec<SubAmt>,
    /// The commitments of the AMTs, then the nodes of proof trees that change.
    pub(super) points: Vec<G1Point>,
    /// Pairs of an index into `points` and a point to add.
    pub(super) terms: Vec<(u32, G1Point)>,
    /// Versions of the root AMT that rise.
    pub(super) bumps: Vec<RootRise>,
    /// Versions of the second level that rise.
    rises: Vec<VersionRise<u32>>,
}

impl<'a> TouchedAmts<'a> {
    /// The AMTs on the paths of `writes`.
    pub(super) fn above(
        writes: &[KeyWrite],
        view: &dyn NodeWrite,
        params: &'a LvmtParams,
        parent: &'a LvmtState,
    ) -> Result<Self, StateError> {
        let mut amts = Self {
            params,
            parent,
            index: HashMap::from([(EntryPath::root(), 0)]),
            ways: vec![EntryPath::root()],
            before: vec![SubAmt::NONE],
            points: vec![parent.meta.commitment],
            terms: Vec::new(),
            bumps: Vec::new(),
            rises: Vec::new(),
        };
        for write in writes {
            if let Some((entry, above)) = write.way.split_last() {
                let amt = amts.touch(view, above)?;
                amts.bump(amt, entry, write.slot);
            }
        }
        Ok(amts)
    }

    /// The number of the AMT at the path `way`. At the first call for an AMT its version rises:
    /// slot 0 of the entry above.
    fn touch(&mut self, view: &dyn NodeWrite, way: &[u16]) -> Result<u32, StateError> {
        if let Some(at) = self.index.get(way) {
            return Ok(*at);
        }
        let at = self.ways.len() as u32;
        let amt = self.parent.amt(self.params, view.as_read(), way)?;
        let way = EntryPath::new(way);
        next_version(amt.version, || format!("the AMT {way}"))?;
        self.index.insert(way.clone(), at);
        self.before.push(amt);
        self.points.push(amt.commitment);
        self.ways.push(way.clone());
        if let Some((entry, above)) = way.split_last() {
            let above = self.touch(view, above)?;
            self.bump(above, entry, 0);
        }
        Ok(at)
    }

    /// Raises a version of AMT `at` by one (paper, section 5: no multiplication).
    fn bump(&mut self, at: u32, entry: u16, slot: u8) {
        self.terms.push((at, *self.params.increment(entry.into(), slot.into())));
        match self.ways[at as usize].len() {
            0 => self.bumps.push(RootRise { entry, slot }),
            1 => self.rises.push(VersionRise { of: at, entry, slot }),
            _ => {}
        }
    }

    /// Adds `terms` to the batch; each adds a point to one of `nodes`. Returns where the sums are
    /// afterwards.
    pub(super) fn append(
        &mut self,
        nodes: impl Iterator<Item = G1Point>,
        terms: &[(u32, G1Point)],
    ) -> Range<usize> {
        let start = self.points.len();
        self.points.extend(nodes);
        self.terms.extend(terms.iter().map(|(node, point)| (start as u32 + node, *point)));
        start..self.points.len()
    }

    /// The versions of the second level that rise, by the sub-AMTs' entries in the root AMT.
    pub(super) fn second_rises(&self) -> impl Iterator<Item = VersionRise<u16>> {
        self.rises.iter().map(|&VersionRise { of, entry, slot }| VersionRise {
            of: self.ways[of as usize][0],
            entry,
            slot,
        })
    }

    /// The sub-AMTs that change, with their new content: deepest level first, within a level by
    /// path. Their tuples follow the tuples of `keys` keys. The root AMT has no tuple.
    pub(super) fn changed(&self, block: u64, keys: usize) -> Vec<(usize, SubAmt)> {
        let mut order: Vec<usize> = (1..self.ways.len()).collect();
        order.sort_unstable_by(|a, b| {
            let (a, b) = (&self.ways[*a], &self.ways[*b]);
            b.len().cmp(&a.len()).then_with(|| a.cmp(b))
        });
        let amt = |(n, at): (usize, usize)| {
            let position = TuplePosition { block, leaf: (keys + n) as u32 };
            let version = self.before[at].version + 1;
            (at, SubAmt { version, position, commitment: self.points[at] })
        };
        order.into_iter().enumerate().map(amt).collect()
    }

    /// How many of `changed` did not exist before the block.
    pub(super) fn new_count(&self, changed: &[(usize, SubAmt)]) -> u64 {
        changed.iter().filter(|(at, _)| self.before[*at].version == 0).count() as u64
    }

    /// Writes the rows of `changed` AMTs below the second level.
    pub(super) fn write_rows(
        &self,
        view: &mut dyn NodeWrite,
        changed: &[(usize, SubAmt)],
    ) -> Result<(), StateError> {
        let row = |amt: &SubAmt| {
            let mut row = Vec::new();
            amt.encode(&mut row);
            Bytes::from(row)
        };
        for (at, amt) in changed {
            let old = (self.before[*at].version > 0).then(|| row(&self.before[*at]));
            view.replace(AMTS, &amt_key(&self.ways[*at]), old, Some(row(amt)))?;
        }
        Ok(())
    }

    /// Writes the `changed` AMTs of the second level as those of block `number`; `leaf` is the leaf
    /// of the first one's tuple. Returns the level after the block, and its log.
    pub(super) fn write_second_level(
        &self,
        view: &mut dyn NodeWrite,
        base: &ApplyBase,
        changed: &[(usize, SubAmt)],
        number: u64,
        leaf: u32,
    ) -> Result<(LevelArray, LevelLog), StateError> {
        let mut number_of = vec![0; self.ways.len()];
        (0u16..).zip(changed).for_each(|(n, (at, _))| number_of[*at] = n);
        let rise = |&VersionRise { of, entry, slot }: &VersionRise<u32>| VersionRise {
            of: number_of[of as usize],
            entry,
            slot,
        };
        let rises = self.rises.iter().map(rise).collect();
        let entries: Vec<u16> = changed.iter().map(|(at, _)| self.ways[*at][0]).collect();
        let is_first = self.parent.meta.blocks == 0;
        let log = if is_first { LevelLog::new(number) } else { base.log };
        let amts = changed.iter().map(|(at, amt)| (self.ways[*at][0].into(), *amt)).collect();
        let second = base.second.child(amts);
        let at = (self.params.height(), number);
        let log = log.step(view, at, &second, leaf, entries, rises)?;
        Ok((second, log))
    }
}
