//! Whether the disk has room for an experiment, before it starts.

use super::LocalityError;
use std::{fs, path::Path};

/// Bytes of a page of MDBX that rows can take.
const ROOM: u64 = 4096 - 20;
/// Bytes of a row beside its key and value: its header, and its place in the page.
const PER_ROW: u64 = 10;

/// What an experiment needs on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskNeed {
    /// The tree.
    pub what: String,
    /// Bytes of its file or database.
    pub bytes: u64,
}

impl DiskNeed {
    /// A database of MDBX with rows of these numbers and lengths, keys included; their total is
    /// estimated, with a tenth for inner pages and changes.
    pub(super) fn of_rows(what: String, rows: impl Iterator<Item = (u64, u64)>) -> Self {
        let of = |(count, bytes): (u64, u64)| match ROOM / (bytes + PER_ROW) {
            // Longer rows have pages of their own.
            0 | 1 => count * (bytes + PER_ROW).next_multiple_of(4096),
            per_page => count.div_ceil(per_page) * 4096,
        };
        let bytes: u64 = rows.map(of).sum();
        Self { what, bytes: bytes + bytes / 10 }
    }

    /// Checks that `folder` has room for the largest of `needs`. Only one is on disk at a time.
    ///
    /// # Errors
    /// [`LocalityError::NoSpace`] says how much is missing; [`LocalityError::Io`] if the folder
    /// cannot be asked.
    pub fn check_largest(
        needs: impl IntoIterator<Item = Self>,
        folder: &Path,
    ) -> Result<(), LocalityError> {
        let Some(Self { what, bytes }) = needs.into_iter().max_by_key(|need| need.bytes) else {
            return Ok(());
        };
        let free = free_bytes(folder)?;
        match bytes <= free {
            true => Ok(()),
            false => Err(LocalityError::NoSpace { what, folder: folder.into(), bytes, free }),
        }
    }
}

fn free_bytes(folder: &Path) -> Result<u64, LocalityError> {
    let failed = |source| LocalityError::Io {
        action: "asking for the space in",
        path: folder.into(),
        source,
    };
    // The error of a missing folder is clearer than that of the file system.
    fs::metadata(folder).map_err(failed)?;
    let disk = rustix::fs::statvfs(folder).map_err(|error| failed(error.into()))?;
    Ok(disk.f_bavail * disk.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_need_is_held_against_the_disk_and_the_missing_bytes_are_named() {
        let need = |what: &str, bytes| DiskNeed { what: what.into(), bytes };
        let folder = std::env::temp_dir();
        DiskNeed::check_largest([need("small", 1)], &folder).unwrap();
        DiskNeed::check_largest([], Path::new("/no/such/folder")).unwrap();
        let needs = [need("small", 1), need("naive of height 70", 1 << 62)];
        let error = DiskNeed::check_largest(needs, &folder).unwrap_err().to_string();
        assert!(error.contains("naive of height 70 takes 4294967296.0 GiB"), "{error}");
        assert!(error.contains("are missing"), "{error}");
        let error = DiskNeed::check_largest([need("small", 1)], Path::new("/no/such/folder"));
        assert!(error.unwrap_err().to_string().contains("/no/such/folder"));
        // 40 rows of 91 + 10 bytes a page; a row of 5,000 has two pages of its own.
        let rows = DiskNeed::of_rows("rows".into(), [(80, 91), (3, 5000)].into_iter());
        assert_eq!(rows.bytes, (2 + 6) * 4096 * 11 / 10);
    }
}
