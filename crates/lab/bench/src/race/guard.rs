//! What stops a race: the user, or the cap on memory.

use crate::{
    BenchError,
    cache::ScratchFolder,
    memory::{self, MemoryCap, SharedMemoryCap},
};
use std::{
    io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

/// Stops a race when the user asks for it, or when memory is close to the cap. The cap is lifted
/// when the guard is dropped, so a guard must outlive the contenders: they are closed under the
/// cap.
#[derive(Debug)]
pub(crate) struct RaceGuard<'a> {
    stop: &'a AtomicBool,
    cap: Option<MemoryCap>,
    /// Whether [`cool`](Self::cool) drops pages.
    is_cold: bool,
}

impl<'a> RaceGuard<'a> {
    /// Caps memory at `limit` bytes, if there is a limit. Before that it drops the prepared states
    /// in `folders` from the page cache, where they are because they were read to verify their
    /// checksums. The peak of the resident set is measured from here on. If `is_cold`, pages are
    /// dropped again before each measured turn.
    pub(crate) fn begin(
        limit: Option<u64>,
        is_cold: bool,
        folders: &[ScratchFolder],
        stop: &'a AtomicBool,
    ) -> Result<Self, BenchError> {
        let cap = match limit {
            None => None,
            Some(limit) => {
                for folder in folders {
                    dropped(folder.path(), memory::drop_cached_pages)?;
                }
                Some(MemoryCap::apply(limit)?)
            }
        };
        memory::reset_peak();
        Ok(Self { stop, cap, is_cold })
    }

    /// On cold terms [drops the pages](drop_pages) of a contender.
    pub(crate) fn cool(&self, folder: &Path) -> Result<(), BenchError> {
        if self.is_cold { drop_pages(folder) } else { Ok(()) }
    }

    /// Fails if the user has asked to stop, or if memory is close to the cap.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Stopped);
        }
        self.check_memory()
    }

    fn check_memory(&self) -> Result<(), BenchError> {
        Ok(self.cap.as_ref().map_or(Ok(()), MemoryCap::exceeded)?)
    }

    /// Opens a contender. Also returns the growth of anonymous memory meanwhile, in bytes.
    pub(crate) fn open<T>(
        &self,
        open: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, i64), BenchError> {
        let before = memory::anonymous();
        let opened = open()?;
        let grown = memory::anonymous() - before;
        self.check_memory()?;
        Ok((opened, grown))
    }

    /// The flag with which the user asks to stop.
    pub(crate) const fn stop(&self) -> &'a AtomicBool {
        self.stop
    }

    /// Locked memory in bytes, which counts in the resident set of this process.
    pub(super) fn balloon_bytes(&self) -> u64 {
        self.cap.as_ref().map_or(0, MemoryCap::balloon_bytes)
    }

    /// The cap, which `contenders` share.
    pub(super) fn memory_cap(&self, contenders: usize) -> Option<SharedMemoryCap> {
        let cap = self.cap.as_ref()?;
        Some(SharedMemoryCap { limit: cap.limit(), means: cap.means(), shared_by: contenders })
    }
}

/// Drops the pages of all files in `folder`, mapped ones too, from memory. No other thread may be
/// opening or closing a store there.
pub(crate) fn drop_pages(folder: &Path) -> Result<(), BenchError> {
    dropped(folder, memory::drop_pages)
}

/// Drops the pages of `folder` by `drop`.
fn dropped(folder: &Path, drop: fn(&Path) -> io::Result<()>) -> Result<(), BenchError> {
    drop(folder).map_err(|source| BenchError::Io {
        action: "dropping the cached pages of",
        path: folder.into(),
        source,
    })
}
