//! Copying and checking large sparse files. A database file consists mostly of holes, because it
//! grows a gigabyte at a time.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

/// Bytes that are read, compared with zero and written at once.
const CHUNK: usize = 64 << 10;

/// Length of a file, and a CRC-32 over offset and bytes of its chunks that are not all zero. So a
/// hole and a chunk of zeros have the same digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileDigest {
    pub(crate) bytes: u64,
    pub(crate) crc32: u32,
}

/// Reads the file at `path` and returns its digest.
pub(crate) fn digest(path: &Path) -> io::Result<FileDigest> {
    chunks(&File::open(path)?, |_, _| Ok(()))
}

/// Copies a file and syncs the copy. It shares the blocks where the file system supports that;
/// holes stay holes. Returns the digest of the source. Either way the whole content is read, so the
/// copy begins with a warm page cache. The pages of the source are dropped: otherwise the copies of
/// a race evict each other, and the first ones begin cold.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<FileDigest> {
    let (source, target) = (File::open(from)?, File::create_new(to)?);
    let digest = if shares_blocks(&source, &target) {
        chunks(&target, |_, _| Ok(()))?
    } else {
        let digest = chunks(&source, |offset, bytes| target.write_all_at(bytes, offset))?;
        target.set_len(digest.bytes)?;
        digest
    };
    target.sync_all()?;
    forget(&source);
    Ok(digest)
}

/// Drops a file's pages from the page cache, where the system supports it.
#[cfg(target_os = "linux")]
fn forget(file: &File) {
    // Only what is on disk can be dropped.
    if file.sync_data().is_ok() {
        let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &File) {}

/// Calls `each` with offset and bytes of every chunk that is not all zero.
fn chunks(
    file: &File,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<FileDigest> {
    let len = file.metadata()?.len();
    let mut crc = crc32fast::Hasher::new();
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while let Some(data) = next_data(file, offset).filter(|data| *data < len) {
        offset = data - data % CHUNK as u64;
        let bytes = &mut buffer[..(len - offset).min(CHUNK as u64) as usize];
        file.read_exact_at(bytes, offset)?;
        if bytes.iter().any(|byte| *byte != 0) {
            crc.update(&offset.to_le_bytes());
            crc.update(bytes);
            each(offset, bytes)?;
        }
        offset += CHUNK as u64;
    }
    Ok(FileDigest { bytes: len, crc32: crc.finalize() })
}

/// The next offset at or after `offset` that is not in a hole; `offset` where the system cannot
/// tell.
#[cfg(target_os = "linux")]
fn next_data(file: &File, offset: u64) -> Option<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(data) => Some(data),
        Err(rustix::io::Errno::NXIO) => None,
        Err(_) => Some(offset),
    }
}

#[cfg(not(target_os = "linux"))]
fn next_data(_: &File, offset: u64) -> Option<u64> {
    Some(offset)
}

#[cfg(target_os = "linux")]
fn shares_blocks(source: &File, target: &File) -> bool {
    rustix::fs::ioctl_ficlone(target, source).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn shares_blocks(_: &File, _: &File) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn copy_keeps_content_and_holes_and_the_digest_sees_every_byte() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        let file = File::create(&a).unwrap();
        let len = (64 << 20) + 5;
        file.set_len(len).unwrap();
        file.write_all_at(b"head", 0).unwrap();
        file.write_all_at(b"middle", (10 << 20) + 3).unwrap();
        file.write_all_at(b"tail!", len - 5).unwrap();
        let copied = copy(&a, &b).unwrap();
        assert_eq!((copied, copied.bytes), (digest(&b).unwrap(), len));
        assert!(std::fs::read(&a).unwrap() == std::fs::read(&b).unwrap());
        assert!(std::fs::metadata(&b).unwrap().blocks() * 512 < 1 << 20, "holes were filled");
        for (place, byte) in [(1, b'x'), (20 << 20, 1), (len - 1, b'?')] {
            let changed = File::options().write(true).open(&b).unwrap();
            changed.write_all_at(&[byte], place).unwrap();
            assert_ne!(digest(&b).unwrap().crc32, copied.crc32, "byte {place}");
            std::fs::remove_file(&b).unwrap();
            copy(&a, &b).unwrap();
        }
        // The same bytes at another offset give another digest.
        file.write_all_at(&[0; 6], (10 << 20) + 3).unwrap();
        file.write_all_at(b"middle", (30 << 20) + 3).unwrap();
        assert_ne!(digest(&a).unwrap(), copied);
    }
}
