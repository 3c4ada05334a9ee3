//! A mock of COLE: all versions of all keys, in a level in memory that is flushed into immutable
//! files every few blocks. Background jobs merge files between a start block and a publish block.
//! Old states are read from the latest state, and proven by it.
//!
//! The root hashes the levels in order, so it depends on history. Every file is needed by reads.

use super::{EntryLevel, decode_row, encode_row, page, slots_of};
use alloy_primitives::{B256, Bytes, keccak256};
use parking_lot::Mutex;
use retrie_state::{
    AccountKey, AnyCache, ApplyContext, ApplyOutput, Backend, BackendDelta, BackendExtensions,
    BackendIdentity, BackendKey, BackendProfile, BackendStats, BackgroundJob, BulkSink, HashId,
    JobFiles, JobHandle, JobRunner, KeyRange, NodeRead, NodeWrite, ProofError, ProvenanceQueries,
    RowTable, ScanDirection, StateError, StateHistory, StateValue, StoreError, ValueVersion,
};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    ops::RangeInclusive,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

static IDENTITY: BackendIdentity = BackendIdentity::plain("mock-column", 1, HashId::Keccak256);

/// The level in memory: state key and block (8, BE) to [`encode_row`].
const MEMORY: RowTable = RowTable::new(0x01, "MockMemory");
/// Two rows: the manifest, under [`RUNS`], and the first and the last block, under [`BLOCKS`].
const MANIFEST: RowTable = RowTable::new(0x02, "MockManifest");
const RUNS: &[u8] = &[];
const BLOCKS: &[u8] = &[1];

/// Blocks between flushes.
const FLUSH: u64 = 3;
/// Files of a level that are merged into one of the next.
const FANOUT: usize = 3;
/// Blocks from the start of a merge to its publication.
const MERGE: u64 = 4;

/// A merge in the manifest: level, end of its inputs, block of publication.
type MergeRow = (u8, usize, u64);

/// When each file was published and retired, on the last chain that was applied.
pub(crate) type FileLives = Arc<Mutex<BTreeMap<String, (u64, Option<u64>)>>>;

#[derive(Default)]
pub(crate) struct MockColumn {
    pub(crate) lives: FileLives,
    /// Blocks of history that merges of all files keep; all of them without.
    pub(crate) keep: Option<u64>,
    /// Merges that were run, without those whose output file existed already.
    pub(crate) merges: Arc<AtomicUsize>,
}

/// Versions by key and block; `None` is a tombstone.
type VersionMap = BTreeMap<(BackendKey, u64), Option<StateValue>>;

/// `count (4, BE)`, then for each pair `key length (1) || key || block (8, BE) || row length (4, BE)
/// || row`, as in [`encode_row`].
fn encode_pairs(pairs: &VersionMap) -> Vec<u8> {
    let mut out = (pairs.len() as u32).to_be_bytes().to_vec();
    for ((key, block), value) in pairs {
        let (key, row) = (key.encode(), encode_row(value));
        out.push(key.len() as u8);
        out.extend_from_slice(&key);
        out.extend_from_slice(&block.to_be_bytes());
        out.extend_from_slice(&(row.len() as u32).to_be_bytes());
        out.extend_from_slice(&row);
    }
    out
}

/// Reads pairs off the front of `bytes`; `None` unless that is the canonical encoding.
fn decode_pairs(bytes: &mut &[u8]) -> Option<VersionMap> {
    let mut pairs = VersionMap::new();
    for _ in 0..number(cut(bytes, 4)?) {
        let len = cut(bytes, 1)?[0] as usize;
        let key = BackendKey::decode(cut(bytes, len)?)?;
        let pair = (key, number(cut(bytes, 8)?));
        let len = number(cut(bytes, 4)?) as usize;
        let value = decode_row(cut(bytes, len)?)?;
        if pairs.last_key_value().is_some_and(|(last, _)| *last >= pair) {
            return None;
        }
        pairs.insert(pair, value);
    }
    Some(pairs)
}

fn cut<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn digest(pairs: &VersionMap) -> B256 {
    keccak256(encode_pairs(pairs))
}

/// An immutable file.
struct ColumnRun {
    level: u8,
    name: String,
    digest: B256,
    pairs: VersionMap,
}

/// A merge under way.
#[derive(Clone)]
struct ColumnMerge {
    level: u8,
    /// Positions of its inputs among the runs end here and start [`FANOUT`] before.
    end: usize,
    publish_at: u64,
    /// `None` until the first block after an opening.
    handle: Option<JobHandle>,
}

/// The cache of one block.
#[derive(Clone)]
pub(crate) struct ColumnCache {
    memory: VersionMap,
    /// Newest first.
    runs: Vec<Arc<ColumnRun>>,
    merge: Option<ColumnMerge>,
    /// States of older blocks cannot be read.
    horizon: u64,
    /// The block whose state is read; the largest number for the newest.
    as_of: u64,
}

impl Default for ColumnCache {
    fn default() -> Self {
        let (memory, runs) = Default::default();
        Self { memory, runs, merge: None, horizon: 0, as_of: u64::MAX }
    }
}

impl ColumnCache {
    fn manifest(&self) -> Vec<u8> {
        let mut out = self.horizon.to_be_bytes().to_vec();
        out.push(self.runs.len() as u8);
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
        root_of(self.horizon, digest(&self.memory), self.runs.iter().map(|run| run.digest))
    }

    fn levels(&self) -> impl Iterator<Item = &VersionMap> {
        [&self.memory].into_iter().chain(self.runs.iter().map(|run| &run.pairs))
    }

    fn get(&self, key: &BackendKey) -> Option<StateValue> {
        let newest = versions_in(self.levels(), key, self.as_of..=self.as_of).into_iter().next();
        newest.and_then(|version| version.value)
    }

    /// The state, tombstones included.
    fn merged(&self) -> EntryLevel {
        let mut all = VersionMap::new();
        self.levels().for_each(|level| all.extend(level.clone()));
        let seen = all.into_iter().filter(|((_, block), _)| *block <= self.as_of);
        seen.map(|((key, _), value)| (key, value)).collect()
    }

    /// The bytes that prove everything: the horizon and all levels.
    fn proof(&self) -> Bytes {
        let mut proof = self.horizon.to_be_bytes().to_vec();
        self.levels().for_each(|level| proof.extend(encode_pairs(level)));
        proof.into()
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

    /// The merge of the runs before `end` as a job. Its output is the new [`ColumnRun`], in a file.
    fn merge_job(
        &self,
        column: &MockColumn,
        level: u8,
        end: usize,
        publish_at: u64,
    ) -> BackgroundJob {
        let inputs: Vec<_> = self.runs[end - FANOUT..end].to_vec();
        let is_last = end == self.runs.len();
        let horizon = self.horizon_of(column, end, publish_at);
        let digests: Vec<_> = inputs.iter().map(|run| run.digest).collect();
        let (id, merges) = (merge_id(&digests, publish_at), column.merges.clone());
        BackgroundJob::new(id, "mock merge", move |context| {
            let dir = context.dir().ok_or_else(no_dir)?;
            let name = merge_name(level, publish_at, id);
            if let Ok(run) = read_run(dir, level + 1, &name, None) {
                // Finished before the store was closed.
                return Ok(Arc::new(run));
            }
            merges.fetch_add(1, Ordering::Relaxed);
            let mut pairs = VersionMap::new();
            for run in inputs.iter().rev() {
                for (n, (pair, value)) in run.pairs.iter().enumerate() {
                    if n % 16 == 0 {
                        context.pause_point()?;
                    }
                    pairs.insert(*pair, value.clone());
                }
            }
            if is_last {
                forget(&mut pairs, horizon);
            }
            Ok(Arc::new(write_run(dir, level + 1, name, pairs)?))
        })
    }

    /// Restarts the merge that was under way at the opening.
    fn resume(&mut self, column: &MockColumn, jobs: &JobRunner) {
        if let Some(ColumnMerge { level, end, publish_at, handle: None }) = self.merge {
            let handle = Some(jobs.start(self.merge_job(column, level, end, publish_at)));
            self.merge = Some(ColumnMerge { level, end, publish_at, handle });
        }
    }

    /// The horizon after a merge that ends at `end`: only a merge of the oldest runs may forget.
    fn horizon_of(&self, column: &MockColumn, end: usize, publish_at: u64) -> u64 {
        let keep = column.keep.filter(|_| end == self.runs.len());
        keep.map_or(0, |keep| publish_at.saturating_sub(keep)).max(self.horizon)
    }
}

fn merge_id(inputs: &[B256], publish_at: u64) -> B256 {
    keccak256([&publish_at.to_be_bytes()[..], inputs.concat().as_slice()].concat())
}

fn merge_name(level: u8, publish_at: u64, id: B256) -> String {
    format!("run-{}-{publish_at}-{id:x}", level + 1)
}

/// Drops the versions that no state from `horizon` on has, and tombstones that hide nothing.
fn forget(pairs: &mut VersionMap, horizon: u64) {
    let mut newer: Option<(BackendKey, u64)> = None;
    let mut gone = Vec::new();
    for (pair, value) in pairs.iter().rev() {
        let is_hidden = newer.is_some_and(|(key, block)| key == pair.0 && block <= horizon);
        if pair.1 <= horizon && horizon > 0 && (is_hidden || value.is_none()) {
            gone.push(*pair);
        }
        newer = Some(*pair);
    }
    gone.iter().for_each(|pair| drop(pairs.remove(pair)));
}

fn root_of(horizon: u64, memory: B256, runs: impl Iterator<Item = B256>) -> B256 {
    let mut bytes = [&horizon.to_be_bytes()[..], memory.as_slice()].concat();
    runs.for_each(|digest| bytes.extend_from_slice(digest.as_slice()));
    keccak256(bytes)
}

/// The versions of `key` in `blocks`, newest first.
fn versions_in<'a>(
    levels: impl Iterator<Item = &'a VersionMap>,
    key: &BackendKey,
    blocks: RangeInclusive<u64>,
) -> Vec<ValueVersion> {
    let mut all = BTreeMap::new();
    for level in levels {
        let found = level.range((*key, 0)..=(*key, *blocks.end()));
        all.extend(found.map(|((_, block), value)| (*block, value.clone())));
    }
    let in_force = all.range(..=blocks.start()).next_back().map_or(0, |(block, _)| *block);
    let version = |(block, value): (&u64, &Option<StateValue>)| ValueVersion {
        block: *block,
        value: value.clone(),
    };
    all.range(in_force..).rev().map(version).collect()
}

fn no_dir() -> StateError {
    StateError::Unsupported { backend: IDENTITY.name, what: "stores without a directory" }
}

/// Writes and fsyncs a file. It appears under `name` complete or not at all.
fn write_file(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    static WRITERS: AtomicUsize = AtomicUsize::new(0);
    let path = dir.join(format!("{name}.{}.tmp", WRITERS.fetch_add(1, Ordering::Relaxed)));
    let written = fs::File::create(&path).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&path, dir.join(name))
    });
    if let Err(error) = written {
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    fs::File::open(dir)?.sync_all()
}

fn write_run(
    dir: &Path,
    level: u8,
    name: String,
    pairs: VersionMap,
) -> Result<ColumnRun, StateError> {
    let content = encode_pairs(&pairs);
    let fail = |error| StoreError::new(format!("writing state file {name}"), error);
    write_file(dir, &name, &content).map_err(fail)?;
    Ok(ColumnRun { level, name, digest: keccak256(&content), pairs })
}

fn flush_run(dir: &Path, block: u64, pairs: VersionMap) -> Result<ColumnRun, StateError> {
    write_run(dir, 0, format!("run-0-{block}-{:x}", digest(&pairs)), pairs)
}

fn read_run(
    dir: &Path,
    level: u8,
    name: &str,
    digest: Option<B256>,
) -> Result<ColumnRun, StateError> {
    let corrupt = |what: &str| StateError::corrupt(name, what);
    let content = fs::read(dir.join(name)).map_err(|error| corrupt(&error.to_string()))?;
    let found = keccak256(&content);
    if digest.is_some_and(|digest| digest != found) {
        return Err(corrupt("its digest is not the one of the manifest"));
    }
    let mut bytes = &content[..];
    match decode_pairs(&mut bytes) {
        Some(pairs) if bytes.is_empty() => {
            Ok(ColumnRun { level, name: name.into(), digest: found, pairs })
        }
        _ => Err(corrupt("malformed")),
    }
}

/// The manifest as a row.
#[derive(Default)]
struct ColumnManifest {
    horizon: u64,
    /// Level, digest and name of each run.
    runs: Vec<(u8, B256, String)>,
    merge: Option<MergeRow>,
}

impl ColumnManifest {
    fn read(view: &dyn NodeRead) -> Result<Self, StateError> {
        let Some(row) = view.get(MANIFEST, RUNS)? else { return Ok(Self::default()) };
        let bad = || StateError::corrupt(MANIFEST.name, "cut short");
        let mut row = &row[..];
        let manifest = Self::decode(&mut row).ok_or_else(bad)?;
        if row.is_empty() { Ok(manifest) } else { Err(bad()) }
    }

    fn decode(row: &mut &[u8]) -> Option<Self> {
        let mut manifest = Self { horizon: number(cut(row, 8)?), ..Self::default() };
        for _ in 0..number(cut(row, 1)?) {
            let (level, digest) = (cut(row, 1)?[0], B256::from_slice(cut(row, 32)?));
            let len = cut(row, 1)?[0] as usize;
            let name = String::from_utf8_lossy(cut(row, len)?).into_owned();
            manifest.runs.push((level, digest, name));
        }
        if !row.is_empty() {
            let (level, end) = (cut(row, 1)?[0], cut(row, 1)?[0] as usize);
            manifest.merge = Some((level, end, number(cut(row, 8)?)));
        }
        Some(manifest)
    }
}

fn memory_key(key: &BackendKey, block: u64) -> Vec<u8> {
    [&key.encode()[..], &block.to_be_bytes()].concat()
}

impl StateHistory for MockColumn {
    fn kept(&self, view: &dyn NodeRead) -> Result<Option<RangeInclusive<u64>>, StateError> {
        let Some(row) = view.get(MANIFEST, BLOCKS)? else { return Ok(None) };
        let corrupt = || StateError::corrupt(MANIFEST.name, "the row of blocks is malformed");
        let (first, last) = row.split_at_checked(8).ok_or_else(corrupt)?;
        Ok(Some(number(first).max(ColumnManifest::read(view)?.horizon)..=number(last)))
    }

    fn prunes(&self) -> bool {
        self.keep.is_some()
    }

    fn proven_by_view(&self) -> bool {
        true
    }

    fn open_at(
        &self,
        _: &dyn NodeRead,
        cache: &AnyCache,
        number: u64,
    ) -> Result<(B256, AnyCache), StateError> {
        let cache: &ColumnCache = cache.get()?;
        let levels = ColumnCache { as_of: number, ..cache.clone() };
        Ok((levels.root(), AnyCache::new(levels)))
    }
}

fn read_memory(view: &dyn NodeRead) -> Result<VersionMap, StateError> {
    let mut pairs = VersionMap::new();
    for row in view.scan(MEMORY, KeyRange::ALL, ScanDirection::Forward)? {
        let (key, row) = row?;
        let corrupt = || StateError::corrupt(MEMORY.name, format!("row {key} is malformed"));
        let (state_key, block) = key.split_last_chunk::<8>().ok_or_else(corrupt)?;
        let state_key = BackendKey::decode(state_key).ok_or_else(corrupt)?;
        let value = decode_row(&row).ok_or_else(corrupt)?;
        pairs.insert((state_key, u64::from_be_bytes(*block)), value);
    }
    Ok(pairs)
}

impl ProvenanceQueries for MockColumn {
    fn versions(
        &self,
        _: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<ValueVersion>>, Bytes), StateError> {
        let cache: &ColumnCache = cache.get()?;
        let versions = keys.iter().map(|key| versions_in(cache.levels(), key, blocks.clone()));
        Ok((versions.collect(), cache.proof()))
    }

    fn verify_versions(
        &self,
        root: B256,
        keys: &[BackendKey],
        blocks: RangeInclusive<u64>,
        mut proof: &[u8],
    ) -> Result<Vec<Vec<ValueVersion>>, ProofError> {
        let malformed = |what| ProofError::Malformed { what };
        let horizon;
        (horizon, proof) =
            proof.split_first_chunk::<8>().ok_or_else(|| malformed("the horizon"))?;
        let horizon = u64::from_be_bytes(*horizon);
        let mut levels = Vec::new();
        while levels.is_empty() || !proof.is_empty() {
            levels.push(decode_pairs(&mut proof).ok_or_else(|| malformed("a level"))?);
        }
        if root_of(horizon, digest(&levels[0]), levels[1..].iter().map(digest)) != root {
            return Err(ProofError::RootMismatch);
        }
        if *blocks.start() < horizon {
            return Err(ProofError::Missing { what: "a block that is forgotten" });
        }
        Ok(keys.iter().map(|key| versions_in(levels.iter(), key, blocks.clone())).collect())
    }
}

impl Backend for MockColumn {
    type Cache = ColumnCache;

    fn identity(&self) -> &BackendIdentity {
        &IDENTITY
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: &[MEMORY, MANIFEST],
            empty_root: ColumnCache::default().root(),
            proofs: true,
            absence_proofs: true,
            ..BackendProfile::default()
        }
    }

    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<ColumnCache, StateError> {
        let ColumnManifest { horizon, runs, merge } = ColumnManifest::read(view)?;
        let mut levels =
            ColumnCache { memory: read_memory(view)?, horizon, ..ColumnCache::default() };
        for (level, digest, name) in runs {
            let dir = dir.ok_or_else(no_dir)?;
            levels.runs.push(Arc::new(read_run(dir, level, &name, Some(digest))?));
        }
        levels.merge = merge.map(|(level, end, publish_at)| ColumnMerge {
            level,
            end,
            publish_at,
            handle: None,
        });
        Ok(levels)
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &ColumnCache,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<ColumnCache>, StateError> {
        let (number, jobs) = (context.number, context.jobs);
        let mut levels = cache.clone();
        levels.resume(self, jobs);
        for change in delta.changes() {
            view.put(MEMORY, &memory_key(&change.key, number), encode_row(&change.next))?;
            levels.memory.insert((change.key, number), change.next.clone());
        }
        // A due merge is published before a new one starts.
        if levels.merge.as_ref().is_some_and(|merge| merge.publish_at == number)
            && let Some(merge) = levels.merge.take()
        {
            let handle = merge.handle.as_ref().expect("it was resumed");
            let run = jobs.wait(handle)?.downcast::<ColumnRun>().expect("a run");
            view.publish_file(&run.name)?;
            self.lives.lock().insert(run.name.clone(), (number, None));
            levels.horizon = levels.horizon_of(self, merge.end, number);
            for old in levels.runs.splice(merge.end - FANOUT..merge.end, [run]) {
                view.retire_file(&old.name)?;
                if let Some((_, end)) = self.lives.lock().get_mut(&old.name) {
                    *end = Some(number);
                }
            }
        }
        if number.is_multiple_of(FLUSH) && !levels.memory.is_empty() {
            let pairs = std::mem::take(&mut levels.memory);
            for (key, block) in pairs.keys() {
                view.delete(MEMORY, &memory_key(key, *block))?;
            }
            let run = flush_run(jobs.dir().ok_or_else(no_dir)?, number, pairs)?;
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
            levels.merge = Some(ColumnMerge { level, end, publish_at, handle: None });
            levels.resume(self, jobs);
        }
        view.put(MANIFEST, RUNS, levels.manifest().into())?;
        let first = view.get(MANIFEST, BLOCKS)?.and_then(|row| Some(*row.first_chunk::<8>()?));
        let blocks = [first.unwrap_or_else(|| number.to_be_bytes()), number.to_be_bytes()].concat();
        view.put(MANIFEST, BLOCKS, blocks.into())?;
        Ok(ApplyOutput { root: levels.root(), cache: levels })
    }

    fn read(
        &self,
        _: &dyn NodeRead,
        cache: &ColumnCache,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        Ok(cache.get(key))
    }

    fn slots_of(
        &self,
        _: &dyn NodeRead,
        cache: &ColumnCache,
        account: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        Ok(slots_of(&cache.merged(), account, limit))
    }

    fn entries(
        &self,
        _: &dyn NodeRead,
        cache: &ColumnCache,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        Ok(page(&cache.merged(), start, limit))
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut levels = ColumnCache::default();
        for entry in entries {
            let (key, value) = entry?;
            levels.memory.insert((key, number), Some(value));
        }
        if number.is_multiple_of(FLUSH) && !levels.memory.is_empty() {
            let dir = sink.dir().ok_or_else(no_dir)?.to_owned();
            let run = flush_run(&dir, number, std::mem::take(&mut levels.memory))?;
            sink.publish_file(&run.name)?;
            levels.runs.push(Arc::new(run));
        }
        for ((key, block), value) in &levels.memory {
            sink.put(MEMORY, &memory_key(key, *block), &encode_row(value))?;
        }
        sink.put(MANIFEST, RUNS, &levels.manifest())?;
        sink.put(MANIFEST, BLOCKS, &[number.to_be_bytes(); 2].concat())?;
        Ok(levels.root())
    }

    fn prove(
        &self,
        _: &dyn NodeRead,
        cache: &ColumnCache,
        _: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        Ok(cache.proof())
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        let versions = self.verify_versions(root, keys, u64::MAX..=u64::MAX, proof)?;
        Ok(versions.into_iter().map(|of| of.into_iter().next()?.value).collect())
    }

    fn stats(&self, view: &dyn NodeRead, cache: &ColumnCache) -> Result<BackendStats, StateError> {
        let merged = cache.merged();
        let live_keys = merged.values().flatten().count() as u64;
        let memory = view.scan(MEMORY, KeyRange::ALL, ScanDirection::Forward)?.count() as u64;
        Ok(BackendStats {
            tables: vec![(MEMORY.name, memory), (MANIFEST.name, 2)],
            live_keys,
            dead_keys: merged.len() as u64 - live_keys,
        })
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            history: Some(self),
            provenance: Some(self),
            job_files: Some(self),
            ..BackendExtensions::default()
        }
    }
}

impl JobFiles for MockColumn {
    fn pending_files(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError> {
        let ColumnManifest { runs, merge, .. } = ColumnManifest::read(view)?;
        let digests: Vec<_> = runs.into_iter().map(|(_, digest, _)| digest).collect();
        let name = |(level, end, publish_at): MergeRow| {
            merge_name(level, publish_at, merge_id(&digests[end - FANOUT..end], publish_at))
        };
        Ok(merge.map(name).into_iter().collect())
    }
}

#[test]
fn files_appear_complete_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    write_file(dir.path(), "run-1", b"content").unwrap();
    write_file(dir.path(), "run-1", b"content").unwrap();
    assert_eq!(fs::read(dir.path().join("run-1")).unwrap(), b"content");
    fs::create_dir(dir.path().join("taken")).unwrap();
    assert!(write_file(dir.path(), "taken", b"x").is_err());
    assert!(write_file(&dir.path().join("no"), "run-2", b"x").is_err());
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 2, "no temporary file is left");
}
