//! [`BlockExport`]: plans the files of an export, and writes the missing ones.

use crate::{
    BlockNeeds, BlockNumbers, BlockSource, ExportError, ExportFileError, ExportTable,
    file::{FileStamp, io_error, is_own_file},
    tables::{RowWriter, TableLayout},
};
use alloy_primitives::{B256, Keccak256};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// An export of blocks into the files of some tables.
#[derive(Clone, Debug)]
pub struct BlockExport<'a> {
    /// The folder. It is created if it is missing.
    pub out: &'a Path,
    /// The tables. Tables that are not made of blocks are skipped.
    pub tables: &'a [ExportTable],
    /// Number of blocks in a chunk.
    pub chunk_size: u64,
    /// Whether existing files are written again.
    pub overwrite: bool,
}

/// The outcome of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportOutcome {
    /// Blocks in the files.
    pub blocks: u64,
    /// Files written.
    pub files_written: u64,
    /// Existing, complete files with these blocks.
    pub files_kept: u64,
    /// Rows of all these files, by table.
    pub rows: BTreeMap<&'static str, u64>,
}

impl ExportOutcome {
    pub(crate) fn count_written(&mut self, table: ExportTable, rows: u64) {
        self.files_written += 1;
        *self.rows.entry(table.name()).or_default() += rows;
    }

    pub(crate) fn count_kept(&mut self, table: ExportTable, rows: u64) {
        self.files_kept += 1;
        *self.rows.entry(table.name()).or_default() += rows;
    }
}

/// A table of this export.
struct TargetTable {
    table: ExportTable,
    layout: Box<dyn TableLayout>,
    /// Its files in the folder: first block, last block, path.
    found: Vec<(u64, u64, PathBuf)>,
}

impl BlockExport<'_> {
    /// Writes all missing files, chunk by chunk, and checks the existing ones. `progress` is called
    /// after each block that is written; `stop` is checked before each block.
    ///
    /// # Errors
    /// If an existing file is damaged or holds something else, blocks cannot be read, files cannot
    /// be written, or `stop` was set. The files of the chunks before are then complete.
    pub fn run(
        &self,
        source: &mut dyn BlockSource,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(&ExportOutcome),
    ) -> Result<ExportOutcome, ExportError> {
        std::fs::create_dir_all(self.out)
            .map_err(|error| io_error(self.out, "create the folder", error))?;
        let network = network(source.spec().chain_id());
        let blocks = source.blocks().clone();
        // A chain grows, and its last chunk grows with it.
        let grows = matches!(blocks, BlockNumbers::Range(_));
        let mut wanted = Vec::new();
        for table in self.tables {
            if let Some(layout) = table.layout() {
                let found = files_of(self.out, &network, *table)?;
                wanted.push(TargetTable { table: *table, layout, found });
            }
        }
        // Overlaps are found before anything is written.
        let ends: Vec<_> =
            blocks.chunks(self.chunk_size).filter_map(|chunk| ends(&chunk)).collect();
        wanted.iter().try_for_each(|one| one.check_overlaps(&ends, grows))?;
        let mut exported = ExportOutcome::default();
        for chunk in blocks.chunks(self.chunk_size) {
            self.chunk(&network, &chunk, &wanted, source, stop, &mut exported, progress)?;
        }
        Ok(exported)
    }

    #[allow(clippy::too_many_arguments)]
    fn chunk(
        &self,
        network: &str,
        chunk: &[u64],
        wanted: &[TargetTable],
        source: &mut dyn BlockSource,
        stop: &AtomicBool,
        exported: &mut ExportOutcome,
        progress: &mut dyn FnMut(&ExportOutcome),
    ) -> Result<(), ExportError> {
        let Some((first, last)) = ends(chunk) else { return Ok(()) };
        let target = |one: &TargetTable| self.out.join(file_name(network, one.table, first, last));
        let (there, missing): (Vec<_>, Vec<_>) =
            wanted.iter().partition(|one| !self.overwrite && target(one).exists());
        if !there.is_empty() {
            let mut digest = BlockDigest::default();
            for number in chunk {
                self.check_stop(stop, *number, exported)?;
                digest.add(source.hash(*number)?);
            }
            let stamp = stamp(source, chunk, digest);
            for one in there {
                let rows = one.layout.check(&target(one), &stamp)?;
                if one.table == ExportTable::Blocks && rows != chunk.len() as u64 {
                    let what = format!("it has {rows} rows of {} blocks", chunk.len());
                    return Err(ExportFileError::Damaged { path: target(one), what }.into());
                }
                exported.count_kept(one.table, rows);
            }
        }
        if !missing.is_empty() {
            let create = |one: &&TargetTable| Ok((one.table, one.layout.create(&target(one))?));
            let mut files: Vec<(ExportTable, Box<dyn RowWriter>)> =
                missing.iter().map(create).collect::<Result<_, ExportFileError>>()?;
            let mut needs = BlockNeeds::default();
            for (table, _) in &files {
                needs.receipts |= table.needs().receipts;
                needs.changes |= table.needs().changes;
            }
            let mut digest = BlockDigest::default();
            for number in chunk {
                self.check_stop(stop, *number, exported)?;
                let block = Arc::new(source.read(*number, needs)?);
                digest.add(block.block.hash());
                for (_, file) in &mut files {
                    file.push(&block)?;
                }
                exported.blocks += 1;
                progress(exported);
            }
            exported.blocks -= chunk.len() as u64;
            let stamp = stamp(source, chunk, digest);
            for (table, file) in files {
                exported.count_written(table, file.finish(&stamp)?);
            }
        }
        exported.blocks += chunk.len() as u64;
        for one in wanted {
            one.remove_shorter(first, last)?;
        }
        Ok(())
    }

    fn check_stop(
        &self,
        stop: &AtomicBool,
        number: u64,
        exported: &ExportOutcome,
    ) -> Result<(), ExportError> {
        if stop.load(Ordering::Relaxed) {
            let files = exported.files_written + exported.files_kept;
            return Err(ExportError::Stopped { number, files });
        }
        Ok(())
    }
}

impl TargetTable {
    /// Checks that no file has some of the blocks of a chunk, except the chunk's own file and, if
    /// the chain has grown, a shorter file of ours that begins with the chunk. `chunks` are first
    /// and last blocks, in order.
    fn check_overlaps(&self, chunks: &[(u64, u64)], grows: bool) -> Result<(), ExportFileError> {
        for (from, to, path) in &self.found {
            let at = chunks.partition_point(|(_, last)| last < from);
            let Some(&(first, last)) = chunks.get(at).filter(|(first, _)| first <= to) else {
                continue;
            };
            let is_shorter = || grows && *from == first && *to < last && is_own_file(path);
            if (*from, *to) != (first, last) && !is_shorter() {
                return Err(ExportFileError::Overlap { path: path.clone(), first, last });
            }
        }
        Ok(())
    }

    /// Removes the shorter files of a chunk that has grown, now that its complete file exists.
    fn remove_shorter(&self, first: u64, last: u64) -> Result<(), ExportFileError> {
        for (from, to, path) in &self.found {
            if *from == first && *to < last {
                std::fs::remove_file(path)
                    .map_err(|error| io_error(path, "remove the shorter file", error))?;
            }
        }
        Ok(())
    }
}

fn ends(chunk: &[u64]) -> Option<(u64, u64)> {
    Some((*chunk.first()?, *chunk.last()?))
}

/// Digest of block hashes.
#[derive(Default)]
struct BlockDigest(Keccak256);

impl BlockDigest {
    fn add(&mut self, hash: B256) {
        self.0.update(hash);
    }
}

fn stamp(source: &dyn BlockSource, chunk: &[u64], digest: BlockDigest) -> FileStamp {
    let (first, last) = ends(chunk).unwrap_or_default();
    let content = match chunk.len() as u64 == last - first + 1 {
        true => format!("blocks {first} to {last}"),
        false => format!("{} blocks of {first} to {last}", chunk.len()),
    };
    FileStamp { chain_id: source.spec().chain_id(), content, digest: digest.0.finalize() }
}

/// cryo's name of the network, at the beginning of file names.
fn network(chain_id: u64) -> String {
    match chain_id {
        1 => "ethereum".into(),
        17_000 => "holesky".into(),
        11_155_111 => "sepolia".into(),
        other => format!("network_{other}"),
    }
}

fn file_name(network: &str, table: ExportTable, first: u64, last: u64) -> String {
    format!("{network}__{table}__{first:08}_to_{last:08}.parquet")
}

/// The files of a table in a folder: first block, last block, path.
fn files_of(
    out: &Path,
    network: &str,
    table: ExportTable,
) -> Result<Vec<(u64, u64, PathBuf)>, ExportFileError> {
    let io = |error| io_error(out, "list the folder", error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(out).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let ends = name
            .strip_prefix(&format!("{network}__{table}__"))
            .and_then(|rest| rest.strip_suffix(".parquet"))
            .and_then(|ends| ends.split_once("_to_"));
        if let Some((Ok(first), Ok(last))) = ends.map(|(one, two)| (one.parse(), two.parse())) {
            found.push((first, last, path));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_as_cryo_names_them() {
        assert_eq!(
            file_name(&network(1), ExportTable::Blocks, 0, 999),
            "ethereum__blocks__00000000_to_00000999.parquet"
        );
        assert_eq!(
            file_name(&network(7331), ExportTable::StorageDiffs, 123_456_789, 123_456_789),
            "network_7331__storage_diffs__123456789_to_123456789.parquet"
        );
    }
}
