//! Dense trees as rows: a row for each slot, and for each record or block of the layouts that have
//! them. Keys are numbers of slots, so rows are in the order of the layout.

use super::{RowTree, RowVisitor, RowWork};
use crate::{
    locality::{DenseTree, LocalityError, Region, space::DiskNeed, timing::AccessPhase},
    random::SplitMix64,
};

/// Largest number of rows of a batch.
const MOST_ROWS: u64 = 1 << 21;

/// The rows of a dense tree.
#[derive(Debug)]
pub(crate) struct DenseRows {
    tree: DenseTree,
}

impl DenseRows {
    pub(crate) const fn new(tree: DenseTree) -> Self {
        Self { tree }
    }

    /// What its database needs on disk.
    pub(crate) fn need(&self) -> DiskNeed {
        let unit = self.tree.unit(self.tree.slots().saturating_sub(1)).slots();
        let rows = self.tree.slots().div_ceil(unit);
        let bytes = 8 + unit * self.tree.content().bytes();
        DiskNeed::of_rows(format!("{} in MDBX", self.tree), std::iter::once((rows, bytes)))
    }

    fn bytes(&self, slots: u64) -> u64 {
        slots * self.tree.content().bytes()
    }

    /// Calls `each` with the rows that `region` touches.
    fn units(&self, region: Region, mut each: impl FnMut(Region)) {
        let mut slot = region.start;
        while slot < region.end {
            let unit = self.tree.unit(slot);
            each(unit);
            slot = unit.end;
        }
    }
}

impl RowTree for DenseRows {
    fn describe(&self) -> String {
        self.tree.to_string()
    }

    fn longest_value(&self) -> usize {
        match self.tree.slots().checked_sub(1) {
            // The lowest layer has the longest records.
            Some(last) => self.bytes(self.tree.unit(last).slots()) as usize,
            None => 0,
        }
    }

    fn rows(&self, each: &mut RowVisitor<'_>) -> Result<(), LocalityError> {
        let mut slot = 0;
        while slot < self.tree.slots() {
            let unit = self.tree.unit(slot);
            each(&unit.start.to_be_bytes(), self.bytes(unit.slots()) as usize)?;
            slot = unit.end;
        }
        Ok(())
    }

    fn read(&self, random: &mut SplitMix64, work: &mut RowWork) {
        work.begin_access();
        let mut regions = Vec::new();
        self.tree.read(random.below(self.tree.leaves()), &mut regions);
        work.add_regions(regions.len() as u64);
        for region in regions {
            let (mut rows, mut slots) = (0, 0);
            self.units(region, |unit| {
                rows += 1;
                slots += unit.slots();
            });
            let first = self.tree.unit(region.start).start;
            work.read(&first.to_be_bytes(), rows, self.bytes(slots));
        }
    }

    /// Writes random leaves: every row that holds a changed node, as a whole.
    fn change(&mut self, accesses: u64, random: &mut SplitMix64, work: &mut RowWork) {
        let mut regions = Vec::new();
        for _ in 0..accesses {
            work.begin_access();
            self.tree.write(random.below(self.tree.leaves()), &mut regions);
            for region in &regions {
                self.units(*region, |unit| {
                    work.write(&unit.start.to_be_bytes(), self.bytes(unit.slots()));
                });
            }
        }
    }

    fn change_phase(&self) -> AccessPhase {
        AccessPhase::Write
    }

    fn most_at_once(&self, phase: AccessPhase) -> u64 {
        let mut regions = Vec::new();
        match phase {
            AccessPhase::Read => self.tree.read(0, &mut regions),
            _ => self.tree.write(0, &mut regions),
        }
        let mut rows = 0;
        regions.iter().for_each(|region| self.units(*region, |_| rows += 1));
        MOST_ROWS / u64::max(rows, 1)
    }
}
