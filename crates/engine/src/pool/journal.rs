//! The journal: transactions that were accepted outlive the process.
//!
//! ```text
//!  file   := magic record*
//!  record := length (u32) crc32 (u32) payload        little endian; both of the payload
//!  payload := kind (u8) [sender (20 bytes)] EIP-2718 encoding, blobs with their sidecar
//!  kind   := 0 local, 1 external, 2 private; + 0x80: nobody has signed it, the sender follows
//! ```
//!
//! A record is written before its transaction's hash is told to anybody, so that a killed process
//! loses none; a power failure may lose the last ones, as the file is not synced each time. Records
//! are never changed: what has left the pool goes when the file is written anew, once it has grown
//! to twice what it held then. Meanwhile records go to both files, and the new one takes the place
//! of the old one by its name, so that there always is a whole one.
//!
//! Only the user of the node may read it: it holds transactions that are not to be told to others,
//! and which ones came from here.
//!
//! A transaction that was mined stays in the journal until its block is durable: a killed process
//! forgets the blocks that are not.

use crate::pool::{Origin, PoolTransaction, PooledTransaction};
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
/// No record is longer: the largest is a transaction with as many blobs as a block takes.
const MAX_RECORD: u32 = 64 << 20;
const UNSIGNED: u8 = 0x80;
/// Smaller files are not written anew.
const SMALL: u64 = 16 << 20;

/// The journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file system says no.
    #[error(
        "{action} the journal of the transaction pool, {}: {source}",
        .path.display()
    )]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Some other file.
    #[error("{} is no journal of a transaction pool", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
}

/// A transaction of the journal.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) transaction: PooledTransaction,
    pub(super) origin: Origin,
    /// Of one that nobody has signed.
    pub(super) sender: Option<Address>,
}

impl Entry {
    /// `None` for a blob transaction whose sidecar is gone.
    pub(super) fn of(tx: &PoolTransaction) -> Option<Self> {
        let sender = tx.is_unsigned.then(|| tx.sender());
        Some(Self { transaction: tx.to_pooled()?, origin: tx.origin, sender })
    }

    /// The record, with its head.
    fn encode(&self) -> Vec<u8> {
        let origin = match self.origin {
            Origin::Local => 0,
            Origin::External => 1,
            Origin::Private => 2,
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
        // A transaction that long would not have been taken.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
        record
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let (kind, mut rest) = payload.split_first()?;
        let origin = match kind & !UNSIGNED {
            0 => Origin::Local,
            1 => Origin::External,
            2 => Origin::Private,
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
pub(super) struct Journal {
    path: PathBuf,
    files: Mutex<Files>,
    /// Held while the file is written anew.
    rewriting: Mutex<()>,
}

#[derive(Debug)]
struct Files {
    current: File,
    bytes: u64,
    /// What it had when it was last written anew.
    bytes_at_rewrite: u64,
    /// Being written, to take the place of the current one.
    next: Option<(File, u64)>,
    /// Whether the last write has failed, and was told of.
    is_failing: bool,
}

impl Journal {
    /// Opens the journal, which is made if it is not there, and reads what it holds. What a crash has
    /// left unfinished at its end is cut off.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Entry>), JournalError> {
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
            // A shorter one was just being made.
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
        make_private(&file).map_err(failed("hiding from others"))?;
        file.set_len(whole).map_err(failed("cutting the end of"))?;
        file.seek(SeekFrom::Start(whole)).map_err(failed("reading"))?;
        if whole == 0 {
            file.write_all(MAGIC).map_err(failed("writing"))?;
            whole = MAGIC.len() as u64;
        }
        let files = Files {
            current: file,
            bytes: whole,
            bytes_at_rewrite: whole,
            next: None,
            is_failing: false,
        };
        let (path, files) = (path.to_owned(), Mutex::new(files));
        Ok((Self { path, files, rewriting: Mutex::new(()) }, entries))
    }

    /// Adds a transaction. What goes wrong is logged: the transaction is in the pool all the same.
    pub(super) fn append(&self, entry: &Entry) {
        let record = entry.encode();
        let mut files = self.files.lock();
        let Files { current, bytes, next, is_failing, .. } = &mut *files;
        let mut written = write_at(current, bytes, &record);
        if let Some((file, length)) = next {
            let also = write_at(file, length, &record);
            // It would lack this one: the old file goes on.
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

    /// Whether most of the file may be about transactions that have left.
    pub(super) fn is_large(&self) -> bool {
        let files = self.files.lock();
        files.bytes > SMALL && files.bytes > 2 * files.bytes_at_rewrite
    }

    /// Writes the file anew with what `entries` gives. These are asked for after this has begun, and
    /// what is appended meanwhile is in the new file too.
    pub(super) fn rewrite<I: IntoIterator<Item = Entry>>(
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
        let next = begin().map_err(failed("writing anew"))?;
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
            // An addition could not be written there, which was told of.
            let _ = std::fs::remove_file(&next_path);
            return Ok(());
        };
        let replaced = (written.and_then(|()| file.sync_all()).map_err(failed("writing anew")))
            .and_then(|()| std::fs::rename(&next_path, &self.path).map_err(failed("replacing")));
        if let Err(error) = replaced {
            // The old file goes on. What is left of the new one would only take room.
            let _ = std::fs::remove_file(&next_path);
            return Err(error);
        }
        *files =
            Files { current: file, bytes, bytes_at_rewrite: bytes, next: None, is_failing: false };
        // So that the name outlives a power failure, too; before that it is the old file's.
        #[cfg(unix)]
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("syncing"))?;
        }
        Ok(())
    }
}

/// Opens a file for writing. One that is not there is made, for the user of the node alone.
fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.open(path)
}

/// Takes a file that was there before from the eyes of others.
#[cfg_attr(not(unix), expect(clippy::unnecessary_wraps, reason = "only Unix has modes"))]
fn make_private(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}

/// Writes a record where the last one ends: over what a write that failed may have left there.
fn write_at(file: &mut File, bytes: &mut u64, record: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(*bytes))?;
    file.write_all(record)?;
    *bytes += record.len() as u64;
    Ok(())
}

/// Reads records up to the first that is not whole. Returns the length of those that are.
fn read_records(reader: &mut impl Read, length: u64, entries: &mut Vec<Entry>) -> io::Result<u64> {
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
        // Whole, but of a kind that this version does not know: nothing that it could hold in a pool.
        entries.extend(Entry::decode(&payload));
        whole = end;
    }
}
