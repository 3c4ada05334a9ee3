//! The spool of state sync: checked answers on disk, so that a restart asks for none of them again.
//!
//! ```text
//!   file    = "RTSYNC01", records
//!   record  = id length (4, big-endian), answer length (4), kind (1), id, answer, checksum (8)
//! ```
//!
//! The checksum is the first 8 bytes of the keccak-256 of everything before it in the record. The
//! first record that is cut or has a wrong checksum ends the file. The reader checks each answer
//! again: the spool is trusted no more than a peer. Ids are hashes, so answers stay useful for
//! later states.

use crate::answer::{AnswerKey, AnswerKind};
use alloy_primitives::{B256, Bytes, Keccak256, keccak256};
use retrie_state::open_with_retry;
use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

const MAGIC: &[u8; 8] = b"RTSYNC01";
/// Bytes of the lengths and the kind.
const HEAD: usize = 9;
const CHECKSUM: usize = 8;
/// Maximum bytes of an answer that is read back.
const MAX_ANSWER: u32 = 64 << 20;
const MAX_ID: u32 = 1 << 10;
/// Bytes that are buffered before they are written.
const BUFFER: usize = 1 << 20;

/// The spool file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{action} {} failed: {source}", path.display())]
pub struct SpoolError {
    /// What was attempted.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// Position of an answer in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpoolPlace {
    offset: u64,
    len: u32,
}

/// The spool file. One process uses it at a time.
#[derive(Debug)]
pub(super) struct AnswerSpool {
    path: PathBuf,
    writer: BufWriter<File>,
    reader: File,
    end: u64,
    index: HashMap<AnswerKey, SpoolPlace>,
}

impl AnswerSpool {
    /// Opens or creates the file at `path`, and cuts off damaged records.
    pub(super) fn open(path: &Path) -> Result<Self, SpoolError> {
        let failed = |action| {
            let path = path.to_owned();
            move |source| SpoolError { action, path, source }
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = open_with_retry(|| options.open(path)).map_err(failed("opening"))?;
        file.try_lock().map_err(|error| failed("locking")(error.into()))?;
        let mut index = HashMap::new();
        let end = scan(&file, &mut index).map_err(failed("reading"))?;
        file.set_len(end).map_err(failed("cutting"))?;
        file.seek(SeekFrom::Start(end)).map_err(failed("reading"))?;
        let reader = open_with_retry(|| File::open(path)).map_err(failed("opening"))?;
        let mut spool = Self {
            path: path.to_owned(),
            writer: BufWriter::with_capacity(BUFFER, file),
            reader,
            end,
            index,
        };
        if end == 0 {
            spool.writer.write_all(MAGIC).map_err(failed("writing"))?;
            spool.end = MAGIC.len() as u64;
        }
        Ok(spool)
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of answers in the file.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Position of the answer to this id.
    pub(super) fn find(&self, kind: AnswerKind, id: &[u8]) -> Option<SpoolPlace> {
        self.index.get(&AnswerKey::new(kind, id)).copied()
    }

    /// Adds an answer.
    pub(super) fn put(
        &mut self,
        kind: AnswerKind,
        id: &[u8],
        answer: &[u8],
    ) -> Result<(), SpoolError> {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(id.len() as u32).to_be_bytes());
        head[4..8].copy_from_slice(&(answer.len() as u32).to_be_bytes());
        head[8] = kind as u8;
        let sum = checksum(&[&head, id, answer]);
        let parts: [&[u8]; 4] = [&head, id, answer, &sum];
        for part in parts {
            self.writer.write_all(part).map_err(|source| self.failed("writing", source))?;
        }
        let offset = self.end + (HEAD + id.len()) as u64;
        self.index
            .insert(AnswerKey::new(kind, id), SpoolPlace { offset, len: answer.len() as u32 });
        self.end = offset + (answer.len() + CHECKSUM) as u64;
        Ok(())
    }

    /// Removes an invalid answer from the index.
    pub(super) fn forget(&mut self, kind: AnswerKind, id: &[u8]) {
        self.index.remove(&AnswerKey::new(kind, id));
    }

    /// Writes the buffered bytes to the file.
    pub(super) fn flush(&mut self) -> Result<(), SpoolError> {
        self.writer.flush().map_err(|source| self.failed("writing", source))
    }

    /// Reads an answer that was written before the last [`flush`](Self::flush).
    pub(super) fn read(&mut self, place: SpoolPlace) -> Result<Bytes, SpoolError> {
        let mut answer = vec![0; place.len as usize];
        let sought = self.reader.seek(SeekFrom::Start(place.offset));
        sought
            .and_then(|_| self.reader.read_exact(&mut answer))
            .map_err(|source| self.failed("reading", source))?;
        Ok(answer.into())
    }

    /// The code with this hash, if it is in the file and undamaged.
    pub(super) fn code(&mut self, hash: &B256) -> Result<Option<Bytes>, SpoolError> {
        let Some(place) = self.find(AnswerKind::Code, hash.as_slice()) else { return Ok(None) };
        self.flush()?;
        Ok(Some(self.read(place)?).filter(|code| keccak256(code) == *hash))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> SpoolError {
        SpoolError { action, path: self.path.clone(), source }
    }
}

fn checksum(parts: &[&[u8]]) -> [u8; CHECKSUM] {
    let mut hasher = Keccak256::new();
    parts.iter().for_each(|part| hasher.update(part));
    let mut sum = [0; CHECKSUM];
    sum.copy_from_slice(&hasher.finalize()[..CHECKSUM]);
    sum
}

/// Fills the index. Returns the end of the last whole record.
fn scan(file: &File, index: &mut HashMap<AnswerKey, SpoolPlace>) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(BUFFER, file);
    let mut magic = [0; MAGIC.len()];
    if len < MAGIC.len() as u64 {
        return Ok(0);
    }
    reader.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Ok(0);
    }
    let mut end = MAGIC.len() as u64;
    let mut rest = Vec::new();
    loop {
        let mut head = [0; HEAD];
        if len - end < (HEAD + CHECKSUM) as u64 {
            return Ok(end);
        }
        reader.read_exact(&mut head)?;
        let [a, b, c, d, e, f, g, h, kind] = head;
        let (id, answer) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        let body = u64::from(id) + u64::from(answer);
        let kind = match kind {
            0 => AnswerKind::Chunk,
            1 => AnswerKind::Code,
            _ => return Ok(end),
        };
        let is_cut = len - end < body + (HEAD + CHECKSUM) as u64;
        if id > MAX_ID || answer > MAX_ANSWER || is_cut {
            return Ok(end);
        }
        rest.resize(body as usize + CHECKSUM, 0);
        reader.read_exact(&mut rest)?;
        let (body, sum) = rest.split_at(body as usize);
        if sum != checksum(&[&head, body]) {
            return Ok(end);
        }
        let offset = end + HEAD as u64 + u64::from(id);
        let id = &body[..id as usize];
        index.insert(AnswerKey::new(kind, id), SpoolPlace { offset, len: answer });
        end = offset + u64::from(answer) + CHECKSUM as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_that_is_cut_or_damaged_keeps_what_is_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers");
        let mut spool = AnswerSpool::open(&path).unwrap();
        for n in 0..10u8 {
            spool.put(AnswerKind::Chunk, &[n; 40], &vec![n; 1000 + usize::from(n)]).unwrap();
        }
        spool.put(AnswerKind::Code, &[3; 40], b"code").unwrap();
        assert!(AnswerSpool::open(&path).is_err(), "one process at a time");
        drop(spool);
        let whole = std::fs::read(&path).unwrap();
        for (cut, left) in [(whole.len(), 11), (whole.len() - 1, 10), (1500, 1), (5, 0), (0, 0)] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut spool = AnswerSpool::open(&path).unwrap();
            assert_eq!(spool.len(), left, "cut at {cut}");
            if let Some(place) = spool.find(AnswerKind::Chunk, &[0; 40]) {
                assert_eq!(spool.read(place).unwrap(), vec![0; 1000]);
            }
            assert_eq!(spool.find(AnswerKind::Chunk, &[77; 40]), None);
            spool.put(AnswerKind::Chunk, &[99; 40], b"more").unwrap();
            drop(spool);
            let mut spool = AnswerSpool::open(&path).unwrap();
            let place = spool.find(AnswerKind::Chunk, &[99; 40]).unwrap();
            assert_eq!(spool.read(place).unwrap()[..], b"more"[..]);
        }
        let mut damaged = whole;
        damaged[2500] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(AnswerSpool::open(&path).unwrap().len(), 2);
        std::fs::write(&path, b"something else").unwrap();
        assert_eq!(AnswerSpool::open(&path).unwrap().len(), 0);
    }
}
