//! What is below the chunks that are not whole yet: notices when a chunk is whole, and when a peer
//! splits a part of the state that is too small.

use crate::answer::AnswerKey;

/// A chunk that named further ones, which are not all whole.
#[derive(Debug)]
struct OpenChunk {
    parent: Option<SplitId>,
    key: AnswerKey,
    /// Chunks below it that are not whole.
    left: usize,
    size: ChunkSize,
}

/// How many entries a chunk has.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChunkSize {
    /// This many.
    Entries(u64),
    /// It was split: as many as the chunks below it.
    Split {
        /// Those found so far.
        found: u64,
        /// With fewer entries an honest peer does not split.
        least: u64,
        /// The peer that split it; `None` if its answer was on disk.
        peer: Option<usize>,
    },
}

/// Number of a chunk that is not whole. Numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SplitId(usize);

/// All chunks that named further ones and are not whole.
#[derive(Debug, Default)]
pub(super) struct SplitLedger {
    all: Vec<Option<OpenChunk>>,
    free: Vec<usize>,
}

/// What became known when a chunk was whole.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FinishedChunks {
    /// The chunks above it that are whole now, lowest first.
    pub(super) whole: Vec<AnswerKey>,
    /// The peers that split with fewer entries than the minimum.
    pub(super) liars: Vec<usize>,
}

impl SplitLedger {
    /// Records a chunk that names `below` further ones.
    pub(super) fn begin(
        &mut self,
        parent: Option<SplitId>,
        key: AnswerKey,
        below: usize,
        size: ChunkSize,
    ) -> SplitId {
        let chunk = Some(OpenChunk { parent, key, left: below, size });
        let at = match self.free.pop() {
            Some(at) => {
                self.all[at] = chunk;
                at
            }
            None => {
                self.all.push(chunk);
                self.all.len() - 1
            }
        };
        SplitId(at)
    }

    /// Records that a chunk below `parent` is whole, with this many entries; `None` if they were
    /// not counted.
    pub(super) fn finished(
        &mut self,
        parent: Option<SplitId>,
        entries: Option<u64>,
    ) -> FinishedChunks {
        let (mut next, mut entries) = (parent, entries.unwrap_or(u64::MAX));
        let mut finished = FinishedChunks::default();
        while let Some(SplitId(at)) = next {
            let Some(chunk) = self.all.get_mut(at).and_then(Option::as_mut) else { break };
            if let ChunkSize::Split { found, .. } = &mut chunk.size {
                *found = found.saturating_add(entries);
            }
            chunk.left = chunk.left.saturating_sub(1);
            if chunk.left > 0 {
                break;
            }
            finished.whole.push(chunk.key);
            entries = match chunk.size {
                ChunkSize::Entries(own) => own,
                ChunkSize::Split { found, least, peer } => {
                    if found < least {
                        finished.liars.extend(peer);
                    }
                    found
                }
            };
            next = chunk.parent;
            self.all[at] = None;
            self.free.push(at);
        }
        finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn split(peer: Option<usize>) -> ChunkSize {
        ChunkSize::Split { found: 0, least: 100, peer }
    }

    #[test]
    fn who_splits_too_little_is_found() {
        let mut splits = SplitLedger::default();
        let top = splits.begin(None, AnswerKey([1; 16]), 2, split(Some(1)));
        let below = splits.begin(Some(top), AnswerKey([2; 16]), 2, split(Some(2)));
        assert_eq!(splits.finished(Some(top), Some(60)), FinishedChunks::default());
        assert_eq!(splits.finished(Some(below), Some(20)), FinishedChunks::default());
        // The entries below an inner split count for the outer one, too.
        let whole = vec![AnswerKey([2; 16]), AnswerKey([1; 16])];
        let expected = FinishedChunks { whole, liars: vec![2] };
        assert_eq!(splits.finished(Some(below), Some(21)), expected);
        for (peer, entries) in [(None, Some(1)), (Some(3), None)] {
            let again = splits.begin(None, AnswerKey([3; 16]), 1, split(peer));
            let expected = FinishedChunks { whole: vec![AnswerKey([3; 16])], liars: vec![] };
            assert_eq!(splits.finished(Some(again), entries), expected);
        }
        assert_eq!(splits.all.iter().flatten().count(), 0);
        assert!(splits.all.len() <= 2, "places are used again");
    }

    #[test]
    fn what_is_below_entries_does_not_count_for_a_split_above_them() {
        let mut splits = SplitLedger::default();
        let top = splits.begin(None, AnswerKey([1; 16]), 1, split(Some(1)));
        let accounts = splits.begin(Some(top), AnswerKey([2; 16]), 1, ChunkSize::Entries(5));
        assert_eq!(splits.finished(Some(accounts), Some(1000)).liars, [1]);
    }
}
