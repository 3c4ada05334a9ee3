//! The structure of a state: the memory level, the levels on disk, and what is under way between
//! them.

use crate::{
    Params, hash,
    memory::Group,
    row::{LevelRow, Manifest, cutoff_bytes},
    run::{Cutoff, Run, RunBuilder, RunInfo, merge},
};
use alloy_primitives::B256;
use retrie_state::{
    Job, JobContext, JobHandle, Jobs, NodeWrite, StateError, StateKey, StoreError, Value,
};
use std::{path::Path, sync::Arc};

/// A run with its digest under the root.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) run: Arc<Run>,
    pub(crate) digest: B256,
}

impl Stored {
    pub(crate) fn open(dir: &Path, info: RunInfo) -> Result<Arc<Self>, StateError> {
        let digest = info.source.digest();
        Ok(Arc::new(Self { run: Arc::new(Run::open(dir, info)?), digest }))
    }

    pub(crate) fn source(&self) -> &hash::Source {
        &self.run.info().source
    }
}

/// The making of a run, between its start and its commit checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Identity of the job; the run's files are named after it.
    pub(crate) id: B256,
    pub(crate) cutoff: Option<Cutoff>,
    /// `None` after opening, until the next block.
    pub(crate) handle: Option<JobHandle>,
}

impl PartialEq for Work {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.cutoff) == (other.id, other.cutoff)
    }
}

impl Eq for Work {}

impl Work {
    fn new(params: &Params, cutoff: Option<Cutoff>, inputs: &[B256]) -> Self {
        let id = hash::work(&params.digest(), &cutoff_bytes(cutoff), inputs);
        Self { id, cutoff, handle: None }
    }

    /// Name of the run's files, without their endings.
    pub(crate) fn stem(&self) -> String {
        alloy_primitives::hex::encode(&self.id[..16])
    }
}

/// A level on disk. Runs newest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    pub(crate) writing: Vec<Arc<Stored>>,
    pub(crate) merging: Vec<Arc<Stored>>,
    pub(crate) merge: Option<Work>,
}

/// The structure of one block's state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Levels {
    /// Oldest block whose state can be read: the first one, until a merge has dropped pairs.
    pub(crate) horizon: u64,
    pub(crate) writing: Group,
    pub(crate) merging: Group,
    pub(crate) flush: Option<Work>,
    pub(crate) disk: Vec<Level>,
    /// First block of the writing group, and of the merging group: what lies before has left the
    /// memory level. Blocks without pairs count.
    pub(crate) writing_from: u64,
    pub(crate) merging_from: u64,
}

/// What a job leaves: the run, unless nothing was left to be in it.
type Made = Option<Arc<Stored>>;

impl Levels {
    /// The groups in memory, newest first.
    pub(crate) const fn memory(&self) -> [&Group; 2] {
        [&self.writing, &self.merging]
    }

    /// All runs, newest first.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Arc<Stored>> {
        self.disk.iter().flat_map(|level| level.writing.iter().chain(&level.merging))
    }

    pub(crate) fn root(&self) -> B256 {
        let digests = |runs: &[Arc<Stored>]| runs.iter().map(|run| run.digest).collect();
        let level = |level: &Level| hash::LevelDigests {
            writing: digests(&level.writing),
            merging: digests(&level.merging),
        };
        let levels: Vec<_> = self.disk.iter().map(level).collect();
        hash::root(self.horizon, [self.writing.digest(), self.merging.digest()], &levels)
    }

    /// The newest version of `key` at or before `block` (Algorithm 6).
    pub(crate) fn get(
        &self,
        key: &StateKey,
        block: u64,
    ) -> Result<Option<(u64, Option<Value>)>, StateError> {
        for group in self.memory() {
            if let Some(entry) = group.get(key, block) {
                return Ok(Some((entry.block(), entry.value().map(Value::copy_from_slice))));
            }
        }
        let encoded = key.encode();
        let mut filter_key = None;
        for stored in self.runs().filter(|stored| stored.source().first_block <= block) {
            let filter_key = *filter_key.get_or_insert_with(|| hash::filter_key(&encoded));
            if stored.run.may_hold(filter_key)?
                && let Some(found) = stored.run.get(&encoded, block)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    pub(crate) fn manifest(&self) -> Manifest<RunInfo> {
        let infos = |runs: &[Arc<Stored>]| runs.iter().map(|run| run.run.info().clone()).collect();
        let level = |level: &Level| LevelRow {
            writing: infos(&level.writing),
            merging: infos(&level.merging),
            merge: level.merge.clone(),
        };
        Manifest {
            horizon: self.horizon,
            merging_from: self.merging_from,
            writing_from: self.writing_from,
            flush: self.flush.clone(),
            levels: self.disk.iter().map(level).collect(),
        }
    }

    /// The structure that a manifest names, without the pairs in memory.
    pub(crate) fn opened(
        manifest: Manifest<RunInfo>,
        dir: Option<&Path>,
    ) -> Result<Self, StateError> {
        let open = |infos: Vec<RunInfo>| -> Result<Vec<_>, StateError> {
            infos.into_iter().map(|info| Stored::open(dir.ok_or_else(no_dir)?, info)).collect()
        };
        let level = |level: LevelRow<RunInfo>| -> Result<Level, StateError> {
            Ok(Level {
                writing: open(level.writing)?,
                merging: open(level.merging)?,
                merge: level.merge,
            })
        };
        Ok(Self {
            horizon: manifest.horizon,
            merging_from: manifest.merging_from,
            writing_from: manifest.writing_from,
            flush: manifest.flush,
            disk: manifest.levels.into_iter().map(level).collect::<Result<_, _>>()?,
            ..Self::default()
        })
    }

    /// What is kept of it once block `number`, whose structure it is, is no longer among the latest:
    /// thinned groups, no handles of jobs. About how many bytes that takes for itself.
    pub(crate) fn thinned(&self, number: u64) -> (Self, u64) {
        let (writing, bytes) = self.writing.thinned(number);
        let (merging, more) = self.merging.thinned(number);
        let at_rest = |work: &Option<Work>| Some(Work { handle: None, ..work.clone()? });
        let level = |level: &Level| Level { merge: at_rest(&level.merge), ..level.clone() };
        let disk = self.disk.iter().map(level).collect();
        let flush = at_rest(&self.flush);
        (Self { writing, merging, flush, disk, ..self.clone() }, bytes + more)
    }

    /// The same with whole groups, to which a block can be added.
    pub(crate) fn whole(&self) -> Self {
        Self { writing: self.writing.whole(), merging: self.merging.whole(), ..self.clone() }
    }

    /// Starts what is under way and has not been started since the store was opened.
    pub(crate) fn resume(&mut self, params: &Params, jobs: &Jobs) {
        if let Some(work) = &mut self.flush
            && work.handle.is_none()
        {
            work.handle = Some(jobs.start(flush_job(work, self.merging.clone(), *params)));
        }
        for level in &mut self.disk {
            if let Some(work) = &mut level.merge
                && work.handle.is_none()
            {
                work.handle = Some(jobs.start(merge_job(work, level.merging.clone(), *params)));
            }
        }
    }

    /// The checkpoints at the end of block `number` (Algorithms 1 and 5): as long as a group is
    /// full, its pairs go on to the next level. Says whether there were any.
    ///
    /// Groups are looked at when a block ends, not pair by pair: blocks stay whole, and a run may
    /// have a block's pairs more than the paper's.
    pub(crate) fn checkpoint(
        &mut self,
        number: u64,
        params: &Params,
        jobs: &Jobs,
        view: &mut dyn NodeWrite,
    ) -> Result<bool, StateError> {
        if self.writing.len() < params.memory_pairs {
            return Ok(false);
        }
        if let Some(work) = self.flush.take() {
            let job = || flush_job(&work, self.merging.clone(), *params);
            let made = commit(&work, job, jobs)?;
            self.publish(0, made, view)?;
        }
        self.merging = std::mem::take(&mut self.writing);
        (self.merging_from, self.writing_from) = (self.writing_from, number + 1);
        let work = Work::new(params, None, &[self.merging.digest()]);
        if params.async_merge {
            let handle = jobs.start(flush_job(&work, self.merging.clone(), *params));
            self.flush = Some(Work { handle: Some(handle), ..work });
        } else {
            let made = commit(&work, || flush_job(&work, self.merging.clone(), *params), jobs)?;
            self.merging = Group::default();
            self.merging_from = self.writing_from;
            self.publish(0, made, view)?;
        }
        let mut at = 0;
        while self.disk.get(at).is_some_and(|level| level.is_full(params)) {
            if let Some(work) = self.disk[at].merge.take() {
                self.commit_merge(at, &work, params, jobs, view)?;
            }
            let is_deepest = self.disk[at + 1..].iter().all(Level::is_empty);
            let cutoff = number.checked_sub(params.keep_history);
            let cutoff = cutoff.filter(|block| params.keep_history > 0 && *block > 0);
            let cutoff = cutoff.map(|block| Cutoff { block, is_deepest });
            let level = &mut self.disk[at];
            level.merging = std::mem::take(&mut level.writing);
            let inputs: Vec<_> = level.merging.iter().map(|run| run.digest).collect();
            let work = Work::new(params, cutoff, &inputs);
            if params.async_merge {
                let handle = jobs.start(merge_job(&work, level.merging.clone(), *params));
                level.merge = Some(Work { handle: Some(handle), ..work });
            } else {
                self.commit_merge(at, &work, params, jobs, view)?;
            }
            at += 1;
        }
        Ok(true)
    }

    /// The commit checkpoint of the merge at level `at`.
    fn commit_merge(
        &mut self,
        at: usize,
        work: &Work,
        params: &Params,
        jobs: &Jobs,
        view: &mut dyn NodeWrite,
    ) -> Result<(), StateError> {
        let level = &mut self.disk[at];
        let made = commit(work, || merge_job(work, level.merging.clone(), *params), jobs)?;
        for old in std::mem::take(&mut level.merging) {
            for name in old.run.info().file_names() {
                view.retire_file(&name)?;
            }
        }
        if let Some(cutoff) = work.cutoff {
            self.horizon = self.horizon.max(cutoff.block);
        }
        self.publish(at + 1, made, view)
    }

    fn publish(
        &mut self,
        at: usize,
        made: Made,
        view: &mut dyn NodeWrite,
    ) -> Result<(), StateError> {
        let Some(stored) = made else { return Ok(()) };
        for name in stored.run.info().file_names() {
            view.publish_file(&name)?;
        }
        self.level_mut(at).writing.insert(0, stored);
        Ok(())
    }

    /// Puts the first run of a store, of `pairs` pairs, on the level whose runs are that large.
    pub(crate) fn place_first(&mut self, stored: Arc<Stored>, params: &Params) {
        let mut at = 0;
        let mut capacity = params.memory_pairs;
        while capacity < stored.source().pairs {
            capacity = capacity.saturating_mul(params.size_ratio.into());
            at += 1;
        }
        self.level_mut(at).writing.insert(0, stored);
    }

    fn level_mut(&mut self, at: usize) -> &mut Level {
        if self.disk.len() <= at {
            self.disk.resize_with(at + 1, Level::default);
        }
        &mut self.disk[at]
    }
}

impl Level {
    pub(crate) fn is_empty(&self) -> bool {
        self.writing.is_empty() && self.merging.is_empty()
    }

    fn is_full(&self, params: &Params) -> bool {
        self.writing.len() >= params.size_ratio.into()
    }
}

/// Waits for the output of `work`, which `job` starts again if nobody holds it.
fn commit(work: &Work, job: impl FnOnce() -> Job, jobs: &Jobs) -> Result<Made, StateError> {
    let output = match &work.handle {
        Some(handle) => jobs.wait(handle)?,
        None => jobs.wait(&jobs.start(job()))?,
    };
    let wrong = || StateError::Job { job: "cole".into(), reason: "it left something else".into() };
    Ok(output.downcast_ref::<Made>().ok_or_else(wrong)?.clone())
}

fn flush_job(work: &Work, group: Group, params: Params) -> Job {
    run_job("cole flush", work, move |stem, context| {
        let mut builder = RunBuilder::new(directory(context)?, stem, &params)?;
        let start = (StateKey::Account(alloy_primitives::Address::ZERO), 0);
        for (n, (entry, leaf)) in group.from(&start).enumerate() {
            if n % 1024 == 0 {
                context.pause_point()?;
            }
            builder.push(&entry.key().encode(), entry.block(), entry.value(), Some(leaf))?;
        }
        builder.finish_pausing(&|| context.pause_point()).map(Some)
    })
}

fn merge_job(work: &Work, inputs: Vec<Arc<Stored>>, params: Params) -> Job {
    let cutoff = work.cutoff;
    run_job("cole merge", work, move |stem, context| {
        let builder = RunBuilder::new(directory(context)?, stem, &params)?;
        let runs: Vec<_> = inputs.iter().map(|stored| stored.run.clone()).collect();
        merge(&runs, cutoff, builder, &|| context.pause_point())
    })
}

/// A job that makes a run by `make`, or finds the one that it has left before.
fn run_job(
    name: &'static str,
    work: &Work,
    make: impl Fn(&str, &JobContext) -> Result<Option<RunInfo>, StateError> + Send + 'static,
) -> Job {
    let stem = work.stem();
    Job::new(work.id, name, move |context| {
        let dir = directory(context)?;
        let made: Made = match left(dir, &stem) {
            Some(stored) => Some(stored),
            None => make(&stem, context)?.map(|info| Stored::open(dir, info)).transpose()?,
        };
        Ok(Arc::new(made))
    })
}

/// The run `stem`, if an earlier job has left it whole.
fn left(dir: &Path, stem: &str) -> Option<Arc<Stored>> {
    let info = RunInfo::read(dir, stem).ok()??;
    let stored = Stored::open(dir, info).ok()?;
    stored.run.check_pages().is_ok().then_some(stored)
}

fn directory(context: &JobContext) -> Result<&Path, StateError> {
    context.dir().ok_or_else(no_dir)
}

/// The error of a store without a folder for files.
pub(crate) fn no_dir() -> StateError {
    StoreError::new("writing a run of cole", "the store has no directory for files").into()
}
