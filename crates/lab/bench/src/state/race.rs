//! The race of state stores: preparation, turns, and the checks at the end.

use super::{
    base::SortedEntries,
    block::CommitBlock,
    factory::{EntryStream, OpenStore, StoreFactory},
    needed::CommitNeeds,
    outcome::{StoreFigures, StoreOutcome},
    stream::CommitStream,
    workload::StoreWorkload,
};
use crate::{
    BenchError, RaceSetting,
    cache::{ScratchFolder, StateCache},
    memory::MemoryCap,
    race::{
        Contender, CounterReading, Race, RaceGuard, RaceLane, RacePart, RaceResult, RaceStep,
        RaceTerms, SliceSource, TimedTurn, warmup_parts,
    },
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// A race of state stores on one variant of a workload.
#[derive(Debug)]
pub struct StoreRace<'a> {
    /// The workload.
    pub workload: &'a StoreWorkload,
    /// The terms, equal for all contenders.
    pub terms: &'a RaceTerms,
    /// The cache of prepared states.
    pub cache: &'a StateCache,
    /// Number of present keys, and of absent keys, that are proven at the end, and of commits whose
    /// keys are proven together.
    pub proofs: u64,
    /// Depths of old states in which present keys are proven too, in commits before the end.
    pub proof_depths: &'a [u64],
    /// The cap on memory in bytes, with the page cache, if there is one.
    pub memory_limit: Option<u64>,
    /// Set to stop at the next commit.
    pub stop: &'a AtomicBool,
}

/// A store that is to be opened, with its workload.
struct RaceEntry<'a> {
    entrant: &'a dyn StoreFactory,
    workload: &'a StoreWorkload,
    /// Index of `workload` in the race.
    workload_index: usize,
}

impl StoreRace<'_> {
    /// Runs the race. The outcomes are in the order of the contenders.
    ///
    /// # Errors
    /// If the race cannot be run, ends before all contenders have run a slice, or contenders have
    /// different states. A later error is in [`RaceResult::ended`].
    pub fn run(
        &self,
        entrants: &[Box<dyn StoreFactory>],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<RaceResult<StoreFigures>, BenchError> {
        let workload = self.workload;
        let starts =
            entrants.iter().map(|one| RaceEntry { entrant: &**one, workload, workload_index: 0 });
        self.run_all(&[workload], &starts.collect::<Vec<_>>(), progress)
    }

    /// Runs the race, and beside each contender its twin on the `baseline`: in every slice the two
    /// run one after the other. Returns the outcomes of the twins, then the result of the race.
    ///
    /// # Errors
    /// As [`run`](Self::run); also if the workloads have different numbers of slices.
    pub fn run_beside(
        &self,
        baseline: &StoreWorkload,
        entrants: &[Box<dyn StoreFactory>],
        twins: &[Box<dyn StoreFactory>],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<(Vec<StoreOutcome>, RaceResult<StoreFigures>), BenchError> {
        if baseline.slices != self.workload.slices {
            let [a, b] = [baseline.slices, self.workload.slices];
            let what = format!("workloads beside each other have {a} and {b} slices");
            return Err(RaceSetting::Slices.refused(what));
        }
        let workloads = [baseline, self.workload];
        let pairs = twins
            .iter()
            .zip(entrants)
            .flat_map(|pair| [(&**pair.0, baseline, 0), (&**pair.1, self.workload, 1)]);
        let starts = pairs.map(|(entrant, workload, course)| RaceEntry {
            entrant,
            workload,
            workload_index: course,
        });
        let mut raced = self.run_all(&workloads, &starts.collect::<Vec<_>>(), progress)?;
        let mut sides = [Vec::new(), Vec::new()];
        for (number, outcome) in raced.outcomes.into_iter().enumerate() {
            sides[number % 2].push(outcome);
        }
        let [baseline, attacked] = sides;
        raced.outcomes = attacked;
        Ok((baseline, raced))
    }

    fn run_all(
        &self,
        workloads: &[&StoreWorkload],
        starts: &[RaceEntry<'_>],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<RaceResult<StoreFigures>, BenchError> {
        workloads.iter().try_for_each(|workload| workload.check())?;
        let needed =
            self.terms.needed_bytes(starts.iter().map(|start| start.entrant.fixed_bytes()));
        self.memory_limit.map(|limit| MemoryCap::check(limit, needed)).transpose()?;
        let page_cache = page_cache(self.memory_limit, needed, starts.len());
        let folders = self.prepare(starts, progress)?;
        let guard =
            RaceGuard::begin(self.memory_limit, self.terms.memory.cold, &folders, self.stop)?;
        let mut lanes = Vec::new();
        for (RaceEntry { entrant, workload, workload_index }, folder) in starts.iter().zip(&folders)
        {
            let folder = folder.path();
            let open = || {
                let opened = entrant.open(folder, self.terms, page_cache);
                opened.map_err(|error| error.on_disk(folder))
            };
            let (store, memory_bytes) = guard.open(open)?;
            let (workload_index, name) = (*workload_index, entrant.name().to_owned());
            let has_root = store.ethereum_root().is_some();
            let needs = CommitNeeds::new(workload, self.terms, self.memory_limit, has_root);
            let contender = StoreContender { name, workload_index, store, keys: (0, 0), needs };
            let figures = StoreFigures::default();
            let outcome = StoreOutcome::new(entrant.name(), entrant.hash(), figures);
            lanes.push(RaceLane::new(contender, outcome, folder, memory_bytes));
        }
        let streams = workloads.iter().map(|workload| workload.stream()).collect();
        let mut slices = CommitSlices { race: self, workloads, streams };
        Race { lanes, guard: &guard }.run(&mut slices, progress)
    }

    /// Prepares a folder with the preloaded state for each contender.
    fn prepare(
        &self,
        starts: &[RaceEntry<'_>],
        progress: &mut dyn FnMut(RaceStep<'_>),
    ) -> Result<Vec<ScratchFolder>, BenchError> {
        let mut order: Vec<_> = starts.iter().enumerate().collect();
        // One state after the other, so that only the entries of one state are in memory.
        order.sort_by_key(|(_, start)| start.workload_index);
        let mut made: Option<(usize, SortedEntries)> = None;
        let mut folders: Vec<_> = starts.iter().map(|_| None).collect();
        for (number, RaceEntry { entrant, workload, workload_index: course }) in order {
            if made.as_ref().is_some_and(|(of, _)| of != course) {
                made = None;
            }
            let base = workload.base();
            if self.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            let name = format!("{}-{}", entrant.format(), base.name());
            let folder = self.cache.checkout(&name, |folder| {
                let (_, entries) = made.get_or_insert_with(|| (*course, base.entries()));
                let total = entries.len() as u64;
                let backend = entrant.name();
                let mut report = |done| progress(RaceStep::Loading { backend, done, total });
                let mut entries =
                    EntryStream { entries, stop: self.stop, progress: &mut report, done: 0 };
                entrant.load(folder, &mut entries).map_err(|error| error.on_disk(folder))
            })?;
            folders[number] = Some(folder);
        }
        Ok(folders.into_iter().flatten().collect())
    }
}

/// An open store in a race.
struct StoreContender {
    name: String,
    /// Index of its workload in the race.
    workload_index: usize,
    store: Box<dyn OpenStore>,
    /// Number of keys read, and of keys written or removed, so far.
    keys: (u64, u64),
    /// Counts the work that its commits need in any case.
    needs: CommitNeeds,
}

impl StoreContender {
    fn wrong_reads(&self, place: String) -> BenchError {
        BenchError::WrongReads { backend: self.name.clone(), place }
    }
}

impl Contender for StoreContender {
    /// The blocks of each workload of the race.
    type Slice = Vec<Vec<CommitBlock>>;
    type Figures = StoreFigures;

    fn run(
        &mut self,
        slice: &Self::Slice,
        part: RacePart,
        guard: &RaceGuard<'_>,
    ) -> Result<TimedTurn, BenchError> {
        let blocks = &slice[self.workload_index];
        let mut latencies = Vec::with_capacity(blocks.len());
        let start = Instant::now();
        for (number, block) in (1..).zip(blocks) {
            guard.check()?;
            let start = Instant::now();
            let reads = self.store.commit(&block.ops)?;
            latencies.push(start.elapsed());
            if reads != block.expected {
                return Err(self.wrong_reads(format!("{part}, commit {number}")));
            }
        }
        let settling = Instant::now();
        self.store.wait_idle()?;
        let (elapsed, settling) = (start.elapsed(), settling.elapsed());
        let reads: u64 = blocks.iter().map(CommitBlock::reads).sum();
        let writes: u64 = blocks.iter().map(CommitBlock::writes).sum();
        self.keys = (self.keys.0 + reads, self.keys.1 + writes);
        let needed = self.needs.of(blocks);
        Ok(TimedTurn { ops: reads + writes, elapsed, settling, latencies, needed })
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.store.flush()
    }

    fn reading(&self) -> CounterReading {
        let (counts, spent) = (self.store.counts(), self.store.breakdown());
        CounterReading { counts, spent, keys: self.keys }
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        self.store.disk_bytes()
    }

    fn note_end(&self, outcome: &mut StoreOutcome) -> Result<(), BenchError> {
        outcome.figures.free_bytes = self.store.free_bytes()?;
        outcome.figures.ethereum_root = self.store.ethereum_root();
        Ok(())
    }
}

/// The commits of a race, slice by slice.
struct CommitSlices<'a> {
    race: &'a StoreRace<'a>,
    workloads: &'a [&'a StoreWorkload],
    streams: Vec<CommitStream<'a>>,
}

impl SliceSource<StoreContender> for CommitSlices<'_> {
    fn warmup_parts(&self) -> u64 {
        let parts = self.workloads.iter().map(|workload| {
            warmup_parts(workload.warmup_commits(), workload.commits(), workload.slices)
        });
        parts.max().unwrap_or(0)
    }

    fn slices(&self) -> u64 {
        self.race.workload.slices
    }

    fn take(&mut self, part: RacePart) -> Result<Vec<Vec<CommitBlock>>, BenchError> {
        let each = self.streams.iter_mut().zip(self.workloads).map(|(stream, workload)| {
            let commits = match part.is_warmup {
                true => workload.warmup_commits(),
                false => workload.commits(),
            };
            stream.take(part.share(commits) as usize).collect()
        });
        Ok(each.collect())
    }

    /// Compares the roots, reads written keys back, and proves keys.
    fn finish(
        &mut self,
        lanes: &mut [RaceLane<'_, StoreContender>],
        guard: &RaceGuard<'_>,
    ) -> Result<(), BenchError> {
        (0..self.workloads.len()).try_for_each(|course| compare_roots(lanes, course))?;
        let last: Vec<_> = self.streams.iter().map(CommitStream::read_back).collect();
        for lane in lanes.iter_mut() {
            let last = &last[lane.contender.workload_index];
            if last.reads() == 0 {
                continue;
            }
            guard.check()?;
            if lane.call(|contender| contender.store.commit(&last.ops))? != last.expected {
                let place = "the keys written, read once more at the end".into();
                return Err(lane.contender.wrong_reads(place));
            }
        }
        self.prove(lanes, guard)
    }
}

impl CommitSlices<'_> {
    /// Proves present keys, absent keys, and present keys in old states.
    fn prove(
        &self,
        lanes: &mut [RaceLane<'_, StoreContender>],
        guard: &RaceGuard<'_>,
    ) -> Result<(), BenchError> {
        let asked = self.workloads.iter().map(|workload| workload.keys_to_prove(self.race.proofs));
        let asked: Vec<_> = asked.collect();
        for RaceLane { contender, outcome, .. } in lanes {
            let (proofs, stop) = (&mut outcome.figures.proofs, guard.stop());
            for (keys, present) in asked[contender.workload_index].iter().zip([true, false]) {
                guard.check()?;
                proofs.extend(contender.store.prove(keys, present, stop)?);
            }
            guard.check()?;
            let commits =
                self.workloads[contender.workload_index].commits_to_prove(self.race.proofs);
            proofs.extend(contender.store.prove_commits(&commits, stop)?);
            for depth in self.race.proof_depths {
                guard.check()?;
                let [present, _] = &asked[contender.workload_index];
                proofs.extend(contender.store.prove_at(*depth, present, stop)?);
            }
        }
        Ok(())
    }
}

/// Compares the roots of all contenders with the same workload.
fn compare_roots(lanes: &[RaceLane<'_, StoreContender>], course: usize) -> Result<(), BenchError> {
    let lanes = lanes.iter().filter(|lane| lane.contender.workload_index == course);
    let rooted = |lane: &RaceLane<'_, StoreContender>| {
        Some((lane.outcome.backend.clone(), lane.outcome.figures.ethereum_root?))
    };
    let mut roots = lanes.filter_map(rooted);
    let Some((a, a_root)) = roots.next() else { return Ok(()) };
    match roots.find(|(_, root)| *root != a_root) {
        None => Ok(()),
        Some((b, b_root)) => Err(BenchError::RootsDiffer { a, a_root, b, b_root }),
    }
}

/// Bytes of each contender's files that the system may keep in memory: unlimited, or under a cap an
/// equal share of the memory that the contenders' own caches leave.
fn page_cache(limit: Option<u64>, needed: u64, contenders: usize) -> u64 {
    limit.map_or(u64::MAX, |limit| limit.saturating_sub(needed) / contenders.max(1) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_cache_is_shared_under_a_cap_alone() {
        assert_eq!(page_cache(None, 700, 3), u64::MAX);
        assert_eq!(page_cache(Some(1000), 700, 3), 100);
        assert_eq!(page_cache(Some(600), 700, 3), 0);
    }
}
