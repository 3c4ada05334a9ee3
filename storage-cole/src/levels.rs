//! The levels of a state: the memory level, the levels on disk, and the runs that are being made
//! between them.

use crate::{
    ColeParams, hash,
    memory::MemoryGroup,
    record::{LevelRow, RunManifest, cutoff_bytes},
    run::{MergeCutoff, Run, RunBuilder, RunDescription, merge},
};
use alloy_primitives::B256;
use retrie_state::{
    AccountKey, BackendKey, BackgroundJob, JobContext, JobHandle, JobRunner, NodeWrite, StateError,
    StateValue, StoreError,
};
use std::{path::Path, sync::Arc};

/// An open run with its digest under the root.
#[derive(Debug)]
pub(crate) struct StoredRun {
    pub(crate) run: Arc<Run>,
    pub(crate) digest: B256,
}

impl StoredRun {
    pub(crate) fn open(dir: &Path, info: RunDescription) -> Result<Arc<Self>, StateError> {
        let digest = info.source.digest();
        Ok(Arc::new(Self { run: Arc::new(Run::open(dir, info)?), digest }))
    }

    pub(crate) fn source(&self) -> &hash::SourceHeader {
        &self.run.description().source
    }
}

/// A run that is being made, between its start and its commit checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct PendingRun {
    /// Id of the job. The run's files are named by it.
    pub(crate) id: B256,
    pub(crate) cutoff: Option<MergeCutoff>,
    /// `None` after an opening, until the next block starts the job again.
    pub(crate) handle: Option<JobHandle>,
}

impl PartialEq for PendingRun {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.cutoff) == (other.id, other.cutoff)
    }
}

impl Eq for PendingRun {}

impl PendingRun {
    fn new(params: &ColeParams, cutoff: Option<MergeCutoff>, inputs: &[B256]) -> Self {
        let id = hash::run_id(&params.digest(), &cutoff_bytes(cutoff), inputs);
        Self { id, cutoff, handle: None }
    }

    /// The name of the run's files, without their endings.
    pub(crate) fn stem(&self) -> String {
        alloy_primitives::hex::encode(&self.id[..16])
    }
}

/// A level on disk. Runs are ordered newest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskLevel {
    pub(crate) writing: Vec<Arc<StoredRun>>,
    pub(crate) merging: Vec<Arc<StoredRun>>,
    pub(crate) merge: Option<PendingRun>,
}

/// All levels of one block's state.
#[derive(Clone, Debug, Default)]
pub(crate) struct LsmLevels {
    /// The oldest block whose state can be read: the first block, until a merge has dropped pairs.
    pub(crate) horizon: u64,
    /// The horizon under the root. With version trees it stays the first block: a proof cannot show
    /// what was pruned, and the root of a store that prunes is that of one that does not.
    pub(crate) root_horizon: u64,
    pub(crate) writing: MemoryGroup,
    pub(crate) merging: MemoryGroup,
    pub(crate) flush: Option<PendingRun>,
    pub(crate) disk: Vec<DiskLevel>,
    /// The first block of the writing group, and of the merging group. Older blocks have left the
    /// memory level. Blocks without pairs count.
    pub(crate) writing_from: u64,
    pub(crate) merging_from: u64,
}

/// The output of a job: the run, or `None` if all pairs were dropped.
type FinishedRun = Option<Arc<StoredRun>>;

impl LsmLevels {
    /// The groups in memory, newest first.
    pub(crate) const fn memory(&self) -> [&MemoryGroup; 2] {
        [&self.writing, &self.merging]
    }

    /// All runs, newest first.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Arc<StoredRun>> {
        self.disk.iter().flat_map(|level| level.writing.iter().chain(&level.merging))
    }

    pub(crate) fn root(&self) -> B256 {
        let digests = |runs: &[Arc<StoredRun>]| runs.iter().map(|run| run.digest).collect();
        let level = |level: &DiskLevel| hash::LevelDigests {
            writing: digests(&level.writing),
            merging: digests(&level.merging),
        };
        let levels: Vec<_> = self.disk.iter().map(level).collect();
        hash::root(self.root_horizon, [self.writing.digest(), self.merging.digest()], &levels)
    }

    /// The newest version of `key` at or before `block` (Algorithm 6).
    pub(crate) fn get(
        &self,
        key: &BackendKey,
        block: u64,
    ) -> Result<Option<(u64, Option<StateValue>)>, StateError> {
        for group in self.memory() {
            if let Some(entry) = group.get(key, block) {
                return Ok(Some((entry.block(), entry.value().map(StateValue::copy_from_slice))));
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

    pub(crate) fn manifest(&self) -> RunManifest<RunDescription> {
        let infos = |runs: &[Arc<StoredRun>]| {
            runs.iter().map(|run| run.run.description().clone()).collect()
        };
        let level = |level: &DiskLevel| LevelRow {
            writing: infos(&level.writing),
            merging: infos(&level.merging),
            merge: level.merge.clone(),
        };
        RunManifest {
            horizon: self.horizon,
            merging_from: self.merging_from,
            writing_from: self.writing_from,
            flush: self.flush.clone(),
            levels: self.disk.iter().map(level).collect(),
        }
    }

    /// The levels that a manifest names, without the pairs in memory.
    pub(crate) fn from_manifest(
        manifest: RunManifest<RunDescription>,
        dir: Option<&Path>,
    ) -> Result<Self, StateError> {
        let open = |infos: Vec<RunDescription>| -> Result<Vec<_>, StateError> {
            infos.into_iter().map(|info| StoredRun::open(dir.ok_or_else(no_dir)?, info)).collect()
        };
        let level = |level: LevelRow<RunDescription>| -> Result<DiskLevel, StateError> {
            Ok(DiskLevel {
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

    /// The compacted levels of block `number`: compacted groups, no handles of jobs. Also returns
    /// about how many bytes this takes for itself.
    pub(crate) fn compacted(&self, number: u64) -> (Self, u64) {
        let (writing, bytes) = self.writing.compacted(number);
        let (merging, more) = self.merging.compacted(number);
        let at_rest =
            |work: &Option<PendingRun>| Some(PendingRun { handle: None, ..work.clone()? });
        let level = |level: &DiskLevel| DiskLevel { merge: at_rest(&level.merge), ..level.clone() };
        let disk = self.disk.iter().map(level).collect();
        let flush = at_rest(&self.flush);
        (Self { writing, merging, flush, disk, ..self.clone() }, bytes + more)
    }

    /// The same levels with whole groups, to which a block can be added.
    pub(crate) fn whole(&self) -> Self {
        Self { writing: self.writing.whole(), merging: self.merging.whole(), ..self.clone() }
    }

    /// Starts the jobs of runs under way that have not been started since the store was opened.
    pub(crate) fn resume(&mut self, params: &ColeParams, jobs: &JobRunner) {
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
    /// full, its pairs move to the next level. Returns whether there was a checkpoint.
    ///
    /// Groups are checked when a block ends, not after each pair. So the pairs of a block stay
    /// together, and a run may have up to one block's pairs more than the paper's runs.
    pub(crate) fn checkpoint(
        &mut self,
        number: u64,
        params: &ColeParams,
        jobs: &JobRunner,
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
        let work = PendingRun::new(params, None, &[self.merging.digest()]);
        if params.async_merge {
            let handle = jobs.start(flush_job(&work, self.merging.clone(), *params));
            self.flush = Some(PendingRun { handle: Some(handle), ..work });
        } else {
            let made = commit(&work, || flush_job(&work, self.merging.clone(), *params), jobs)?;
            self.merging = MemoryGroup::default();
            self.merging_from = self.writing_from;
            self.publish(0, made, view)?;
        }
        let mut at = 0;
        while self.disk.get(at).is_some_and(|level| level.is_full(params)) {
            if let Some(work) = self.disk[at].merge.take() {
                self.commit_merge(at, &work, params, jobs, view)?;
            }
            let is_deepest = self.disk[at + 1..].iter().all(DiskLevel::is_empty);
            let cutoff = number.checked_sub(params.keep_history);
            let cutoff = cutoff.filter(|block| params.keep_history > 0 && *block > 0);
            let cutoff = cutoff.map(|block| MergeCutoff { block, is_deepest });
            let level = &mut self.disk[at];
            level.merging = std::mem::take(&mut level.writing);
            let inputs: Vec<_> = level.merging.iter().map(|run| run.digest).collect();
            let work = PendingRun::new(params, cutoff, &inputs);
            if params.async_merge {
                let handle = jobs.start(merge_job(&work, level.merging.clone(), *params));
                level.merge = Some(PendingRun { handle: Some(handle), ..work });
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
        work: &PendingRun,
        params: &ColeParams,
        jobs: &JobRunner,
        view: &mut dyn NodeWrite,
    ) -> Result<(), StateError> {
        let level = &mut self.disk[at];
        let made = commit(work, || merge_job(work, level.merging.clone(), *params), jobs)?;
        for old in std::mem::take(&mut level.merging) {
            for name in old.run.description().file_names() {
                view.retire_file(&name)?;
            }
        }
        if let Some(cutoff) = work.cutoff {
            self.horizon = self.horizon.max(cutoff.block);
        }
        if !params.version_trees {
            self.root_horizon = self.horizon;
        }
        self.publish(at + 1, made, view)
    }

    fn publish(
        &mut self,
        at: usize,
        made: FinishedRun,
        view: &mut dyn NodeWrite,
    ) -> Result<(), StateError> {
        let Some(stored) = made else { return Ok(()) };
        for name in stored.run.description().file_names() {
            view.publish_file(&name)?;
        }
        self.level_mut(at).writing.insert(0, stored);
        Ok(())
    }

    /// Adds the first run of a store to the level whose runs have that size.
    pub(crate) fn add_first_run(&mut self, stored: Arc<StoredRun>, params: &ColeParams) {
        let mut at = 0;
        let mut capacity = params.memory_pairs;
        while capacity < stored.source().pairs {
            capacity = capacity.saturating_mul(params.size_ratio.into());
            at += 1;
        }
        self.level_mut(at).writing.insert(0, stored);
    }

    fn level_mut(&mut self, at: usize) -> &mut DiskLevel {
        if self.disk.len() <= at {
            self.disk.resize_with(at + 1, DiskLevel::default);
        }
        &mut self.disk[at]
    }
}

impl DiskLevel {
    pub(crate) fn is_empty(&self) -> bool {
        self.writing.is_empty() && self.merging.is_empty()
    }

    fn is_full(&self, params: &ColeParams) -> bool {
        self.writing.len() >= params.size_ratio.into()
    }
}

/// Waits for the run `work`. If its job is not running, `job` makes the job to start.
fn commit(
    work: &PendingRun,
    job: impl FnOnce() -> BackgroundJob,
    jobs: &JobRunner,
) -> Result<FinishedRun, StateError> {
    let output = match &work.handle {
        Some(handle) => jobs.wait(handle)?,
        None => jobs.wait(&jobs.start(job()))?,
    };
    let wrong = || StateError::Job { job: "cole".into(), reason: "its output is no run".into() };
    Ok(output.downcast_ref::<FinishedRun>().ok_or_else(wrong)?.clone())
}

fn flush_job(work: &PendingRun, group: MemoryGroup, params: ColeParams) -> BackgroundJob {
    run_job("cole flush", work, move |stem, context| {
        let mut builder = RunBuilder::new(directory(context)?, stem, &params)?;
        let start = (BackendKey::Account(AccountKey::MIN), 0);
        for (n, (entry, leaf)) in group.from(&start).enumerate() {
            if n % 1024 == 0 {
                context.pause_point()?;
            }
            builder.push(&entry.key().encode(), entry.block(), entry.value(), Some(leaf))?;
        }
        builder.finish_pausing(&|| context.pause_point()).map(Some)
    })
}

fn merge_job(work: &PendingRun, inputs: Vec<Arc<StoredRun>>, params: ColeParams) -> BackgroundJob {
    let cutoff = work.cutoff;
    run_job("cole merge", work, move |stem, context| {
        let builder = RunBuilder::new(directory(context)?, stem, &params)?;
        let runs: Vec<_> = inputs.iter().map(|stored| stored.run.clone()).collect();
        merge(&runs, cutoff, builder, &|| context.pause_point())
    })
}

/// A job that makes a run with `make`, or takes over the finished run of an earlier job.
fn run_job(
    name: &'static str,
    work: &PendingRun,
    make: impl Fn(&str, &JobContext) -> Result<Option<RunDescription>, StateError> + Send + 'static,
) -> BackgroundJob {
    let stem = work.stem();
    BackgroundJob::new(work.id, name, move |context| {
        let dir = directory(context)?;
        let made: FinishedRun = match finished_run(dir, &stem) {
            Some(stored) => Some(stored),
            None => make(&stem, context)?.map(|info| StoredRun::open(dir, info)).transpose()?,
        };
        Ok(Arc::new(made))
    })
}

/// The run `stem`, if an earlier job has finished it and its files are whole.
fn finished_run(dir: &Path, stem: &str) -> Option<Arc<StoredRun>> {
    let info = RunDescription::read(dir, stem).ok()??;
    let stored = StoredRun::open(dir, info).ok()?;
    stored.run.check_pages().is_ok().then_some(stored)
}

fn directory(context: &JobContext) -> Result<&Path, StateError> {
    context.dir().ok_or_else(no_dir)
}

/// The error of a store without a directory for files.
pub(crate) fn no_dir() -> StateError {
    StoreError::new("writing a run of cole", "the store has no directory for files").into()
}
