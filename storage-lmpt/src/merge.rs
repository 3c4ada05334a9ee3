//! The merge of an intermediate trie into the snapshot: a job, from the first block after a boundary
//! to the next boundary.
//!
//! It goes through the frozen keys in the order of their paths, a few at a time. A row is *made* once
//! no key to come lies below its path; upper branches are made last. So the rows come in one order,
//! children before parents, however many keys are taken at a time, and however often the job is run:
//! of this sequence a commit may write the next part ahead ([`settle`](crate::settle)), and a number
//! says how far that has come.
//!
//! | who | when | does |
//! |---|---|---|
//! | `state-job-N` | between boundaries | makes rows, appends them to the [`Progress`] |
//! | a commit | once the boundary cannot be reverted | writes the next ones |
//! | `apply` | at the next boundary | waits, writes those that are left |
//!
//! The job reads the snapshot through views that the blocks it runs beside give it, so that none of
//! them is held for long: rows of the snapshot do not change, and any view since the boundary has them.
//!
//! A row that is made leaves the job's own view, and need not be in the store yet. It is not read again
//! by its path, as no key to come lies below it. But the row of a *split* branch is read with the heads of
//! its children's rows, of which some may be made. So a split branch that has changed stays in memory,
//! and with it all branches above, through which alone it is reached ([`MergeRows`]).

use crate::{
    hash::lineage,
    layer::Leaves,
    leaf,
    lists::{Lists, Useless},
    row::{LISTS, Meta, SNAPSHOT, list_key},
    snapshot::{Changes, Recorded, Snapshot, branch_key, parse_key, rows},
    state::free_aside,
};
use alloy_primitives::{B256, Bytes};
use alloy_trie::{Nibbles, nodes::RlpNode};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use retrie_state::{
    Direction, Job, JobContext, JobHandle, JobOutput, Jobs, KeyRange, NodeRead, Rows as RowIter,
    StateError, StoreError, Table,
};
use retrie_storage_mpt::{
    Item, Trie,
    trie::{Branch, BranchLink, Leaf, Link, NodeSource, Rows},
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
/// Keys between two pause points: some milliseconds of work, if the disk is slow.
const BATCH: usize = 128;

/// A row that a merge made, but for the origin in its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) table: Table,
    pub(crate) key: Vec<u8>,
    pub(crate) row: Bytes,
}

/// How far a merge has come.
pub(crate) struct Progress {
    made: Mutex<Vec<Made>>,
    /// Where the snapshot is read from; nowhere once all is made, as a view holds a snapshot of the
    /// database.
    view: Mutex<Option<Arc<dyn NodeRead>>>,
}

impl Drop for Progress {
    fn drop(&mut self) {
        let made = std::mem::take(self.made.get_mut());
        if !made.is_empty() {
            free_aside(made);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("made", &self.made.lock().len()).finish_non_exhaustive()
    }
}

impl Progress {
    fn new() -> Self {
        Self { made: Mutex::default(), view: Mutex::default() }
    }

    /// The rows from number `from` on, at most `most`, of those that are made.
    pub(crate) fn rows(&self, from: usize, most: usize) -> MappedMutexGuard<'_, [Made]> {
        MutexGuard::map(self.made.lock(), |made| {
            let end = from.saturating_add(most).min(made.len());
            &mut made[from.min(end)..end]
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.made.lock().len()
    }

    /// Adds rows, which are those from number `from` on. A run before may have made some of them.
    fn add(&self, from: usize, rows: &mut Vec<Made>) {
        let mut made = self.made.lock();
        let known = made.len().saturating_sub(from).min(rows.len());
        made.extend(rows.drain(..).skip(known));
    }
}

/// A merge under way.
#[derive(Clone, Debug)]
pub(crate) struct Merge {
    handle: JobHandle,
    pub(crate) progress: Arc<Progress>,
}

impl Merge {
    /// The lineage of the snapshot that it makes.
    pub(crate) fn lineage(&self) -> B256 {
        self.handle.id()
    }

    /// Its outcome, which a block needs now.
    pub(crate) fn wait(&self, jobs: &Jobs) -> Result<Arc<Merged>, StateError> {
        jobs.wait(&self.handle)?.downcast().map_err(|_| StateError::Job {
            job: NAME.into(),
            reason: "it left something else than a snapshot".into(),
        })
    }

    /// Lets the job read from a newer view, if it is not done.
    pub(crate) fn look_at(&self, view: &dyn NodeRead) {
        let is_done = self.handle.output().is_some();
        *self.progress.view.lock() = if is_done { None } else { view.detach() };
    }
}

/// What a merge leaves.
pub(crate) struct Merged {
    /// The new snapshot.
    pub(crate) trie: Trie<u64>,
    /// All rows.
    pub(crate) progress: Arc<Progress>,
}

/// The merges of a backend: who started one.
#[derive(Debug, Default)]
pub(crate) struct Merges {
    known: Mutex<HashMap<B256, Weak<Progress>>>,
}

impl Merges {
    /// Starts the merge of the intermediate trie of the state in `view`, or joins it.
    pub(crate) fn start(
        &self,
        jobs: &Jobs,
        view: &dyn NodeRead,
        meta: &Meta,
        frozen: &Trie,
    ) -> Merge {
        let generation = meta.merging();
        let id = lineage::merged(&meta.lineage, generation, &meta.intermediate);
        let progress = {
            let mut known = self.known.lock();
            known.retain(|_, progress| progress.strong_count() > 0);
            known.get(&id).and_then(Weak::upgrade).unwrap_or_else(|| {
                let new = Arc::new(Progress::new());
                known.insert(id, Arc::downgrade(&new));
                new
            })
        };
        *progress.view.lock() = view.detach();
        let (frozen, snapshot) = (frozen.clone(), meta.snapshot.clone());
        let of = progress.clone();
        let handle = jobs.start(Job::new(id, NAME, move |context| {
            merge(context, generation, &frozen, &snapshot, &of)
        }));
        Merge { handle, progress }
    }
}

fn merge(
    context: &JobContext,
    generation: u64,
    frozen: &Trie,
    snapshot: &Trie<u64>,
    progress: &Arc<Progress>,
) -> Result<JobOutput, StateError> {
    let next_view = || {
        context.pause_point()?;
        progress.view.lock().clone().ok_or_else(no_view)
    };
    let trie = make_rows(generation, frozen, snapshot, progress, BATCH, next_view)?;
    *progress.view.lock() = None;
    Ok(Arc::new(Merged { trie, progress: progress.clone() }))
}

fn no_view() -> StateError {
    StoreError::new("merging", "the view of a block has no life of its own").into()
}

/// The rows that the merge of `frozen`, the intermediate trie, makes in the state that `view` shows: all of
/// them, here and now. They take as much memory as those of the job.
pub(crate) fn rehearse(
    view: &dyn NodeRead,
    meta: &Meta,
    frozen: &Trie,
) -> Result<Progress, StateError> {
    let progress = Progress::new();
    make_rows(meta.merging(), frozen, &meta.snapshot, &progress, BATCH, || Ok(view))?;
    Ok(progress)
}

/// Merges `frozen` into `snapshot`, some `batch` of keys at a time, each read through the next view;
/// `progress` gets the rows. Returns the merged trie.
fn make_rows<'v, V: Deref<Target = dyn NodeRead + 'v>>(
    generation: u64,
    frozen: &Trie,
    snapshot: &Trie<u64>,
    progress: &Progress,
    batch: usize,
    mut next_view: impl FnMut() -> Result<V, StateError>,
) -> Result<Trie<u64>, StateError> {
    let mut leaves = Leaves::of(frozen);
    let mut take =
        || leaves.by_ref().take(batch).map(|leaf| item(&*leaf?)).collect::<Result<Vec<_>, _>>();
    let mut trie = snapshot.clone();
    let mut maker = Maker::new(generation, progress);
    let mut items = take()?;
    while !items.is_empty() {
        let view = next_view()?;
        let mut changes = Changes::new(generation);
        let view = Layered { generation, pending: &maker.pending, view: Snapshot(&*view) };
        trie = trie.update(&MergeRows(rows(&view)), &items, &mut changes)?;
        maker.record(changes.rows);
        items = take()?;
        maker.make(items.first().map(|item| &item.key));
    }
    maker.finish();
    Ok(trie)
}

/// What a leaf of a small layer does to the snapshot.
fn item(leaf: &Leaf) -> Result<Item<u64>, StateError> {
    let malformed = || {
        StateError::corrupt("trie in memory", format!("the leaf at {} is malformed", leaf.key()))
    };
    let value = leaf::decode(leaf.value()).ok_or_else(malformed)?;
    Ok(Item::new(*leaf.key(), value.map(|_| leaf.value().clone())))
}

/// Paths in the order in which rows are made: children before parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Upwards(Nibbles);

impl Ord for Upwards {
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

impl PartialOrd for Upwards {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What is known of a branch that is not made yet.
#[derive(Debug, Default)]
struct Pending {
    row: Option<Bytes>,
    /// Stamp of the row that it had in the snapshot.
    before: Option<u64>,
}

/// Makes rows of what the updates change.
struct Maker<'a> {
    generation: u64,
    pending: BTreeMap<Upwards, Pending>,
    lists: Lists,
    part: u32,
    made: Vec<Made>,
    /// Rows handed over.
    count: usize,
    progress: &'a Progress,
}

impl<'a> Maker<'a> {
    fn new(generation: u64, progress: &'a Progress) -> Self {
        let (pending, lists, made) = (BTreeMap::new(), Lists::of(generation), Vec::new());
        Self { generation, pending, lists, part: 0, made, count: 0, progress }
    }

    fn record(&mut self, rows: Vec<Recorded>) {
        for Recorded { path, before, row } in rows {
            let pending = self.pending.entry(Upwards(path)).or_default();
            pending.row = row;
            // Of this generation are those of an update before.
            if let Some(stamp) = before.filter(|stamp| *stamp < self.generation) {
                pending.before = Some(stamp);
            }
        }
    }

    /// Makes the rows of branches below which no key to come lies; `next` is the first of these.
    fn make(&mut self, next: Option<&B256>) {
        let next = next.map(|key| Nibbles::unpack_array(&key.0));
        while let Some(first) = self.pending.first_entry() {
            let path = first.key().0;
            if next.is_some_and(|next| next.starts_with(&path) || path > next) {
                break;
            }
            let Pending { row, before } = first.remove();
            if let Some(row) = row {
                let key = branch_key(&path, self.generation);
                self.made.push(Made { table: SNAPSHOT, key, row });
            }
            if let Some(stamp) = before {
                self.useless(&(path, stamp));
            }
        }
        self.hand_over();
    }

    fn useless(&mut self, row: &Useless) {
        if let Some(list) = self.lists.add(row) {
            self.list(list);
        }
    }

    fn list(&mut self, row: Bytes) {
        self.made.push(Made { table: LISTS, key: list_key(self.generation, self.part), row });
        self.part += 1;
    }

    fn hand_over(&mut self) {
        let from = self.count;
        self.count += self.made.len();
        self.progress.add(from, &mut self.made);
    }

    fn finish(mut self) {
        if let Some(list) = self.lists.close() {
            self.list(list);
        }
        self.hand_over();
    }
}

/// The branches that a merge reads, for one thread.
///
/// A branch stays in memory as part of the one above it, and no longer than that. So whatever leads to a
/// split branch stays too, though its own row could be read: above it in a young chain there are
/// branches with a few children. All of them lie in the five upper levels.
struct MergeRows<'a>(Rows<'a, u64>);

impl NodeSource for MergeRows<'_> {
    type Stamp = u64;

    const PARALLEL: bool = false;

    fn load(&self, path: &Nibbles, link: &BranchLink<u64>) -> Result<Arc<Branch<u64>>, StateError> {
        self.0.load(path, link)
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<Link<u64>, StateError> {
        self.0.resolve(path, reference)
    }

    fn keep(&self, path: &Nibbles, branch: &Branch<u64>) -> bool {
        let stays =
            |child: &Link<u64>| matches!(child, Link::Branch(link) if link.node().is_some());
        self.0.keep(path, branch) || branch.children().iter().flatten().any(stays)
    }
}

/// The snapshot's rows, and over them those that are not made yet. Made ones are not asked for, and are
/// not here even if they are settled: so a merge does not go right or wrong with the speed of commits.
struct Layered<'a> {
    generation: u64,
    pending: &'a BTreeMap<Upwards, Pending>,
    view: Snapshot<'a>,
}

impl NodeRead for Layered<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        match parse_key(key) {
            Some((path, stamp)) if stamp == self.generation => {
                Ok(self.pending.get(&Upwards(path)).and_then(|pending| pending.row.clone()))
            }
            _ => self.view.get(table, key),
        }
    }

    fn scan<'b>(
        &'b self,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<RowIter<'b>, StateError> {
        self.view.0.scan(table, range, direction)
    }
}
