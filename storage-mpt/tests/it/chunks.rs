//! The cost of answers to chunk requests, since a peer may ask for anything.

use crate::common::{StateModel, storage_root};
use alloy_primitives::{Address, B256, Bytes, U256};
use retrie_state::{
    Account, AnyCache, Backend, ChunkAnswer, ChunkId, ChunkServer, KeyRange, NodeRead, OpenedChunk,
    RowScan, RowTable, ScanDirection, StateChunks, StateError, StateKey, encode_slot, flat,
};
use retrie_state_testkit::MemoryView;
use retrie_storage_mpt::Mpt;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// A view that counts the rows of the flat state that scans read.
struct CountingView {
    view: MemoryView,
    scanned: Arc<AtomicUsize>,
}

impl NodeRead for CountingView {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        self.view.get(table, key)
    }

    fn scan<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Result<RowScan<'a>, StateError> {
        let rows = self.view.scan(table, range, direction)?;
        Ok(Box::new(rows.inspect(move |_| {
            if table == flat::TABLE {
                self.scanned.fetch_add(1, Ordering::Relaxed);
            }
        })))
    }
}

struct ServedState {
    model: StateModel,
    root: B256,
    server: Box<dyn ChunkServer>,
    scanned: Arc<AtomicUsize>,
}

const CONTRACTS: [Address; 3] =
    [Address::repeat_byte(1), Address::repeat_byte(2), Address::repeat_byte(3)];

/// A state with `accounts` accounts, and `slots` slots in each contract.
fn served(accounts: u32, slots: u32) -> ServedState {
    let mut model = StateModel::new();
    let account = Account { nonce: 1, ..Account::default() }.encode();
    for n in 0..accounts {
        let address = Address::left_padding_from(&(n | 0x8000_0000).to_be_bytes());
        model.insert(StateKey::Account(address), account.clone());
    }
    for contract in CONTRACTS {
        model.insert(StateKey::Account(contract), account.clone());
        for n in 1..=slots {
            let value = encode_slot(U256::from(n)).unwrap();
            model.insert(StateKey::Slot(contract, B256::from(U256::from(n))), value);
        }
    }
    let (backend, mut view) = (Mpt::new(), MemoryView::default());
    let mut entries = model.iter().map(|(key, value)| Ok(((*key).into(), value.clone())));
    let root = backend.bulk_load(0, &mut entries, &mut view).unwrap();
    let cache = AnyCache::new(Backend::open(&backend, &view, None).unwrap());
    let scanned = Arc::<AtomicUsize>::default();
    let view = Arc::new(CountingView { view, scanned: scanned.clone() });
    let server = backend.serve(view, cache, None).unwrap();
    ServedState { model, root, server, scanned }
}

impl ServedState {
    fn scanned(&self) -> usize {
        self.scanned.swap(0, Ordering::Relaxed)
    }

    fn storage_id(&self, contract: &Address) -> ChunkId {
        let root = storage_root(&self.model, contract);
        ChunkId::new([&[1], &contract[..], &[0, 0xa0], &root[..]].concat()).unwrap()
    }

    fn chunk(&self, id: &ChunkId) -> Bytes {
        let begun = Instant::now();
        loop {
            match self.server.chunk(id).unwrap() {
                ChunkAnswer::Chunk(chunk) => return chunk,
                ChunkAnswer::NoNode => panic!("{id} is there"),
                ChunkAnswer::NotReady => {
                    assert!(begun.elapsed() < Duration::from_secs(120), "{id} is never ready");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }
}

/// Regression: one request of 120 bytes for a node that does not exist had all addresses sorted in
/// memory, 61 bytes each.
#[test]
fn serving_reads_no_keys_and_neither_do_ids_of_no_node() {
    let state = served(5_000, 5_000);
    let whole = Mpt::new().root_chunk(state.root).unwrap();
    let wrong = |id: &ChunkId| {
        let mut id = id.bytes().to_vec();
        *id.last_mut().unwrap() ^= 1;
        ChunkId::new(id).unwrap()
    };
    let mut missing = vec![wrong(&whole), ChunkId::new(vec![7; 60]).unwrap()];
    let mut deep = whole.bytes().to_vec();
    deep.splice(1..2, [3, 1, 2, 3]);
    missing.push(ChunkId::new(deep).unwrap());
    for contract in CONTRACTS {
        missing.push(wrong(&state.storage_id(&contract)));
    }
    let stranger = Address::repeat_byte(0x77);
    let mut foreign = state.storage_id(&CONTRACTS[0]).bytes().to_vec();
    foreign[1..21].copy_from_slice(&stranger[..]);
    missing.push(ChunkId::new(foreign).unwrap());
    for id in &missing {
        assert_eq!(state.server.chunk(id).unwrap(), ChunkAnswer::NoNode, "{id}");
    }
    assert_eq!(state.scanned(), 0, "no key was read");
}

/// Regression: two large contracts, requested in turn, were sorted again for each answer.
#[test]
fn keys_are_read_once_however_often_and_in_whatever_order_they_are_asked_for() {
    let state = served(5_000, 5_000);
    let whole = Mpt::new().root_chunk(state.root).unwrap();
    let ids = CONTRACTS.map(|contract| state.storage_id(&contract));
    for _ in 0..20 {
        assert_eq!(state.chunk(&whole)[0], 1, "a split");
        for id in &ids {
            assert_eq!(state.chunk(id)[0], 1, "a split");
        }
    }
    assert_eq!(state.scanned(), 5_003 + 3 * 5_000);
}

/// Long sorts run on a thread: an answer that needs one is `NotReady` and not `NoNode`.
#[test]
fn a_large_state_is_made_ready_beside_the_answers_and_is_whole() {
    let state = served(70_000, 1);
    let backend = Mpt::new();
    let whole = backend.root_chunk(state.root).unwrap();
    assert_eq!(state.server.chunk(&whole).unwrap(), ChunkAnswer::NotReady);
    // Others are answered meanwhile.
    let storage = state.storage_id(&CONTRACTS[0]);
    assert!(matches!(state.server.chunk(&storage).unwrap(), ChunkAnswer::Chunk(_)));
    let mut wanted = vec![whole];
    let mut entries = StateModel::new();
    while let Some(id) = wanted.pop() {
        match StateChunks::open(&backend, &id, &state.chunk(&id)).unwrap() {
            OpenedChunk::Entries { entries: some, further } => {
                entries.extend(some.into_iter().map(|(key, value)| (key.plain().unwrap(), value)));
                wanted.extend(further);
            }
            OpenedChunk::Split { below, .. } => wanted.extend(below),
        }
    }
    assert!(entries == state.model);
}

#[test]
fn a_server_that_is_dropped_while_it_sorts_ends_its_thread() {
    let state = served(70_000, 1);
    let whole = Mpt::new().root_chunk(state.root).unwrap();
    assert_eq!(state.server.chunk(&whole).unwrap(), ChunkAnswer::NotReady);
    let ServedState { server, scanned, .. } = state;
    drop(server);
    // The thread holds the view, and the view counts.
    let begun = Instant::now();
    while Arc::strong_count(&scanned) > 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the view is still held");
        std::thread::sleep(Duration::from_millis(2));
    }
}
