//! Old states: which ones are kept, opening them, and listing their keys.

use super::{
    Prefix, garbage,
    record::{BLOCKS, DELETED_KEYS, GarbageProgress, block_key, block_number, decode_block},
    state::{PrefixReader, PrefixState},
};
use alloy_primitives::B256;
use retrie_state::{
    AnyCache, BackendKey, KeyRange, NodeRead, ScanDirection, StateError, StateHistory, StateValue,
    flat,
};
use retrie_storage_mpt::ethereum::TrieCache;
use std::{iter::Peekable, ops::RangeInclusive};

impl StateHistory for Prefix {
    fn kept(&self, view: &dyn NodeRead) -> Result<Option<RangeInclusive<u64>>, StateError> {
        let first = garbage::first_kept(view, &GarbageProgress::read(view)?)?;
        let last = view.scan(BLOCKS, KeyRange::ALL, ScanDirection::Backward)?.next().transpose()?;
        let last = last.map(|(key, _)| block_number(BLOCKS, &key)).transpose()?;
        Ok(first.zip(last).map(|(first, last)| first..=last))
    }

    fn prunes(&self) -> bool {
        self.keep.is_some()
    }

    fn open_at(
        &self,
        view: &dyn NodeRead,
        _: &AnyCache,
        number: u64,
    ) -> Result<(B256, AnyCache), StateError> {
        let row = view.get(BLOCKS, &block_key(number))?.ok_or_else(|| {
            StateError::corrupt(BLOCKS.name, format!("the row of block {number} is missing"))
        })?;
        let (root, accounts) = decode_block(number, &row)?;
        let tries = TrieCache::new(accounts, self.room.clone());
        let state = PrefixState { block: number, is_old: true, tries };
        Ok((root, AnyCache::new(state)))
    }
}

type KeyResult = Result<BackendKey, StateError>;

/// Merges the keys of a range that have a value now (in the flat state) and the deleted keys (which
/// may have a value in a kept old state), in key order.
pub(super) struct MergedKeys<I: Iterator<Item = KeyResult>, J: Iterator<Item = KeyResult>> {
    flat: Peekable<I>,
    gone: Peekable<J>,
}

impl<I: Iterator<Item = KeyResult>, J: Iterator<Item = KeyResult>> Iterator for MergedKeys<I, J> {
    type Item = KeyResult;

    fn next(&mut self) -> Option<KeyResult> {
        let (Some(Ok(flat)), Some(Ok(gone))) = (self.flat.peek(), self.gone.peek()) else {
            // One iterator has ended, or returns an error.
            return match self.gone.peek() {
                None => self.flat.next(),
                Some(Err(_)) => self.gone.next(),
                Some(Ok(_)) => self.flat.next().or_else(|| self.gone.next()),
            };
        };
        match flat.cmp(gone) {
            std::cmp::Ordering::Less => self.flat.next(),
            std::cmp::Ordering::Greater => self.gone.next(),
            // The key was deleted and set again.
            std::cmp::Ordering::Equal => {
                self.gone.next();
                self.flat.next()
            }
        }
    }
}

/// The entries of `range` in an old state, in key order.
pub(super) fn entries<'a>(
    view: &'a dyn NodeRead,
    mut reader: PrefixReader<'a>,
    range: KeyRange<'_>,
) -> Result<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>> + 'a, StateError> {
    let keys = |table: retrie_state::RowTable| {
        let rows = view.scan(table, range, ScanDirection::Forward)?;
        Ok::<_, StateError>(rows.map(move |row| {
            let (key, _) = row?;
            BackendKey::decode(&key).ok_or_else(|| {
                StateError::corrupt(table.name, format!("row {key} is not a state key"))
            })
        }))
    };
    let keys =
        MergedKeys { flat: keys(flat::TABLE)?.peekable(), gone: keys(DELETED_KEYS)?.peekable() };
    Ok(keys.filter_map(move |key| {
        let entry = key.and_then(|key| Ok(reader.get(&key)?.map(|value| (key, value))));
        entry.transpose()
    }))
}
