//! Range reads through all levels of a view: diff layers, undo layers, generations, the store.
//!
//! Each level is a sorted source, read lazily. The newest source that has a key decides its value,
//! and a deletion there hides the older levels.

use super::{
    generation::{DurableRows, RowGeneration},
    overlay::{DiffLayer, RowView},
    undo::{PatchChain, UndoValue},
};
use alloy_primitives::Bytes;
use retrie_state::{KeyRange, RowScan, RowTable, ScanDirection, StateError, TableRow};
use smallvec::SmallVec;
use std::{cmp::Ordering, ops::Deref};

/// Rows of the first batch that a range read fetches from a generation or from the store.
const FIRST_BATCH: usize = 16;

/// The rows of `range` in `view` with the writes of `top` on top.
pub(crate) fn scan<'a>(
    view: &'a RowView,
    top: Option<&'a DiffLayer>,
    table: RowTable,
    range: KeyRange<'_>,
    direction: ScanDirection,
) -> RowScan<'a> {
    let counters = &view.counters;
    let rows = merge(view, top, table, range, direction, FIRST_BATCH);
    Box::new(rows.inspect(move |row| {
        if let Ok((key, value)) = row {
            counters.scan(table, key.len() + value.len());
        }
    }))
}

/// The same, uncounted. The first batch has `batch` rows; the best value is one more than the
/// caller wants.
pub(crate) fn merge<'a>(
    view: &'a RowView,
    top: Option<&'a DiffLayer>,
    table: RowTable,
    range: KeyRange<'_>,
    direction: ScanDirection,
    batch: usize,
) -> MergedScan<'a> {
    let window = || ScanWindow::new(table, range, direction, batch);
    let mut merge = MergedScan { cursors: SmallVec::new(), table, direction, failed: false };
    if range.end.is_none_or(|end| range.start < end) {
        for layer in top.into_iter().chain(view.proposals()) {
            merge.push(ScanSource::Layer(Box::new(layer.range(table, range, direction))));
        }
        for layer in &view.reverse {
            merge.push(ScanSource::Undo(layer.range(table, range, direction)));
        }
        let durable = &*view.durable;
        for generation in durable.generations.iter().rev() {
            merge.push(ScanSource::Generation { generation, seq: durable.seq, window: window() });
        }
        merge.push(ScanSource::Store { durable, window: window() });
    }
    merge
}

/// A key, borrowed if a layer holds it for as long as the read lasts.
enum ScanKey<'a> {
    Borrowed(&'a [u8]),
    Owned(Bytes),
}

impl Deref for ScanKey<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(key) => key,
            Self::Owned(key) => key,
        }
    }
}

impl ScanKey<'_> {
    fn into_bytes(self) -> Bytes {
        match self {
            Self::Borrowed(key) => Bytes::copy_from_slice(key),
            Self::Owned(key) => key,
        }
    }
}

/// A key and what one level says of it.
type ScanEntry<'a> = (ScanKey<'a>, ScanValue<'a>);

/// What one level says of a row.
enum ScanValue<'a> {
    /// Its value; `None` is a deletion.
    Whole(Option<Bytes>),
    /// Patches of the value in the levels below.
    Patches(&'a [Bytes]),
}

/// Sorted sources, newest first.
pub(crate) struct MergedScan<'a> {
    cursors: SmallVec<[ScanCursor<'a>; 8]>,
    table: RowTable,
    direction: ScanDirection,
    failed: bool,
}

struct ScanCursor<'a> {
    head: ScanEntry<'a>,
    source: ScanSource<'a>,
}

/// What the levels say of one row, from the newest that has it on.
#[derive(Default)]
struct RowChain<'a> {
    patches: PatchChain<'a>,
    /// The newest whole value; older ones are hidden.
    base: Option<Option<Bytes>>,
}

impl<'a> RowChain<'a> {
    fn add_older(&mut self, value: ScanValue<'a>) {
        match (value, &self.base) {
            (_, Some(_)) => {}
            (ScanValue::Whole(value), None) => self.base = Some(value),
            (ScanValue::Patches(patches), None) => self.patches.push_newer(patches),
        }
    }

    fn value(self, table: RowTable) -> Result<Option<Bytes>, StateError> {
        self.patches.applied(table, self.base.flatten())
    }
}

impl<'a> MergedScan<'a> {
    /// Adds a source that is older than all sources so far.
    fn push(&mut self, mut source: ScanSource<'a>) {
        if self.failed {
            return;
        }
        match source.next() {
            None => {}
            Some(Ok(head)) => self.cursors.push(ScanCursor { head, source }),
            Some(Err(error)) => {
                // The first row that the caller reads returns the error.
                let error = ScanSource::Failed(Some(error));
                let head = (ScanKey::Borrowed(&[]), ScanValue::Whole(None));
                self.cursors.clear();
                self.cursors.push(ScanCursor { head, source: error });
                self.failed = true;
            }
        }
    }

    /// Index of the cursor whose head comes first; the newest if several have the same key.
    fn first(&self) -> Option<usize> {
        let mut best = 0;
        for at in 1..self.cursors.len() {
            let mut order = (*self.cursors[at].head.0).cmp(&*self.cursors[best].head.0);
            if self.direction == ScanDirection::Backward {
                order = order.reverse();
            }
            if order == Ordering::Less {
                best = at;
            }
        }
        (!self.cursors.is_empty()).then_some(best)
    }

    /// Advances cursor `at`. Returns the old head, and whether the cursor was exhausted and
    /// removed.
    fn advance(&mut self, at: usize) -> Result<(ScanEntry<'a>, bool), StateError> {
        match self.cursors[at].source.next() {
            None => Ok((self.cursors.remove(at).head, true)),
            Some(Ok(next)) => Ok((std::mem::replace(&mut self.cursors[at].head, next), false)),
            Some(Err(error)) => Err(error),
        }
    }

    fn step(&mut self) -> Result<Option<TableRow>, StateError> {
        loop {
            let Some(first) = self.first() else { return Ok(None) };
            let ((key, value), gone) = self.advance(first)?;
            let mut row = RowChain::default();
            row.add_older(value);
            let mut older = if gone { first } else { first + 1 };
            while older < self.cursors.len() {
                if *self.cursors[older].head.0 != *key {
                    older += 1;
                    continue;
                }
                let ((_, value), gone) = self.advance(older)?;
                row.add_older(value);
                older += usize::from(!gone);
            }
            if let Some(value) = row.value(self.table)? {
                return Ok(Some((key.into_bytes(), value)));
            }
        }
    }
}

impl Iterator for MergedScan<'_> {
    type Item = Result<TableRow, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.step();
        if row.is_err() {
            self.cursors.clear();
        }
        row.transpose()
    }
}

/// One level of a view.
enum ScanSource<'a> {
    Layer(Box<dyn Iterator<Item = (&'a [u8], Option<Bytes>)> + 'a>),
    Undo(Box<dyn Iterator<Item = (&'a [u8], &'a UndoValue)> + 'a>),
    Generation { generation: &'a RowGeneration, seq: u64, window: ScanWindow },
    Store { durable: &'a DurableRows, window: ScanWindow },
    Failed(Option<StateError>),
}

impl<'a> ScanSource<'a> {
    fn next(&mut self) -> Option<Result<ScanEntry<'a>, StateError>> {
        match self {
            Self::Layer(rows) => {
                rows.next().map(|(key, row)| Ok((ScanKey::Borrowed(key), ScanValue::Whole(row))))
            }
            Self::Undo(rows) => rows.next().map(|(key, value)| {
                let value = match value {
                    UndoValue::Whole(value) => ScanValue::Whole(value.clone()),
                    UndoValue::Patches(patches) => ScanValue::Patches(patches),
                };
                Ok((ScanKey::Borrowed(key), value))
            }),
            Self::Generation { generation, seq, window } => window.next(|window, limit| {
                Ok(generation.batch(window.table, window.range(), window.direction, *seq, limit))
            }),
            Self::Store { durable, window } => window.next(|window, limit| {
                let (range, direction) = (window.range(), window.direction);
                let rows = durable.snapshot.scan(window.table, range, direction, limit)?;
                let last = match rows.last() {
                    Some((last, _)) if rows.len() >= limit => Some(last.clone()),
                    _ => None,
                };
                Ok((rows.into_iter().map(|(key, value)| (key, Some(value))).collect(), last))
            }),
            Self::Failed(error) => error.take().map(Err),
        }
    }
}

/// Rows of a batch, and the last key it covers if there may be more rows after it.
pub(crate) type ScanBatch = (Vec<(Bytes, Option<Bytes>)>, Option<Bytes>);

/// The rest of a range, fetched in growing batches.
struct ScanWindow {
    table: RowTable,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    direction: ScanDirection,
    batch: std::vec::IntoIter<(Bytes, Option<Bytes>)>,
    limit: usize,
    done: bool,
}

impl ScanWindow {
    fn new(table: RowTable, range: KeyRange<'_>, direction: ScanDirection, batch: usize) -> Self {
        Self {
            table,
            start: range.start.to_vec(),
            end: range.end.map(<[u8]>::to_vec),
            direction,
            batch: Vec::new().into_iter(),
            limit: batch,
            done: false,
        }
    }

    fn range(&self) -> KeyRange<'_> {
        KeyRange { start: &self.start, end: self.end.as_deref() }
    }

    fn next<'a>(
        &mut self,
        mut fetch: impl FnMut(&Self, usize) -> Result<ScanBatch, StateError>,
    ) -> Option<Result<ScanEntry<'a>, StateError>> {
        loop {
            if let Some((key, row)) = self.batch.next() {
                return Some(Ok((ScanKey::Owned(key), ScanValue::Whole(row))));
            }
            if self.done {
                return None;
            }
            let (rows, last) = match fetch(self, self.limit) {
                Ok(batch) => batch,
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            };
            self.limit = (self.limit * 4).min(1024);
            match (last, self.direction) {
                (None, _) => self.done = true,
                // The next key after `last` is `last` with a zero byte.
                (Some(last), ScanDirection::Forward) => {
                    self.start = [&last[..], &[0]].concat();
                    self.done = self.end.as_ref().is_some_and(|end| *end <= self.start);
                }
                (Some(last), ScanDirection::Backward) => {
                    self.done = last[..] <= self.start[..];
                    self.end = Some(last.to_vec());
                }
            }
            self.batch = rows.into_iter();
        }
    }
}
