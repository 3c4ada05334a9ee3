//! The race itself: preparing, warming up, taking turns.

use super::{
    base::SortedEntries,
    block::Block,
    contender::{Contender, Entrant, Entries, Terms},
    outcome::{Outcome, Reading, Turn},
    raced::Raced,
    stream::BlockStream,
    workload::Workload,
};
use crate::{
    BenchError, Setting,
    cache::{RunFolder, StateCache},
    memory::{self, MemoryCap},
};
use retrie_pipeline::report::peak_rss_bytes;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// What an open store needs at least, beside the caches whose size is given, in bytes.
const STORE_BYTES: u64 = 32 << 20;

/// How far a race is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A state is being loaded.
    Loading {
        /// Name of the contender.
        backend: &'a str,
        /// Entries given to it so far.
        done: u64,
        /// Entries in all.
        total: u64,
    },
    /// Keys with long paths are looked for.
    Grinding {
        /// Keys hashed so far.
        done: u64,
        /// Keys in all.
        total: u64,
    },
    /// Slices are being run.
    Racing {
        /// Slices done by all contenders.
        done: u64,
        /// Slices in all.
        total: u64,
    },
    /// A backend has done its turn.
    Turn(Done<'a>),
}

/// What a backend has done in a measured turn.
#[derive(Clone, Copy, Debug)]
pub struct Done<'a> {
    /// Its name.
    pub backend: &'a str,
    /// Operations, or transactions.
    pub ops: u64,
    /// Durations of its commits, or blocks.
    pub latencies: &'a [Duration],
    /// Bytes on disk at the end.
    pub disk_bytes: u64,
}

/// A race on one variant of the workload.
#[derive(Debug)]
pub struct Race<'a> {
    /// What is run.
    pub workload: &'a Workload,
    /// On which terms.
    pub terms: &'a Terms,
    /// Where prepared states are kept.
    pub cache: &'a StateCache,
    /// How many keys are proven at the end, present and absent ones each.
    pub proofs: u64,
    /// In which old states as many are proven too: so many commits before the end.
    pub proof_depths: &'a [u64],
    /// To how many bytes memory is capped, the page cache included.
    pub memory_limit: Option<u64>,
    /// Set to stop at the next commit.
    pub stop: &'a AtomicBool,
}

/// A store, and what it is to run.
struct Start<'a> {
    entrant: &'a dyn Entrant,
    workload: &'a Workload,
    /// Which of the race's workloads that is.
    course: usize,
}

/// A contender on its lane.
struct Lane {
    /// Which of the race's workloads it runs.
    course: usize,
    contender: Box<dyn Contender>,
    outcome: Outcome,
    // Last, so that the store is closed before its folder goes.
    folder: RunFolder,
}

impl Lane {
    fn reading(&self) -> Reading {
        Reading { counts: self.contender.counts(), breakdown: self.contender.breakdown() }
    }

    fn wrong_reads(&self, place: String) -> BenchError {
        BenchError::WrongReads { backend: self.outcome.backend.clone(), place }
    }
}

impl Race<'_> {
    /// Runs it; the outcomes are in the order of the entrants.
    ///
    /// # Errors
    /// When it cannot be run, ends before all contenders have run a slice, or when contenders disagree
    /// about what the state is. What ends it later is in [`Raced::ended`].
    pub fn run(
        &self,
        entrants: &[Box<dyn Entrant>],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Raced, BenchError> {
        let workload = self.workload;
        let starts = entrants.iter().map(|one| Start { entrant: &**one, workload, course: 0 });
        self.run_all(&[workload], &starts.collect::<Vec<_>>(), progress)
    }

    /// Runs it, and beside each entrant a twin of it on a `baseline`: in all slices the two come one
    /// after the other. Gives the outcomes of the twins too.
    ///
    /// # Errors
    /// As of [`run`](Self::run); and when the workloads are not cut into equally many slices.
    pub fn run_beside(
        &self,
        baseline: &Workload,
        entrants: &[Box<dyn Entrant>],
        twins: &[Box<dyn Entrant>],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(Vec<Outcome>, Raced), BenchError> {
        if baseline.slices != self.workload.slices {
            let [a, b] = [baseline.slices, self.workload.slices];
            let what = format!("workloads beside each other have {a} and {b} slices");
            return Err(Setting::Slices.refused(what));
        }
        let workloads = [baseline, self.workload];
        let pairs = twins
            .iter()
            .zip(entrants)
            .flat_map(|pair| [(&**pair.0, baseline, 0), (&**pair.1, self.workload, 1)]);
        let starts = pairs.map(|(entrant, workload, course)| Start { entrant, workload, course });
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
        workloads: &[&Workload],
        starts: &[Start<'_>],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Raced, BenchError> {
        workloads.iter().try_for_each(|workload| workload.check())?;
        let needed = needed(self.terms, starts.iter().map(|start| start.entrant.fixed_bytes()));
        self.memory_limit.map(|limit| MemoryCap::check(limit, needed)).transpose()?;
        let page_cache = page_cache(self.memory_limit, needed, starts.len());
        let folders = self.prepare(starts, progress)?;
        // Dropped after the lanes: the stores are closed under it.
        let cap = cap(self.memory_limit, &folders)?;
        memory::reset_peak();
        let mut lanes = Vec::new();
        for (start, folder) in starts.iter().zip(folders) {
            let (entrant, course) = (start.entrant, start.course);
            let before = memory::anonymous();
            let contender = entrant
                .open(folder.path(), self.terms, page_cache)
                .map_err(|error| error.on_disk(folder.path()))?;
            let mut outcome = Outcome::new(entrant.name(), entrant.hash());
            outcome.memory_bytes += memory::anonymous() - before;
            lanes.push(Lane { course, contender, outcome, folder });
            within(cap.as_ref())?;
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
        Ok(Raced { outcomes, ended, memory })
    }

    /// A folder with the preloaded state for each.
    fn prepare(
        &self,
        starts: &[Start<'_>],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Vec<RunFolder>, BenchError> {
        let mut order: Vec<_> = starts.iter().enumerate().collect();
        // One state after the other, so that the entries of one alone are in memory.
        order.sort_by_key(|(_, start)| start.course);
        let mut made: Option<(usize, SortedEntries)> = None;
        let mut folders: Vec<_> = starts.iter().map(|_| None).collect();
        for (number, Start { entrant, workload, course }) in order {
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
                let mut report = |done| progress(Progress::Loading { backend, done, total });
                let mut entries =
                    Entries { entries, stop: self.stop, progress: &mut report, done: 0 };
                entrant.load(folder, &mut entries).map_err(|error| error.on_disk(folder))
            })?;
            folders[number] = Some(folder);
        }
        Ok(folders.into_iter().flatten().collect())
    }

    /// Warm-up and slices; gives for each workload a block that reads back what they have written.
    fn take_turns(
        &self,
        workloads: &[&Workload],
        lanes: &mut [Lane],
        cap: Option<&MemoryCap>,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Vec<Block>, BenchError> {
        let slices = self.workload.slices;
        let mut streams: Vec<_> = workloads.iter().map(|workload| workload.stream()).collect();
        // The blocks of part `n` of `parts`, of each workload.
        let mut take = |commits: fn(&Workload) -> u64, n: u64, parts: u64| -> Vec<Vec<Block>> {
            let each = streams.iter_mut().zip(workloads).map(|(stream, workload)| {
                let commits = commits(workload);
                let blocks = commits * n / parts - commits * (n - 1) / parts;
                stream.take(blocks as usize).collect()
            });
            each.collect()
        };
        // In parts of about a slice, so that no long warm-up is held in memory.
        let parts = workloads.iter().map(|workload| {
            workload.warmup_commits().div_ceil(workload.commits().div_ceil(slices))
        });
        let parts = parts.max().unwrap_or(0);
        for part in 1..=parts {
            self.slice(lanes, 0, &take(Workload::warmup_commits, part, parts), cap)?;
        }
        for lane in lanes.iter_mut() {
            lane.contender.flush().map_err(|error| error.on_disk(lane.folder.path()))?;
            let reading = lane.reading();
            lane.outcome.begin(reading);
        }
        for slice in 1..=slices {
            progress(Progress::Racing { done: slice - 1, total: slices });
            let turns = self.slice(lanes, slice, &take(Workload::commits, slice, slices), cap)?;
            // Only now, when all have run it.
            for (lane, turn) in lanes.iter_mut().zip(turns) {
                progress(Progress::Turn(Done {
                    backend: &lane.outcome.backend,
                    ops: turn.reads + turn.writes,
                    latencies: &turn.commits,
                    disk_bytes: turn.disk_bytes,
                }));
                lane.outcome.add_slice(turn);
            }
        }
        Ok(streams.iter().map(BlockStream::read_back).collect())
    }

    /// One turn of every contender; slice 0 is the warm-up. The turns are in the order of the lanes.
    fn slice(
        &self,
        lanes: &mut [Lane],
        slice: u64,
        blocks: &[Vec<Block>],
        cap: Option<&MemoryCap>,
    ) -> Result<Vec<Turn>, BenchError> {
        let mut turns: Vec<_> = lanes.iter().map(|_| None).collect();
        for number in turn_order(lanes.len(), slice) {
            let lane = &mut lanes[number];
            let turn = self.turn(lane, slice, &blocks[lane.course], cap);
            turns[number] = Some(turn.map_err(|error| error.on_disk(lane.folder.path()))?);
        }
        Ok(turns.into_iter().flatten().collect())
    }

    fn turn(
        &self,
        lane: &mut Lane,
        slice: u64,
        blocks: &[Block],
        cap: Option<&MemoryCap>,
    ) -> Result<Turn, BenchError> {
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
        lane.contender.settle()?;
        let (elapsed, settling) = (start.elapsed(), settling.elapsed());
        Ok(Turn {
            reads: blocks.iter().map(Block::reads).sum(),
            writes: blocks.iter().map(Block::writes).sum(),
            elapsed,
            settling,
            commits,
            memory_bytes: memory::anonymous() - memory_before,
            disk_bytes: lane.contender.disk_bytes()?,
            reading: lane.reading(),
        })
    }

    /// What comes after the last slice: flush and roots, the blocks `last` that only read, proofs.
    fn finish(
        &self,
        workloads: &[&Workload],
        lanes: &mut [Lane],
        last: &[Block],
        cap: Option<&MemoryCap>,
    ) -> Result<(), BenchError> {
        let mut flushed = Vec::new();
        for lane in lanes.iter_mut() {
            self.may_go_on(cap)?;
            let start = Instant::now();
            lane.contender.flush().map_err(|error| error.on_disk(lane.folder.path()))?;
            flushed.push((start.elapsed(), lane.contender.disk_bytes()?));
        }
        // Only now, when all have done it: a rate with the flush is not held against one without.
        for (lane, (elapsed, disk_bytes)) in lanes.iter_mut().zip(flushed) {
            lane.outcome.add_flush(elapsed);
            lane.outcome.disk_bytes = disk_bytes;
            lane.outcome.free_bytes = lane.contender.free_bytes()?;
            lane.outcome.ethereum_root = lane.contender.ethereum_root();
            lane.outcome.note_counts(lane.contender.counts());
        }
        (0..workloads.len()).try_for_each(|course| compare_roots(lanes, course))?;
        for lane in lanes.iter_mut() {
            let last = &last[lane.course];
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
            for (keys, present) in asked[lane.course].iter().zip([true, false]) {
                self.may_go_on(cap)?;
                lane.outcome.proofs.extend(lane.contender.prove(keys, present, self.stop)?);
            }
            for depth in self.proof_depths {
                self.may_go_on(cap)?;
                let [present, _] = &asked[lane.course];
                lane.outcome.proofs.extend(lane.contender.prove_at(*depth, present, self.stop)?);
            }
        }
        Ok(())
    }

    /// Refuses to go on when the user asked to stop, and where the kernel would soon end the process.
    fn may_go_on(&self, cap: Option<&MemoryCap>) -> Result<(), BenchError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Stopped);
        }
        within(cap)
    }
}

/// What contenders on these terms need beside the page cache, in bytes, each with `fixed` bytes of
/// caches of its own.
pub(crate) fn needed(terms: &Terms, fixed: impl Iterator<Item = u64>) -> u64 {
    let each = terms.cache_bytes as u64 + STORE_BYTES;
    fixed.map(|fixed| each.saturating_add(fixed)).fold(0, u64::saturating_add)
}

/// Caps memory, if that was asked for. The prepared states lie in the page cache until then: they were
/// read to check them.
pub(crate) fn cap(
    limit: Option<u64>,
    folders: &[RunFolder],
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

/// Refuses to go on where the kernel would soon end the process.
pub(crate) fn within(cap: Option<&MemoryCap>) -> Result<(), BenchError> {
    Ok(cap.map_or(Ok(()), MemoryCap::exceeded)?)
}

/// What the system may keep of each contender's pages in memory, in bytes: whatever there is, or under
/// a cap an equal share of what all their own caches leave.
fn page_cache(limit: Option<u64>, needed: u64, contenders: usize) -> u64 {
    limit.map_or(u64::MAX, |limit| limit.saturating_sub(needed) / contenders.max(1) as u64)
}

/// The order of `lanes` contenders in a slice: it rotates, and every other time it is reversed.
pub(crate) fn turn_order(lanes: usize, slice: u64) -> Vec<usize> {
    let first = (slice / 2) as usize;
    let mut order: Vec<_> = (0..lanes).map(|lane| (lane + first) % lanes).collect();
    if slice.is_multiple_of(2) {
        order.reverse();
    }
    order
}

/// Of those that run one workload.
fn compare_roots(lanes: &[Lane], course: usize) -> Result<(), BenchError> {
    let lanes = lanes.iter().filter(|lane| lane.course == course);
    let rooted = |lane: &Lane| Some((lane.outcome.backend.clone(), lane.outcome.ethereum_root?));
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
