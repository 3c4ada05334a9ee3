//! Which parts of old blocks are kept and not pruned: an option at each opening.

/// Which blocks keep a certain part: blocks from number `from` on, and blocks at most `last` below
/// the canonical tip. The default is all blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptBlocks {
    /// All blocks from this number on keep the part.
    pub from: u64,
    /// The last N blocks below the tip keep the part in any case.
    pub last: u64,
}

impl KeptBlocks {
    /// The first block that keeps the part if the tip is `tip`.
    pub(crate) const fn first(self, tip: u64) -> u64 {
        let last = tip.saturating_sub(self.last);
        if self.from < last { self.from } else { last }
    }
}

/// For how many blocks clients keep access lists (EIP-7928): the weak subjectivity period of 3,533
/// epochs, if no slot is empty.
pub const ACCESS_LIST_DISTANCE: u64 = 3_533 * 32;

/// Which parts of old blocks are kept. Headers and the body of genesis are always kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryKept {
    /// Transactions, ommers and withdrawals. A block without them has no receipts and no rows in
    /// the lookup table either.
    pub bodies: KeptBlocks,
    /// Receipts.
    pub receipts: KeptBlocks,
    /// Rows of the lookup table, which map the hash of a transaction to its block.
    pub lookup: KeptBlocks,
    /// Block access lists.
    pub access_lists: KeptBlocks,
}

impl Default for HistoryKept {
    /// All bodies, receipts and rows of the lookup table, and the access lists of the last
    /// [`ACCESS_LIST_DISTANCE`] blocks.
    fn default() -> Self {
        let all = KeptBlocks::default();
        let access_lists = KeptBlocks { from: u64::MAX, last: ACCESS_LIST_DISTANCE };
        Self { bodies: all, receipts: all, lookup: all, access_lists }
    }
}
