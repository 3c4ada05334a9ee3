//! A balloon: memory that is allocated and locked, so that neither other processes nor the page
//! cache can use it.

use super::available;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munmap};
use std::{ffi::c_void, io, ptr::null_mut};

/// Bytes that are locked at once. Available memory is read before each piece.
const PIECE: usize = 64 << 20;

/// Memory locked until it is dropped.
#[derive(Debug)]
pub(super) struct MemoryBalloon {
    pieces: Vec<BalloonPiece>,
}

/// A mapping of [`PIECE`] bytes.
#[derive(Debug)]
struct BalloonPiece(*mut c_void);

// SAFETY: the mapping is never read or written, and only its owner unmaps it, from any thread.
unsafe impl Send for BalloonPiece {}
// SAFETY: a shared piece has no methods that access the mapping.
unsafe impl Sync for BalloonPiece {}

impl MemoryBalloon {
    /// Locks memory until about `limit` bytes are available on this machine. Other processes may
    /// allocate and free memory meanwhile.
    pub(super) fn inflate(limit: u64) -> io::Result<Self> {
        let mut balloon = Self { pieces: Vec::new() };
        let has = available()
            .ok_or_else(|| io::Error::other("/proc/meminfo does not say what is available"))?;
        if has < limit {
            let (has, limit) = (has >> 20, limit >> 20);
            let few = format!("only {has} MiB are available, which is less than {limit} MiB");
            return Err(io::Error::other(few));
        }
        while available().is_some_and(|bytes| bytes >= limit + PIECE as u64) {
            balloon.pieces.push(BalloonPiece::lock()?);
        }
        Ok(balloon)
    }

    /// Locks one piece and frees it.
    pub(super) fn is_permitted() -> io::Result<()> {
        BalloonPiece::lock().map(drop)
    }

    /// Number of locked bytes.
    pub(super) const fn bytes(&self) -> u64 {
        (self.pieces.len() * PIECE) as u64
    }
}

impl BalloonPiece {
    fn lock() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // A shared mapping does not count as anonymous memory of this process.
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let at = unsafe { mmap_anonymous(null_mut(), PIECE, protection, MapFlags::SHARED) }?;
        let piece = Self(at);
        // SAFETY: the mapping has this length, and locking does not change its content.
        unsafe { mlock(at, PIECE) }.map_err(|e| {
            io::Error::other(format!("locking memory: {e}; it takes CAP_IPC_LOCK or `ulimit -l`"))
        })?;
        Ok(piece)
    }
}

impl Drop for BalloonPiece {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it.
        let _ = unsafe { munmap(self.0, PIECE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit is close to the available memory, so that the test locks little.
    #[test]
    fn balloon_takes_memory_and_gives_it_back() {
        let Some(before) = available() else { return };
        match MemoryBalloon::inflate(before - 3 * PIECE as u64) {
            Err(why) => println!("skipped: no memory can be locked here: {why}"),
            Ok(balloon) => {
                assert!(balloon.bytes() <= 64 * PIECE as u64, "{} bytes", balloon.bytes());
            }
        }
        let error = MemoryBalloon::inflate(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("which is less than"), "{error}");
    }
}
