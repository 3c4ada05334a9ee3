//! What is kept of old blocks: an option at each opening.

/// Which blocks keep a part of theirs: those from `from` on, and those at most `last` blocks below
/// the canonical tip. The default is all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptBlocks {
    /// Number of the first block of the first kind.
    pub from: u64,
    /// How many blocks below the tip keep it in any case.
    pub last: u64,
}

impl KeptBlocks {
    /// The first block that keeps it below this tip.
    pub(crate) const fn first(self, tip: u64) -> u64 {
        let last = tip.saturating_sub(self.last);
        if self.from < last { self.from } else { last }
    }
}

/// What is kept of old blocks. Headers always are, and the body of genesis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Transactions, ommers and withdrawals. Without them there are no receipts either, and no rows
    /// of the lookup table.
    pub bodies: KeptBlocks,
    /// Receipts.
    pub receipts: KeptBlocks,
    /// Rows that lead from the hash of a transaction to its block.
    pub lookup: KeptBlocks,
}
