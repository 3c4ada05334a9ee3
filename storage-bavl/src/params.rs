//! Number of entries in a chunk: fixed when a datadir is created, and part of every root.

use alloc::{format, string::String};
use core::{fmt, str::FromStr};

/// M, the upper bound of entries in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkEntries(u32);

/// The error for a number of entries that chunks cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chunks hold {} to {} entries, not {found}", ChunkEntries::LEAST, ChunkEntries::MOST)]
pub struct ChunkEntriesError {
    /// The given number.
    pub found: String,
}

impl ChunkEntries {
    /// With smaller chunks there would be more inner nodes than entries.
    pub const LEAST: u32 = 4;
    /// The largest chunk of the paper's experiments. A position takes 12 bits, a group's number 8.
    pub const MOST: u32 = 4096;

    /// Checks a number of entries.
    ///
    /// # Errors
    /// If `entries` is not between [`LEAST`](Self::LEAST) and [`MOST`](Self::MOST).
    pub fn new(entries: u32) -> Result<Self, ChunkEntriesError> {
        match entries {
            Self::LEAST..=Self::MOST => Ok(Self(entries)),
            _ => Err(ChunkEntriesError { found: format!("{entries}") }),
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number as a length.
    #[cfg(feature = "std")]
    pub(crate) const fn most(self) -> usize {
        self.0 as usize
    }

    /// The layout stamp of datadirs. Proofs contain the number, and roots bind it.
    #[cfg(feature = "std")]
    pub(crate) fn stamp(self) -> &'static str {
        use parking_lot::Mutex;
        use std::collections::BTreeMap;
        // Stamps are never freed; there are few of them.
        static STAMPS: Mutex<BTreeMap<u32, &'static str>> = Mutex::new(BTreeMap::new());
        STAMPS.lock().entry(self.0).or_insert_with(|| Box::leak(self.layout().into_boxed_str()))
    }

    #[cfg(feature = "std")]
    fn layout(self) -> String {
        format!("{STAMP}{self}")
    }

    /// Parses a stamp; `None` if it is not canonical.
    #[cfg(feature = "std")]
    pub(crate) fn of_stamp(stamp: &str) -> Option<Self> {
        let entries: Self = stamp.strip_prefix(STAMP)?.parse().ok()?;
        (entries.layout() == stamp).then_some(entries)
    }
}

#[cfg(feature = "std")]
const STAMP: &str = "chunk-entries=";

impl Default for ChunkEntries {
    /// The value of the paper.
    fn default() -> Self {
        Self(256)
    }
}

impl fmt::Display for ChunkEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for ChunkEntries {
    type Err = ChunkEntriesError;

    fn from_str(text: &str) -> Result<Self, ChunkEntriesError> {
        let entries = text.parse().map_err(|_| ChunkEntriesError { found: format!("`{text}`") })?;
        Self::new(entries)
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn stamps_read_back_and_nothing_else_does() {
        let entries = ChunkEntries::new(17).unwrap();
        assert_eq!(entries.stamp(), "chunk-entries=17");
        assert!(std::ptr::eq(entries.stamp(), entries.stamp()));
        assert_eq!(ChunkEntries::of_stamp("chunk-entries=17"), Some(entries));
        for wrong in ["", "17", "chunk-entries=", "chunk-entries=017", "chunk-entries=+17"] {
            assert_eq!(ChunkEntries::of_stamp(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn chunks_too_small_or_too_large_are_refused() {
        for (entries, is_good) in [(0, false), (3, false), (4, true), (4096, true), (4097, false)] {
            assert_eq!(ChunkEntries::new(entries).is_ok(), is_good, "{entries}");
        }
        let error = "5000".parse::<ChunkEntries>().unwrap_err().to_string();
        assert_eq!(error, "chunks hold 4 to 4096 entries, not 5000");
        let error = "many".parse::<ChunkEntries>().unwrap_err().to_string();
        assert_eq!(error, "chunks hold 4 to 4096 entries, not `many`");
    }
}
