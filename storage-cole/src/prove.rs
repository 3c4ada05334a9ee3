//! Making proofs: the versions of keys in a range of blocks (Algorithm 8), for many keys at once.
//!
//! The parts of a proof: `docs/formats/cole.md`. Latest and old values are proven as ranges of one
//! block.

use crate::{
    filter, hash,
    levels::{LsmLevels, StoredRun},
    memory::{CompoundKey, MemoryGroup, MemoryPair},
    run::{Run, ShownKey},
    shown_tree::ShownNode,
    wire::{self, ColeProof, FilterProof, SourceProof},
};
use alloy_primitives::Bytes;
use retrie_state::{BackendKey, StateError, StateValue, ValueVersion};
use std::ops::{Range, RangeInclusive};

/// The versions of each of `keys` in `blocks`, and their proof.
pub(crate) fn prove(
    levels: &LsmLevels,
    keys: &[BackendKey],
    blocks: RangeInclusive<u64>,
) -> Result<(Vec<Vec<ValueVersion>>, Bytes), StateError> {
    let (number, first) = (*blocks.start(), levels.horizon);
    if number < first {
        return Err(StateError::BeyondHistory { number, first });
    }
    let mut search = ProofSearch::new(keys, number, *blocks.end());
    let memory = levels.memory().map(|group| search.group(group));
    let mut on_disk = Vec::new();
    let used = levels.disk.iter().rposition(|level| !level.is_empty()).map_or(0, |last| last + 1);
    for level in &levels.disk[..used] {
        let mut group = |runs: &[std::sync::Arc<StoredRun>]| -> Result<Vec<_>, StateError> {
            runs.iter().map(|stored| search.run(stored)).collect()
        };
        on_disk.push((group(&level.writing)?, group(&level.merging)?));
    }
    let proof = ColeProof { horizon: levels.root_horizon, memory, levels: on_disk };
    Ok((search.answers(keys), proof.encode(&wire::AskedKeys::new(keys)).into()))
}

struct KeyQuery {
    key: BackendKey,
    /// Newest first.
    versions: Vec<ValueVersion>,
    is_open: bool,
}

struct ProofSearch {
    /// Distinct, in key order.
    asked: Vec<KeyQuery>,
    from: u64,
    to: u64,
}

impl ProofSearch {
    fn new(keys: &[BackendKey], from: u64, to: u64) -> Self {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        let asked = |key| KeyQuery { key, versions: Vec::new(), is_open: true };
        Self { asked: keys.into_iter().map(asked).collect(), from, to }
    }

    fn answers(&self, keys: &[BackendKey]) -> Vec<Vec<ValueVersion>> {
        let answer = |key: &BackendKey| {
            let at = self.asked.binary_search_by_key(key, |asked| asked.key);
            at.map_or_else(|_| Vec::new(), |at| self.asked[at].versions.clone())
        };
        keys.iter().map(answer).collect()
    }

    fn is_any_open(&self) -> bool {
        self.asked.iter().any(|asked| asked.is_open)
    }

    fn group<'a>(&mut self, group: &'a MemoryGroup) -> SourceProof {
        if !self.is_any_open() {
            return SourceProof::Closed(group.digest());
        }
        let Some(source) = group.source() else { return SourceProof::Empty };
        if source.first_block > self.to {
            return SourceProof::Young(source);
        }
        let mut wanted: Vec<(CompoundKey, CompoundKey)> = Vec::new();
        for asked in self.asked.iter_mut().filter(|asked| asked.is_open) {
            let start = (asked.key, self.from);
            let pair = |entry: &'a MemoryPair| (entry.key(), entry.block(), entry.value());
            let below = group.floor(&start).map(pair);
            let above = group.from(&start);
            let above = above.map(|(entry, _)| pair(entry));
            wanted.extend(asked.take(below, above, self.from, self.to));
        }
        let tree = group.show(&wanted).unwrap_or(ShownNode::Hidden(source.top));
        SourceProof::Searched { source, excluded: Vec::new(), filter: FilterProof::None, tree }
    }

    fn run(&mut self, stored: &StoredRun) -> Result<SourceProof, StateError> {
        if !self.is_any_open() {
            return Ok(SourceProof::Closed(stored.digest));
        }
        let source = *stored.source();
        if source.first_block > self.to {
            return Ok(SourceProof::Young(source));
        }
        let (mut excluded, mut filter_blocks) = (Vec::new(), Vec::new());
        let (mut wanted, mut keys) = (Vec::new(), Vec::new());
        for asked in self.asked.iter_mut().filter(|asked| asked.is_open) {
            let encoded = asked.key.encode();
            let filter_key = hash::filter_key(&encoded);
            let is_excluded = !stored.run.may_hold(filter_key)?;
            excluded.push(is_excluded);
            if is_excluded {
                filter_blocks.push(filter::block_of(filter_key.0, source.filter_blocks));
                continue;
            }
            let (around, own) = asked.take_run(&stored.run, self.from, self.to)?;
            if !stored.run.has_trees() {
                wanted.push(around);
            } else if own.is_empty() {
                keys.extend(around.map(|position| ShownKey { position, pairs: 0..0 }));
            } else {
                keys.push(ShownKey { position: own.start, pairs: own });
            }
        }
        filter_blocks.sort_unstable();
        filter_blocks.dedup();
        let filter = match filter_blocks.is_empty() {
            true => FilterProof::Top(source.filter_top),
            false => {
                let (blocks, hashes) = stored.run.show_filter(&filter_blocks)?;
                FilterProof::Blocks { blocks, hashes }
            }
        };
        let tree = match (wanted.is_empty(), keys.is_empty()) {
            (true, true) => ShownNode::Hidden(source.top),
            (false, _) => stored.run.show(&joined(wanted))?,
            (true, false) => stored.run.show_keys(&keys)?,
        };
        Ok(SourceProof::Searched { source, excluded, filter, tree })
    }
}

impl KeyQuery {
    /// Takes over the versions that a run has of this key. Returns the positions of the pairs from the
    /// last one at or before (key, `from`) to the first one after (key, `to`), and of those of this key
    /// among them.
    fn take_run(
        &mut self,
        run: &Run,
        from: u64,
        to: u64,
    ) -> Result<(Range<u64>, Range<u64>), StateError> {
        let encoded = self.key.encode();
        let below = run.floor(&encoded, from)?;
        let mut around = below.as_ref().map_or(0..0, |(position, _)| *position..*position + 1);
        let mut own = 0..0;
        if let Some((_, pair)) = &below
            && pair.key[..] == encoded[..]
        {
            self.is_open = false;
            own = around.clone();
        }
        let mut found = Vec::new();
        let mut cursor = run.cursor(&encoded, from)?;
        while let Some(pair) = cursor.next()? {
            let is_own = *pair.key == encoded[..];
            if is_own && pair.block == from && around.contains(&pair.position) {
                continue;
            }
            extend(&mut around, pair.position);
            if is_own {
                extend(&mut own, pair.position);
            }
            if !is_own || pair.block > to {
                break;
            }
            let value = pair.value.map(StateValue::copy_from_slice);
            found.push(ValueVersion { block: pair.block, value });
        }
        self.versions.extend(found.into_iter().rev());
        if let Some((_, pair)) = below.filter(|_| !self.is_open) {
            self.versions.push(ValueVersion { block: pair.block, value: pair.value });
        }
        Ok((around, own))
    }

    /// Takes over the versions that a group in memory has of this key. Returns the first and the
    /// last pair that the tree must show. `below` is the last pair at or before (key, `from`);
    /// `above` are the pairs from there on.
    fn take<'a>(
        &mut self,
        below: Option<(BackendKey, u64, Option<&'a [u8]>)>,
        above: impl Iterator<Item = (BackendKey, u64, Option<&'a [u8]>)>,
        from: u64,
        to: u64,
    ) -> Option<(CompoundKey, CompoundKey)> {
        let mut first = below.map(|(key, block, _)| (key, block));
        let mut last = first;
        let mut found = Vec::new();
        for (key, block, value) in above {
            if (key, block) == (self.key, from) {
                continue;
            }
            first = first.or(Some((key, block)));
            last = Some((key, block));
            if key != self.key || block > to {
                break;
            }
            found.push(ValueVersion { block, value: value.map(StateValue::copy_from_slice) });
        }
        self.versions.extend(found.into_iter().rev());
        if let Some((key, block, value)) = below
            && key == self.key
        {
            self.versions
                .push(ValueVersion { block, value: value.map(StateValue::copy_from_slice) });
            self.is_open = false;
        }
        first.zip(last)
    }
}

/// Extends a range up to `position`, or starts it there if it is empty.
fn extend(range: &mut Range<u64>, position: u64) {
    let start = if range.is_empty() { position } else { range.start };
    *range = start..position + 1;
}

/// The ranges in order; ranges that touch are joined.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
