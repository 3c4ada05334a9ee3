//! What answering costs: a peer may ask for anything.

use crate::common::{Model, View, storage_root};
use alloy_primitives::{Address, B256, Bytes, U256};
use retrie_state::{
    Account, Backend, ChunkAnswer, ChunkId, ChunkServer, Chunks, Direction, KeyRange, NodeRead,
    Opened, Rows, StateError, StateKey, Table, encode_slot, flat,
};
use retrie_storage_mpt::Mpt;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// A view that counts the rows of the flat state that range reads come upon.
struct CountingView {
    view: View,
    scanned: Arc<AtomicUsize>,
}

impl NodeRead for CountingView {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        self.view.get(table, key)
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<Rows<'a>, StateError> {
        let rows = self.view.scan(table, range, direction)?;
        Ok(Box::new(rows.inspect(move |_| {
            if table == flat::TABLE {
                self.scanned.fetch_add(1, Ordering::Relaxed);
            }
        })))
    }
}

struct ServedState {
    model: Model,
    root: B256,
    server: Box<dyn ChunkServer>,
    scanned: Arc<AtomicUsize>,
}

const CONTRACTS: [Address; 3] =
    [Address::repeat_byte(1), Address::repeat_byte(2), Address::repeat_byte(3)];

/// So many accounts, and so many slots of each contract.
fn served(accounts: u32, slots: u32) -> ServedState {
    let mut model = Model::new();
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
    let (backend, mut view) = (Mpt::new(), View::default());
    let mut entries = model.iter().map(|(key, value)| Ok((*key, value.clone())));
    let root = backend.bulk_load(0, &mut entries, &mut view).unwrap();
    let cache = Arc::new(Backend::open(&backend, &view, None).unwrap());
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

/// One request of 120 bytes for what does not exist once had all addresses sorted in memory, 61 bytes
/// each.
#[test]
fn serving_reads_no_keys_and_neither_do_ids_of_no_node() {
    let state = served(5_000, 5_000);
    let whole = Mpt::new().whole(state.root).unwrap();
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

/// Two large contracts, asked for in turn, once were sorted again for each answer.
#[test]
fn keys_are_read_once_however_often_and_in_whatever_order_they_are_asked_for() {
    let state = served(5_000, 5_000);
    let whole = Mpt::new().whole(state.root).unwrap();
    let ids = CONTRACTS.map(|contract| state.storage_id(&contract));
    for _ in 0..20 {
        assert_eq!(state.chunk(&whole)[0], 1, "a split");
        for id in &ids {
            assert_eq!(state.chunk(id)[0], 1, "a split");
        }
    }
    assert_eq!(state.scanned(), 5_003 + 3 * 5_000);
}

/// What takes long is left to a thread: an answer that needs it is told apart from one that is not there.
#[test]
fn a_large_state_is_made_ready_beside_the_answers_and_is_whole() {
    let state = served(70_000, 1);
    let backend = Mpt::new();
    let whole = backend.whole(state.root).unwrap();
    assert_eq!(state.server.chunk(&whole).unwrap(), ChunkAnswer::NotReady);
    // Others are answered meanwhile.
    let storage = state.storage_id(&CONTRACTS[0]);
    assert!(matches!(state.server.chunk(&storage).unwrap(), ChunkAnswer::Chunk(_)));
    let mut wanted = vec![whole];
    let mut entries = Model::new();
    while let Some(id) = wanted.pop() {
        match Chunks::open(&backend, &id, &state.chunk(&id)).unwrap() {
            Opened::Entries { entries: some, further } => {
                entries.extend(some);
                wanted.extend(further);
            }
            Opened::Split { below, .. } => wanted.extend(below),
        }
    }
    assert!(entries == state.model);
}

#[test]
fn a_server_that_is_dropped_while_it_sorts_ends_its_thread() {
    let state = served(70_000, 1);
    let whole = Mpt::new().whole(state.root).unwrap();
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
