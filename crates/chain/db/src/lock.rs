//! The lock file of a datadir: one writing process at a time.

use crate::{OpenError, Result, StorageError};
use std::{
    fs::{File, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
};

/// Name of the file inside the datadir.
const NAME: &str = "lock";

/// An advisory lock of the operating system on `<datadir>/lock`. It is released when dropped, and
/// when the process ends for any reason. The file stays; its content is the holder's process id.
#[derive(Debug)]
pub(crate) struct DatadirLock {
    file: File,
}

impl DatadirLock {
    /// Takes the lock; fails at once if another handle holds it.
    pub(crate) fn acquire(datadir: &Path) -> Result<Self> {
        let path = datadir.join(NAME);
        let io = |action| {
            let path = path.clone();
            move |source| StorageError::io(action, path, source)
        };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io("opening lock file"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let (path, holder) = (datadir.to_owned(), holder(&mut file));
                return Err(OpenError::InUse { path, holder }.into());
            }
            Err(TryLockError::Error(source)) => return Err(io("locking")(source).into()),
        }
        file.set_len(0).map_err(io("writing lock file"))?;
        writeln!(file, "{}", std::process::id()).map_err(io("writing lock file"))?;
        Ok(Self { file })
    }
}

impl Drop for DatadirLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child between fork and exec may have it open too. If
        // unlocking fails, the lock ends when the last of them closes the file.
        let _ = self.file.unlock();
    }
}

/// The process id in the file, if it can be read (the holder may be writing it now).
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.take(32).read_to_string(&mut text));
    match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(pid)) if pid == std::process::id() => format!("process {pid} (this process)"),
        (Ok(_), Ok(pid)) => format!("process {pid}"),
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DbError;

    #[test]
    fn lock_is_exclusive_and_ends_with_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let held = DatadirLock::acquire(dir.path()).unwrap();
        let refused = DatadirLock::acquire(dir.path()).unwrap_err();
        let pid = std::process::id().to_string();
        assert!(
            matches!(&refused, DbError::Open(OpenError::InUse { holder, .. }) if holder.contains(&pid))
        );
        drop(held);
        // The file with the old process id is still there and must not matter.
        DatadirLock::acquire(dir.path()).unwrap();
    }
}
