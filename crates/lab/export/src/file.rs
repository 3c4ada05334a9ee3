//! Files: written under a temporary name until they are complete, and checked if they exist.
//!
//! A file ends with Parquet's footer. Its key-value metadata hold the [`FileStamp`], which
//! describes the content, and a checksum (CRC-32) of the first `retrie.data_bytes` bytes, which are
//! all bytes before the footer.

use crate::{
    ExportFileError,
    column::{ColumnBuffer, TableSchema},
};
use alloy_primitives::{B256, hex};
use parquet::{
    basic::{Compression, ZstdLevel},
    errors::{ParquetError, Result as ParquetResult},
    file::{
        metadata::{KeyValue, ParquetMetaData, ParquetMetaDataReader},
        properties::{EnabledStatistics, WriterProperties},
        writer::SerializedFileWriter,
    },
    schema::types::TypePtr,
};
use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Rows of a row group, at most ...
const GROUP_ROWS: usize = 1 << 17;
/// ... and about this many bytes of memory.
const GROUP_BYTES: usize = 32 << 20;

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    /// Chain id, or 0 without a chain.
    pub(crate) chain_id: u64,
    /// The source: blocks, or a report.
    pub(crate) content: String,
    /// Digest of the source.
    pub(crate) digest: B256,
}

const CHAIN_ID: &str = "retrie.chain_id";
const CONTENT: &str = "retrie.content";
const DIGEST: &str = "retrie.digest";
const DATA_BYTES: &str = "retrie.data_bytes";
const DATA_CRC32: &str = "retrie.data_crc32";

/// Counts the bytes that are written, and computes their checksum.
struct ChecksumWriter {
    file: File,
    bytes: u64,
    crc: crc32fast::Hasher,
}

impl Write for ChecksumWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.crc.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file of rows of type `R` that is being written.
pub(crate) struct TableFile<R> {
    target: PathBuf,
    partial: PartialFile,
    schema: TableSchema<R>,
    writer: SerializedFileWriter<ChecksumWriter>,
    columns: Vec<ColumnBuffer>,
    group_rows: usize,
    group_bytes: usize,
    rows: u64,
}

/// A file with a temporary name, which is deleted when dropped, unless it was renamed.
struct PartialFile(Option<PathBuf>);

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // If this fails, the next export overwrites the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl<R> TableFile<R> {
    /// Begins a file of `table`.
    pub(crate) fn create(
        target: &Path,
        table: &str,
        schema: TableSchema<R>,
    ) -> Result<Self, ExportFileError> {
        let path = partial_name(target);
        let io = |action| move |source| io_error(target, action, source);
        // Truncated only after it is locked: another process may be writing it.
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(io("create a file beside it"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ExportFileError::Busy { path }),
            Err(TryLockError::Error(source)) => return Err(io("lock the file beside it")(source)),
        }
        file.set_len(0).map_err(io("empty the file beside it"))?;
        let partial = PartialFile(Some(path));
        let tally = ChecksumWriter { file, bytes: 0, crc: crc32fast::Hasher::new() };
        let writer = schema
            .message(table)
            .and_then(|message| {
                SerializedFileWriter::new(tally, message, Arc::new(properties(&schema)))
            })
            .map_err(|error| parquet_error(target, error))?;
        Ok(Self {
            target: target.to_owned(),
            partial,
            columns: schema.columns(),
            schema,
            writer,
            group_rows: 0,
            group_bytes: 0,
            rows: 0,
        })
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, row: &R) -> Result<(), ExportFileError> {
        self.group_bytes += self.schema.push(&mut self.columns, row);
        self.group_rows += 1;
        self.rows += 1;
        if self.group_rows < GROUP_ROWS && self.group_bytes < GROUP_BYTES {
            return Ok(());
        }
        self.end_group()
    }

    fn end_group(&mut self) -> Result<(), ExportFileError> {
        if self.group_rows == 0 {
            return Ok(());
        }
        self.write_group().map_err(|error| parquet_error(&self.target, error))?;
        (self.group_rows, self.group_bytes) = (0, 0);
        Ok(())
    }

    fn write_group(&mut self) -> ParquetResult<()> {
        let mut group = self.writer.next_row_group()?;
        for column in &mut self.columns {
            let to = group.next_column()?;
            column.write(to.ok_or_else(|| ParquetError::General("a column is missing".into()))?)?;
        }
        group.close()?;
        Ok(())
    }

    /// Makes the file durable and gives it its name. Returns its number of rows.
    pub(crate) fn finish(mut self, stamp: &FileStamp) -> Result<u64, ExportFileError> {
        self.end_group()?;
        let Self { target, mut partial, mut writer, rows, .. } = self;
        let io = |action| {
            let target = &target;
            move |source| io_error(target, action, source)
        };
        writer.flush().map_err(io("write the file"))?;
        let (bytes, crc) = (writer.inner().bytes, writer.inner().crc.clone().finalize());
        for (key, value) in [
            (CHAIN_ID, stamp.chain_id.to_string()),
            (CONTENT, stamp.content.clone()),
            (DIGEST, stamp.digest.to_string()),
            (DATA_BYTES, bytes.to_string()),
            (DATA_CRC32, format!("{crc:08x}")),
        ] {
            writer.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
        }
        let tally = writer.into_inner().map_err(|error| parquet_error(&target, error))?;
        tally.file.sync_all().map_err(io("sync the file to disk"))?;
        if let Some(path) = &partial.0 {
            std::fs::rename(path, &target).map_err(io("rename the finished file into place"))?;
        }
        partial.0 = None;
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder =
            File::open(folder.unwrap_or_else(|| Path::new("."))).and_then(|dir| dir.sync_all());
        folder.map_err(io("sync its folder to disk"))?;
        Ok(rows)
    }
}

/// The temporary name. Readers of tables skip hidden files.
fn partial_name(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.partial"))
}

fn properties<R>(schema: &TableSchema<R>) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("retrie ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        // Statistics per row group lead to blocks; statistics per page only pay for sorted columns.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_column_statistics_enabled("block_number".into(), EnabledStatistics::Page);
    for column in schema.paths_without_dictionary() {
        properties = properties.set_column_dictionary_enabled(column, false);
    }
    properties.build()
}

/// Checks that a file is complete and has the content of `stamp`, in these columns. Returns its
/// number of rows.
pub(crate) fn check<R>(
    path: &Path,
    table: &str,
    schema: &TableSchema<R>,
    stamp: &FileStamp,
) -> Result<u64, ExportFileError> {
    let damaged = |what: String| ExportFileError::Damaged { path: path.to_owned(), what };
    let another = |what: String| ExportFileError::OtherContent { path: path.to_owned(), what };
    let mut file = File::open(path).map_err(|error| io_error(path, "open it", error))?;
    let footer = ParquetMetaDataReader::new().parse_and_finish(&file);
    let footer = footer.map_err(|error| damaged(format!("its footer does not parse ({error})")))?;
    let value = |key: &str| {
        let found = footer.file_metadata().key_value_metadata();
        let found = found.into_iter().flatten().find(|one| one.key == key);
        let value = found.and_then(|one| one.value.as_deref());
        value.ok_or_else(|| another(format!("its footer has no {key}: retrie did not write it")))
    };
    let number = |key: &str| {
        let text = value(key)?;
        text.parse().map_err(|_| damaged(format!("{key} is `{text}`")))
    };
    let bytes: u64 = number(DATA_BYTES)?;
    let crc = crc_of(&mut file, bytes).map_err(|error| io_error(path, "read it", error))?;
    let Some(crc) = crc else { return Err(damaged(format!("it is shorter than {bytes} bytes"))) };
    if format!("{crc:08x}") != value(DATA_CRC32)? {
        return Err(damaged("its content has another checksum than its footer says".into()));
    }
    let message = schema.message(table).map_err(|error| parquet_error(path, error))?;
    same_columns(&footer, &message).map_err(another)?;
    let digest = value(DIGEST)?.parse::<B256>().unwrap_or_default();
    let found =
        FileStamp { chain_id: number(CHAIN_ID)?, content: value(CONTENT)?.to_owned(), digest };
    if found != *stamp {
        return Err(another(match (found.chain_id == stamp.chain_id, found.content) {
            (false, _) => format!("it is of chain {}, not {}", found.chain_id, stamp.chain_id),
            (true, content) if content != stamp.content => {
                format!("{content}, not {}", stamp.content)
            }
            _ => {
                let (found, own) = (hex::encode(found.digest), hex::encode(stamp.digest));
                format!("{} of another branch or source (digest {found}, not {own})", stamp.content)
            }
        }));
    }
    let rows: i64 = footer.row_groups().iter().map(|group| group.num_rows()).sum();
    let total = footer.file_metadata().num_rows();
    u64::try_from(rows).ok().filter(|_| rows == total).ok_or_else(|| {
        damaged(format!("its row groups have {rows} rows, and its footer says {total}"))
    })
}

/// Whether this program wrote the file.
pub(crate) fn is_own_file(path: &Path) -> bool {
    let footer = |file| ParquetMetaDataReader::new().parse_and_finish(&file).ok();
    let footer = File::open(path).ok().and_then(footer);
    let values = footer.as_ref().and_then(|footer| footer.file_metadata().key_value_metadata());
    values.into_iter().flatten().any(|one| one.key == CONTENT)
}

fn same_columns(footer: &ParquetMetaData, message: &TypePtr) -> Result<(), String> {
    let found = footer.file_metadata().schema();
    let shown = |of: &parquet::schema::types::Type| -> Vec<String> {
        let column = |one: &TypePtr| {
            let info = one.get_basic_info();
            format!("{} {:?} {:?}", one.name(), one.get_physical_type(), info.logical_type_ref())
        };
        of.get_fields().iter().map(column).collect()
    };
    let (found, expected) = (shown(found), shown(message));
    if found == expected {
        return Ok(());
    }
    let differs = found.iter().zip(&expected).find(|(one, other)| one != other);
    Err(match differs {
        Some((found, expected)) => format!("a column is `{found}`, not `{expected}`"),
        None => format!("it has {} columns, not {}", found.len(), expected.len()),
    })
}

/// Checksum of the first `bytes` bytes of a file; `None` if the file is shorter.
fn crc_of(file: &mut File, bytes: u64) -> io::Result<Option<u32>> {
    io::Seek::rewind(file)?;
    let mut reader = BufReader::with_capacity(1 << 20, file).take(bytes);
    let mut crc = crc32fast::Hasher::new();
    let mut left = bytes;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok((left == 0).then(|| crc.finalize())),
            read => {
                crc.update(&buffer[..read]);
                left = left.saturating_sub(read as u64);
            }
        }
    }
}

pub(crate) fn io_error(path: &Path, action: &'static str, source: io::Error) -> ExportFileError {
    ExportFileError::Io { path: path.to_owned(), action, source }
}

fn parquet_error(path: &Path, error: ParquetError) -> ExportFileError {
    ExportFileError::Parquet { path: path.to_owned(), source: Box::new(error) }
}
