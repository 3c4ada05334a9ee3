//! Range reads through all levels of a view: layers, the reverse overlay, generations, the store.
//!
//! Each level is a sorted source, read lazily; the newest source that has a key decides, and its
//! deletions hide what lies below.

use super::{
    journal::{DurableRows, Generation},
    overlay::{Layer, RowView},
};
use crate::{Direction, KeyRange, Row, Rows, StateError, Table};
use alloy_primitives::Bytes;
use smallvec::SmallVec;
use std::{cmp::Ordering, ops::Deref};

/// Rows that a range read fetches at first from a level that is not in memory.
const FIRST_BATCH: usize = 16;

/// The rows of `range` in `view`, under the writes of `top`.
pub(crate) fn scan<'a>(
    view: &'a RowView,
    top: Option<&'a Layer>,
    table: Table,
    range: KeyRange<'_>,
    direction: Direction,
) -> Rows<'a> {
    let counters = &view.counters;
    let rows = merge(view, top, table, range, direction, FIRST_BATCH);
    Box::new(rows.inspect(move |row| {
        if let Ok((key, value)) = row {
            counters.read(table, key.len() + value.len());
        }
    }))
}

/// The same, uncounted. `batch` rows are fetched at first; one more than are wanted is best.
pub(crate) fn merge<'a>(
    view: &'a RowView,
    top: Option<&'a Layer>,
    table: Table,
    range: KeyRange<'_>,
    direction: Direction,
    batch: usize,
) -> Merge<'a> {
    let window = || Window::new(table, range, direction, batch);
    let mut merge = Merge { cursors: SmallVec::new(), direction, failed: false };
    if range.end.is_none_or(|end| range.start < end) {
        for layer in top.into_iter().chain(view.layers()) {
            merge.push(Source::Layer(layer.range(table, range, direction)));
        }
        let durable = &*view.durable;
        for generation in durable.generations.iter().rev() {
            merge.push(Source::Generation { generation, seq: durable.seq, window: window() });
        }
        merge.push(Source::Store { durable, window: window() });
    }
    merge
}

/// A key, borrowed where a layer holds it for as long as the read lasts.
enum RowKey<'a> {
    Borrowed(&'a [u8]),
    Owned(Bytes),
}

impl Deref for RowKey<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(key) => key,
            Self::Owned(key) => key,
        }
    }
}

impl RowKey<'_> {
    fn into_bytes(self) -> Bytes {
        match self {
            Self::Borrowed(key) => Bytes::copy_from_slice(key),
            Self::Owned(key) => key,
        }
    }
}

/// A key and what one level says of it; `None` is a deletion.
type Entry<'a> = (RowKey<'a>, Option<Bytes>);

/// Sorted sources, newest first.
pub(crate) struct Merge<'a> {
    cursors: SmallVec<[Cursor<'a>; 8]>,
    direction: Direction,
    failed: bool,
}

struct Cursor<'a> {
    head: Entry<'a>,
    source: Source<'a>,
}

impl<'a> Merge<'a> {
    /// Adds a source that is older than those before it.
    fn push(&mut self, mut source: Source<'a>) {
        if self.failed {
            return;
        }
        match source.next() {
            None => {}
            Some(Ok(head)) => self.cursors.push(Cursor { head, source }),
            Some(Err(error)) => {
                // The first row asked for reports it.
                let error = Source::Failed(Some(error));
                let head = (RowKey::Borrowed(&[]), None);
                self.cursors.clear();
                self.cursors.push(Cursor { head, source: error });
                self.failed = true;
            }
        }
    }

    /// Position of the cursor whose head comes first; the newest of those that agree.
    fn first(&self) -> Option<usize> {
        let mut best = 0;
        for at in 1..self.cursors.len() {
            let mut order = (*self.cursors[at].head.0).cmp(&*self.cursors[best].head.0);
            if self.direction == Direction::Backward {
                order = order.reverse();
            }
            if order == Ordering::Less {
                best = at;
            }
        }
        (!self.cursors.is_empty()).then_some(best)
    }

    /// Moves cursor `at` on; says whether it is exhausted, and then removes it.
    fn advance(&mut self, at: usize) -> Result<(Entry<'a>, bool), StateError> {
        match self.cursors[at].source.next() {
            None => Ok((self.cursors.remove(at).head, true)),
            Some(Ok(next)) => Ok((std::mem::replace(&mut self.cursors[at].head, next), false)),
            Some(Err(error)) => Err(error),
        }
    }

    fn step(&mut self) -> Result<Option<Row>, StateError> {
        loop {
            let Some(first) = self.first() else { return Ok(None) };
            let ((key, value), gone) = self.advance(first)?;
            let mut older = if gone { first } else { first + 1 };
            while older < self.cursors.len() {
                let hidden = *self.cursors[older].head.0 == *key;
                if !(hidden && self.advance(older)?.1) {
                    older += 1;
                }
            }
            if let Some(value) = value {
                return Ok(Some((key.into_bytes(), value)));
            }
        }
    }
}

impl Iterator for Merge<'_> {
    type Item = Result<Row, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.step();
        if row.is_err() {
            self.cursors.clear();
        }
        row.transpose()
    }
}

/// One level of a view.
enum Source<'a> {
    Layer(Box<dyn Iterator<Item = (&'a [u8], Option<Bytes>)> + 'a>),
    Generation { generation: &'a Generation, seq: u64, window: Window },
    Store { durable: &'a DurableRows, window: Window },
    Failed(Option<StateError>),
}

impl<'a> Source<'a> {
    fn next(&mut self) -> Option<Result<Entry<'a>, StateError>> {
        match self {
            Self::Layer(rows) => rows.next().map(|(key, row)| Ok((RowKey::Borrowed(key), row))),
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

/// Rows of a batch, and the last key it covers if there may be more beyond.
pub(crate) type Batch = (Vec<(Bytes, Option<Bytes>)>, Option<Bytes>);

/// What remains of a range, fetched in growing batches.
struct Window {
    table: Table,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    direction: Direction,
    batch: std::vec::IntoIter<(Bytes, Option<Bytes>)>,
    limit: usize,
    done: bool,
}

impl Window {
    fn new(table: Table, range: KeyRange<'_>, direction: Direction, batch: usize) -> Self {
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
        mut fetch: impl FnMut(&Self, usize) -> Result<Batch, StateError>,
    ) -> Option<Result<Entry<'a>, StateError>> {
        loop {
            if let Some((key, row)) = self.batch.next() {
                return Some(Ok((RowKey::Owned(key), row)));
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
                (Some(last), Direction::Forward) => {
                    self.start = [&last[..], &[0]].concat();
                    self.done = self.end.as_ref().is_some_and(|end| *end <= self.start);
                }
                (Some(last), Direction::Backward) => {
                    self.done = last[..] <= self.start[..];
                    self.end = Some(last.to_vec());
                }
            }
            self.batch = rows.into_iter();
        }
    }
}
