//! Our state stores as contenders: any backend on MDBX, with the commit path of the client.

use super::{
    block::{KeyOp, ReadDigest},
    factory::{EntryStream, OpenStore, StoreFactory},
    outcome::ProofFigures,
};
use crate::{BenchError, error::BackendErrorExt, race::RaceTerms};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, keccak256};
use retrie_db::{DatabaseEnv, OpenOptions, SCHEMA_VERSION, SyncMode};
use retrie_pipeline::report::TimeBreakdown;
use retrie_state::{
    Account, AnyBackend, BackendKey, BlockRef, DeltaBuilder, KeyForm, StateError, StateKey,
    StateProof, StateReader, StateValue, StoreError,
};
use retrie_state_store::{
    CounterSnapshot, KvStore, StateId, StateProvider, StateStore, StoreOptions,
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Number of generations of committed rows that a state store holds in memory before they are
/// folded: three, and one that was just frozen.
pub(crate) const GENERATIONS: usize = 4;

/// A backend with the framework's state store.
#[derive(Clone)]
pub struct BackendFactory {
    backend: Arc<dyn AnyBackend>,
    name: String,
    keys: KeyForm,
}

impl BackendFactory {
    /// Makes `backend` a contender.
    pub fn new(backend: Arc<dyn AnyBackend>) -> Self {
        let name = backend.identity().name.into();
        Self { backend, name, keys: KeyForm::Plain }
    }

    /// Sets another name, for several contenders with the same backend.
    pub fn named(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets the form of the keys that the backend gets.
    pub fn with_keys(self, keys: KeyForm) -> Self {
        Self { keys, ..self }
    }
}

impl std::fmt::Debug for BackendFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BackendFactory").field(self.backend.identity()).finish()
    }
}

impl StoreFactory for BackendFactory {
    fn name(&self) -> &str {
        &self.name
    }

    fn hash(&self) -> &str {
        self.backend.identity().hash.name()
    }

    fn format(&self) -> String {
        let identity = self.backend.identity();
        let params = identity.params.to_string();
        let (head, tail) = params[2..].split_at(16);
        // If the parameters are a digest, its head is enough. Packed parameters may differ further
        // back, and end in zeros.
        let is_packed = tail.ends_with("00000000");
        let params = format!("{head}{}", if is_packed { tail.trim_end_matches('0') } else { "" });
        let (name, version, hash) = (identity.name, identity.version, identity.hash.name());
        // Proof shards store different proof data for the same state.
        let shard =
            self.backend.extensions().proof_shards.map(|shards| shards.shard().replace('/', "of"));
        let shard = shard.map_or_else(String::new, |shard| format!("-shard-{shard}"));
        let layout = match identity.layout {
            "" => String::new(),
            layout => format!("-{}", layout.replace([',', '='], "-")),
        };
        let keys = match self.keys {
            KeyForm::Plain => "",
            KeyForm::Hashed => "-hashed",
        };
        format!("{name}-v{version}-{hash}-{params}{layout}{shard}{keys}-s{SCHEMA_VERSION}")
    }

    fn fixed_bytes(&self) -> u64 {
        self.backend.profile().cache_bytes
    }

    fn remark(&self) -> Option<String> {
        let mib = self.fixed_bytes() >> 20;
        (mib > 0).then(|| format!("up to {mib} MiB of caches of its own beside these terms"))
    }

    fn load(&self, folder: &Path, entries: &mut EntryStream<'_>) -> Result<(), BenchError> {
        let name = self.name();
        let db = DatabaseEnv::create(folder, &OpenOptions::default()).of_backend(name)?;
        let (dir, keys) = (Some(files(folder)), self.keys);
        let options = StoreOptions { dir, keys, ..StoreOptions::default() };
        let store =
            StateStore::open(self.backend.clone(), db.state_store(), options).of_backend(name)?;
        let mut txn = db.begin_write().of_backend(name)?;
        if self.backend.profile().needs_codes {
            for (hash, code) in entries.entries.codes() {
                txn.insert_code(hash, code).of_backend(name)?;
            }
        }
        let stopped = |stopped| StoreError::new("loading", stopped).into();
        let mut all = entries.by_ref().map(|entry| entry.map_err(stopped));
        let loaded = store.bulk_load(BlockRef::default(), &mut all, &mut txn);
        if entries.is_stopped() {
            return Err(BenchError::Stopped);
        }
        let (_, after) = loaded.of_backend(name)?;
        txn.commit().of_backend(name)?;
        after.run().of_backend(name)
    }

    fn open(
        &self,
        folder: &Path,
        terms: &RaceTerms,
        _: u64,
    ) -> Result<Box<dyn OpenStore>, BenchError> {
        let name = self.name();
        let options = OpenOptions { sync: terms.sync, ..OpenOptions::default() };
        let db = DatabaseEnv::open(folder, &options).of_backend(name)?;
        let options = StoreOptions {
            retention: terms.retention,
            fold_bytes: terms.rows_bytes(self.fixed_bytes()) / GENERATIONS,
            read_threads: terms.read_threads,
            dir: Some(files(folder)),
            keys: self.keys,
            ..StoreOptions::default()
        };
        let kv = db.state_store();
        let store = StateStore::open(self.backend.clone(), kv.clone(), options).of_backend(name)?;
        let sync = terms.sync;
        Ok(Box::new(OpenBackend {
            name: name.into(),
            folder: folder.into(),
            sync,
            kv,
            store,
            db,
            spent: TimeBreakdown::default(),
        }))
    }
}

/// Folder of a state store's immutable files.
fn files(folder: &Path) -> PathBuf {
    folder.join("state")
}

struct OpenBackend {
    name: String,
    folder: PathBuf,
    sync: SyncMode,
    kv: Arc<dyn KvStore>,
    // The store is dropped before its database.
    store: StateStore,
    db: DatabaseEnv,
    /// Time spent so far. The time of row reads is part of `authentication`.
    spent: TimeBreakdown,
}

impl OpenBackend {
    fn step(&mut self, block: &[KeyOp]) -> Result<ReadDigest, StateError> {
        let session = self.store.begin(StateId::Tip)?;
        let start = Instant::now();
        let _ahead = session.prefetch(block.iter().map(|op| *op.key()).collect());
        let reader = session.reader();
        let mut reads = ReadDigest::default();
        let mut delta = DeltaBuilder::new();
        let needs_codes = self.store.backend().profile().needs_codes;
        for op in block {
            let previous = reader.get(op.key())?;
            reads.note(previous.as_ref().map(|value| &value[..]));
            if let Some(next) = op.next() {
                if needs_codes && let Some(code) = self.new_code(previous.as_ref(), next)? {
                    delta.add_code(keccak256(&code), code);
                }
                delta.change(*op.key(), previous, next.cloned());
            }
        }
        drop(reader);
        let proposal = session.finish(&delta.build())?;
        TimeBreakdown::add(&mut self.spent.authentication, start.elapsed());
        let start = Instant::now();
        self.store.seal(&proposal, hash(proposal.number()));
        let mut txn = self.kv.begin_write()?;
        let after = self.store.commit(&[proposal], &mut *txn)?;
        txn.commit()?;
        after.run()?;
        TimeBreakdown::add(&mut self.spent.storage_io, start.elapsed());
        Ok(reads)
    }
}

/// The block hash for a block number.
fn hash(number: u64) -> B256 {
    keccak256(number.to_be_bytes())
}

impl OpenBackend {
    /// The code of an account with the value `next`, if it is not the code that it had.
    fn new_code(
        &self,
        previous: Option<&StateValue>,
        next: Option<&StateValue>,
    ) -> Result<Option<Bytes>, StateError> {
        let hash = |value: Option<&StateValue>| {
            value
                .and_then(|value| Account::decode(value))
                .map_or(KECCAK256_EMPTY, |of| of.code_hash)
        };
        let new = hash(next);
        if new == KECCAK256_EMPTY || new == hash(previous) {
            return Ok(None);
        }
        let code = self.db.code(&new);
        code.map_err(|error| StoreError::new(format!("reading code {new}"), error).into())
    }

    /// The state `depth` commits before the current one. It has its own root if it is retained;
    /// `None` if it is no longer stored, or never existed.
    fn state_at(&self, depth: u64) -> Result<Option<StateProvider>, StateError> {
        let (Some(tip), Some(retained)) = (self.store.tip(), self.store.retained()) else {
            return Ok(None);
        };
        let Some(number) = tip.block.number.checked_sub(depth) else { return Ok(None) };
        let block = match number {
            // The bulk load made it.
            0 => BlockRef::default(),
            _ => BlockRef::new(number, hash(number)),
        };
        if retained.contains(&number) {
            return self.store.at(StateId::Block(block.hash)).map(Some);
        }
        match self.store.history(block) {
            Ok(state) => Ok(Some(state)),
            Err(StateError::Unsupported { .. } | StateError::NotInHistory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The value of `key` that the proof in an old state shows; `None` if the proof is refused.
    fn shown(
        &self,
        state: &StateProvider,
        proof: &StateProof,
        key: &StateKey,
    ) -> Option<Option<StateValue>> {
        let backend = self.store.backend();
        let by_view =
            || backend.extensions().history.is_some_and(|history| history.proven_by_view());
        if state.opened_from().is_none() || !by_view() {
            return backend.verify(proof.root, &[(*key).into()], &proof.bytes).ok()?.pop();
        }
        let (provenance, number) = (backend.extensions().provenance?, state.number()?);
        let (keys, blocks) = ([(*key).into()], number..=number);
        let shown = provenance.verify_versions(proof.root, &keys, blocks, &proof.bytes).ok()?;
        Some(shown.first()?.first().and_then(|version| version.value.clone()))
    }
}

impl OpenStore for OpenBackend {
    fn commit(&mut self, block: &[KeyOp]) -> Result<ReadDigest, BenchError> {
        let done = self.step(block);
        done.of_backend(&self.name)
    }

    fn wait_idle(&mut self) -> Result<(), BenchError> {
        let start = Instant::now();
        let settled = self.store.wait_idle().of_backend(&self.name);
        TimeBreakdown::add(&mut self.spent.storage_io, start.elapsed());
        settled
    }

    fn breakdown(&self) -> Option<TimeBreakdown> {
        Some(self.spent)
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.store.flush().of_backend(&self.name)?;
        match self.sync {
            SyncMode::Durable => self.db.sync().of_backend(&self.name),
            SyncMode::NoSync => Ok(()),
        }
    }

    fn counts(&self) -> Option<CounterSnapshot> {
        Some(self.store.counts())
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        let mut bytes = self.kv.disk_bytes().of_backend(&self.name)?;
        let path = files(&self.folder);
        let io = |source| BenchError::Io { action: "measuring", path: path.clone(), source };
        for file in fs::read_dir(&path).map_err(io)? {
            bytes += file.and_then(|file| file.metadata()).map_err(io)?.len();
        }
        Ok(bytes)
    }

    fn free_bytes(&self) -> Result<Option<u64>, BenchError> {
        let stats = self.db.stats().of_backend(&self.name)?;
        Ok(Some(stats.free_pages * stats.page_size))
    }

    fn prove(
        &mut self,
        keys: &[StateKey],
        present: bool,
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        let backend = self.store.backend();
        if !backend.profile().proofs || keys.is_empty() {
            return Ok(None);
        }
        let mut figures = ProofFigures::new(present);
        // The first proof finds empty caches and is not measured.
        match self.store.at(StateId::Tip).and_then(|state| state.prove(&keys[..1])) {
            Err(StateError::OutsideShard { .. }) => {}
            proof => drop(proof.of_backend(&self.name)?),
        }
        for key in keys {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            let start = Instant::now();
            let proof = match self.store.at(StateId::Tip).and_then(|state| state.prove(&[*key])) {
                // Another shard has the proof data of this key.
                Err(StateError::OutsideShard { .. }) => continue,
                proof => proof.of_backend(&self.name)?,
            };
            let made = start.elapsed();
            let shown = backend.verify(proof.root, &[(*key).into()], &proof.bytes);
            let verified = start.elapsed() - made;
            let value = self.store.at(StateId::Tip).and_then(|reader| reader.get(key));
            let value = value.of_backend(&self.name)?;
            let right = value.is_some() == present && shown.is_ok_and(|shown| shown == [value]);
            if !right {
                let (backend, key) = (self.name.clone(), key.to_string());
                return Err(BenchError::WrongProof { backend, key });
            }
            figures.add(made, verified, proof.bytes.len());
        }
        Ok(Some(figures))
    }

    fn prove_commits(
        &mut self,
        commits: &[Vec<StateKey>],
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        let backend = self.store.backend();
        if !backend.profile().proofs || commits.is_empty() {
            return Ok(None);
        }
        let mut figures = ProofFigures::of_commits(commits);
        for keys in commits {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            let state = self.store.at(StateId::Tip).of_backend(&self.name)?;
            let keys = &with_accounts(&state, keys).of_backend(&self.name)?;
            let start = Instant::now();
            let proof = match state.prove(keys) {
                // This shard has the proof data of some keys only.
                Err(StateError::OutsideShard { .. }) => return Ok(None),
                proof => proof.of_backend(&self.name)?,
            };
            let made = start.elapsed();
            let named: Vec<BackendKey> = keys.iter().map(|key| (*key).into()).collect();
            let start = Instant::now();
            let shown = backend.verify(proof.root, &named, &proof.bytes);
            let verified = start.elapsed();
            let values: Result<Vec<_>, _> = keys.iter().map(|key| state.get(key)).collect();
            if shown.ok() != Some(values.of_backend(&self.name)?) {
                let (backend, key) = (self.name.clone(), format!("{} and others", keys[0]));
                return Err(BenchError::WrongProof { backend, key });
            }
            figures.add(made, verified, proof.bytes.len());
        }
        Ok(Some(figures))
    }

    fn prove_at(
        &mut self,
        depth: u64,
        keys: &[StateKey],
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        if !self.store.backend().profile().proofs || keys.is_empty() {
            return Ok(None);
        }
        let mut figures: Option<ProofFigures> = None;
        // The first key comes twice: its first proof fills caches, and is recorded separately.
        for key in keys[..1].iter().chain(keys) {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            // The state is opened again for each proof, as for a single request.
            let start = Instant::now();
            let Some(state) = self.state_at(depth).of_backend(&self.name)? else { return Ok(None) };
            let proof = match state.prove(&[*key]) {
                // Another shard has the proof data of this key.
                Err(StateError::OutsideShard { .. }) => continue,
                proof => proof.of_backend(&self.name)?,
            };
            let made = start.elapsed();
            let shown = self.shown(&state, &proof, key);
            let verified = start.elapsed() - made;
            if shown != Some(state.get(key).of_backend(&self.name)?) {
                let (backend, key) = (self.name.clone(), key.to_string());
                return Err(BenchError::WrongProof { backend, key });
            }
            match &mut figures {
                None => figures = Some(ProofFigures::at_depth(depth, made)),
                Some(figures) => figures.add(made, verified, proof.bytes.len()),
            }
        }
        Ok(figures)
    }

    fn ethereum_root(&self) -> Option<B256> {
        let has_it = self.store.backend().profile().ethereum_root;
        self.store.tip().filter(|_| has_it).map(|tip| tip.root)
    }
}

/// The keys without the slots of accounts that do not exist, of which some backends have no proofs.
fn with_accounts(state: &StateProvider, keys: &[StateKey]) -> Result<Vec<StateKey>, StateError> {
    let mut kept = Vec::with_capacity(keys.len());
    for key in keys {
        let is_kept = match key {
            StateKey::Account(_) => true,
            StateKey::Slot(address, _) => state.get(&StateKey::Account(*address))?.is_some(),
        };
        kept.extend(is_kept.then_some(*key));
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_backends::{BackendLane, FlagValues, lane};
    use retrie_state::descriptor::{ConstructorInput, StorePurpose};
    use std::collections::BTreeSet;

    #[test]
    fn loaded_states_are_kept_apart_by_whatever_their_rows_depend_on() {
        let names = [
            "prefix",
            "prefix:order=hash",
            "prefix:pad=64",
            "duptree",
            "duptree:layout=dup",
            "cole",
            "cole:memory-pairs=100",
        ];
        let formats = names.map(|name| {
            let BackendLane { backend, flags } = lane(name, &FlagValues::default()).unwrap();
            let making =
                ConstructorInput { flags: &flags, purpose: StorePurpose::Temporary, cache: None };
            BackendFactory::new((backend.make)(&making).unwrap()).format()
        });
        assert_eq!(formats.iter().collect::<BTreeSet<_>>().len(), names.len(), "{formats:?}");
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
        assert!(formats.iter().all(|format| format.chars().all(is_fit)), "{formats:?}");
    }
}
