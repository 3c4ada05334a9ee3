//! The race itself: preparing, warming up, taking turns.

use super::{
    contender::{Contender, Entrant, Entries, Reads, Terms},
    outcome::Outcome,
    workload::{Keys, Pair, Workload},
};
use crate::{
    BenchError,
    cache::{RunFolder, StateCache},
    memory,
};
use retrie_pipeline::report::peak_rss_bytes;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

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
    /// Slices are being run.
    Racing {
        /// Slices done by all contenders.
        done: u64,
        /// Slices in all.
        total: u64,
    },
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
    /// Set to stop at the next commit.
    pub stop: &'a AtomicBool,
}

/// A contender on its lane.
struct Lane {
    contender: Box<dyn Contender>,
    outcome: Outcome,
    // Last, so that the store is closed before its folder goes.
    _folder: RunFolder,
}

impl Race<'_> {
    /// Runs it; the outcomes are in the order of the entrants.
    ///
    /// # Errors
    /// When it cannot be run, is stopped, or when contenders disagree about what the state is.
    pub fn run(
        &self,
        entrants: &[Box<dyn Entrant>],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Vec<Outcome>, BenchError> {
        self.workload.check()?;
        let folders = self.prepare(entrants, progress)?;
        memory::reset_peak();
        let mut lanes = Vec::new();
        for (entrant, folder) in entrants.iter().zip(folders) {
            let before = memory::anonymous();
            let contender = entrant.open(folder.path(), self.terms)?;
            let mut outcome = Outcome::new(entrant.name(), entrant.hash());
            outcome.memory_bytes += memory::anonymous() - before;
            lanes.push(Lane { contender, outcome, _folder: folder });
        }
        self.take_turns(&mut lanes, progress)?;
        for lane in &mut lanes {
            let start = Instant::now();
            lane.contender.flush()?;
            lane.outcome.flush = start.elapsed();
            lane.outcome.disk_bytes = lane.contender.disk_bytes()?;
            lane.outcome.ethereum_root = lane.contender.ethereum_root();
            lane.outcome.close(lane.contender.counts(), peak_rss_bytes());
            for (keys, present) in
                self.workload.keys_to_prove(self.proofs).iter().zip([true, false])
            {
                lane.outcome.proofs.extend(lane.contender.prove(keys, present)?);
            }
        }
        let outcomes: Vec<_> = lanes.into_iter().map(|lane| lane.outcome).collect();
        compare_roots(&outcomes)?;
        Ok(outcomes)
    }

    /// A folder with the preloaded state for each entrant.
    fn prepare(
        &self,
        entrants: &[Box<dyn Entrant>],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Vec<RunFolder>, BenchError> {
        let base = self.workload.base();
        let mut keys = None;
        let mut folders = Vec::new();
        for entrant in entrants {
            let name = format!("{}-{}", entrant.format(), base.name());
            let folder = self.cache.checkout(&name, |folder| {
                let keys = keys.get_or_insert_with(|| base.sorted_keys());
                let total = keys.len() as u64;
                let backend = entrant.name();
                let mut report = |done| progress(Progress::Loading { backend, done, total });
                entrant.load(
                    folder,
                    &mut Entries {
                        base,
                        keys: keys.iter(),
                        stop: self.stop,
                        progress: &mut report,
                        done: 0,
                    },
                )
            })?;
            folders.push(folder);
        }
        Ok(folders)
    }

    fn take_turns(
        &self,
        lanes: &mut [Lane],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), BenchError> {
        let Workload { pairs, commit_every, warmup, slices, .. } = *self.workload;
        let mut stream = self.workload.stream();
        // In parts of about a slice, so that no long warm-up is held in memory.
        let part = pairs.div_ceil(slices).next_multiple_of(commit_every);
        let mut left = warmup;
        while left > 0 {
            let blocks = stream.take(left.min(part));
            left -= left.min(part);
            self.slice(lanes, 0, &blocks)?;
        }
        for lane in lanes.iter_mut() {
            lane.contender.flush()?;
            lane.outcome.begin(lane.contender.counts());
        }
        let commits = self.workload.commits();
        for slice in 1..=slices {
            progress(Progress::Racing { done: slice - 1, total: slices });
            let commits = commits * slice / slices - commits * (slice - 1) / slices;
            let done = lanes.first().map_or(0, |lane| lane.outcome.pairs);
            let blocks = stream.take((commits * commit_every).min(pairs - done));
            self.slice(lanes, slice, &blocks)?;
        }
        Ok(())
    }

    /// One turn of every contender; slice 0 is the warm-up.
    fn slice(
        &self,
        lanes: &mut [Lane],
        slice: u64,
        blocks: &[Vec<Pair>],
    ) -> Result<(), BenchError> {
        let mut expected = None;
        for lane in turn_order(lanes.len(), slice) {
            let lane = &mut lanes[lane];
            let reads = self.turn(lane, slice, blocks)?;
            if *expected.get_or_insert(reads) != reads || !self.plausible(reads, blocks) {
                return Err(BenchError::WrongReads {
                    backend: lane.outcome.backend.clone(),
                    slice,
                });
            }
        }
        Ok(())
    }

    fn turn(&self, lane: &mut Lane, slice: u64, blocks: &[Vec<Pair>]) -> Result<Reads, BenchError> {
        let mut all = Reads::default();
        let mut latencies = Vec::with_capacity(blocks.len());
        let memory_before = memory::anonymous();
        let start = Instant::now();
        for block in blocks {
            if self.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            let start = Instant::now();
            let reads = lane.contender.commit(block)?;
            latencies.push(start.elapsed());
            all.present += reads.present;
            all.digest = all.digest.rotate_left(1) ^ reads.digest;
        }
        let settling = Instant::now();
        lane.contender.settle()?;
        let (elapsed, settled) = (start.elapsed(), settling.elapsed());
        lane.outcome.memory_bytes += memory::anonymous() - memory_before;
        if slice > 0 {
            let pairs = blocks.iter().map(|block| block.len() as u64).sum();
            lane.outcome.add_slice(pairs, elapsed, settled, &latencies);
        }
        Ok(all)
    }

    /// Whether as many keys had a value as the workload says.
    fn plausible(&self, reads: Reads, blocks: &[Vec<Pair>]) -> bool {
        let pairs: u64 = blocks.iter().map(|block| block.len() as u64).sum();
        match self.workload.keys {
            Keys::Preloaded(_) => reads.present == pairs,
            Keys::Fresh => reads.present == 0,
        }
    }
}

/// The order of `lanes` contenders in a slice: it rotates, and every other time it is reversed.
fn turn_order(lanes: usize, slice: u64) -> Vec<usize> {
    let first = (slice / 2) as usize;
    let mut order: Vec<_> = (0..lanes).map(|lane| (lane + first) % lanes).collect();
    if slice.is_multiple_of(2) {
        order.reverse();
    }
    order
}

fn compare_roots(outcomes: &[Outcome]) -> Result<(), BenchError> {
    let rooted = |outcome: &Outcome| Some((outcome.backend.clone(), outcome.ethereum_root?));
    let mut roots = outcomes.iter().filter_map(rooted);
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
