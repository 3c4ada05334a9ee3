//! The queue of a download: which chunks and codes are wanted, which peers were asked for them, and
//! what has come. The threads of the download share it under one lock, and hash nothing while they
//! hold it.

use super::{
    StateSyncError, StateSyncProgress,
    splits::{SplitId, SplitLedger},
    spool::{AnswerSpool, SpoolPlace},
};
use crate::answer::AnswerKind;
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};
use retrie_state::{Account, BackendKey, ChunkId, OpenedChunk};
use retrie_state_store::EntrySorter;
use std::{
    collections::{HashMap, HashSet},
    fmt,
    time::{Duration, Instant},
};

/// A chunk or a code of the state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum StateItem {
    Chunk(ChunkId),
    Code(B256),
}

impl StateItem {
    pub(super) const fn kind(&self) -> AnswerKind {
        match self {
            Self::Chunk(_) => AnswerKind::Chunk,
            Self::Code(_) => AnswerKind::Code,
        }
    }

    pub(super) fn id(&self) -> &[u8] {
        match self {
            Self::Chunk(id) => id.bytes(),
            Self::Code(hash) => hash.as_slice(),
        }
    }
}

impl fmt::Display for StateItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk(id) => write!(f, "chunk {id}"),
            Self::Code(hash) => write!(f, "code {hash}"),
        }
    }
}

/// The place of an item in the state.
#[derive(Clone, Copy, Debug)]
struct ItemPlace {
    split: Option<SplitId>,
    /// Its estimated share of the state, by the shape that is known so far.
    share: f64,
}

#[derive(Debug)]
struct ItemRequest {
    note: ItemPlace,
    /// When the first peer was asked.
    since: Instant,
    /// The peers that were asked and have not answered.
    asked: Vec<usize>,
}

/// A checked answer.
#[derive(Debug)]
pub(super) enum CheckedAnswer {
    Chunk(OpenedChunk),
    Code,
}

/// The queue, and the part of the state that is fetched.
#[derive(Debug)]
pub(super) struct ChunkQueue {
    /// A stack: the last item is asked for first. Depth first keeps it short.
    wanted: Vec<(StateItem, ItemPlace)>,
    in_flight: HashMap<StateItem, ItemRequest>,
    splits: SplitLedger,
    pub(super) spool: AnswerSpool,
    pub(super) entries: EntrySorter,
    /// Id and number of entries of each chunk that has some, if the backend needs them.
    pub(super) parts: Option<Vec<(ChunkId, u64)>>,
    pub(super) codes: HashSet<B256>,
    pub(super) progress: StateSyncProgress,
    pub(super) moved: Instant,
}

impl ChunkQueue {
    pub(super) fn new(
        whole: Option<ChunkId>,
        spool: AnswerSpool,
        entries: EntrySorter,
        needs_parts: bool,
    ) -> Self {
        let note = ItemPlace { split: None, share: 1.0 };
        Self {
            wanted: whole.map(|id| (StateItem::Chunk(id), note)).into_iter().collect(),
            in_flight: HashMap::new(),
            splits: SplitLedger::default(),
            spool,
            entries,
            parts: needs_parts.then(Vec::new),
            codes: HashSet::new(),
            progress: StateSyncProgress::default(),
            moved: Instant::now(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.wanted.is_empty() && self.in_flight.is_empty()
    }

    /// Takes the item on top of the stack, if its answer is on disk.
    pub(super) fn take_spooled(&mut self) -> Option<(StateItem, SpoolPlace)> {
        let (item, _) = self.wanted.last()?;
        let place = self.spool.find(item.kind(), item.id())?;
        let (item, note) = self.wanted.pop()?;
        let flight = ItemRequest { note, since: Instant::now(), asked: Vec::new() };
        self.in_flight.insert(item.clone(), flight);
        Some((item, place))
    }

    /// Takes up to `most` items of one kind to ask `peer` for; none if there are none now. If the
    /// stack is empty, it takes items that other peers have had for longer than `patience`. For
    /// each item two more peers are asked by then, and twice as many after each further `patience`.
    pub(super) fn take(&mut self, peer: usize, most: usize, patience: Duration) -> Vec<StateItem> {
        let now = Instant::now();
        let mut taken: Vec<StateItem> = Vec::new();
        while taken.len() < most
            && let Some((item, _)) = self.wanted.last()
            && taken.first().is_none_or(|first| first.kind() == item.kind())
            && self.spool.find(item.kind(), item.id()).is_none()
            && let Some((item, note)) = self.wanted.pop()
        {
            let flight = ItemRequest { note, since: now, asked: vec![peer] };
            self.in_flight.insert(item.clone(), flight);
            taken.push(item);
        }
        if taken.is_empty() && self.wanted.is_empty() {
            // At the end of a sync only the slowest peers are left: others may be faster.
            let slow = self.in_flight.iter_mut().filter(|(_, flight)| {
                let of = &flight.asked;
                let took = now.duration_since(flight.since).as_millis();
                let waits = took / patience.as_millis().max(1);
                !of.is_empty() && !of.contains(&peer) && waits > 0 && of.len() <= 1 << waits.min(20)
            });
            for (item, flight) in slow {
                if taken.first().is_none_or(|first: &StateItem| first.kind() == item.kind()) {
                    flight.asked.push(peer);
                    taken.push(item.clone());
                    if taken.len() == most {
                        break;
                    }
                }
            }
        }
        taken
    }

    /// Puts an item back: `peer` gave no answer or a wrong one.
    pub(super) fn give_back(&mut self, peer: Option<usize>, item: StateItem) {
        let Some(flight) = self.in_flight.get_mut(&item) else { return };
        flight.asked.retain(|asked| Some(*asked) != peer);
        if flight.asked.is_empty()
            && let Some(flight) = self.in_flight.remove(&item)
        {
            self.wanted.push((item, flight.note));
        }
    }

    /// Takes a checked answer, from `peer` or, if that is `None`, from disk. Returns the peers that
    /// are now known to have split a part that is too small.
    pub(super) fn accept(
        &mut self,
        peer: Option<usize>,
        item: &StateItem,
        answer: &Bytes,
        checked: CheckedAnswer,
    ) -> Result<Vec<usize>, StateSyncError> {
        // Another peer was faster.
        let Some(ItemRequest { note, .. }) = self.in_flight.remove(item) else {
            return Ok(Vec::new());
        };
        if peer.is_some() {
            self.spool.put(item.kind(), item.id(), answer)?;
        }
        self.moved = Instant::now();
        self.progress.answers += 1;
        self.progress.bytes += answer.len() as u64;
        let StateItem::Chunk(id) = item else {
            self.progress.codes += 1;
            return Ok(Vec::new());
        };
        let CheckedAnswer::Chunk(opened) = checked else { return Ok(Vec::new()) };
        match opened {
            OpenedChunk::Entries { entries, further } => {
                let count = entries.len() as u64;
                for (key, value) in entries {
                    self.entries.put(&key, &value)?;
                    if let BackendKey::Account(_) = key
                        && let Some(Account { code_hash, .. }) = Account::decode(&value)
                        && code_hash != KECCAK256_EMPTY
                        && self.codes.insert(code_hash)
                    {
                        let note = ItemPlace { split: None, share: 0.0 };
                        self.wanted.push((StateItem::Code(code_hash), note));
                    }
                }
                self.progress.entries += count;
                if let Some(parts) = &mut self.parts {
                    parts.push((id.clone(), count));
                }
                let share = note.share / (further.len() + 1) as f64;
                self.progress.share += share;
                let of = ItemPlace { split: None, share };
                self.wanted.extend(further.into_iter().map(|id| (StateItem::Chunk(id), of)));
                Ok(self.splits.answered(note.split, count))
            }
            OpenedChunk::Split { below, least } => {
                let share = note.share / below.len().max(1) as f64;
                let split = self.splits.begin(note.split, peer, below.len(), least);
                let note = ItemPlace { split: Some(split), share };
                self.wanted.extend(below.into_iter().map(|id| (StateItem::Chunk(id), note)));
                Ok(Vec::new())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: at the end of a sync every peer waited at least 2 s for the slowest one.
    #[test]
    fn a_peer_takes_over_what_another_one_has_had_for_longer_than_its_patience() {
        let folder = tempfile::tempdir().unwrap();
        let spool = AnswerSpool::open(&folder.path().join("answers")).unwrap();
        let whole = ChunkId::new(vec![1]).unwrap();
        let entries = EntrySorter::new(folder.path());
        let mut work = ChunkQueue::new(Some(whole.clone()), spool, entries, false);
        assert_eq!(work.take(0, 1, Duration::from_secs(60)), [StateItem::Chunk(whole.clone())]);
        std::thread::sleep(Duration::from_millis(20));
        assert!(work.take(1, 1, Duration::from_secs(60)).is_empty());
        assert_eq!(work.take(1, 1, Duration::from_millis(10)), [StateItem::Chunk(whole)]);
        assert!(work.take(1, 1, Duration::from_millis(10)).is_empty(), "it has it already");
    }
}
