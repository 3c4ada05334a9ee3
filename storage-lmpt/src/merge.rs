//! The merge of an intermediate trie into the snapshot: a job, from the first block after a
//! boundary to the next boundary.
//!
//! The job processes the frozen keys in the order of their paths, a few at a time. A row is *made*
//! once no later key is below its path; upper branches are made last. So the rows have one order,
//! children before parents, for any number of keys at a time and any number of restarts. Commits
//! write rows of this sequence ahead ([`garbage`](crate::garbage)), and one number says how many.
//!
//! | who | when | does |
//! |---|---|---|
//! | `state-job-N` | between boundaries | makes rows, appends them to the [`MergeProgress`] |
//! | a commit | once the boundary cannot be reverted | writes the next rows ahead |
//! | `apply` | at the next boundary | waits, writes the remaining rows |
//!
//! The job reads the snapshot through views of the blocks that are applied meanwhile, so that no
//! view is held for long. Rows of the snapshot do not change, and every view since the boundary has
//! them.
//!
//! A made row is no longer in the job's own view, and need not be in the store yet. The merge does
//! not read it again by its path, because no later key is below it. But the row of a *split* branch
//! is read together with the heads of its children's rows, and some of these may be made. So a
//! split branch that has changed stays in memory, with all branches above it, because it can only
//! be reached through them ([`MergeSource`]).

use crate::{
    garbage_lists::{GarbageLists, GarbageRow},
    hash::lineage,
    layer::LeafIter,
    leaf,
    record::{LISTS, LmptMeta, SNAPSHOT, list_key},
    snapshot::{BranchChange, SnapshotChanges, SnapshotView, branch_key, parse_key, rows},
    state::free_in_thread,
};
use alloy_primitives::{B256, Bytes};
use alloy_trie::{Nibbles, nodes::RlpNode};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use retrie_state::{
    BackgroundJob, JobContext, JobHandle, JobOutput, JobRunner, KeyRange, NodeRead,
    RowScan as RowIter, RowTable, ScanDirection, StateError, StoreError,
};
use retrie_storage_mpt::{
    LeafUpdate, Trie,
    trie::{Branch, BranchLink, Leaf, NodeLink, NodeSource, RowSource},
};
use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Deref,
    sync::{Arc, Weak},
};

#[cfg(test)]
mod tests;

const NAME: &str = "lmpt merge";
/// Keys between two pause points: some milliseconds of work on a slow disk.
const BATCH: usize = 128;

/// A row that a merge has made. Its key has no origin yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MadeRow {
    pub(crate) table: RowTable,
    pub(crate) key: Vec<u8>,
    pub(crate) row: Bytes,
}

/// The progress of a merge.
pub(crate) struct MergeProgress {
    made: Mutex<Vec<MadeRow>>,
    /// The view from which the job reads the snapshot. `None` once all rows are made, because a
    /// view holds a snapshot of the database.
    view: Mutex<Option<Arc<dyn NodeRead>>>,
}

impl Drop for MergeProgress {
    fn drop(&mut self) {
        let made = std::mem::take(self.made.get_mut());
        if !made.is_empty() {
            free_in_thread(made);
        }
    }
}

impl fmt::Debug for MergeProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MergeProgress")
            .field("made", &self.made.lock().len())
            .finish_non_exhaustive()
    }
}

impl MergeProgress {
    fn new() -> Self {
        Self { made: Mutex::default(), view: Mutex::default() }
    }

    /// The made rows from number `from` on, at most `most`.
    pub(crate) fn rows(&self, from: usize, most: usize) -> MappedMutexGuard<'_, [MadeRow]> {
        MutexGuard::map(self.made.lock(), |made| {
            let end = from.saturating_add(most).min(made.len());
            &mut made[from.min(end)..end]
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.made.lock().len()
    }

    /// Adds rows, from number `from` on. An earlier job may have made some of them.
    fn add(&self, from: usize, rows: &mut Vec<MadeRow>) {
        let mut made = self.made.lock();
        let known = made.len().saturating_sub(from).min(rows.len());
        made.extend(rows.drain(..).skip(known));
    }
}

/// A merge under way.
#[derive(Clone, Debug)]
pub(crate) struct MergeJob {
    handle: JobHandle,
    pub(crate) progress: Arc<MergeProgress>,
}

impl MergeJob {
    /// The lineage of the snapshot that it makes.
    pub(crate) fn lineage(&self) -> B256 {
        self.handle.id()
    }

    /// Waits for the result.
    pub(crate) fn wait(&self, jobs: &JobRunner) -> Result<Arc<MergedSnapshot>, StateError> {
        jobs.wait(&self.handle)?.downcast().map_err(|_| StateError::Job {
            job: NAME.into(),
            reason: "its output is no snapshot".into(),
        })
    }

    /// Lets the job read from a newer view, if it is not finished.
    pub(crate) fn use_view(&self, view: &dyn NodeRead) {
        let is_done = self.handle.output().is_some();
        *self.progress.view.lock() = if is_done { None } else { view.detach() };
    }
}

/// The result of a merge.
pub(crate) struct MergedSnapshot {
    /// The new snapshot.
    pub(crate) trie: Trie<u64>,
    /// All rows of the merge.
    pub(crate) progress: Arc<MergeProgress>,
}

/// The merges under way of a backend, by lineage.
#[derive(Debug, Default)]
pub(crate) struct MergeRegistry {
    known: Mutex<HashMap<B256, Weak<MergeProgress>>>,
}

impl MergeRegistry {
    /// Starts the merge of the intermediate trie of the state in `view`, or joins it if it is under
    /// way.
    pub(crate) fn start(
        &self,
        jobs: &JobRunner,
        view: &dyn NodeRead,
        meta: &LmptMeta,
        frozen: &Trie,
    ) -> MergeJob {
        let generation = meta.merging();
        let id = lineage::merged(&meta.lineage, generation, &meta.intermediate);
        let progress = {
            let mut known = self.known.lock();
            known.retain(|_, progress| progress.strong_count() > 0);
            known.get(&id).and_then(Weak::upgrade).unwrap_or_else(|| {
                let new = Arc::new(MergeProgress::new());
                known.insert(id, Arc::downgrade(&new));
                new
            })
        };
        *progress.view.lock() = view.detach();
        let (frozen, snapshot) = (frozen.clone(), meta.snapshot.clone());
        let of = progress.clone();
        let handle = jobs.start(BackgroundJob::new(id, NAME, move |context| {
            merge(context, generation, &frozen, &snapshot, &of)
        }));
        MergeJob { handle, progress }
    }
}

fn merge(
    context: &JobContext,
    generation: u64,
    frozen: &Trie,
    snapshot: &Trie<u64>,
    progress: &Arc<MergeProgress>,
) -> Result<JobOutput, StateError> {
    let next_view = || {
        context.pause_point()?;
        progress.view.lock().clone().ok_or_else(no_view)
    };
    let trie = make_rows(generation, frozen, snapshot, progress, BATCH, next_view)?;
    *progress.view.lock() = None;
    Ok(Arc::new(MergedSnapshot { trie, progress: progress.clone() }))
}

fn no_view() -> StateError {
    StoreError::new("merging", "the view of a block cannot be detached from it").into()
}

/// Makes, in this thread, all rows of the merge of `frozen`, the intermediate trie of the state
/// that `view` shows. They take as much memory as the rows of the job.
pub(crate) fn make_all_rows(
    view: &dyn NodeRead,
    meta: &LmptMeta,
    frozen: &Trie,
) -> Result<MergeProgress, StateError> {
    let progress = MergeProgress::new();
    make_rows(meta.merging(), frozen, &meta.snapshot, &progress, BATCH, || Ok(view))?;
    Ok(progress)
}

/// Merges `frozen` into `snapshot`, `batch` keys at a time, each batch through the next view. Adds
/// the rows to `progress` and returns the merged trie.
fn make_rows<'v, V: Deref<Target = dyn NodeRead + 'v>>(
    generation: u64,
    frozen: &Trie,
    snapshot: &Trie<u64>,
    progress: &MergeProgress,
    batch: usize,
    mut next_view: impl FnMut() -> Result<V, StateError>,
) -> Result<Trie<u64>, StateError> {
    let mut leaves = LeafIter::of(frozen);
    let mut take =
        || leaves.by_ref().take(batch).map(|leaf| item(&*leaf?)).collect::<Result<Vec<_>, _>>();
    let mut trie = snapshot.clone();
    let mut maker = RowMaker::new(generation, progress);
    let mut items = take()?;
    while !items.is_empty() {
        let view = next_view()?;
        let mut changes = SnapshotChanges::new(generation);
        let view = LayeredView { generation, pending: &maker.pending, view: SnapshotView(&*view) };
        trie = trie.update(&MergeSource(rows(&view)), &items, &mut changes)?;
        maker.record(changes.rows);
        items = take()?;
        maker.make(items.first().map(|item| &item.key));
    }
    maker.finish();
    Ok(trie)
}

/// The change that a leaf of a small layer makes in the snapshot.
fn item(leaf: &Leaf) -> Result<LeafUpdate<u64>, StateError> {
    let malformed = || {
        StateError::corrupt("trie in memory", format!("the leaf at {} is malformed", leaf.key()))
    };
    let value = leaf::decode(leaf.value()).ok_or_else(malformed)?;
    Ok(LeafUpdate::new(*leaf.key(), value.map(|_| leaf.value().clone())))
}

/// A path, ordered as rows are made: children before parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UpwardPath(Nibbles);

impl Ord for UpwardPath {
    fn cmp(&self, other: &Self) -> Ordering {
        let (one, other) = (&self.0, &other.0);
        if one == other {
            Ordering::Equal
        } else if other.starts_with(one) {
            Ordering::Greater
        } else if one.starts_with(other) {
            Ordering::Less
        } else {
            one.cmp(other)
        }
    }
}

impl PartialOrd for UpwardPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A branch that has changed and is not made yet.
#[derive(Debug, Default)]
struct PendingBranch {
    row: Option<Bytes>,
    /// Stamp of the row that the branch had in the snapshot.
    before: Option<u64>,
}

/// Makes rows from the changes of the updates.
struct RowMaker<'a> {
    generation: u64,
    pending: BTreeMap<UpwardPath, PendingBranch>,
    lists: GarbageLists,
    part: u32,
    made: Vec<MadeRow>,
    /// The number of rows handed over.
    count: usize,
    progress: &'a MergeProgress,
}

impl<'a> RowMaker<'a> {
    fn new(generation: u64, progress: &'a MergeProgress) -> Self {
        let (pending, lists, made) = (BTreeMap::new(), GarbageLists::of(generation), Vec::new());
        Self { generation, pending, lists, part: 0, made, count: 0, progress }
    }

    fn record(&mut self, rows: Vec<BranchChange>) {
        for BranchChange { path, before, row } in rows {
            let pending = self.pending.entry(UpwardPath(path)).or_default();
            pending.row = row;
            // A stamp of this generation comes from an earlier update of the same merge.
            if let Some(stamp) = before.filter(|stamp| *stamp < self.generation) {
                pending.before = Some(stamp);
            }
        }
    }

    /// Makes the rows of branches that no later key is below. `next` is the first later key.
    fn make(&mut self, next: Option<&B256>) {
        let next = next.map(|key| Nibbles::unpack_array(&key.0));
        while let Some(first) = self.pending.first_entry() {
            let path = first.key().0;
            if next.is_some_and(|next| next.starts_with(&path) || path > next) {
                break;
            }
            let PendingBranch { row, before } = first.remove();
            if let Some(row) = row {
                let key = branch_key(&path, self.generation);
                self.made.push(MadeRow { table: SNAPSHOT, key, row });
            }
            if let Some(stamp) = before {
                self.add_garbage(&(path, stamp));
            }
        }
        self.hand_over();
    }

    fn add_garbage(&mut self, row: &GarbageRow) {
        if let Some(list) = self.lists.add(row) {
            self.add_list(list);
        }
    }

    fn add_list(&mut self, row: Bytes) {
        self.made.push(MadeRow { table: LISTS, key: list_key(self.generation, self.part), row });
        self.part += 1;
    }

    fn hand_over(&mut self) {
        let from = self.count;
        self.count += self.made.len();
        self.progress.add(from, &mut self.made);
    }

    fn finish(mut self) {
        if let Some(list) = self.lists.close() {
            self.add_list(list);
        }
        self.hand_over();
    }
}

/// The branches that a merge reads, for one thread.
///
/// A branch stays in memory as part of the branch above it, and no longer than that. So all
/// branches above a split branch stay, too, even if their own rows could be read: in a young chain
/// there are branches with a few children above it. All of them are in the five upper levels.
struct MergeSource<'a>(RowSource<'a, u64>);

impl NodeSource for MergeSource<'_> {
    type Stamp = u64;

    const PARALLEL: bool = false;

    fn load(&self, path: &Nibbles, link: &BranchLink<u64>) -> Result<Arc<Branch<u64>>, StateError> {
        self.0.load(path, link)
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<NodeLink<u64>, StateError> {
        self.0.resolve(path, reference)
    }

    fn keep(&self, path: &Nibbles, branch: &Branch<u64>) -> bool {
        let stays = |child: &NodeLink<u64>| matches!(child, NodeLink::Branch(link) if link.node().is_some());
        self.0.keep(path, branch) || branch.children().iter().flatten().any(stays)
    }
}

/// The snapshot's rows, and over them the rows that are not made yet. It does not look for made
/// rows in the store, even if they were written ahead: so the result of a merge does not depend on
/// the speed of commits.
struct LayeredView<'a> {
    generation: u64,
    pending: &'a BTreeMap<UpwardPath, PendingBranch>,
    view: SnapshotView<'a>,
}

impl NodeRead for LayeredView<'_> {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        match parse_key(key) {
            Some((path, stamp)) if stamp == self.generation => {
                Ok(self.pending.get(&UpwardPath(path)).and_then(|pending| pending.row.clone()))
            }
            _ => self.view.get(table, key),
        }
    }

    fn scan<'b>(
        &'b self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Result<RowIter<'b>, StateError> {
        self.view.0.scan(table, range, direction)
    }
}
