//! A mock of COLE's shape: a level in memory that is flushed into immutable files every few blocks,
//! and merges of files that run as background jobs between a start block and a publish block.
//!
//! The root hashes the levels in order, so it depends on history. Every file is needed by reads.

mod common;

use alloy_primitives::{Address, B256, Bytes, keccak256};
use common::{
    Level, decode_level, decode_row, digest, encode_level, encode_row, page, propose, slot_key,
    slots_of,
};
use parking_lot::Mutex;
use retrie_state::{
    Applied, ApplyContext, At, Backend, BackendStats, BulkSink, Cache, Capabilities, Direction,
    HashId, Identity, Job, JobHandle, Jobs, KeyRange, MemoryStore, NodeRead, NodeWrite, ProofError,
    StateDelta, StateError, StateKey, StoreOptions, Table, Value,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
};

static IDENTITY: Identity =
    Identity { name: "mock-column", version: 1, hash: HashId::Keccak256, params: B256::ZERO };

/// The level in memory: state key to [`encode_row`].
const MEMORY: Table = Table::new(0x01, "MockMemory");
/// One row: the manifest.
const MANIFEST: Table = Table::new(0x02, "MockManifest");

/// Blocks between flushes.
const FLUSH: u64 = 3;
/// Files of a level that are merged into one of the next.
const FANOUT: usize = 3;
/// Blocks from the start of a merge to its publication.
const MERGE: u64 = 4;

/// A merge in the manifest: level, end of its inputs, block of publication.
type MergeRow = (u8, usize, u64);

/// When each file was published and retired, on the last chain that was applied.
type Lives = Arc<Mutex<BTreeMap<String, (u64, Option<u64>)>>>;

#[derive(Default)]
struct Column {
    lives: Lives,
}

/// An immutable file.
struct Run {
    level: u8,
    name: String,
    digest: B256,
    entries: Level,
}

/// A merge under way.
#[derive(Clone)]
struct Merge {
    level: u8,
    /// Positions of its inputs among the runs end here and start [`FANOUT`] before.
    end: usize,
    publish_at: u64,
    handle: JobHandle,
}

/// The decoded structure of one block.
#[derive(Clone, Default)]
struct Levels {
    memory: Level,
    /// Newest first.
    runs: Vec<Arc<Run>>,
    merge: Option<Merge>,
}

impl Levels {
    fn of(cache: &Cache) -> &Self {
        cache.downcast_ref().expect("the cache of this backend")
    }

    fn manifest(&self) -> Vec<u8> {
        let mut out = vec![self.runs.len() as u8];
        for run in &self.runs {
            out.push(run.level);
            out.extend_from_slice(run.digest.as_slice());
            out.push(run.name.len() as u8);
            out.extend_from_slice(run.name.as_bytes());
        }
        if let Some(merge) = &self.merge {
            out.extend_from_slice(&[merge.level, merge.end as u8]);
            out.extend_from_slice(&merge.publish_at.to_be_bytes());
        }
        out
    }

    fn root(&self) -> B256 {
        root_of(digest(&self.memory), self.runs.iter().map(|run| run.digest))
    }

    fn get(&self, key: &StateKey) -> Option<Value> {
        let levels = [&self.memory].into_iter().chain(self.runs.iter().map(|run| &run.entries));
        levels.filter_map(|level| level.get(key)).next().cloned().flatten()
    }

    /// Everything, newest wins; tombstones included.
    fn merged(&self) -> Level {
        let mut merged = Level::new();
        for run in self.runs.iter().rev() {
            merged.extend(run.entries.clone());
        }
        merged.extend(self.memory.clone());
        merged
    }

    /// The oldest runs of a level that has enough of them.
    fn due_merge(&self) -> Option<(u8, usize)> {
        let newest = self.runs.iter().map(|run| run.level).max()?;
        (0..=newest).find_map(|level| {
            let runs = self.runs.iter().filter(|run| run.level == level).count();
            let end = self.runs.iter().rposition(|run| run.level == level)? + 1;
            (runs >= FANOUT).then_some((level, end))
        })
    }

    /// The merge of the runs before `end` as a job. Its output is the new [`Run`], in a file.
    fn merge_job(&self, level: u8, end: usize, publish_at: u64) -> Job {
        let inputs: Vec<_> = self.runs[end - FANOUT..end].to_vec();
        let is_last = end == self.runs.len();
        let mut id = publish_at.to_be_bytes().to_vec();
        for run in &inputs {
            id.extend_from_slice(run.digest.as_slice());
        }
        Job::new(keccak256(id), "mock merge", move |context| {
            let mut entries = Level::new();
            for run in inputs.iter().rev() {
                for (n, (key, value)) in run.entries.iter().enumerate() {
                    if n % 16 == 0 {
                        context.pause_point()?;
                    }
                    entries.insert(*key, value.clone());
                }
            }
            if is_last {
                entries.retain(|_, value| value.is_some());
            }
            let dir = context.dir().ok_or_else(no_dir)?;
            Ok(Arc::new(write_run(dir, level + 1, publish_at, entries)?))
        })
    }
}

fn root_of(memory: B256, runs: impl Iterator<Item = B256>) -> B256 {
    let mut bytes = memory.to_vec();
    runs.for_each(|digest| bytes.extend_from_slice(digest.as_slice()));
    keccak256(bytes)
}

fn no_dir() -> StateError {
    StateError::Unsupported { backend: IDENTITY.name, what: "stores without a directory" }
}

fn write_run(dir: &Path, level: u8, block: u64, entries: Level) -> Result<Run, StateError> {
    let content = encode_level(&entries);
    let digest = keccak256(&content);
    let name = format!("run-{level}-{block}-{digest:x}");
    Jobs::write_file(dir, &name, &content)?;
    Ok(Run { level, name, digest, entries })
}

fn read_run(dir: &Path, level: u8, name: &str, digest: B256) -> Result<Run, StateError> {
    let corrupt = |what: &str| StateError::corrupt(name, what);
    let content = fs::read(dir.join(name)).map_err(|error| corrupt(&error.to_string()))?;
    if keccak256(&content) != digest {
        return Err(corrupt("its digest is not the one of the manifest"));
    }
    let mut bytes = &content[..];
    match decode_level(&mut bytes) {
        Some(entries) if bytes.is_empty() => Ok(Run { level, name: name.into(), digest, entries }),
        _ => Err(corrupt("malformed")),
    }
}

fn decode_manifest(
    dir: &Path,
    mut row: &[u8],
) -> Result<(Vec<Arc<Run>>, Option<MergeRow>), StateError> {
    fn cut<'a>(row: &mut &'a [u8], len: usize) -> Result<&'a [u8], StateError> {
        let bad = || StateError::corrupt(MANIFEST.name, "cut short");
        let (head, rest) = row.split_at_checked(len).ok_or_else(bad)?;
        *row = rest;
        Ok(head)
    }
    let mut runs = Vec::new();
    for _ in 0..cut(&mut row, 1)?[0] {
        let level = cut(&mut row, 1)?[0];
        let digest = B256::from_slice(cut(&mut row, 32)?);
        let len = cut(&mut row, 1)?[0] as usize;
        let name = String::from_utf8_lossy(cut(&mut row, len)?).into_owned();
        runs.push(Arc::new(read_run(dir, level, &name, digest)?));
    }
    let merge = if row.is_empty() {
        None
    } else {
        let (level, end) = (cut(&mut row, 1)?[0], cut(&mut row, 1)?[0] as usize);
        let publish_at = cut(&mut row, 8)?.try_into().map(u64::from_be_bytes);
        Some((level, end, publish_at.expect("eight bytes")))
    };
    Ok((runs, merge))
}

impl Backend for Column {
    fn identity(&self) -> &Identity {
        &IDENTITY
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            proofs: true,
            absence_proofs: true,
            state_determined_root: false,
            ethereum_root: false,
            history: false,
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![MEMORY, MANIFEST]
    }

    fn empty_root(&self) -> B256 {
        Levels::default().root()
    }

    fn open(&self, view: &dyn NodeRead, jobs: &Jobs) -> Result<Cache, StateError> {
        let mut levels = Levels::default();
        for row in view.scan(MEMORY, KeyRange::ALL, Direction::Forward)? {
            let (key, row) = row?;
            let corrupt = || StateError::corrupt(MEMORY.name, format!("row {key} is malformed"));
            let key = StateKey::decode(&key).ok_or_else(corrupt)?;
            levels.memory.insert(key, decode_row(&row).ok_or_else(corrupt)?);
        }
        if let Some(row) = view.get(MANIFEST, &[])? {
            let (runs, merge) = decode_manifest(jobs.dir().ok_or_else(no_dir)?, &row)?;
            levels.runs = runs;
            if let Some((level, end, publish_at)) = merge {
                let handle = jobs.start(levels.merge_job(level, end, publish_at));
                levels.merge = Some(Merge { level, end, publish_at, handle });
            }
        }
        Ok(Arc::new(levels))
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &Cache,
        delta: &StateDelta,
    ) -> Result<Applied, StateError> {
        let (number, jobs) = (context.number, context.jobs);
        let mut levels = Levels::of(cache).clone();
        for change in delta.changes() {
            view.put(MEMORY, &change.key.encode(), encode_row(&change.next))?;
            levels.memory.insert(change.key, change.next.clone());
        }
        // What is due is published before anything new starts.
        if levels.merge.as_ref().is_some_and(|merge| merge.publish_at == number)
            && let Some(merge) = levels.merge.take()
        {
            let run = jobs.wait(&merge.handle)?.downcast::<Run>().expect("a run");
            view.publish_file(&run.name)?;
            self.lives.lock().insert(run.name.clone(), (number, None));
            for old in levels.runs.splice(merge.end - FANOUT..merge.end, [run]) {
                view.retire_file(&old.name)?;
                if let Some((_, end)) = self.lives.lock().get_mut(&old.name) {
                    *end = Some(number);
                }
            }
        }
        if number.is_multiple_of(FLUSH) && !levels.memory.is_empty() {
            let entries = std::mem::take(&mut levels.memory);
            for key in entries.keys() {
                view.delete(MEMORY, &key.encode())?;
            }
            let run = write_run(jobs.dir().ok_or_else(no_dir)?, 0, number, entries)?;
            view.publish_file(&run.name)?;
            self.lives.lock().insert(run.name.clone(), (number, None));
            levels.runs.insert(0, Arc::new(run));
            if let Some(merge) = &mut levels.merge {
                merge.end += 1;
            }
        }
        if levels.merge.is_none()
            && let Some((level, end)) = levels.due_merge()
        {
            let publish_at = number + MERGE;
            let handle = jobs.start(levels.merge_job(level, end, publish_at));
            levels.merge = Some(Merge { level, end, publish_at, handle });
        }
        view.put(MANIFEST, &[], levels.manifest().into())?;
        Ok(Applied { root: levels.root(), cache: Arc::new(levels) })
    }

    fn read(
        &self,
        _: &dyn NodeRead,
        cache: &Cache,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError> {
        Ok(Levels::of(cache).get(key))
    }

    fn slots_of(
        &self,
        _: &dyn NodeRead,
        cache: &Cache,
        address: &Address,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        Ok(slots_of(&Levels::of(cache).merged(), address))
    }

    fn entries(
        &self,
        _: &dyn NodeRead,
        cache: &Cache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        Ok(page(&Levels::of(cache).merged(), start, limit))
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut levels = Levels::default();
        for entry in entries {
            let (key, value) = entry?;
            levels.memory.insert(key, Some(value));
        }
        if number.is_multiple_of(FLUSH) && !levels.memory.is_empty() {
            let dir = sink.dir().ok_or_else(no_dir)?.to_owned();
            let run = write_run(&dir, 0, number, std::mem::take(&mut levels.memory))?;
            sink.publish_file(&run.name)?;
            levels.runs.push(Arc::new(run));
        }
        for (key, value) in &levels.memory {
            sink.put(MEMORY, &key.encode(), &encode_row(value))?;
        }
        sink.put(MANIFEST, &[], &levels.manifest())?;
        Ok(levels.root())
    }

    fn prove(&self, _: &dyn NodeRead, cache: &Cache, _: &[StateKey]) -> Result<Bytes, StateError> {
        let levels = Levels::of(cache);
        let mut proof = encode_level(&levels.memory);
        levels.runs.iter().for_each(|run| proof.extend(encode_level(&run.entries)));
        Ok(proof.into())
    }

    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        mut proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        let mut levels = Vec::new();
        while levels.is_empty() || !proof.is_empty() {
            let level = decode_level(&mut proof);
            levels.push(level.ok_or(ProofError::Malformed { what: "a level" })?);
        }
        if root_of(digest(&levels[0]), levels[1..].iter().map(digest)) != root {
            return Err(ProofError::RootMismatch);
        }
        let find = |key| levels.iter().find_map(|level| level.get(key)).cloned().flatten();
        Ok(keys.iter().map(find).collect())
    }

    fn stats(&self, view: &dyn NodeRead, cache: &Cache) -> Result<BackendStats, StateError> {
        let levels = Levels::of(cache);
        let live_keys = levels.merged().values().flatten().count() as u64;
        let all: usize = levels.runs.iter().map(|run| run.entries.len()).sum();
        let memory = view.scan(MEMORY, KeyRange::ALL, Direction::Forward)?.count() as u64;
        Ok(BackendStats {
            tables: vec![(MEMORY.name, memory), (MANIFEST.name, 1)],
            live_keys,
            dead_keys: (all + levels.memory.len()) as u64 - live_keys,
        })
    }
}

retrie_state::backend_tests!(|| Arc::new(Column::default()) as Arc<dyn Backend>);

#[test]
fn retired_files_live_as_long_as_a_retained_block_needs_them_and_no_longer() {
    for retention in [0, 1, 5] {
        let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
        let column = Arc::new(Column::default());
        let lives = column.lives.clone();
        let options = StoreOptions { retention, fold_commits: 2, ..StoreOptions::default() };
        let store = common::open(column, &kv, Some(dir.path()), options.clone()).unwrap();
        let mut seen_retired = 0;
        for number in 0..60 {
            let changes: Vec<_> = (0..4)
                .map(|n| {
                    let key = slot_key(number * 3 + n * 7);
                    (key, (n > 0).then(|| Bytes::from(format!("{number}-{n}").into_bytes())))
                })
                .collect();
            let proposal = propose(&store, At::Tip, common::hash(0, number), &changes).unwrap();
            common::commit(&store, &kv, &[proposal]).unwrap();
            for (name, (published, retired)) in lives.lock().iter() {
                let is_there = dir.path().join(name).is_file();
                match retired {
                    Some(retired) if retired + retention <= number => {
                        seen_retired += 1;
                        assert!(!is_there, "{name} was retired at {retired}, at {number} it stays");
                    }
                    _ => assert!(is_there, "{name} of {published} is gone at {number}"),
                }
            }
            // A read of a retained block opens its files and checks their digests.
            for old in number.saturating_sub(retention)..=number {
                store.reader(At::Block(common::hash(0, old))).unwrap();
            }
        }
        assert!(seen_retired > 10, "there were merges");
        drop(store);

        // Only what was published and is still needed survives an opening without jobs.
        let needed: BTreeSet<String> = lives
            .lock()
            .iter()
            .filter(|(_, (_, retired))| retired.is_none_or(|retired| retired + retention > 59))
            .map(|(name, _)| name.clone())
            .collect();
        fs::write(dir.path().join("run-0-60-half"), b"half").unwrap();
        let store =
            common::open(Arc::new(Column::default()), &kv, Some(dir.path()), options).unwrap();
        drop(store);
        let left: BTreeSet<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            // The output of the merge that was under way, if the restarted job was that fast.
            .filter(|name| needed.contains(name) || !name.starts_with("run-1-6"))
            .collect();
        assert_eq!(left, needed);
    }
}

#[test]
fn a_block_that_names_a_file_nobody_wrote_is_refused() {
    let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
    let column = Arc::new(Column::default());
    let store = common::open(column, &kv, Some(dir.path()), StoreOptions::default()).unwrap();
    let changes = [(slot_key(1), Some(Bytes::from_static(b"1")))];
    let proposal = propose(&store, At::Tip, common::hash(0, 0), &changes).unwrap();
    for entry in fs::read_dir(dir.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let error = common::commit(&store, &kv, &[proposal]).unwrap_err();
    assert!(error.to_string().contains("run-0-0-"), "{error}");
    assert_eq!(store.tip(), None);
    // Proposing again writes it again.
    let proposal = propose(&store, At::Tip, common::hash(0, 0), &changes).unwrap();
    common::commit(&store, &kv, &[proposal]).unwrap();
    assert_eq!(store.tip().unwrap().block.number, 0);
    assert!(store.stats().unwrap().file_bytes > 0);
}

#[test]
fn a_damaged_file_is_an_error_that_names_it() {
    let (kv, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
    let store = |kv: &MemoryStore| {
        let column = Arc::new(Column::default());
        common::open(column, kv, Some(dir.path()), StoreOptions::default())
    };
    let first = store(&kv).unwrap();
    let changes = [(slot_key(1), Some(Bytes::from_static(b"1")))];
    let proposal = propose(&first, At::Tip, common::hash(0, 0), &changes).unwrap();
    common::commit(&first, &kv, &[proposal]).unwrap();
    drop(first);
    let file = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let mut content = fs::read(&file).unwrap();
    content[7] ^= 1;
    fs::write(&file, content).unwrap();
    let error = store(&kv).unwrap_err();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(error.to_string().contains(name), "{error}");
}
