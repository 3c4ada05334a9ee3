//! Sizes, for `retrie db stats` and for comparing backends.

use crate::{
    ChainRead, DatabaseEnv, ReadError, ReadTxn, Result, StorageError,
    raw::{RawRead, TableHandle},
    tables::ChainTable,
};
use mdbx::Database;
use serde::Serialize;
use std::path::PathBuf;

/// Size of a table in one snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableStats {
    /// Name on disk.
    pub name: String,
    /// Number of rows.
    pub rows: u64,
    /// Levels of the B-tree.
    pub depth: u32,
    /// Inner pages.
    pub branch_pages: u64,
    /// Pages that hold rows.
    pub leaf_pages: u64,
    /// Pages of values too long for a leaf.
    pub overflow_pages: u64,
    /// All these pages, in bytes.
    pub bytes: u64,
}

/// Size of a datadir's database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DbStats {
    /// The datadir.
    pub datadir: PathBuf,
    /// Bytes per page.
    pub page_size: u64,
    /// Length of the data file in bytes. It may be sparse.
    pub file_bytes: u64,
    /// Limit of the file's length in bytes, as opened.
    pub limit_bytes: u64,
    /// Pages that have ever been used.
    pub allocated_pages: u64,
    /// Pages among them that are free for reuse.
    pub free_pages: u64,
    /// Bytes of all pages in use: tables, and MDBX's own.
    pub used_bytes: u64,
    /// Reader slots that have been used.
    pub readers: u64,
    /// Number of the highest canonical block.
    pub tip: Option<u64>,
    /// Every table; the chain's tables first.
    pub tables: Vec<TableStats>,
}

impl DatabaseEnv {
    /// Measures the database. It takes longer the more free pages there are.
    pub fn stats(&self) -> Result<DbStats, ReadError> {
        let inner = &self.inner;
        let failed = |e| inner.error("reading statistics", e);
        let page_size = inner.page_size as u64;
        let free_pages = inner.env.freelist().map_err(|e| match e {
            mdbx::ReadError::Mdbx(e) => failed(e),
            mdbx::ReadError::Decoding(_) => failed(mdbx::MdbxError::Corrupted),
        })? as u64;
        let snapshot = self.begin_read()?;
        let info = inner.env.info().map_err(failed)?;
        let allocated_pages = info.last_pgno() as u64 + 1;
        let mut tables = Vec::new();
        for table in ChainTable::ALL {
            tables.push(table_stats(&snapshot, table.name(), inner.tables.chain(table).db)?);
        }
        let mut state = inner.tables.all_state();
        state.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, db) in state {
            tables.push(table_stats(&snapshot, &name, Some(db))?);
        }
        let file_bytes = std::fs::metadata(&inner.file)
            .map_err(|e| StorageError::io("measuring", &inner.file, e))?
            .len();
        Ok(DbStats {
            datadir: self.datadir().to_owned(),
            page_size,
            file_bytes,
            limit_bytes: info.map_size() as u64,
            allocated_pages,
            free_pages,
            used_bytes: allocated_pages.saturating_sub(free_pages) * page_size,
            readers: info.num_readers() as u64,
            tip: snapshot.tip()?.map(|tip| tip.number),
            tables,
        })
    }
}

impl ReadTxn {
    /// Bytes of the pages of all state tables.
    pub(crate) fn state_bytes(&self) -> Result<u64, ReadError> {
        let mut bytes = 0;
        for (name, db) in self.inner().tables.all_state() {
            bytes += table_stats(self, &name, Some(db))?.bytes;
        }
        Ok(bytes)
    }
}

fn table_stats(
    snapshot: &ReadTxn,
    name: &str,
    db: Option<Database>,
) -> Result<TableStats, ReadError> {
    // A table younger than the snapshot has no statistics, and is empty in it.
    let stat = snapshot.raw_stat(TableHandle::new("statistics", name, db))?;
    let pages = |pages: fn(&mdbx::Stat) -> usize| stat.as_ref().map_or(0, |s| pages(s) as u64);
    let (branch_pages, leaf_pages, overflow_pages) = (
        pages(mdbx::Stat::branch_pages),
        pages(mdbx::Stat::leaf_pages),
        pages(mdbx::Stat::overflow_pages),
    );
    Ok(TableStats {
        name: name.to_owned(),
        rows: pages(mdbx::Stat::entries),
        depth: stat.as_ref().map_or(0, mdbx::Stat::depth),
        branch_pages,
        leaf_pages,
        overflow_pages,
        bytes: (branch_pages + leaf_pages + overflow_pages) * snapshot.inner().page_size as u64,
    })
}
