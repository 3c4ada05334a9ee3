//! Mapped files: how many of their pages are in memory, and how they leave it.

use super::drop_cached_pages;
use std::{fs, io, path::Path};

/// Bytes of pages of the files below `folder` that are mapped into this process and in memory. 0 if
/// the system does not say, or nothing is mapped.
pub(crate) fn mapped(folder: &Path) -> u64 {
    let (Ok(folder), Ok(text)) = (folder.canonicalize(), fs::read_to_string("/proc/self/smaps"))
    else {
        return 0;
    };
    resident_in(&text, &folder)
}

/// Drops the pages of all files below `folder` from memory, those that are mapped too: the next
/// access to a mapping reads the file again. Pages that another process maps too may stay.
///
/// # Errors
/// If the folder cannot be read, or a file cannot be synced.
pub(crate) fn drop_pages(folder: &Path) -> io::Result<()> {
    // It writes what is not on the disk yet, and keeps pages that are mapped.
    drop_cached_pages(folder)?;
    page_out(&folder.canonicalize()?)
}

#[cfg(target_os = "linux")]
fn page_out(folder: &Path) -> io::Result<()> {
    use rustix::{
        io::Errno,
        mm::{Advice, madvise},
    };
    let text = fs::read_to_string("/proc/self/maps")?;
    for mapping in text.lines().filter_map(FileMapping::parse) {
        if !mapping.is_shared || !mapping.path.starts_with(folder) {
            continue;
        }
        let start = std::ptr::with_exposed_provenance_mut(mapping.start);
        // SAFETY: this advice keeps the bytes of any mapping, so it does no harm even if a store has
        // put another one in the place of this one meanwhile.
        match unsafe { madvise(start, mapping.len, Advice::LinuxPageOut) } {
            // A store unmapped it meanwhile.
            Err(Errno::NOMEM) => {}
            ended => ended?,
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn page_out(_: &Path) -> io::Result<()> {
    Ok(())
}

/// A mapping of a file, from `/proc/self/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileMapping<'t> {
    start: usize,
    len: usize,
    /// Whether writes go to the file.
    is_shared: bool,
    path: &'t Path,
}

impl<'t> FileMapping<'t> {
    /// The mapping of a line `start-end permissions offset device inode path`; `None` if it is not
    /// of a file.
    fn parse(line: &'t str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let (start, end) = (address(start)?, address(end)?);
        let path = Path::new(&rest[rest.find('/')?..]);
        let is_shared = rest.as_bytes().get(3) == Some(&b's');
        Some(Self { start, len: end.checked_sub(start)?, is_shared, path })
    }
}

/// The sum of `Rss:` of the mappings of files below `folder`, from the text of `/proc/self/smaps`.
fn resident_in(smaps: &str, folder: &Path) -> u64 {
    let (mut is_within, mut kib) = (false, 0);
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            if is_within {
                let rss = rest.split_whitespace().next().and_then(|text| text.parse::<u64>().ok());
                kib += rss.unwrap_or(0);
            }
        } else if line
            .starts_with(|first: char| first.is_ascii_digit() || ('a'..='f').contains(&first))
        {
            // Names of fields begin with capitals.
            let mapping = FileMapping::parse(line);
            is_within = mapping.is_some_and(|mapping| mapping.path.starts_with(folder));
        }
    }
    kib << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000004000 r--s 00000000 08:01 12   /data/run 1/db/mdbx.dat
Size:                 16 kB
Rss:                  12 kB
VmFlags: rd sh mr mw me ms
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
Rss:                   4 kB
7f0000005000-7f0000009000 rw-p 00001000 08:01 13   /data/run 10/db/mdbx.dat (deleted)
Rss:                   8 kB
";

    #[test]
    fn resident_pages_are_those_of_the_files_of_one_folder() {
        assert_eq!(resident_in(SMAPS, Path::new("/data/run 1")), 12 << 10);
        assert_eq!(resident_in(SMAPS, Path::new("/data/run 10")), 8 << 10);
        assert_eq!(resident_in(SMAPS, Path::new("/data/run")), 0, "another folder");
        let first = SMAPS.lines().next().and_then(FileMapping::parse).unwrap();
        let path = Path::new("/data/run 1/db/mdbx.dat");
        let (start, len) = (0x7f00_0000_0000, 0x4000);
        assert_eq!(first, FileMapping { start, len, is_shared: true, path });
        for other in ["7f0000004000-7f0000005000 rw-p 00000000 00:00 0", "Rss: 4 kB", ""] {
            assert_eq!(FileMapping::parse(other), None, "{other}");
        }
    }

    /// A file that is mapped and read leaves memory and comes back with its bytes.
    #[cfg(target_os = "linux")]
    #[test]
    fn pages_of_a_mapping_are_dropped_and_read_again() {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        const BYTES: usize = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, vec![7; BYTES]).unwrap();
        let file = fs::File::open(&path).unwrap();
        // SAFETY: a new mapping of a file that this test alone has.
        let at = unsafe {
            mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ, MapFlags::SHARED, &file, 0)
        };
        let at = at.unwrap();
        let sum = || {
            // SAFETY: the mapping has this length, and the file does not shrink.
            let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), BYTES) };
            bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()
        };
        assert_eq!(sum(), 7 * BYTES as u64);
        assert_eq!(mapped(folder.path()), BYTES as u64);
        drop_pages(folder.path()).unwrap();
        assert_eq!(mapped(folder.path()), 0);
        assert_eq!(sum(), 7 * BYTES as u64);
        // SAFETY: nothing refers to the mapping any more.
        unsafe { munmap(at, BYTES) }.unwrap();
    }
}
