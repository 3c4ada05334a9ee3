//! The progress of a race.

use std::time::Duration;

/// A step of a race, of its preparation, or of the queries that follow an import.
#[derive(Clone, Copy, Debug)]
pub enum RaceStep<'a> {
    /// A state is being loaded.
    Loading {
        /// Name of the contender, or the purpose of the state.
        backend: &'a str,
        /// Entries loaded so far.
        done: u64,
        /// Entries in all.
        total: u64,
    },
    /// Keys with long paths are searched.
    Grinding {
        /// Keys hashed so far.
        done: u64,
        /// Keys in all.
        total: u64,
    },
    /// Blocks are being generated.
    Making {
        /// Blocks generated so far.
        done: u64,
        /// Blocks in all.
        total: u64,
    },
    /// Blocks are being imported, outside the timed part.
    Importing {
        /// Name of the contender.
        backend: &'a str,
        /// Blocks imported so far.
        done: u64,
        /// Blocks in all.
        total: u64,
    },
    /// Slices are being run.
    Racing {
        /// Slices that all contenders have finished.
        done: u64,
        /// Slices in all.
        total: u64,
    },
    /// A contender has finished a measured turn.
    Turn(TurnSummary<'a>),
}

/// The summary of a measured turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnSummary<'a> {
    /// Name of the contender.
    pub backend: &'a str,
    /// Number of operations or transactions.
    pub ops: u64,
    /// Durations of the commits or blocks.
    pub latencies: &'a [Duration],
    /// Disk usage in bytes at the end of the turn.
    pub disk_bytes: u64,
}
