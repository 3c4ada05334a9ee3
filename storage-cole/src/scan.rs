//! Keys in order, merged from all sources.

use crate::{
    levels::LsmLevels,
    memory::{self, CompoundKey},
    run::PairCursor,
};
use retrie_state::{BackendKey, StateError, StateValue};

/// The keys with their newest version at or before a block, in key order. Deleted keys are
/// included.
pub(crate) struct KeyScan<'a> {
    sources: Vec<ScanSource<'a>>,
    block: u64,
}

/// A source with its next pair.
struct ScanSource<'a> {
    next: Option<(BackendKey, u64, Option<StateValue>)>,
    rest: SourceCursor<'a>,
}

enum SourceCursor<'a> {
    Memory(memory::GroupIter<'a>),
    Run(Box<PairCursor<'a>>),
}

impl ScanSource<'_> {
    fn advance(&mut self) -> Result<(), StateError> {
        self.next = match &mut self.rest {
            SourceCursor::Memory(entries) => entries.next().map(|(entry, _)| {
                (entry.key(), entry.block(), entry.value().map(StateValue::copy_from_slice))
            }),
            SourceCursor::Run(cursor) => match cursor.next()? {
                None => None,
                Some(pair) => {
                    let bad = || StateError::corrupt("a run of cole", "a pair has no state key");
                    let key = BackendKey::decode(pair.key).ok_or_else(bad)?;
                    Some((key, pair.block, pair.value.map(StateValue::copy_from_slice)))
                }
            },
        };
        Ok(())
    }
}

impl<'a> KeyScan<'a> {
    /// The keys from `start` on, as of `block`.
    pub(crate) fn new(
        levels: &'a LsmLevels,
        start: BackendKey,
        block: u64,
    ) -> Result<Self, StateError> {
        let id: CompoundKey = (start, 0);
        let memory =
            levels.memory().into_iter().map(|group| Ok(SourceCursor::Memory(group.from(&id))));
        let runs = levels.runs().filter(|stored| stored.source().first_block <= block);
        let runs = runs
            .map(|stored| Ok(SourceCursor::Run(Box::new(stored.run.cursor(&start.encode(), 0)?))));
        let mut sources = memory
            .chain(runs)
            .map(|rest: Result<_, StateError>| Ok(ScanSource { next: None, rest: rest? }))
            .collect::<Result<Vec<_>, StateError>>()?;
        sources.iter_mut().try_for_each(ScanSource::advance)?;
        Ok(Self { sources, block })
    }

    /// The next key that was set at or before the block, with the block that set it last, and the
    /// value.
    #[allow(clippy::type_complexity)]
    pub(crate) fn next_key(
        &mut self,
    ) -> Result<Option<(BackendKey, u64, Option<StateValue>)>, StateError> {
        loop {
            let keys = self.sources.iter().filter_map(|source| Some(source.next.as_ref()?.0));
            let Some(key) = keys.min() else { return Ok(None) };
            let mut newest: Option<(BackendKey, u64, Option<StateValue>)> = None;
            for source in &mut self.sources {
                while let Some(pair) = source.next.take_if(|(next, ..)| *next == key) {
                    if pair.1 <= self.block
                        && newest.as_ref().is_none_or(|newest| newest.1 < pair.1)
                    {
                        newest = Some(pair);
                    }
                    source.advance()?;
                }
            }
            if newest.is_some() {
                return Ok(newest);
            }
        }
    }
}
