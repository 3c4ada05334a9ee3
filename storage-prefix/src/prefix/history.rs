//! Old states: which are kept, how they are opened, and how their keys are listed.

use super::{
    Prefix, prune,
    row::{BLOCKS, Forgotten, GONE, block_key, block_number, decode_block},
    state::{Reader, State},
};
use alloy_primitives::B256;
use retrie_state::{Direction, History, KeyRange, NodeRead, StateError, StateKey, Value, flat};
use retrie_storage_mpt::ethereum::Upper;
use std::{iter::Peekable, ops::RangeInclusive, sync::Arc};

impl History<State> for Prefix {
    fn kept(&self, view: &dyn NodeRead) -> Result<Option<RangeInclusive<u64>>, StateError> {
        let first = prune::first_kept(view, &Forgotten::read(view)?)?;
        let last = view.scan(BLOCKS, KeyRange::ALL, Direction::Backward)?.next().transpose()?;
        let last = last.map(|(key, _)| block_number(BLOCKS, &key)).transpose()?;
        Ok(first.zip(last).map(|(first, last)| first..=last))
    }

    fn prunes(&self) -> bool {
        self.keep.is_some()
    }

    fn open_at(
        &self,
        view: &dyn NodeRead,
        _: &State,
        number: u64,
    ) -> Result<(B256, Arc<State>), StateError> {
        let row = view.get(BLOCKS, &block_key(number))?.ok_or_else(|| {
            StateError::corrupt(BLOCKS.name, format!("the row of block {number} is missing"))
        })?;
        let (root, accounts) = decode_block(number, &row)?;
        let state = State { block: number, is_old: true, tries: Upper::new(accounts) };
        Ok((root, Arc::new(state)))
    }
}

type Key = Result<StateKey, StateError>;

/// The keys of a range that have a value now, or have one in an old state that is kept, in key order:
/// those of Flat and those that are gone.
pub(super) struct Keys<I: Iterator<Item = Key>, J: Iterator<Item = Key>> {
    flat: Peekable<I>,
    gone: Peekable<J>,
}

impl<I: Iterator<Item = Key>, J: Iterator<Item = Key>> Iterator for Keys<I, J> {
    type Item = Key;

    fn next(&mut self) -> Option<Key> {
        let (Some(Ok(flat)), Some(Ok(gone))) = (self.flat.peek(), self.gone.peek()) else {
            // One of them has ended, or cannot be read.
            return match self.gone.peek() {
                None => self.flat.next(),
                Some(Err(_)) => self.gone.next(),
                Some(Ok(_)) => self.flat.next().or_else(|| self.gone.next()),
            };
        };
        match flat.cmp(gone) {
            std::cmp::Ordering::Less => self.flat.next(),
            std::cmp::Ordering::Greater => self.gone.next(),
            // It was deleted once, and set again.
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
    mut reader: Reader<'a>,
    range: KeyRange<'_>,
) -> Result<impl Iterator<Item = Result<(StateKey, Value), StateError>> + 'a, StateError> {
    let keys = |table: retrie_state::Table| {
        let rows = view.scan(table, range, Direction::Forward)?;
        Ok::<_, StateError>(rows.map(move |row| {
            let (key, _) = row?;
            StateKey::decode(&key).ok_or_else(|| {
                StateError::corrupt(table.name, format!("row {key} is not a state key"))
            })
        }))
    };
    let keys = Keys { flat: keys(flat::TABLE)?.peekable(), gone: keys(GONE)?.peekable() };
    Ok(keys.filter_map(move |key| {
        let entry = key.and_then(|key| Ok(reader.get(&key)?.map(|value| (key, value))));
        entry.transpose()
    }))
}
