//! The race of state stores: preparation, warm-up and turns.

use super::{
    base::SortedEntries,
    block::CommitBlock,
    contender::{Contender, ContenderFactory, EntryStream, RaceTerms},
    outcome::{CounterReading, StoreOutcome, StoreTurn},
    race_result::RaceResult,
    stream::CommitStream,
    workload::StoreWorkload,
};
use crate::{
    BenchError, RaceSetting,
    cache::{ScratchFolder, StateCache},
    memory::{self, MemoryCap},
};
use retrie_pipeline::report::peak_rss_bytes;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Memory that an open store needs beside the caches of given size, in bytes.
const STORE_BYTES: u64 = 32 << 20;

/// The progress of a race.
#[derive(Clone, Copy, Debug)]
pub enum StoreRaceProgress<'a> {
    /// A state is being loaded.
    Loading {
        /// Name of the contender.
        backend: &'a str,
        /// Entries loaded so far.
        done: u64,
        /// Entries in all.
        total: u64,
    },
    /// Keys with long paths are searched.
    Grinding {
        /// Keys hashed so far.
        done: u64,
        /// Keys in all.
        total: u64,
    },
    /// Slices are being run.
    Racing {
        /// Slices that all contenders have finished.
        done: u64,
        /// Slices in all.
        total: u64,
    },
    /// A contender has finished a measured turn.
    Turn(TurnSummary<'a>),
}

/// The summary of a measured turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnSummary<'a> {
    /// Name of the contender.
    pub backend: &'a str,
    /// Number of operations or transactions.
    pub ops: u64,
    /// Durations of the commits or blocks.
    pub latencies: &'a [Duration],
    /// Disk usage in bytes at the end of the turn.
    pub disk_bytes: u64,
}

/// A race of state stores on one variant of a workload.
#[derive(Debug)]
pub struct StoreRace<'a> {
    /// The workload.
    pub workload: &'a StoreWorkload,
    /// The terms, equal for all contenders.
    pub terms: &'a RaceTerms,
    /// The cache of prepared states.
    pub cache: &'a StateCache,
    /// Number of present keys, and of absent keys, that are proven at the end.
    pub proofs: u64,
    /// Depths of old states in which present keys are proven too, in commits before the end.
    pub proof_depths: &'a [u64],
    /// The cap on memory in bytes, with the page cache, if there is one.
    pub memory_limit: Option<u64>,
    /// Set to stop at the next commit.
    pub stop: &'a AtomicBool,
}

/// A contender with its workload.
struct RaceEntry<'a> {
    entrant: &'a dyn ContenderFactory,
    workload: &'a StoreWorkload,
    /// Index of `workload` in the race.
    workload_index: usize,
}

/// An open contender in a race.
struct RaceLane {
    /// Index of its workload in the race.
    workload_index: usize,
    contender: Box<dyn Contender>,
    outcome: StoreOutcome,
    // Last, so that the store is closed before its folder is removed.
    folder: ScratchFolder,
}

impl RaceLane {
    fn reading(&self) -> CounterReading {
        CounterReading { counts: self.contender.counts(), breakdown: self.contender.breakdown() }
    }

    fn wrong_reads(&self, place: String) -> BenchError {
        BenchError::WrongReads { backend: self.outcome.backend.clone(), place }
    }
}

impl StoreRace<'_> {
    /// Runs the race. The outcomes are in the order of the contenders.
    ///
    /// # Errors
    /// If the race cannot be run, ends before all contenders have run a slice, or contenders have
    /// different states. A later error is in [`RaceResult::ended`].
    pub fn run(
        &self,
        entrants: &[Box<dyn ContenderFactory>],
        progress: &mut dyn FnMut(StoreRaceProgress<'_>),
    ) -> Result<RaceResult, BenchError> {
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
        entrants: &[Box<dyn ContenderFactory>],
        twins: &[Box<dyn ContenderFactory>],
        progress: &mut dyn FnMut(StoreRaceProgress<'_>),
    ) -> Result<(Vec<StoreOutcome>, RaceResult), BenchError> {
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
        progress: &mut dyn FnMut(StoreRaceProgress<'_>),
    ) -> Result<RaceResult, BenchError> {
        workloads.iter().try_for_each(|workload| workload.check())?;
        let needed =
            needed_bytes(self.terms, starts.iter().map(|start| start.entrant.fixed_bytes()));
        self.memory_limit.map(|limit| MemoryCap::check(limit, needed)).transpose()?;
        let page_cache = page_cache(self.memory_limit, needed, starts.len());
        let folders = self.prepare(starts, progress)?;
        // Dropped after the lanes, so that the cap holds while the stores are closed.
        let cap = apply_cap(self.memory_limit, &folders)?;
        memory::reset_peak();
        let mut lanes = Vec::new();
        for (start, folder) in starts.iter().zip(folders) {
            let (entrant, course) = (start.entrant, start.workload_index);
            let before = memory::anonymous();
            let contender = entrant
                .open(folder.path(), self.terms, page_cache)
                .map_err(|error| error.on_disk(folder.path()))?;
            let mut outcome = StoreOutcome::new(entrant.name(), entrant.hash());
            outcome.memory_bytes += memory::anonymous() - before;
            lanes.push(RaceLane { workload_index: course, contender, outcome, folder });
            check_cap(cap.as_ref())?;
        }
        let ended = self.take_turns(workloads, &mut lanes, cap.as_ref(), progress);
        let nothing = lanes.iter().any(|lane| lane.outcome.series.is_empty());
        let ended = ended.and_then(|last| self.finish(workloads, &mut lanes, &last, cap.as_ref()));
        let ended = match ended {
            Err(error) if nothing || error.is_wrong_state() => return Err(error),
            ended => ended,
        };
        let balloon = cap.as_ref().map_or(0, MemoryCap::balloon_bytes);
        let peak = peak_rss_bytes().saturating_sub(balloon);
        for lane in &mut lanes {
            lane.outcome.peak_rss_bytes = peak;
        }
        let outcomes: Vec<_> = lanes.into_iter().map(|lane| lane.outcome).collect();
        let memory = cap.as_ref().map(|cap| (cap.limit(), cap.means(), outcomes.len()));
        Ok(RaceResult { outcomes, ended, memory })
    }

    /// Prepares a folder with the preloaded state for each contender.
    fn prepare(
        &self,
        starts: &[RaceEntry<'_>],
        progress: &mut dyn FnMut(StoreRaceProgress<'_>),
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
                let mut report =
                    |done| progress(StoreRaceProgress::Loading { backend, done, total });
                let mut entries =
                    EntryStream { entries, stop: self.stop, progress: &mut report, done: 0 };
                entrant.load(folder, &mut entries).map_err(|error| error.on_disk(folder))
            })?;
            folders[number] = Some(folder);
        }
        Ok(folders.into_iter().flatten().collect())
    }

    /// Runs warm-up and slices. Returns for each workload a block that reads written keys back.
    fn take_turns(
        &self,
        workloads: &[&StoreWorkload],
        lanes: &mut [RaceLane],
        cap: Option<&MemoryCap>,
        progress: &mut dyn FnMut(StoreRaceProgress<'_>),
    ) -> Result<Vec<CommitBlock>, BenchError> {
        let slices = self.workload.slices;
        let mut streams: Vec<_> = workloads.iter().map(|workload| workload.stream()).collect();
        // The blocks of part `n` of `parts` of each workload.
        let mut take =
            |commits: fn(&StoreWorkload) -> u64, n: u64, parts: u64| -> Vec<Vec<CommitBlock>> {
                let each = streams.iter_mut().zip(workloads).map(|(stream, workload)| {
                    let commits = commits(workload);
                    let blocks = commits * n / parts - commits * (n - 1) / parts;
                    stream.take(blocks as usize).collect()
                });
                each.collect()
            };
        // In parts of about a slice, so that a long warm-up is never in memory as a whole.
        let parts = workloads.iter().map(|workload| {
            workload.warmup_commits().div_ceil(workload.commits().div_ceil(slices))
        });
        let parts = parts.max().unwrap_or(0);
        for part in 1..=parts {
            self.slice(lanes, 0, &take(StoreWorkload::warmup_commits, part, parts), cap)?;
        }
        for lane in lanes.iter_mut() {
            lane.contender.flush().map_err(|error| error.on_disk(lane.folder.path()))?;
            let reading = lane.reading();
            lane.outcome.begin(reading);
        }
        for slice in 1..=slices {
            progress(StoreRaceProgress::Racing { done: slice - 1, total: slices });
            let turns =
                self.slice(lanes, slice, &take(StoreWorkload::commits, slice, slices), cap)?;
            // Only now, when all contenders have run the slice.
            for (lane, turn) in lanes.iter_mut().zip(turns) {
                progress(StoreRaceProgress::Turn(TurnSummary {
                    backend: &lane.outcome.backend,
                    ops: turn.reads + turn.writes,
                    latencies: &turn.commits,
                    disk_bytes: turn.disk_bytes,
                }));
                lane.outcome.add_slice(turn);
            }
        }
        Ok(streams.iter().map(CommitStream::read_back).collect())
    }

    /// Runs one turn of every contender; slice 0 is the warm-up. The turns are in the order of the
    /// lanes.
    fn slice(
        &self,
        lanes: &mut [RaceLane],
        slice: u64,
        blocks: &[Vec<CommitBlock>],
        cap: Option<&MemoryCap>,
    ) -> Result<Vec<StoreTurn>, BenchError> {
        let mut turns: Vec<_> = lanes.iter().map(|_| None).collect();
        for number in turn_order(lanes.len(), slice) {
            let lane = &mut lanes[number];
            let turn = self.turn(lane, slice, &blocks[lane.workload_index], cap);
            turns[number] = Some(turn.map_err(|error| error.on_disk(lane.folder.path()))?);
        }
        Ok(turns.into_iter().flatten().collect())
    }

    fn turn(
        &self,
        lane: &mut RaceLane,
        slice: u64,
        blocks: &[CommitBlock],
        cap: Option<&MemoryCap>,
    ) -> Result<StoreTurn, BenchError> {
        let mut commits = Vec::with_capacity(blocks.len());
        let memory_before = memory::anonymous();
        let start = Instant::now();
        for (number, block) in (1..).zip(blocks) {
            self.may_go_on(cap)?;
            let start = Instant::now();
            let reads = lane.contender.commit(&block.ops)?;
            commits.push(start.elapsed());
            if reads != block.expected {
                let slice = if slice == 0 { "warm-up".into() } else { format!("slice {slice}") };
                return Err(lane.wrong_reads(format!("{slice}, commit {number}")));
            }
        }
        let settling = Instant::now();
        lane.contender.wait_idle()?;
        let (elapsed, settling) = (start.elapsed(), settling.elapsed());
        Ok(StoreTurn {
            reads: blocks.iter().map(CommitBlock::reads).sum(),
            writes: blocks.iter().map(CommitBlock::writes).sum(),
            elapsed,
            settling,
            commits,
            memory_bytes: memory::anonymous() - memory_before,
            disk_bytes: lane.contender.disk_bytes()?,
            reading: lane.reading(),
        })
    }

    /// The part after the last slice: flush and roots, the read-only blocks `last`, proofs.
    fn finish(
        &self,
        workloads: &[&StoreWorkload],
        lanes: &mut [RaceLane],
        last: &[CommitBlock],
        cap: Option<&MemoryCap>,
    ) -> Result<(), BenchError> {
        let mut flushed = Vec::new();
        for lane in lanes.iter_mut() {
            self.may_go_on(cap)?;
            let start = Instant::now();
            lane.contender.flush().map_err(|error| error.on_disk(lane.folder.path()))?;
            flushed.push((start.elapsed(), lane.contender.disk_bytes()?));
        }
        // Only now, when all contenders have flushed: a rate with the flush is not compared with a
        // rate without.
        for (lane, (elapsed, disk_bytes)) in lanes.iter_mut().zip(flushed) {
            lane.outcome.add_flush(elapsed);
            lane.outcome.disk_bytes = disk_bytes;
            lane.outcome.free_bytes = lane.contender.free_bytes()?;
            lane.outcome.ethereum_root = lane.contender.ethereum_root();
            lane.outcome.note_counts(lane.contender.counts());
        }
        (0..workloads.len()).try_for_each(|course| compare_roots(lanes, course))?;
        for lane in lanes.iter_mut() {
            let last = &last[lane.workload_index];
            if last.reads() == 0 {
                continue;
            }
            self.may_go_on(cap)?;
            let reads = lane.contender.commit(&last.ops);
            if reads.map_err(|error| error.on_disk(lane.folder.path()))? != last.expected {
                return Err(lane.wrong_reads("the keys written, read once more at the end".into()));
            }
        }
        let asked = workloads.iter().map(|workload| workload.keys_to_prove(self.proofs));
        let asked: Vec<_> = asked.collect();
        for lane in lanes {
            for (keys, present) in asked[lane.workload_index].iter().zip([true, false]) {
                self.may_go_on(cap)?;
                lane.outcome.proofs.extend(lane.contender.prove(keys, present, self.stop)?);
            }
            for depth in self.proof_depths {
                self.may_go_on(cap)?;
                let [present, _] = &asked[lane.workload_index];
                lane.outcome.proofs.extend(lane.contender.prove_at(*depth, present, self.stop)?);
            }
        }
        Ok(())
    }

    /// Fails if the user has asked to stop, or if memory is close to the cap.
    fn may_go_on(&self, cap: Option<&MemoryCap>) -> Result<(), BenchError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Stopped);
        }
        check_cap(cap)
    }
}

/// Bytes that contenders on these terms need beside the page cache, each with `fixed` bytes of its
/// own caches.
pub(crate) fn needed_bytes(terms: &RaceTerms, fixed: impl Iterator<Item = u64>) -> u64 {
    let each = terms.cache_bytes as u64 + STORE_BYTES;
    fixed.map(|fixed| each.saturating_add(fixed)).fold(0, u64::saturating_add)
}

/// Caps memory, if there is a limit. Before that it drops the prepared states from the page cache,
/// where they are because they were read to verify their checksums.
pub(crate) fn apply_cap(
    limit: Option<u64>,
    folders: &[ScratchFolder],
) -> Result<Option<MemoryCap>, BenchError> {
    let Some(limit) = limit else { return Ok(None) };
    for folder in folders {
        memory::drop_cached_pages(folder.path()).map_err(|source| BenchError::Io {
            action: "dropping the cached pages of",
            path: folder.path().into(),
            source,
        })?;
    }
    Ok(Some(MemoryCap::apply(limit)?))
}

/// Fails if memory is close to the cap.
pub(crate) fn check_cap(cap: Option<&MemoryCap>) -> Result<(), BenchError> {
    Ok(cap.map_or(Ok(()), MemoryCap::exceeded)?)
}

/// Bytes of each contender's files that the system may keep in memory: unlimited, or under a cap an
/// equal share of the memory that the contenders' own caches leave.
fn page_cache(limit: Option<u64>, needed: u64, contenders: usize) -> u64 {
    limit.map_or(u64::MAX, |limit| limit.saturating_sub(needed) / contenders.max(1) as u64)
}

/// The order of `lanes` contenders in a slice. It rotates, and is reversed in every other slice.
pub(crate) fn turn_order(lanes: usize, slice: u64) -> Vec<usize> {
    let first = (slice / 2) as usize;
    let mut order: Vec<_> = (0..lanes).map(|lane| (lane + first) % lanes).collect();
    if slice.is_multiple_of(2) {
        order.reverse();
    }
    order
}

/// Compares the roots of all contenders with the same workload.
fn compare_roots(lanes: &[RaceLane], course: usize) -> Result<(), BenchError> {
    let lanes = lanes.iter().filter(|lane| lane.workload_index == course);
    let rooted =
        |lane: &RaceLane| Some((lane.outcome.backend.clone(), lane.outcome.ethereum_root?));
    let mut roots = lanes.filter_map(rooted);
    let Some((a, a_root)) = roots.next() else { return Ok(()) };
    match roots.find(|(_, root)| *root != a_root) {
        None => Ok(()),
        Some((b, b_root)) => Err(BenchError::RootsDiffer { a, a_root, b, b_root }),
    }
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

    #[test]
    fn every_contender_comes_first_and_last_equally_often() {
        for lanes in 1..=4 {
            let (mut first, mut last) = (vec![0; lanes], vec![0; lanes]);
            for slice in 0..(2 * lanes * 3) as u64 {
                let order = turn_order(lanes, slice);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..lanes).collect::<Vec<_>>());
                first[order[0]] += 1;
                last[order[lanes - 1]] += 1;
            }
            assert_eq!((&first, &last), (&vec![6; lanes], &vec![6; lanes]), "{lanes} lanes");
        }
    }
}
