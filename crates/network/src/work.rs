//! What of a state is wanted, who was asked for it, and what is done. The threads of a fetch share it
//! under one lock, and hash nothing while they hold it.

use crate::{
    fetch::{FetchError, Progress},
    splits::{SplitId, Splits},
    spool::{Kind, Place, Spool},
};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};
use retrie_state::{Account, ChunkId, EntrySorter, Opened, StateKey};
use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

/// One thing to ask for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    Chunk(ChunkId),
    Code(B256),
}

impl Item {
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Chunk(_) => Kind::Chunk,
            Self::Code(_) => Kind::Code,
        }
    }

    pub(crate) fn id(&self) -> &[u8] {
        match self {
            Self::Chunk(id) => id.bytes(),
            Self::Code(hash) => hash.as_slice(),
        }
    }
}

/// What is known of an item beside itself.
#[derive(Clone, Copy, Debug)]
struct Note {
    split: Option<SplitId>,
    /// Its share of the state, as far as the shape so far tells.
    share: f64,
}

#[derive(Debug)]
struct Flight {
    note: Note,
    /// When the first one was asked.
    since: Instant,
    /// Who were asked and have not answered.
    asked: Vec<usize>,
}

/// What was checked of an answer.
#[derive(Debug)]
pub(crate) enum Checked {
    Chunk(Opened),
    Code,
}

/// The state that is fetched.
#[derive(Debug)]
pub(crate) struct Work {
    /// The last ones first: what is deep is done before what is wide, so that there are few.
    wanted: Vec<(Item, Note)>,
    in_flight: HashMap<Item, Flight>,
    splits: Splits,
    pub(crate) spool: Spool,
    pub(crate) entries: EntrySorter,
    /// Those of chunks with entries, if they are needed.
    pub(crate) parts: Option<Vec<(ChunkId, u64)>>,
    pub(crate) codes: HashSet<B256>,
    pub(crate) progress: Progress,
    pub(crate) moved: Instant,
}

impl Work {
    pub(crate) fn new(
        whole: Option<ChunkId>,
        spool: Spool,
        entries: EntrySorter,
        needs_parts: bool,
    ) -> Self {
        let note = Note { split: None, share: 1.0 };
        Self {
            wanted: whole.map(|id| (Item::Chunk(id), note)).into_iter().collect(),
            in_flight: HashMap::new(),
            splits: Splits::default(),
            spool,
            entries,
            parts: needs_parts.then(Vec::new),
            codes: HashSet::new(),
            progress: Progress::default(),
            moved: Instant::now(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.wanted.is_empty() && self.in_flight.is_empty()
    }

    /// The item on top, if its answer is on disk.
    pub(crate) fn take_known(&mut self) -> Option<(Item, Place)> {
        let (item, _) = self.wanted.last()?;
        let place = self.spool.find(item.kind(), item.id())?;
        let (item, note) = self.wanted.pop()?;
        let flight = Flight { note, since: Instant::now(), asked: Vec::new() };
        self.in_flight.insert(item.clone(), flight);
        Some((item, place))
    }

    /// Up to `most` items of one kind for `peer` to be asked for; none if there is nothing for it now. If
    /// nothing else is left, these are items that others have had for as long as `patience`: two more
    /// peers are asked for each by then, and twice as many after every other such time.
    pub(crate) fn take(&mut self, peer: usize, most: usize, patience: Duration) -> Vec<Item> {
        let now = Instant::now();
        let mut taken: Vec<Item> = Vec::new();
        while taken.len() < most
            && let Some((item, _)) = self.wanted.last()
            && taken.first().is_none_or(|first| first.kind() == item.kind())
            && self.spool.find(item.kind(), item.id()).is_none()
            && let Some((item, note)) = self.wanted.pop()
        {
            let flight = Flight { note, since: now, asked: vec![peer] };
            self.in_flight.insert(item.clone(), flight);
            taken.push(item);
        }
        if taken.is_empty() && self.wanted.is_empty() {
            // The end waits for the slowest: others may be faster.
            let slow = self.in_flight.iter_mut().filter(|(_, flight)| {
                let of = &flight.asked;
                let took = now.duration_since(flight.since).as_millis();
                let waits = took / patience.as_millis().max(1);
                !of.is_empty() && !of.contains(&peer) && waits > 0 && of.len() <= 1 << waits.min(20)
            });
            for (item, flight) in slow {
                if taken.first().is_none_or(|first: &Item| first.kind() == item.kind()) {
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

    /// `peer` gives no answer to `item`, or a wrong one.
    pub(crate) fn give_back(&mut self, peer: Option<usize>, item: Item) {
        let Some(flight) = self.in_flight.get_mut(&item) else { return };
        flight.asked.retain(|asked| Some(*asked) != peer);
        if flight.asked.is_empty()
            && let Some(flight) = self.in_flight.remove(&item)
        {
            self.wanted.push((item, flight.note));
        }
    }

    /// Takes an answer that was checked, from `peer` or, if that is `None`, from disk. Peers who, as now
    /// is known, split what is none.
    pub(crate) fn accept(
        &mut self,
        peer: Option<usize>,
        item: &Item,
        answer: &Bytes,
        checked: Checked,
    ) -> Result<Vec<usize>, FetchError> {
        // Somebody else was faster.
        let Some(Flight { note, .. }) = self.in_flight.remove(item) else { return Ok(Vec::new()) };
        if peer.is_some() {
            self.spool.put(item.kind(), item.id(), answer)?;
        }
        self.moved = Instant::now();
        self.progress.answers += 1;
        self.progress.bytes += answer.len() as u64;
        let Item::Chunk(id) = item else {
            self.progress.codes += 1;
            return Ok(Vec::new());
        };
        let Checked::Chunk(opened) = checked else { return Ok(Vec::new()) };
        match opened {
            Opened::Entries { entries, further } => {
                let count = entries.len() as u64;
                for (key, value) in entries {
                    self.entries.put(&key, &value)?;
                    if let StateKey::Account(_) = key
                        && let Some(Account { code_hash, .. }) = Account::decode(&value)
                        && code_hash != KECCAK256_EMPTY
                        && self.codes.insert(code_hash)
                    {
                        let note = Note { split: None, share: 0.0 };
                        self.wanted.push((Item::Code(code_hash), note));
                    }
                }
                self.progress.entries += count;
                if let Some(parts) = &mut self.parts {
                    parts.push((id.clone(), count));
                }
                let share = note.share / (further.len() + 1) as f64;
                self.progress.share += share;
                let of = Note { split: None, share };
                self.wanted.extend(further.into_iter().map(|id| (Item::Chunk(id), of)));
                Ok(self.splits.answered(note.split, count))
            }
            Opened::Split { below, least } => {
                let share = note.share / below.len().max(1) as f64;
                let split = self.splits.begin(note.split, peer, below.len(), least);
                let note = Note { split: Some(split), share };
                self.wanted.extend(below.into_iter().map(|id| (Item::Chunk(id), note)));
                Ok(Vec::new())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At the end all waited for the slowest peer, 2 s at least, however fast they were.
    #[test]
    fn a_peer_takes_over_what_another_one_has_had_for_longer_than_its_patience() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(&folder.path().join("answers")).unwrap();
        let whole = ChunkId::new(vec![1]).unwrap();
        let entries = EntrySorter::new(folder.path());
        let mut work = Work::new(Some(whole.clone()), spool, entries, false);
        assert_eq!(work.take(0, 1, Duration::from_secs(60)), [Item::Chunk(whole.clone())]);
        std::thread::sleep(Duration::from_millis(20));
        assert!(work.take(1, 1, Duration::from_secs(60)).is_empty());
        assert_eq!(work.take(1, 1, Duration::from_millis(10)), [Item::Chunk(whole)]);
        assert!(work.take(1, 1, Duration::from_millis(10)).is_empty(), "it has it already");
    }
}
