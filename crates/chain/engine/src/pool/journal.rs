//! [`PoolJournal`]: a file of accepted transactions, which restores the pool after a restart.
//!
//! ```text
//!  file   := magic record*
//!  record := length (u32) crc32 (u32) payload        little endian; both of the payload
//!  payload := kind (u8) [sender (20 bytes)] EIP-2718 encoding, blobs with their sidecar
//!  kind   := 0 local, 1 external, 2 private; + 0x80: unsigned, the sender follows
//! ```
//!
//! A record is written before the transaction's hash is returned, so that a killed process loses no
//! transaction. A power failure may lose the last ones, since the file is not synced for each.
//! Records are never changed. The file is rewritten without removed transactions once it is twice
//! as long as after the last rewrite. During a rewrite new records go to both files; then the new
//! file replaces the old one by a rename, so that a complete file always exists.
//!
//! Only the node's user may read the file: it contains private transactions, and shows which
//! transactions were sent from this node.
//!
//! A mined transaction stays in the journal until its block is durable, since a killed process
//! loses blocks that are not.

use crate::pool::{PoolTransaction, PooledTransaction, TransactionOrigin};
use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use alloy_primitives::Address;
use parking_lot::Mutex;
use std::{
    fs::{File, OpenOptions},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

const MAGIC: &[u8; 16] = b"retrie-txpool-1\n";
const RECORD_HEAD: usize = 8;
/// Upper bound for the length of a record: the largest is a transaction with a full block of blobs.
const MAX_RECORD: u32 = 64 << 20;
const UNSIGNED: u8 = 0x80;
/// Smaller files are not rewritten.
const MIN_REWRITE_SIZE: u64 = 16 << 20;

/// The journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// An operation of the file system failed.
    #[error(
        "{action} the journal of the transaction pool, {}: {source}",
        .path.display()
    )]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The file is not a journal.
    #[error("{} is no journal of a transaction pool", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
}

/// A transaction of the journal.
#[derive(Clone, Debug)]
pub(super) struct JournalEntry {
    pub(super) transaction: PooledTransaction,
    pub(super) origin: TransactionOrigin,
    /// Sender of an unsigned transaction.
    pub(super) sender: Option<Address>,
}

impl JournalEntry {
    /// The entry of a pooled transaction; `None` if it is a blob transaction whose sidecar is gone.
    pub(super) fn of(tx: &PoolTransaction) -> Option<Self> {
        let sender = tx.is_unsigned.then(|| tx.sender());
        Some(Self { transaction: tx.to_pooled()?, origin: tx.origin, sender })
    }

    /// Encodes the record, including its header.
    fn encode(&self) -> Vec<u8> {
        let origin = match self.origin {
            TransactionOrigin::Local => 0,
            TransactionOrigin::External => 1,
            TransactionOrigin::Private => 2,
        };
        let mut record = vec![0; RECORD_HEAD];
        match self.sender {
            Some(sender) => {
                record.push(origin | UNSIGNED);
                record.extend_from_slice(sender.as_slice());
            }
            None => record.push(origin),
        }
        self.transaction.encode_2718(&mut record);
        let (head, payload) = record.split_at_mut(RECORD_HEAD);
        // The pool refuses a transaction that long, so this does not overflow.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
        record
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let (kind, mut rest) = payload.split_first()?;
        let origin = match kind & !UNSIGNED {
            0 => TransactionOrigin::Local,
            1 => TransactionOrigin::External,
            2 => TransactionOrigin::Private,
            _ => return None,
        };
        let mut sender = None;
        if kind & UNSIGNED != 0 {
            let (address, encoded) = rest.split_at_checked(Address::len_bytes())?;
            (sender, rest) = (Some(Address::from_slice(address)), encoded);
        }
        let transaction = PooledTransaction::decode_2718_exact(rest).ok()?;
        Some(Self { transaction, origin, sender })
    }
}

/// An open journal.
#[derive(Debug)]
pub(super) struct PoolJournal {
    path: PathBuf,
    files: Mutex<JournalFiles>,
    /// Held during a rewrite.
    rewriting: Mutex<()>,
}

#[derive(Debug)]
struct JournalFiles {
    current: File,
    bytes: u64,
    /// Length of the file after the last rewrite.
    bytes_at_rewrite: u64,
    /// The new file during a rewrite, and its length.
    next: Option<(File, u64)>,
    /// Whether the last write failed, which was logged.
    is_failing: bool,
}

impl PoolJournal {
    /// Opens or creates the journal and reads its entries. Cuts off an incomplete record that a
    /// crash left at the end.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<JournalEntry>), JournalError> {
        let failed =
            |action| move |source| JournalError::Io { action, path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed("making the folder of"))?;
        }
        let mut file = open_private(OpenOptions::new().read(true).truncate(false), path)
            .map_err(failed("opening"))?;
        let length = file.metadata().map_err(failed("opening"))?.len();
        let mut entries = Vec::new();
        let mut whole = 0;
        if length > 0 {
            let mut reader = BufReader::new(&mut file);
            let mut magic = Vec::with_capacity(MAGIC.len());
            let mut first = reader.by_ref().take(MAGIC.len() as u64);
            first.read_to_end(&mut magic).map_err(failed("reading"))?;
            // A shorter file was being created when the process ended.
            if !MAGIC.starts_with(&magic) {
                return Err(JournalError::Foreign { path: path.to_owned() });
            }
            if magic.len() == MAGIC.len() {
                whole = MAGIC.len() as u64;
                whole += read_records(&mut reader, length - whole, &mut entries)
                    .map_err(failed("reading"))?;
            }
            if whole < length {
                tracing::warn!(
                    path = %path.display(), kept = entries.len(), at = whole,
                    "the journal of the transaction pool ends in a damaged record, which is dropped"
                );
            }
        }
        make_private(&file).map_err(failed("restricting access to"))?;
        file.set_len(whole).map_err(failed("cutting the end of"))?;
        file.seek(SeekFrom::Start(whole)).map_err(failed("reading"))?;
        if whole == 0 {
            file.write_all(MAGIC).map_err(failed("writing"))?;
            whole = MAGIC.len() as u64;
        }
        let files = JournalFiles {
            current: file,
            bytes: whole,
            bytes_at_rewrite: whole,
            next: None,
            is_failing: false,
        };
        let (path, files) = (path.to_owned(), Mutex::new(files));
        Ok((Self { path, files, rewriting: Mutex::new(()) }, entries))
    }

    /// Appends a transaction. A failure is only logged, since the transaction is in the pool
    /// anyway.
    pub(super) fn append(&self, entry: &JournalEntry) {
        let record = entry.encode();
        let mut files = self.files.lock();
        let JournalFiles { current, bytes, next, is_failing, .. } = &mut *files;
        let mut written = write_at(current, bytes, &record);
        if let Some((file, length)) = next {
            let also = write_at(file, length, &record);
            // The new file would lack this record, so the rewrite is given up.
            if also.is_err() {
                *next = None;
            }
            written = written.and(also);
        }
        match written {
            Ok(()) => *is_failing = false,
            Err(error) if !*is_failing => {
                *is_failing = true;
                tracing::error!(
                    path = %self.path.display(), %error,
                    "the journal of the transaction pool cannot be written: transactions from now \
                     on are lost if the node stops before they are mined"
                );
            }
            Err(_) => {}
        }
    }

    /// Whether more than half of the file may be records of removed transactions.
    pub(super) fn is_large(&self) -> bool {
        let files = self.files.lock();
        files.bytes > MIN_REWRITE_SIZE && files.bytes > 2 * files.bytes_at_rewrite
    }

    /// Rewrites the file with `entries`. They are requested after the rewrite has begun, and
    /// records appended in the meantime go to the new file too.
    pub(super) fn rewrite<I: IntoIterator<Item = JournalEntry>>(
        &self,
        entries: impl FnOnce() -> I,
    ) -> Result<(), JournalError> {
        let failed =
            |action| move |source| JournalError::Io { action, path: self.path.clone(), source };
        let mut name = self.path.clone().into_os_string();
        name.push(".next");
        let next_path = PathBuf::from(name);
        let _one_by_one = self.rewriting.lock();
        let begin = || {
            let mut next = open_private(OpenOptions::new().truncate(true), &next_path)?;
            make_private(&next)?;
            next.write_all(MAGIC)?;
            Ok(next)
        };
        let next = begin().map_err(failed("rewriting"))?;
        self.files.lock().next = Some((next, MAGIC.len() as u64));
        let written = entries().into_iter().try_for_each(|entry| {
            let record = entry.encode();
            match &mut self.files.lock().next {
                Some((file, bytes)) => write_at(file, bytes, &record),
                None => Ok(()),
            }
        });
        let mut files = self.files.lock();
        let Some((file, bytes)) = files.next.take() else {
            // Appending to the new file failed, which was logged.
            let _ = std::fs::remove_file(&next_path);
            return Ok(());
        };
        let replaced = (written.and_then(|()| file.sync_all()).map_err(failed("rewriting")))
            .and_then(|()| std::fs::rename(&next_path, &self.path).map_err(failed("replacing")));
        if let Err(error) = replaced {
            // The old file stays in use, and the new one is deleted.
            let _ = std::fs::remove_file(&next_path);
            return Err(error);
        }
        *files = JournalFiles {
            current: file,
            bytes,
            bytes_at_rewrite: bytes,
            next: None,
            is_failing: false,
        };
        // So that the rename survives a power failure; without it the name means the old file.
        #[cfg(unix)]
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("syncing"))?;
        }
        Ok(())
    }
}

/// Opens a file for writing. A new file is readable by the node's user only.
fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.open(path)
}

/// Restricts an existing file to the node's user.
#[cfg_attr(not(unix), expect(clippy::unnecessary_wraps, reason = "only Unix has modes"))]
fn make_private(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}

/// Writes a record at the end of the last complete one, over the remains of a failed write.
fn write_at(file: &mut File, bytes: &mut u64, record: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(*bytes))?;
    file.write_all(record)?;
    *bytes += record.len() as u64;
    Ok(())
}

/// Reads records up to the first incomplete one. Returns the length of the complete ones.
fn read_records(
    reader: &mut impl Read,
    length: u64,
    entries: &mut Vec<JournalEntry>,
) -> io::Result<u64> {
    let mut whole = 0;
    let mut payload = Vec::new();
    loop {
        let mut head = [0; RECORD_HEAD];
        match reader.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(whole),
            Err(error) => return Err(error),
        }
        let [a, b, c, d, e, f, g, h] = head;
        let (size, checksum) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let end = whole + RECORD_HEAD as u64 + u64::from(size);
        if size > MAX_RECORD || end > length {
            return Ok(whole);
        }
        payload.resize(size as usize, 0);
        reader.read_exact(&mut payload)?;
        if crc32fast::hash(&payload) != checksum {
            return Ok(whole);
        }
        // A complete record that this version cannot decode is skipped.
        entries.extend(JournalEntry::decode(&payload));
        whole = end;
    }
}
