//! The rows of our own state stores, as they run: what they read and write is counted at the
//! interface between store and tables.

use crate::{
    BenchError,
    locality::{
        LocalityError,
        scratch::scratch_folder,
        stored::{RowPhase, RowTally},
        timing::{AccessPhase, BatchTiming, TimingConfig},
    },
    race::{MemoryTerms, RaceTerms},
    random::{SplitMix64, slot_value},
    state::{EntryStream, InitialKeys, KeyOp, OpenStore, StoreFactory, StoreWorkload},
};
use retrie_db::SyncMode;
use retrie_state::{StateKey, flat};
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Memory for rows that are not folded into the tables, in bytes.
const CACHE_BYTES: usize = 1 << 30;

/// A state store with random keys, as slots of one contract.
///
/// A read is a proof of one key at the tip, an insert a new slot. The rows of the flat table, which
/// holds values without a tree, are not counted. The store keeps upper nodes in memory, where a
/// first commit of inserts has brought them; those are not rows.
#[derive(Clone, Copy)]
pub struct StoreTrie<'a> {
    factory: &'a dyn StoreFactory,
}

impl std::fmt::Debug for StoreTrie<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoreTrie").field(&self.factory.name()).finish()
    }
}

impl<'a> StoreTrie<'a> {
    /// The store that `factory` makes.
    pub const fn new(factory: &'a dyn StoreFactory) -> Self {
        Self { factory }
    }

    /// Its name.
    pub fn name(&self) -> &'a str {
        self.factory.name()
    }

    /// Loads 2^`height` keys, and counts and times proofs and inserts. The time of a batch of proofs
    /// is that of its median proof for each, without the verification.
    pub(crate) fn measure(
        &self,
        height: u32,
        timed: &TimingConfig,
        stop: &AtomicBool,
    ) -> Result<[RowPhase; 2], LocalityError> {
        let failed = |source: BenchError| match source {
            BenchError::Stopped => LocalityError::Stopped,
            source => LocalityError::Store { name: self.name().into(), source: source.into() },
        };
        let keys = InitialKeys::Preloaded(1 << height);
        let workload = StoreWorkload { keys, seed: timed.seed, ..StoreWorkload::default() };
        let folder = scratch_folder(&timed.folder)?;
        let mut open = self.open(&workload, folder.path(), stop).map_err(failed)?;
        let phase = AccessPhase::Insert;
        let [_, new] = workload.keys_to_prove(timed.batch(phase) * (phase.batches() + 1));
        let (warmup, new) = new.split_at(new.len() / (phase.batches() as usize + 1));
        inserts(&mut *open, warmup, 1, timed.seed, stop).map_err(failed)?;
        let read = proofs(&mut *open, &workload, timed, stop).map_err(failed)?;
        let read = read.ok_or_else(|| LocalityError::NoProofs { name: self.name().into() })?;
        let insert = inserts(&mut *open, new, phase.batches(), timed.seed, stop).map_err(failed)?;
        Ok([read, insert])
    }

    fn open(
        &self,
        workload: &StoreWorkload,
        folder: &Path,
        stop: &AtomicBool,
    ) -> Result<Box<dyn OpenStore>, BenchError> {
        let entries = workload.base().entries();
        let mut stream = EntryStream { entries: &entries, stop, progress: &mut |_| {}, done: 0 };
        self.factory.load(folder, &mut stream)?;
        let terms = RaceTerms {
            sync: SyncMode::Durable,
            cache_bytes: CACHE_BYTES,
            retention: 0,
            // Prefetching would read the same rows again.
            read_threads: 0,
            memory: MemoryTerms::FREE,
        };
        self.factory.open(folder, &terms, 0)
    }
}

/// Proofs of keys that have a value, one by one; `None` if the store makes no proofs.
fn proofs(
    store: &mut dyn OpenStore,
    workload: &StoreWorkload,
    timed: &TimingConfig,
    stop: &AtomicBool,
) -> Result<Option<RowPhase>, BenchError> {
    let phase = AccessPhase::Read;
    let [keys, _] = workload.keys_to_prove(timed.batch(phase) * phase.batches());
    // Without proofs there is nothing to count.
    if store.prove(&keys[..1], true, stop)?.is_none() {
        return Ok(None);
    }
    let batch = keys.len().div_ceil(phase.batches() as usize).max(1);
    let (mut tally, mut batches) = (RowTally::default(), Vec::new());
    for keys in keys.chunks(batch) {
        let before = node_rows(store);
        let Some(figures) = store.prove(keys, true, stop)? else { return Ok(None) };
        // Its first proof comes twice: the store makes it once more before it measures.
        tally = tally.join(since(store, before, keys.len() as u64 + 1));
        batches.push(Duration::from_micros(figures.made.micros(0.5)) * batch as u32);
    }
    let timing = BatchTiming { phase, pages: None, batch: batch as u64, batches };
    Ok(Some(RowPhase { phase, tally, timing: Some(timing) }))
}

/// Inserts new keys, in so many commits.
fn inserts(
    store: &mut dyn OpenStore,
    keys: &[StateKey],
    commits: u64,
    seed: u64,
    stop: &AtomicBool,
) -> Result<RowPhase, BenchError> {
    let phase = AccessPhase::Insert;
    let batch = keys.len().div_ceil(commits as usize).max(1);
    let mut random = SplitMix64::new(seed);
    let (mut tally, mut batches) = (RowTally::default(), Vec::new());
    for keys in keys.chunks(batch) {
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Stopped);
        }
        let block: Vec<_> =
            keys.iter().map(|key| KeyOp::Write(*key, slot_value(&mut random))).collect();
        let before = node_rows(store);
        let start = Instant::now();
        store.commit(&block)?;
        store.wait_idle()?;
        let elapsed = start.elapsed();
        tally = tally.join(since(store, before, keys.len() as u64));
        // The last batch may be shorter.
        batches.push(elapsed.mul_f64(batch as f64 / keys.len() as f64));
    }
    let timing = BatchTiming { phase, pages: None, batch: batch as u64, batches };
    Ok(RowPhase { phase, tally, timing: Some(timing) })
}

/// The rows so far, without those of the flat table.
fn node_rows(store: &dyn OpenStore) -> RowTally {
    let Some(counts) = store.counts() else { return RowTally::default() };
    let flat = counts.table(flat::TABLE.name);
    RowTally {
        accesses: 0,
        rows_read: counts.reads - flat.reads,
        read_bytes: counts.read_bytes - flat.read_bytes,
        rows_written: counts.writes - flat.writes,
        write_bytes: counts.write_bytes - flat.write_bytes,
        regions: None,
    }
}

/// The rows of `accesses` accesses since `before`.
fn since(store: &dyn OpenStore, before: RowTally, accesses: u64) -> RowTally {
    let now = node_rows(store);
    RowTally {
        accesses,
        rows_read: now.rows_read - before.rows_read,
        read_bytes: now.read_bytes - before.read_bytes,
        rows_written: now.rows_written - before.rows_written,
        write_bytes: now.write_bytes - before.write_bytes,
        regions: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::BackendFactory;
    use retrie_backends::{BackendLane, FlagValues, lane};
    use retrie_state::descriptor::{ConstructorInput, StorePurpose};

    fn measured(name: &str) -> Result<[RowPhase; 2], LocalityError> {
        let BackendLane { backend, flags } = lane(name, &FlagValues::default()).unwrap();
        let making =
            ConstructorInput { flags: &flags, purpose: StorePurpose::Temporary, cache: None };
        let factory = BackendFactory::new((backend.make)(&making).unwrap()).named(name);
        let folder = std::env::temp_dir();
        let timed = TimingConfig { samples: 50, cold: false, folder, seed: 2 };
        StoreTrie::new(&factory).measure(9, &timed, &AtomicBool::new(false))
    }

    #[test]
    fn a_store_reads_few_rows_and_padding_is_in_its_bytes() {
        let [compact, padded] = ["prefix", "prefix:pad=64"].map(|name| measured(name).unwrap());
        let means = |phase: &RowPhase| phase.tally.means();
        assert_eq!(means(&compact[1]).rows_written, means(&padded[1]).rows_written);
        assert!(means(&padded[1]).write_bytes > means(&compact[1]).write_bytes);
        assert_eq!(means(&compact[0]).rows_read, means(&padded[0]).rows_read);
        // Three levels of branches at most, two in a row; a leaf is in the row of its branch.
        assert!(means(&compact[0]).rows_read <= 4.0, "{:?}", means(&compact[0]));
        let timing = compact[1].timing.as_ref().unwrap();
        assert_eq!((timing.batches.len(), timing.ops()), (3, 150));
        assert!(timing.median_micros() > 0.0);
        let none = measured("raw").unwrap_err();
        assert!(matches!(none, LocalityError::NoProofs { .. }), "{none}");
    }
}
