//! [`FileSink`]: appends records to a file, one on each line.
//!
//! A checkpoint syncs the file, then writes the cursor file, which has the length of the file. So all
//! records up to that length are durable. Behind it, whole lines count too: a start after a crash reads
//! them, and cuts off what is torn. A line that was written is never written again, unless the crash
//! has taken it.

use crate::{
    CursorFileError, SinkError, StreamCursor, StreamError, StreamPosition, StreamRecord,
    cursor_file::{CursorFile, StreamCheckpoint},
    json::LINE_START,
    service::RecordSink,
};
use std::{
    fs::{File, TryLockError},
    io::{self, BufRead, BufReader, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// A file that records are appended to.
pub(crate) trait RecordFile: Send {
    /// Appends bytes. After an error some of them may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file off.
    fn truncate(&mut self, length: u64) -> io::Result<()>;

    /// Makes it durable.
    fn sync(&mut self) -> io::Result<()>;
}

impl RecordFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)?;
        self.seek(SeekFrom::Start(length)).map(drop)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The sink `file:PATH`.
#[derive(Debug)]
pub(crate) struct FileSink<F = File> {
    file: F,
    path: PathBuf,
    cursor: CursorFile,
    /// Bytes of whole records.
    length: u64,
    /// Whether bytes of a record may follow them.
    is_torn: bool,
}

impl FileSink {
    /// Opens the file at `path`, or creates it for a stream that begins at `start`. Returns the position
    /// behind its last record.
    ///
    /// # Errors
    /// [`SinkError`] and [`CursorFileError`] if the files cannot be opened or do not fit together.
    pub(crate) fn open(
        path: &Path,
        cursor: CursorFile,
        start: StreamPosition,
    ) -> Result<(Self, StreamPosition), StreamError> {
        let failed = |action: &'static str| {
            let path = path.to_owned();
            move |source| SinkError::File { action, path, source }
        };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed("opening"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(SinkError::InUse { path: path.to_owned() }.into());
            }
            Err(TryLockError::Error(source)) => return Err(failed("locking")(source).into()),
        }
        let found = file.metadata().map_err(failed("reading"))?.len();
        let checkpoint = match cursor.load()? {
            Some(checkpoint) => checkpoint,
            None if found > 0 => {
                let (path, cursor) = (path.to_owned(), cursor.path().to_owned());
                return Err(SinkError::NoCursorFile { path, cursor }.into());
            }
            None => {
                let checkpoint = StreamCheckpoint { position: start, length: 0 };
                cursor.save(&checkpoint)?;
                checkpoint
            }
        };
        let StreamCheckpoint { mut position, length: expected } = checkpoint;
        let length = match found {
            // Its reader has taken the records away. Shorter than it was, it is whole again.
            0 => {
                if expected > 0 {
                    cursor.save(&StreamCheckpoint { position: position.clone(), length: 0 })?;
                }
                0
            }
            found if found < expected => {
                let path = path.to_owned();
                return Err(SinkError::Shortened { path, found, expected }.into());
            }
            _ => resume(&mut file, expected, &mut position).map_err(failed("reading"))?,
        };
        if length < found {
            tracing::warn!(
                "{}: cutting off {} bytes behind record {}, which a crash has left",
                path.display(),
                found - length,
                position.next_sequence() - 1
            );
        }
        file.truncate(length).map_err(failed("truncating"))?;
        Ok((Self { file, path: path.to_owned(), cursor, length, is_torn: false }, position))
    }
}

/// Reads the records from byte `length` on, and moves `position` behind them. Returns where the last
/// whole record ends.
fn resume(file: &mut File, mut length: u64, position: &mut StreamPosition) -> io::Result<u64> {
    file.seek(SeekFrom::Start(length))?;
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        lines.read_until(b'\n', &mut line)?;
        let Some(cursor) = whole_record(&line) else { return Ok(length) };
        if cursor.sequence != position.next_sequence() {
            return Ok(length);
        }
        length += line.len() as u64;
        position.advance(cursor);
    }
}

/// The cursor of a line that is whole: a crash may leave half of one, or zeros in its place.
fn whole_record(line: &[u8]) -> Option<StreamCursor> {
    let line = line.strip_suffix(b"}\n")?;
    if line.contains(&0) {
        return None;
    }
    let rest = line.strip_prefix(LINE_START.as_bytes())?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()
}

impl<F: RecordFile> FileSink<F> {
    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> SinkError + use<F> {
        let path = self.path.clone();
        move |source| SinkError::File { action, path, source }
    }
}

impl<F: RecordFile> RecordSink for FileSink<F> {
    fn append(&mut self, records: &[StreamRecord]) -> Result<usize, StreamError> {
        if self.is_torn {
            self.file.truncate(self.length).map_err(self.failed("truncating"))?;
            self.is_torn = false;
        }
        let mut bytes = Vec::with_capacity(records.iter().map(|one| one.json.len() + 1).sum());
        for record in records {
            bytes.extend_from_slice(record.json.as_bytes());
            bytes.push(b'\n');
        }
        // Half a batch must not stay: it is read again, and may be another one then.
        self.is_torn = true;
        if let Err(error) = self.file.append(&bytes) {
            let failed = self.failed("writing")(error);
            self.is_torn = self.file.truncate(self.length).is_err();
            return Err(failed.into());
        }
        self.is_torn = false;
        self.length += bytes.len() as u64;
        Ok(records.len())
    }

    fn checkpoint(&mut self, position: &StreamPosition) -> Result<(), StreamError> {
        self.file.sync().map_err(self.failed("syncing"))?;
        let checkpoint = StreamCheckpoint { position: position.clone(), length: self.length };
        self.cursor.save(&checkpoint).map_err(|error: CursorFileError| error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RecordKind, StreamCursor};
    use alloy_primitives::B256;
    use retrie_state::BlockRef;
    use std::fs;

    fn records(range: std::ops::RangeInclusive<u64>) -> Vec<StreamRecord> {
        let record = |sequence: u64| {
            let block = BlockRef::new(sequence, B256::repeat_byte(sequence as u8));
            let cursor = StreamCursor { sequence, block, kind: RecordKind::Block };
            let json = format!("{LINE_START}{cursor}\",\"type\":\"block\",\"n\":{{}}}}");
            StreamRecord { cursor, json }
        };
        range.map(record).collect()
    }

    fn open(dir: &Path) -> Result<(FileSink, StreamPosition), StreamError> {
        let cursor = CursorFile::new(dir.join("out.cursor"), B256::ZERO);
        FileSink::open(&dir.join("out"), cursor, StreamPosition::start(1))
    }

    /// Appends records, with a checkpoint or without.
    fn put(sink: &mut FileSink, position: &mut StreamPosition, to: u64, is_durable: bool) {
        let batch = records(position.next_sequence()..=to);
        sink.append(&batch).unwrap();
        batch.iter().for_each(|record| position.advance(record.cursor));
        if is_durable {
            sink.checkpoint(position).unwrap();
        }
    }

    #[test]
    fn a_start_goes_on_behind_the_last_whole_record_wherever_the_file_was_torn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let (mut sink, mut position) = open(dir.path()).unwrap();
        put(&mut sink, &mut position, 3, true);
        put(&mut sink, &mut position, 6, false);
        drop(sink);
        let whole = fs::read(&path).unwrap();
        let ends: Vec<usize> = whole
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .map(|(at, _)| at + 1)
            .collect();
        for length in ends[2]..=whole.len() {
            for garbage in [&b""[..], b"\0\0\0", b"{\"cursor\":\"9-", b"x\n"] {
                fs::write(&path, [&whole[..length], garbage].concat()).unwrap();
                let (sink, position) = open(dir.path()).unwrap();
                let kept = ends.iter().filter(|end| **end <= length).count();
                assert_eq!(position.next_sequence(), kept as u64 + 1, "{length}");
                assert_eq!(sink.length, ends[kept - 1] as u64);
                drop(sink);
                assert_eq!(fs::read(&path).unwrap(), whole[..ends[kept - 1]], "{length}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_together_is_an_error_and_not_a_gap() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let (mut sink, mut position) = open(dir.path()).unwrap();
        let second = open(dir.path()).unwrap_err();
        assert!(matches!(second, StreamError::Sink(SinkError::InUse { .. })), "{second}");
        put(&mut sink, &mut position, 4, true);
        drop(sink);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let shorter = open(dir.path()).unwrap_err();
        assert!(matches!(shorter, StreamError::Sink(SinkError::Shortened { .. })), "{shorter}");
        // The reader has moved the records away.
        fs::remove_file(&path).unwrap();
        let (sink, position) = open(dir.path()).unwrap();
        assert_eq!((sink.length, position.next_sequence()), (0, 5));
        drop(sink);
        fs::write(&path, &whole).unwrap();
        fs::remove_file(dir.path().join("out.cursor")).unwrap();
        let lost = open(dir.path()).unwrap_err();
        assert!(matches!(lost, StreamError::Sink(SinkError::NoCursorFile { .. })), "{lost}");
        assert_eq!(fs::read(&path).unwrap(), whole, "nothing was cut off");
    }

    /// A disk with room for some bytes.
    struct SmallDisk {
        bytes: Vec<u8>,
        room: usize,
        /// Whether even cutting off fails.
        is_broken: bool,
    }

    impl RecordFile for SmallDisk {
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            let fits = bytes.len().min(self.room.saturating_sub(self.bytes.len()));
            self.bytes.extend_from_slice(&bytes[..fits]);
            if fits == bytes.len() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
        }

        fn truncate(&mut self, length: u64) -> io::Result<()> {
            if self.is_broken {
                return Err(io::ErrorKind::Other.into());
            }
            self.bytes.truncate(length as usize);
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_leaves_no_half_records_and_the_stream_goes_on_when_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let cursor = CursorFile::new(dir.path().join("out.cursor"), B256::ZERO);
        let batch = records(1..=3);
        let len: usize = batch.iter().map(|record| record.json.len() + 1).sum();
        for room in 0..len {
            for is_broken in [false, true] {
                let file = SmallDisk { bytes: Vec::new(), room, is_broken };
                let (path, cursor) = (dir.path().join("out"), cursor.clone());
                let mut sink = FileSink { file, path, cursor, length: 0, is_torn: false };
                let full = sink.append(&batch).unwrap_err();
                assert!(matches!(full, StreamError::Sink(SinkError::File { .. })), "{full}");
                assert!(full.to_string().contains("out"), "{full}");
                if is_broken {
                    sink.append(&batch).unwrap_err();
                } else {
                    assert!(sink.file.bytes.is_empty());
                }
                sink.file = SmallDisk { room: len, is_broken: false, ..sink.file };
                sink.append(&batch).unwrap();
                let expected: String =
                    batch.iter().map(|record| format!("{}\n", record.json)).collect();
                assert_eq!(String::from_utf8(sink.file.bytes).unwrap(), expected);
            }
        }
    }
}
