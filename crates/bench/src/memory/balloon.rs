//! A balloon: memory of the machine that is allocated and locked, so that others, the page cache
//! among them, cannot have it.

use super::available;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munmap};
use std::{ffi::c_void, io, ptr::null_mut};

/// What is locked at once, in bytes. What is available is looked at before each piece.
const PIECE: usize = 64 << 20;

/// Memory locked until it is dropped.
#[derive(Debug)]
pub(super) struct Balloon {
    pieces: Vec<Piece>,
}

/// A mapping of [`PIECE`] bytes.
#[derive(Debug)]
struct Piece(*mut c_void);

// SAFETY: nobody reads or writes the mapping, and its owner alone unmaps it, from any thread.
unsafe impl Send for Piece {}
// SAFETY: a shared piece offers nothing.
unsafe impl Sync for Piece {}

impl Balloon {
    /// Locks memory until `limit` bytes are available on this machine. Others may allocate and free
    /// meanwhile, so that is only nearly so afterwards.
    pub(super) fn blow_up(limit: u64) -> io::Result<Self> {
        let mut balloon = Self { pieces: Vec::new() };
        let has = available()
            .ok_or_else(|| io::Error::other("/proc/meminfo does not say what is available"))?;
        if has < limit {
            let (has, limit) = (has >> 20, limit >> 20);
            let few = format!("only {has} MiB are available, which is less than {limit} MiB");
            return Err(io::Error::other(few));
        }
        while available().is_some_and(|bytes| bytes >= limit + PIECE as u64) {
            balloon.pieces.push(Piece::lock()?);
        }
        Ok(balloon)
    }

    /// What is locked.
    pub(super) const fn bytes(&self) -> u64 {
        (self.pieces.len() * PIECE) as u64
    }
}

impl Piece {
    fn lock() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Shared, so that it does not count as memory that this process has allocated.
        // SAFETY: a new mapping at a place that the kernel chooses touches no other memory.
        let at = unsafe { mmap_anonymous(null_mut(), PIECE, protection, MapFlags::SHARED) }?;
        let piece = Self(at);
        // SAFETY: the mapping is this long, and locking changes nothing that could be seen in it.
        unsafe { mlock(at, PIECE) }.map_err(|e| {
            io::Error::other(format!("locking memory: {e}; it takes CAP_IPC_LOCK or `ulimit -l`"))
        })?;
        Ok(piece)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it.
        let _ = unsafe { munmap(self.0, PIECE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit of all but a little: the machine is left to others.
    #[test]
    fn balloon_takes_memory_and_gives_it_back() {
        let Some(before) = available() else { return };
        match Balloon::blow_up(before - 3 * PIECE as u64) {
            Err(why) => println!("skipped: no memory can be locked here: {why}"),
            Ok(balloon) => {
                assert!(balloon.bytes() <= 64 * PIECE as u64, "{} bytes", balloon.bytes());
            }
        }
        let error = Balloon::blow_up(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("which is less than"), "{error}");
    }
}
