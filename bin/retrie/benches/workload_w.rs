//! Workload W (LVMT paper, section 6, shortened): random pairs (read, then write, an existing key)
//! on a state of 10^6 keys of 32 bytes with 32-byte values, committed durably every 1,000 pairs.
//!
//! One iteration is one commit: 2,000 operations. The keys are the slots of one contract, so that
//! every backend sees 32-byte keys. `RETRIE_W_KEYS` sets another number of keys.
//!
//! ```sh
//! cargo bench -p retrie --bench workload_w
//! ```

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use retrie_db::{Db, OpenOptions};
use retrie_state::{
    Account, At, Backend, BlockRef, DeltaBuilder, StateKey, StateReader, StateStore, StoreOptions,
};
use std::{sync::Arc, time::Duration};

/// As in the binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const PAIRS: u64 = 1000;
const CONTRACT: Address = Address::repeat_byte(0x57);

/// A reproducible stream of numbers (splitmix64).
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 32 bytes without a leading zero, as slot values are stored.
    fn value(&mut self) -> Bytes {
        let mut value = B256::ZERO;
        for word in value.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next().to_be_bytes());
        }
        value[0] |= 1;
        Bytes::copy_from_slice(value.as_slice())
    }
}

fn key(n: u64) -> StateKey {
    StateKey::Slot(CONTRACT, keccak256(n.to_be_bytes()))
}

struct Loaded {
    db: Db,
    store: StateStore,
    stream: Stream,
    keys: u64,
    block: u64,
    _folder: tempfile::TempDir,
}

impl Loaded {
    fn new(backend: Arc<dyn Backend>, keys: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let db = Db::create(folder.path(), &OpenOptions::default()).expect("a database");
        let store = StateStore::open(backend, db.state_store(), StoreOptions::default())
            .expect("a state store");
        let mut stream = Stream(1);
        let account = Account { nonce: 1, balance: U256::from(1), ..Default::default() };
        let mut entries: Vec<_> = (0..keys).map(|n| (key(n), stream.value())).collect();
        entries.push((StateKey::Account(CONTRACT), account.encode()));
        entries.sort_unstable_by_key(|(key, _)| *key);
        let mut txn = db.begin_write().expect("a transaction");
        let (_, after) = store
            .bulk_load(BlockRef::default(), &mut entries.into_iter().map(Ok), &mut txn)
            .expect("the load");
        txn.commit().expect("the commit");
        after.run().expect("the step after it");
        Self { db, store, stream, keys, block: 0, _folder: folder }
    }

    /// One commit of W.
    fn step(&mut self) {
        self.block += 1;
        let session = self.store.begin(At::Tip).expect("a session");
        let reader = session.reader();
        let mut delta = DeltaBuilder::new();
        for _ in 0..PAIRS {
            let key = key(self.stream.next() % self.keys);
            let previous = reader.get(&key).expect("a read");
            assert!(previous.is_some(), "every key exists");
            delta.change(key, previous, Some(self.stream.value()));
        }
        drop(reader);
        let proposal = session.finish(&delta.build()).expect("a proposal");
        self.store.seal(&proposal, keccak256(self.block.to_be_bytes()));
        let mut txn = self.db.begin_write().expect("a transaction");
        let after = self.store.commit(&[proposal], &mut txn).expect("a commit");
        txn.commit().expect("the commit");
        after.run().expect("the step after it");
    }
}

fn workload_w(criterion: &mut Criterion) {
    let keys = std::env::var("RETRIE_W_KEYS").ok().and_then(|n| n.parse().ok());
    let keys: u64 = keys.unwrap_or(1_000_000);
    let backends: [Arc<dyn Backend>; 2] =
        [Arc::new(retrie_storage_raw::Raw), Arc::new(retrie_storage_mpt::Mpt::default())];
    let mut group = criterion.benchmark_group(format!("W/{keys}"));
    group.throughput(Throughput::Elements(2 * PAIRS)).sampling_mode(SamplingMode::Flat);
    group.sample_size(20).warm_up_time(Duration::from_secs(3));
    group.measurement_time(Duration::from_secs(12));
    for backend in backends {
        let name = backend.identity().name;
        let mut loaded = None;
        group.bench_function(name, |bencher| {
            let loaded = loaded.get_or_insert_with(|| Loaded::new(backend.clone(), keys));
            bencher.iter(|| loaded.step());
        });
        if let Some(loaded) = loaded {
            let counts = loaded.store.counts();
            let ops = (loaded.block * PAIRS) as f64;
            println!(
                "{name}: {} commits; per pair {:.2} node reads, {:.2} node writes, {:.0} journal \
                 bytes, {:.0} undo bytes; {} rows folded; {:.0} MiB in tables",
                loaded.block,
                counts.reads as f64 / ops,
                counts.writes as f64 / ops,
                counts.journal_bytes as f64 / ops,
                counts.undo_bytes as f64 / ops,
                counts.folded_rows,
                loaded.db.state_store().disk_bytes().unwrap_or(0) as f64 / (1 << 20) as f64,
            );
        }
    }
}

criterion_group!(benches, workload_w);
criterion_main!(benches);
