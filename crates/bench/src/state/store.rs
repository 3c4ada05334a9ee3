//! Our state stores as contenders: any backend, on MDBX, the way the client commits a block.

use super::{
    block::{Op, Reads},
    contender::{Contender, Entrant, Entries, Terms},
    outcome::ProofFigures,
};
use crate::{BenchError, error::Of};
use alloy_primitives::{B256, keccak256};
use retrie_db::{Db, OpenOptions, SCHEMA_VERSION, SyncMode};
use retrie_pipeline::report::Breakdown;
use retrie_state::{
    AnyBackend, At, BlockRef, Counts, DeltaBuilder, KvStore, StateAt, StateError, StateKey,
    StateProof, StateReader, StateStore, StoreError, StoreOptions, Value,
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

/// How many generations of committed rows a state store may hold in memory until they are folded:
/// three, and one that has just been frozen.
pub(crate) const GENERATIONS: usize = 4;

/// A backend under the framework's state store.
#[derive(Clone)]
pub struct BackendEntrant {
    backend: Arc<dyn AnyBackend>,
    name: String,
}

impl BackendEntrant {
    /// Enters `backend`.
    pub fn new(backend: Arc<dyn AnyBackend>) -> Self {
        let name = backend.identity().name.into();
        Self { backend, name }
    }

    /// Enters it under another name, beside others of its kind.
    pub fn named(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }
}

impl std::fmt::Debug for BackendEntrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BackendEntrant").field(self.backend.identity()).finish()
    }
}

impl Entrant for BackendEntrant {
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
        // A digest differs in its head. Parameters that are packed as they are may differ further
        // back, and end in zeros.
        let is_packed = tail.ends_with("00000000");
        let params = format!("{head}{}", if is_packed { tail.trim_end_matches('0') } else { "" });
        let (name, version, hash) = (identity.name, identity.version, identity.hash.name());
        // What a node keeps for proofs differs, though the state is the same.
        let shard = self.backend.proof_shards().map(|shards| shards.shard().replace('/', "of"));
        let shard = shard.map_or_else(String::new, |shard| format!("-shard-{shard}"));
        let layout = match identity.layout {
            "" => String::new(),
            layout => format!("-{}", layout.replace([',', '='], "-")),
        };
        format!("{name}-v{version}-{hash}-{params}{layout}{shard}-s{SCHEMA_VERSION}")
    }

    fn fixed_bytes(&self) -> u64 {
        self.backend.cache_bytes()
    }

    fn remark(&self) -> Option<String> {
        let mib = self.fixed_bytes() >> 20;
        (mib > 0).then(|| format!("up to {mib} MiB of caches of its own beside these terms"))
    }

    fn load(&self, folder: &Path, entries: &mut Entries<'_>) -> Result<(), BenchError> {
        let name = self.name();
        let db = Db::create(folder, &OpenOptions::default()).of(name)?;
        let options = StoreOptions { dir: Some(files(folder)), ..StoreOptions::default() };
        let store = StateStore::open(self.backend.clone(), db.state_store(), options).of(name)?;
        let mut txn = db.begin_write().of(name)?;
        let stopped = |stopped| StoreError::new("loading", stopped).into();
        let mut all = entries.by_ref().map(|entry| entry.map_err(stopped));
        let loaded = store.bulk_load(BlockRef::default(), &mut all, &mut txn);
        if entries.is_stopped() {
            return Err(BenchError::Stopped);
        }
        let (_, after) = loaded.of(name)?;
        txn.commit().of(name)?;
        after.run().of(name)
    }

    fn open(&self, folder: &Path, terms: &Terms, _: u64) -> Result<Box<dyn Contender>, BenchError> {
        let name = self.name();
        let options = OpenOptions { sync: terms.sync, ..OpenOptions::default() };
        let db = Db::open(folder, &options).of(name)?;
        let options = StoreOptions {
            retention: terms.retention,
            fold_bytes: terms.cache_bytes / GENERATIONS,
            read_threads: terms.read_threads,
            dir: Some(files(folder)),
            ..StoreOptions::default()
        };
        let kv = db.state_store();
        let store = StateStore::open(self.backend.clone(), kv.clone(), options).of(name)?;
        let sync = terms.sync;
        Ok(Box::new(BackendContender {
            name: name.into(),
            folder: folder.into(),
            sync,
            kv,
            store,
            db,
            spent: Breakdown::default(),
        }))
    }
}

/// Folder of a state store's immutable files.
fn files(folder: &Path) -> PathBuf {
    folder.join("state")
}

struct BackendContender {
    name: String,
    folder: PathBuf,
    sync: SyncMode,
    kv: Arc<dyn KvStore>,
    // The store before the database it stands on.
    store: StateStore,
    db: Db,
    /// Reads of rows are not told apart from the rest yet.
    spent: Breakdown,
}

impl BackendContender {
    fn step(&mut self, block: &[Op]) -> Result<Reads, StateError> {
        let session = self.store.begin(At::Tip)?;
        let start = Instant::now();
        let _ahead = session.read_ahead(block.iter().map(|op| *op.key()).collect());
        let reader = session.reader();
        let mut reads = Reads::default();
        let mut delta = DeltaBuilder::new();
        for op in block {
            let previous = reader.get(op.key())?;
            reads.note(previous.as_ref().map(|value| &value[..]));
            if let Some(next) = op.next() {
                delta.change(*op.key(), previous, next.cloned());
            }
        }
        drop(reader);
        let proposal = session.finish(&delta.build())?;
        Breakdown::add(&mut self.spent.authentication, start.elapsed());
        let start = Instant::now();
        self.store.seal(&proposal, hash(proposal.number()));
        let mut txn = self.kv.begin_write()?;
        let after = self.store.commit(&[proposal], &mut *txn)?;
        txn.commit()?;
        after.run()?;
        Breakdown::add(&mut self.spent.storage_io, start.elapsed());
        Ok(reads)
    }
}

/// The hash that the block of this number is given.
fn hash(number: u64) -> B256 {
    keccak256(number.to_be_bytes())
}

impl BackendContender {
    /// The state `depth` commits before the present one, under its own root if it is retained; `None`
    /// if that is gone, or was never there.
    fn state_at(&self, depth: u64) -> Result<Option<StateAt>, StateError> {
        let (Some(tip), Some(retained)) = (self.store.tip(), self.store.retained()) else {
            return Ok(None);
        };
        let Some(number) = tip.block.number.checked_sub(depth) else { return Ok(None) };
        let block = match number {
            // It was loaded.
            0 => BlockRef::default(),
            _ => BlockRef::new(number, hash(number)),
        };
        if retained.contains(&number) {
            return self.store.at(At::Block(block.hash)).map(Some);
        }
        match self.store.history(block) {
            Ok(state) => Ok(Some(state)),
            Err(StateError::Unsupported { .. } | StateError::NotInHistory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the proof of `key` in an old state shows; `None` if it is refused.
    fn shown(&self, state: &StateAt, proof: &StateProof, key: &StateKey) -> Option<Option<Value>> {
        let backend = self.store.backend();
        let by_view = || backend.history().is_some_and(|history| history.proven_by_view());
        if state.seen_from().is_none() || !by_view() {
            return backend.verify(proof.root, &[*key], &proof.bytes).ok()?.pop();
        }
        let (provenance, number) = (backend.provenance()?, state.number()?);
        let (keys, blocks) = ([*key], number..=number);
        let shown = provenance.verify_versions(proof.root, &keys, blocks, &proof.bytes).ok()?;
        Some(shown.first()?.first().and_then(|version| version.value.clone()))
    }
}

impl Contender for BackendContender {
    fn commit(&mut self, block: &[Op]) -> Result<Reads, BenchError> {
        let done = self.step(block);
        done.of(&self.name)
    }

    fn settle(&mut self) -> Result<(), BenchError> {
        let start = Instant::now();
        let settled = self.store.settle().of(&self.name);
        Breakdown::add(&mut self.spent.storage_io, start.elapsed());
        settled
    }

    fn breakdown(&self) -> Option<Breakdown> {
        Some(self.spent)
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.store.flush().of(&self.name)?;
        match self.sync {
            SyncMode::Durable => self.db.sync().of(&self.name),
            SyncMode::NoSync => Ok(()),
        }
    }

    fn counts(&self) -> Option<Counts> {
        Some(self.store.counts())
    }

    fn disk_bytes(&self) -> Result<u64, BenchError> {
        let mut bytes = self.kv.disk_bytes().of(&self.name)?;
        let path = files(&self.folder);
        let io = |source| BenchError::Io { action: "measuring", path: path.clone(), source };
        for file in fs::read_dir(&path).map_err(io)? {
            bytes += file.and_then(|file| file.metadata()).map_err(io)?.len();
        }
        Ok(bytes)
    }

    fn free_bytes(&self) -> Result<Option<u64>, BenchError> {
        let stats = self.db.stats().of(&self.name)?;
        Ok(Some(stats.free_pages * stats.page_size))
    }

    fn prove(
        &mut self,
        keys: &[StateKey],
        present: bool,
        stop: &AtomicBool,
    ) -> Result<Option<ProofFigures>, BenchError> {
        let backend = self.store.backend();
        if !backend.capabilities().proofs || keys.is_empty() {
            return Ok(None);
        }
        let mut figures = ProofFigures::new(present);
        // The first one finds caches empty, and is not what is measured.
        match self.store.at(At::Tip).and_then(|state| state.prove(&keys[..1])) {
            Err(StateError::OutsideShard { .. }) => {}
            proof => drop(proof.of(&self.name)?),
        }
        for key in keys {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            let start = Instant::now();
            let proof = match self.store.at(At::Tip).and_then(|state| state.prove(&[*key])) {
                // What another node keeps.
                Err(StateError::OutsideShard { .. }) => continue,
                proof => proof.of(&self.name)?,
            };
            let made = start.elapsed();
            let shown = backend.verify(proof.root, &[*key], &proof.bytes);
            let verified = start.elapsed() - made;
            let value = self.store.at(At::Tip).and_then(|reader| reader.get(key));
            let value = value.of(&self.name)?;
            let right = value.is_some() == present && shown.is_ok_and(|shown| shown == [value]);
            if !right {
                let (backend, key) = (self.name.clone(), key.to_string());
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
        if !self.store.backend().capabilities().proofs || keys.is_empty() {
            return Ok(None);
        }
        let mut figures: Option<ProofFigures> = None;
        // The first key twice: what its proof finds for the first time is no part of the others.
        for key in keys[..1].iter().chain(keys) {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            // As whoever asks for one proof does it: the state is found anew for each.
            let start = Instant::now();
            let Some(state) = self.state_at(depth).of(&self.name)? else { return Ok(None) };
            let proof = match state.prove(&[*key]) {
                // What another node keeps.
                Err(StateError::OutsideShard { .. }) => continue,
                proof => proof.of(&self.name)?,
            };
            let made = start.elapsed();
            let shown = self.shown(&state, &proof, key);
            let verified = start.elapsed() - made;
            if shown != Some(state.get(key).of(&self.name)?) {
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
        let has_it = self.store.backend().capabilities().ethereum_root;
        self.store.tip().filter(|_| has_it).map(|tip| tip.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_backends::{Flags, Lane, lane};
    use retrie_state::descriptor::{Making, Purpose};
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
            let Lane { backend, flags } = lane(name, &Flags::default()).unwrap();
            let making = Making { flags: &flags, purpose: Purpose::Trial, cache: None };
            BackendEntrant::new((backend.make)(&making).unwrap()).format()
        });
        assert_eq!(formats.iter().collect::<BTreeSet<_>>().len(), names.len(), "{formats:?}");
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
        assert!(formats.iter().all(|format| format.chars().all(is_fit)), "{formats:?}");
    }
}
