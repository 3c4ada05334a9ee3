//! Benches that every backend runs (feature `benchkit`), the companion of the test-kit: a backend's
//! hot paths through the contract, on a store in memory, so that only the backend itself is
//! measured.
//!
//! | bench | one iteration |
//! |---|---|
//! | `read` | 1,000 random keys that have a value, others each time |
//! | `apply` | root and rows of a block that changes 1,000 random keys, then dropped |
//! | `prove`, `verify` | a proof of one key |
//!
//! A storage crate has a bench target with one line, [`backend_bench!`](crate::backend_bench).
//! Commits, and races between backends, are `retrie bench`.

use alloy_primitives::{Address, B256, Bytes, keccak256};
use criterion::{Criterion, Throughput};
use retrie_state::{
    AnyBackend, BackendKey, BlockRef, DeltaBuilder, StateDelta, StateError, StateKey, StateReader,
    StateValue,
};
use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
use std::{collections::HashSet, hint::black_box, sync::Arc};

/// Slots of the one contract in the state.
const KEYS: u64 = 100_000;
/// Keys that one iteration reads or changes.
const BATCH: u64 = 1_000;
const CONTRACT: Address = Address::repeat_byte(0x57);

/// A store with [`KEYS`] slots, and a source of random keys and values.
struct BenchStore {
    store: StateStore,
    random: u64,
}

impl BenchStore {
    fn new(backend: Arc<dyn AnyBackend>) -> Result<Self, StateError> {
        let kv = Arc::new(MemoryStore::new());
        let store = StateStore::open(backend, kv.clone(), StoreOptions::default())?;
        let mut entries: Vec<_> = (0..KEYS).map(|n| (key(n), value(n))).collect();
        entries.push((StateKey::Account(CONTRACT), retrie_state::Account::default().encode()));
        entries.sort_unstable();
        let mut txn = kv.begin_write()?;
        let mut entries = entries.into_iter().map(Ok);
        let (_, after) = store.bulk_load(BlockRef::default(), &mut entries, &mut *txn)?;
        txn.commit()?;
        after.run()?;
        Ok(Self { store, random: 1 })
    }

    /// The next number of a reproducible stream.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        self.random >> 24
    }

    fn keys(&mut self) -> Vec<StateKey> {
        (0..BATCH).map(|_| key(self.random() % KEYS)).collect()
    }

    fn delta(&mut self) -> Result<StateDelta, StateError> {
        let keys = self.keys();
        let reader = self.store.at(StateId::Tip)?;
        let mut delta = DeltaBuilder::new();
        let mut seen = HashSet::new();
        for key in keys {
            if seen.insert(key) {
                delta.change(key, reader.get(&key)?, Some(value(self.random())));
            }
        }
        Ok(delta.build())
    }
}

fn key(n: u64) -> StateKey {
    StateKey::Slot(CONTRACT, keccak256(n.to_be_bytes()))
}

/// 32 bytes without a leading zero, as slot values are stored.
fn value(n: u64) -> StateValue {
    let mut value: B256 = keccak256(n.to_le_bytes());
    value[0] |= 1;
    Bytes::copy_from_slice(value.as_slice())
}

/// Runs all benches on one backend, under `name`.
///
/// # Panics
/// If the backend fails.
pub fn run(criterion: &mut Criterion, name: &str, backend: Arc<dyn AnyBackend>) {
    bench(criterion, name, backend).unwrap_or_else(|error| panic!("{name}: {error}"));
}

fn bench(
    criterion: &mut Criterion,
    name: &str,
    backend: Arc<dyn AnyBackend>,
) -> Result<(), StateError> {
    let mut bed = BenchStore::new(backend)?;
    let mut group = criterion.benchmark_group(name);
    group.sample_size(20).throughput(Throughput::Elements(BATCH));

    let batches: Vec<_> = (0..KEYS / BATCH).map(|_| bed.keys()).collect();
    let reader = bed.store.at(StateId::Tip)?;
    let read = |key: &StateKey| reader.get(key).is_ok_and(|value| value.is_some());
    let mut batch = batches.iter().cycle();
    group.bench_function("read", |bencher| {
        bencher.iter(|| {
            let found = batch.next().map(|keys| keys.iter().filter(|key| read(key)).count());
            assert_eq!(found, Some(BATCH as usize), "every key has a value");
        });
    });
    drop(reader);

    let delta = bed.delta()?;
    let apply = || bed.store.begin(StateId::Tip)?.finish(&delta);
    apply()?;
    group.bench_function("apply", |bencher| bencher.iter(|| apply().map(|block| block.root())));

    if bed.store.backend().profile().proofs {
        group.throughput(Throughput::Elements(1));
        let key = [key(7)];
        let proof = bed.store.at(StateId::Tip).and_then(|state| state.prove(&key))?;
        group.bench_function("prove", |bencher| {
            bencher.iter(|| {
                bed.store
                    .at(StateId::Tip)
                    .and_then(|state| state.prove(&key))
                    .map(|proof| proof.bytes.len())
            });
        });
        let backend = bed.store.backend();
        let shown = key.map(BackendKey::from);
        backend.verify(proof.root, &shown, &proof.bytes).map_err(|refused| {
            StateError::corrupt("proof", format!("its own proof is refused: {refused}"))
        })?;
        group.bench_function("verify", |bencher| {
            bencher.iter(|| black_box(backend.verify(proof.root, &shown, &proof.bytes).is_ok()));
        });
    }
    group.finish();
    Ok(())
}

/// The `main` of a bench target: `backend_bench!("name" => backend, ...)`, each an
/// `Arc<dyn AnyBackend>`.
#[macro_export]
macro_rules! backend_bench {
    ($($name:expr => $backend:expr),+ $(,)?) => {
        fn main() {
            let mut criterion = $crate::benchkit::criterion();
            $($crate::benchkit::run(&mut criterion, $name, $backend);)+
            criterion.final_summary();
        }
    };
}

/// Criterion with the command line of `cargo bench`.
pub fn criterion() -> Criterion {
    Criterion::default().configure_from_args()
}
