//! The fold of a frozen generation into the tables, and how far folds came.

use super::{
    generation::RowGeneration,
    journal::JOURNAL,
    layer::RowKey,
    record::{delete_records, record_id},
    state::{FOLDED, FOLDING, META},
};
use crate::{KvRead, KvStore, KvTxn, KvWrite};
use retrie_state::{
    RowTable, ScanDirection, StateError, StoreError,
    wire::{WireError, WireReader, put_varint},
};
use std::time::{Duration, Instant};

/// The rows that unfinished folds have written: the row `folding` of [`META`].
///
/// A fold writes in the order of tables and keys, and each of its slices notes the last row. After a
/// crash the journal still has all commits of the generation, and the next fold begins again with a
/// larger one. So there may be several spans; the commits of each are a prefix of the next one's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoldProgress(Vec<FoldSpan>);

/// All rows up to `key` of the table with the id `table` are in the tables as commit `last` left
/// them, or newer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoldSpan {
    last: u64,
    table: u8,
    key: RowKey,
}

impl FoldProgress {
    pub(crate) fn read(kv: &dyn KvRead) -> Result<Self, StateError> {
        let Some(row) = kv.get(META, FOLDING)? else { return Ok(Self::default()) };
        Self::decode(&row).map_err(|error| {
            StateError::corrupt(META.name, format!("the row `folding` does not decode: {error}"))
        })
    }

    /// For each span: commit (8, BE), id of the table (1), length of the key (varint), key.
    fn encode(&self) -> Vec<u8> {
        let mut row = Vec::new();
        for FoldSpan { last, table, key } in &self.0 {
            row.extend_from_slice(&last.to_be_bytes());
            row.push(*table);
            put_varint(&mut row, key.len() as u64);
            row.extend_from_slice(key);
        }
        row
    }

    fn decode(row: &[u8]) -> Result<Self, WireError> {
        let mut rest = WireReader::new(row);
        let mut spans = Vec::new();
        while !rest.is_empty() {
            let (last, table) = (rest.u64()?, rest.u8()?);
            let len = rest.count(1)?;
            spans.push(FoldSpan { last, table, key: RowKey::from_slice(rest.take(len)?) });
        }
        Ok(Self(spans))
    }

    /// Whether the tables have the row of `table` at `key` as commit `seq` left it, or newer.
    pub(crate) fn covers(&self, seq: u64, table: RowTable, key: &[u8]) -> bool {
        self.0.iter().any(|span| seq <= span.last && (table.id, key) <= (span.table, &span.key[..]))
    }

    /// Notes that a fold of commits up to `last` has written all rows up to this one. A fold that
    /// is tried again never takes back what the first attempt has noted.
    fn advance(&mut self, last: u64, table: RowTable, key: &[u8]) {
        match self.0.iter_mut().find(|span| span.last == last) {
            Some(span) if (span.table, &span.key[..]) >= (table.id, key) => {}
            Some(span) => (span.table, span.key) = (table.id, RowKey::from_slice(key)),
            None => {
                self.0.push(FoldSpan { last, table: table.id, key: RowKey::from_slice(key) });
            }
        }
    }

    /// Notes that all commits up to `folded` are in the tables.
    fn finish(&mut self, folded: u64) {
        self.0.retain(|span| span.last > folded);
    }

    fn write(&self, txn: &mut dyn KvWrite) -> Result<(), StoreError> {
        if self.0.is_empty() {
            return txn.delete(META, FOLDING).map(drop);
        }
        txn.put(META, FOLDING, &self.encode())
    }
}

/// How long one slice of a fold may hold the write transaction.
const SLICE: Duration = Duration::from_millis(8);
/// The same if a commit waits for the transaction.
const SHORT_SLICE: Duration = Duration::from_millis(1);

/// A write transaction that is committed and opened again for each slice.
struct SlicedTxn<'a, P> {
    kv: &'a dyn KvStore,
    txn: Box<dyn KvTxn + 'a>,
    opened: Instant,
    /// How long a slice may hold the transaction.
    slice: Duration,
    /// Called between two slices.
    pause: P,
}

impl<'a, P: Fn()> SlicedTxn<'a, P> {
    fn begin(kv: &'a dyn KvStore, slice: Duration, pause: P) -> Result<Self, StoreError> {
        Ok(Self { kv, txn: kv.begin_write()?, opened: Instant::now(), slice, pause })
    }

    /// Whether it has been open long enough.
    fn is_due(&self) -> bool {
        let limit = if self.txn.is_awaited() { self.slice.min(SHORT_SLICE) } else { self.slice };
        self.opened.elapsed() > limit
    }

    fn next(mut self) -> Result<Self, StoreError> {
        self.txn.commit()?;
        (self.pause)();
        self.txn = self.kv.begin_write()?;
        self.opened = Instant::now();
        Ok(self)
    }
}

/// Writes a frozen generation into the tables in slices, then deletes its journal records, oldest
/// first. Returns the number of rows.
pub(crate) fn fold(
    kv: &dyn KvStore,
    generation: &RowGeneration,
    pause: impl Fn(),
) -> Result<usize, StateError> {
    fold_in_slices(kv, generation, 16, SLICE, pause)
}

/// The same with slices of at least `rows` rows that end after `slice`.
pub(super) fn fold_in_slices(
    kv: &dyn KvStore,
    generation: &RowGeneration,
    rows_at_once: usize,
    slice: Duration,
    pause: impl Fn(),
) -> Result<usize, StateError> {
    let last = generation.last_seq();
    let mut progress = FoldProgress::read(&*kv.snapshot()?)?;
    let mut folded = 0;
    for table in generation.tables() {
        // Sorting takes long, so no transaction is open: a commit must not wait for it.
        let rows = generation.final_rows(table);
        let Some((last_key, _)) = rows.last() else { continue };
        let last_key = last_key.clone();
        let mut slices = SlicedTxn::begin(kv, slice, &pause)?;
        for (n, (key, value)) in rows.into_iter().enumerate() {
            match value {
                Some(value) => slices.txn.put(table, &key, &value)?,
                None => drop(slices.txn.delete(table, &key)?),
            }
            folded += 1;
            if (n + 1) % rows_at_once == 0 && slices.is_due() {
                progress.advance(last, table, &key);
                progress.write(&mut *slices.txn)?;
                slices = slices.next()?;
            }
        }
        progress.advance(last, table, &last_key);
        progress.write(&mut *slices.txn)?;
        slices.txn.commit()?;
    }
    let mut slices = SlicedTxn::begin(kv, slice, &pause)?;
    while retire(&mut *slices.txn, last, &mut progress)? {
        if slices.is_due() {
            slices = slices.next()?;
        }
    }
    slices.txn.commit()?;
    Ok(folded)
}

/// Deletes the oldest journal record, which belongs to the folded commits up to `last`, and moves
/// the row `folded`; returns whether more are left.
fn retire(
    txn: &mut dyn KvWrite,
    last: u64,
    progress: &mut FoldProgress,
) -> Result<bool, StoreError> {
    let first = txn.seek(JOURNAL, Some(&[]), ScanDirection::Forward)?;
    let first = first.and_then(|(key, _)| record_id(JOURNAL, &key).ok());
    let first = first.unwrap_or(last).min(last);
    delete_records(txn, JOURNAL, first, first + 1)?;
    txn.put(META, FOLDED, &first.to_be_bytes())?;
    if first == last {
        progress.finish(last);
        progress.write(txn)?;
    }
    Ok(first < last)
}
