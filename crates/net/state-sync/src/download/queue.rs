//! The queue of a download: which chunks and codes are wanted, which peers were asked for them, and
//! what has come. The threads of the download share it under one lock, and hash nothing while they
//! hold it.

use super::{
    StateSyncError, StateSyncProgress,
    splits::{ChunkSize, FinishedChunks, SplitId, SplitLedger},
    spool::{AnswerSpool, OlderAnswer, RecordKind, SpoolEntry, SpoolPlace},
};
use crate::{answer::AnswerKey, format::StateFormat};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};
use retrie_state::{Account, BackendKey, ChunkId, ChunkPlace, OpenedChunk, StateTrie, StateValue};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    time::{Duration, Instant},
};

/// Of how many leaves the share of changed ones is remembered.
const RATE_OF: f64 = 20_000.0;
/// The share of changed leaves up to which nodes on the way to them take fewer bytes than whole chunks:
/// a change takes some nodes, up to 532 bytes each, and a leaf about 100 bytes.
const SPARSE: f64 = 1.0 / 20.0;

/// A part of the state that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum StateItem {
    /// A chunk.
    Chunk(ChunkId),
    /// A chunk as the node at its slot: most of what is below is known.
    Node(ChunkId),
    /// A code.
    Code(B256),
}

/// What peers are asked for in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemKind {
    Chunk,
    Node,
    Code,
}

impl StateItem {
    pub(super) const fn kind(&self) -> ItemKind {
        match self {
            Self::Chunk(_) => ItemKind::Chunk,
            Self::Node(_) => ItemKind::Node,
            Self::Code(_) => ItemKind::Code,
        }
    }

    /// The id of a chunk, or the hash of a code.
    pub(super) fn id(&self) -> &[u8] {
        match self {
            Self::Chunk(id) | Self::Node(id) => id.bytes(),
            Self::Code(hash) => hash.as_slice(),
        }
    }
}

impl fmt::Display for StateItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk(id) | Self::Node(id) => write!(f, "chunk {id}"),
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
    /// Whether answers for earlier states are known not to have it.
    is_new: bool,
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

/// An item for which no peer has to be asked, or maybe none.
#[derive(Debug)]
pub(super) enum KnownItem {
    /// Its answer is on disk.
    Spooled(StateItem, ChunkId, SpoolEntry),
    /// Leaves of an earlier state may be the same.
    Older { id: ChunkId, place: ChunkPlace, leaves: SpoolPlace, older: OlderAnswer },
}

/// The share of leaves that changed, estimated from which chunks did. A chunk that changed says that at
/// least one of its leaves did; how many these are likely to be follows from the share itself. A
/// chunk counts by how likely it was to stay the same (expectation maximisation).
#[derive(Clone, Copy, Debug)]
struct ChangeRate {
    changed: f64,
    leaves: f64,
}

impl Default for ChangeRate {
    fn default() -> Self {
        Self { changed: 1.0, leaves: 1000.0 }
    }
}

impl ChangeRate {
    fn share(&self) -> f64 {
        self.changed / self.leaves
    }

    fn compared(&mut self, count: usize, is_same: bool) {
        let (count, share) = (count as f64, self.share());
        let is_likely_same = (1.0 - share).powf(count);
        if !is_same {
            let changes = count * share / (1.0 - is_likely_same).max(f64::MIN_POSITIVE);
            self.changed += is_likely_same * changes.clamp(1.0, count.max(1.0));
        }
        self.leaves += is_likely_same * count;
        if self.leaves > RATE_OF {
            self.changed /= 2.0;
            self.leaves /= 2.0;
        }
    }
}

/// The queue, and what is fetched.
#[derive(Debug)]
pub(super) struct ChunkQueue {
    format: StateFormat,
    /// A stack: the last item is asked for first. Depth first keeps it short.
    wanted: Vec<(StateItem, ItemPlace)>,
    /// Chunks that changed since an earlier state. They wait until all that is wholly missing has come:
    /// what is fetched for them now, a later pivot may change again.
    changed: Vec<(StateItem, ItemPlace)>,
    /// Whether all that was wholly missing has come.
    is_filled: bool,
    in_flight: HashMap<StateItem, ItemRequest>,
    splits: SplitLedger,
    pub(super) spool: AnswerSpool,
    /// Whether the spool has answers of earlier states.
    has_older: bool,
    /// How much changed lately below changed chunks, of the account trie and of storage tries.
    changes: [ChangeRate; 2],
    /// The codes that were wanted so far.
    codes: HashSet<B256>,
    pub(super) progress: StateSyncProgress,
    pub(super) moved: Instant,
}

/// The hash of an account's code, unless it has none.
pub(super) fn code_of(key: &BackendKey, value: &StateValue) -> Option<B256> {
    match key {
        BackendKey::Account(_) => Account::decode(value)
            .map(|account| account.code_hash)
            .filter(|hash| *hash != KECCAK256_EMPTY),
        BackendKey::Slot(..) => None,
    }
}

impl ChunkQueue {
    pub(super) fn new(format: StateFormat, wanted: Vec<StateItem>, spool: AnswerSpool) -> Self {
        let note = ItemPlace { split: None, share: 1.0, is_new: false };
        let resumed = spool.len() as u64;
        Self {
            format,
            wanted: wanted.into_iter().map(|item| (item, note)).collect(),
            changed: Vec::new(),
            is_filled: false,
            in_flight: HashMap::new(),
            splits: SplitLedger::default(),
            has_older: resumed > 0,
            changes: [ChangeRate::default(); 2],
            spool,
            codes: HashSet::new(),
            progress: StateSyncProgress { resumed, ..StateSyncProgress::default() },
            moved: Instant::now(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.wanted.is_empty() && self.changed.is_empty() && self.in_flight.is_empty()
    }

    /// Takes the item on top of the stack, if peers may not have to be asked for it. Items whose
    /// whole subtrees are on disk are done.
    pub(super) fn take_known(&mut self) -> Result<Option<KnownItem>, StateSyncError> {
        self.want_changed();
        while let Some((item, note)) = self.wanted.last().cloned() {
            let (StateItem::Chunk(id) | StateItem::Node(id)) = &item else {
                if !self.is_known(&item, &note) {
                    return Ok(None);
                }
                self.wanted.pop();
                self.progress.codes += 1;
                continue;
            };
            match self.spool.chunk(id) {
                Some(entry) if entry.is_whole => {
                    self.wanted.pop();
                    self.progress.share += note.share;
                    let finished = self.splits.finished(note.split, None);
                    self.record(finished)?;
                }
                Some(entry) => {
                    let id = id.clone();
                    self.hold();
                    return Ok(Some(KnownItem::Spooled(item, id, entry)));
                }
                None if !self.is_known(&item, &note) => return Ok(None),
                None => {
                    if let Some(known) = self.take_older(id.clone()) {
                        return Ok(Some(known));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Wants the changed chunks, once nothing is wanted that is wholly missing.
    fn want_changed(&mut self) {
        self.is_filled |= self.wanted.is_empty() && self.in_flight.is_empty();
        if self.is_filled && self.wanted.is_empty() {
            std::mem::swap(&mut self.wanted, &mut self.changed);
        }
    }

    /// Whether the watching thread has to look at an item before peers are asked for it.
    fn is_known(&self, item: &StateItem, note: &ItemPlace) -> bool {
        match item {
            StateItem::Code(hash) => self.spool.has_code(hash),
            StateItem::Node(id) => self.spool.chunk(id).is_some(),
            StateItem::Chunk(id) => {
                (self.has_older && !note.is_new) || self.spool.chunk(id).is_some()
            }
        }
    }

    /// Takes the chunk on top of the stack if earlier states had leaves there.
    fn take_older(&mut self, id: ChunkId) -> Option<KnownItem> {
        let place = self.format.place(&id);
        let older = place.map(|place| (self.spool.older(&place), place));
        match older {
            Some((older @ OlderAnswer { leaves: Some(leaves), .. }, place)) => {
                self.hold();
                Some(KnownItem::Older { id, place, leaves, older })
            }
            _ => {
                let is_node = older.is_some_and(|(older, _)| older.is_node);
                if let Some((item, note)) = self.wanted.last_mut() {
                    note.is_new = true;
                    if is_node {
                        *item = StateItem::Node(id);
                    }
                }
                None
            }
        }
    }

    /// Takes the item on top of the stack for the watching thread.
    fn hold(&mut self) {
        if let Some((item, note)) = self.wanted.pop() {
            let flight = ItemRequest { note, since: Instant::now(), asked: Vec::new() };
            self.in_flight.insert(item, flight);
        }
    }

    /// Takes up to `most` items of one kind to ask `peer` for; none if there are none now. If the
    /// stack is empty, it takes items that other peers have had for longer than `patience`. For
    /// each item two more peers are asked by then, and twice as many after each further `patience`.
    pub(super) fn take(&mut self, peer: usize, most: usize, patience: Duration) -> Vec<StateItem> {
        let now = Instant::now();
        let mut taken: Vec<StateItem> = Vec::new();
        self.want_changed();
        while taken.len() < most
            && let Some((item, note)) = self.wanted.last()
            && taken.first().is_none_or(|first| first.kind() == item.kind())
            && !self.is_known(item, note)
            && let Some((item, note)) = self.wanted.pop()
        {
            let flight = ItemRequest { note, since: now, asked: vec![peer] };
            self.in_flight.insert(item.clone(), flight);
            taken.push(item);
        }
        if taken.is_empty() && self.wanted.is_empty() {
            // Only the slowest peers are left: others may be faster.
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

    /// Puts a chunk back for later that older leaves do not give. If most of them seem to be the same, only
    /// the node at its slot is wanted.
    pub(super) fn not_older(&mut self, id: ChunkId, as_node: bool) {
        let Some(flight) = self.in_flight.remove(&StateItem::Chunk(id.clone())) else { return };
        let item = if as_node { StateItem::Node(id) } else { StateItem::Chunk(id) };
        self.changed.push((item, ItemPlace { is_new: true, ..flight.note }));
    }

    /// Records whether `count` older leaves gave a chunk. Only those below a changed chunk tell
    /// something.
    pub(super) fn compared(
        &mut self,
        place: &ChunkPlace,
        older: &OlderAnswer,
        count: usize,
        is_same: bool,
    ) {
        if !older.is_own {
            self.changes[usize::from(place.trie != StateTrie::Accounts)].compared(count, is_same);
        }
    }

    /// Whether changes lie so far apart that nodes tell what is the same. Where they lie close, whole
    /// chunks take fewer bytes and requests.
    pub(super) fn is_sparse(&self, place: &ChunkPlace) -> bool {
        self.changes[usize::from(place.trie != StateTrie::Accounts)].share() < SPARSE
    }

    /// Takes a chunk that consists of older leaves and these.
    pub(super) fn accept_older(
        &mut self,
        id: &ChunkId,
        base: SpoolPlace,
        changed: &[u8],
        opened: &OpenedChunk,
    ) -> Result<(), StateSyncError> {
        let Some(flight) = self.in_flight.remove(&StateItem::Chunk(id.clone())) else {
            return Ok(());
        };
        self.spool.put_difference(id, base, changed)?;
        self.count(changed.len());
        self.opened(None, id, flight.note, opened).map(drop)
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
        self.count(answer.len());
        match (item, checked) {
            (StateItem::Code(hash), _) => {
                self.spool.put_code(hash, answer)?;
                self.progress.codes += 1;
                Ok(Vec::new())
            }
            (StateItem::Chunk(id) | StateItem::Node(id), CheckedAnswer::Chunk(opened)) => {
                if peer.is_some() {
                    let kind = match &opened {
                        OpenedChunk::Split { .. } => RecordKind::Split,
                        OpenedChunk::Entries { further, .. } if further.is_empty() => {
                            RecordKind::LastEntries
                        }
                        OpenedChunk::Entries { .. } => RecordKind::Entries,
                    };
                    self.spool.put_chunk(kind, id, answer)?;
                }
                self.opened(peer, id, note, &opened)
            }
            _ => Ok(Vec::new()),
        }
    }

    fn count(&mut self, bytes: usize) {
        self.moved = Instant::now();
        self.progress.answers += 1;
        self.progress.bytes += bytes as u64;
    }

    /// Wants what a chunk names.
    fn opened(
        &mut self,
        peer: Option<usize>,
        id: &ChunkId,
        note: ItemPlace,
        opened: &OpenedChunk,
    ) -> Result<Vec<usize>, StateSyncError> {
        let key = AnswerKey::of_chunk(id);
        let (below, size, share) = match opened {
            OpenedChunk::Entries { entries, further } => {
                let count = entries.len() as u64;
                self.progress.entries += count;
                let share = note.share / (further.len() + 1) as f64;
                self.progress.share += share;
                for hash in entries.iter().filter_map(|(key, value)| code_of(key, value)) {
                    if self.codes.insert(hash) {
                        let note = ItemPlace { split: None, share: 0.0, is_new: true };
                        self.wanted.push((StateItem::Code(hash), note));
                    }
                }
                if further.is_empty() {
                    self.spool.put_whole(key)?;
                    let finished = self.splits.finished(note.split, Some(count));
                    return self.record(finished);
                }
                (further, ChunkSize::Entries(count), share)
            }
            OpenedChunk::Split { below, least } => {
                let size = ChunkSize::Split { found: 0, least: *least, peer };
                (below, size, note.share / below.len().max(1) as f64)
            }
        };
        let split = Some(self.splits.begin(note.split, key, below.len(), size));
        let note = ItemPlace { split, share, is_new: false };
        self.wanted.extend(below.iter().map(|id| (StateItem::Chunk(id.clone()), note)));
        Ok(Vec::new())
    }

    fn record(&mut self, finished: FinishedChunks) -> Result<Vec<usize>, StateSyncError> {
        for key in finished.whole {
            self.spool.put_whole(key)?;
        }
        Ok(finished.liars)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_state::AnyBackend;
    use retrie_storage_mpt::Mpt;
    use std::sync::Arc;

    /// Regression: at the end of a sync every peer waited at least 2 s for the slowest one.
    #[test]
    fn the_share_of_changed_leaves_is_found_from_chunks_of_all_sizes() {
        for true_share in [0.002f64, 0.02, 0.2] {
            let mut rate = ChangeRate::default();
            let mut random = 1u64;
            for round in 0..3000 {
                let count = [24, 250, 4000][round % 3];
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let drawn = (random >> 11) as f64 / (1u64 << 53) as f64;
                rate.compared(count, drawn < (1.0 - true_share).powi(count as i32));
            }
            let found = rate.share();
            assert_eq!(found < SPARSE, true_share < SPARSE, "{true_share}: {found}");
            let times = found / true_share;
            assert!(true_share > SPARSE || (0.5..2.0).contains(&times), "{true_share}: {found}");
        }
    }

    #[test]
    fn a_peer_takes_over_what_another_one_has_had_for_longer_than_its_patience() {
        let folder = tempfile::tempdir().unwrap();
        let format = StateFormat::Chunks(Arc::new(Mpt::new()) as Arc<dyn AnyBackend>);
        let spool = AnswerSpool::open(&folder.path().join("answers"), format.clone()).unwrap();
        let whole = StateItem::Chunk(ChunkId::new(vec![1]).unwrap());
        let mut work = ChunkQueue::new(format, vec![whole.clone()], spool);
        assert_eq!(work.take(0, 1, Duration::from_secs(60)), std::slice::from_ref(&whole));
        std::thread::sleep(Duration::from_millis(20));
        assert!(work.take(1, 1, Duration::from_secs(60)).is_empty());
        assert_eq!(work.take(1, 1, Duration::from_millis(10)), [whole]);
        assert!(work.take(1, 1, Duration::from_millis(10)).is_empty(), "it has it already");
    }
}
