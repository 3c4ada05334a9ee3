//! States served in chunks: all chunks together are the state, and forged chunks are refused.

use super::{
    TestKit,
    model::{BlockPtr, BlockSize, StateEntries, TestBlock, ValueFlavour, block_to, in_form},
    node::{KnownRoots, TestNode, options},
    proofs::refuses_mutations,
    roots::bulk_load,
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256};
use rand::{Rng, rngs::StdRng};
use retrie_state::{
    Account, BackendKey, BlockRef, ChunkAnswer, ChunkId, ChunkServer, KeyForm, OpenedChunk,
    StateError, StateKey, StateValue, encode_slot,
};
use retrie_state_store::StateId;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Number of blocks that are added to a state after the transfer.
const FURTHER: usize = 1000;

/// Whether the backend has chunks; prints a note if not.
fn has_chunks(kit: &TestKit<'_>) -> bool {
    let has = kit.backend().extensions().chunks.is_some() && kit.keys == KeyForm::Plain;
    if !has {
        eprintln!("skipped: this store has no chunks");
    }
    has
}

/// A fetched state.
#[derive(Debug, Default)]
struct FetchedState {
    /// Every requested id, with its answer.
    answers: Vec<(ChunkId, Bytes)>,
    /// The ids that were answered with entries, and the number of entries.
    parts: Vec<(ChunkId, u64)>,
    entries: BTreeMap<BackendKey, StateValue>,
}

/// The server's chunk for an id; waits until it is ready.
fn chunk(server: &dyn ChunkServer, id: &ChunkId) -> Option<Bytes> {
    loop {
        match server.chunk(id).expect("rows") {
            ChunkAnswer::Chunk(chunk) => return Some(chunk),
            ChunkAnswer::NoNode => return None,
            ChunkAnswer::NotReady => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Fetches the state of `block`, chunk by chunk in random order.
fn fetch(
    node: &TestNode<'_>,
    server: &dyn ChunkServer,
    block: &TestBlock,
    rng: &mut StdRng,
) -> FetchedState {
    let backend = node.store().backend();
    let chunks = backend.extensions().chunks.expect("chunks");
    let root = node.roots.of(block).expect("a root");
    let mut wanted: Vec<_> = chunks.root_chunk(root).into_iter().collect();
    let mut fetched = FetchedState::default();
    while !wanted.is_empty() {
        let id = wanted.swap_remove(rng.random_range(0..wanted.len()));
        let answer = chunk(server, &id).expect("the state has its own chunks");
        match chunks.open(&id, &answer).expect("the answer is the chunk") {
            OpenedChunk::Entries { entries, further } => {
                fetched.parts.push((id.clone(), entries.len() as u64));
                for (key, value) in entries {
                    assert_eq!(fetched.entries.insert(key, value), None, "{key} comes twice");
                }
                wanted.extend(further);
            }
            OpenedChunk::Split { below, .. } => {
                assert!(below.len() > 1, "a split into {}", below.len());
                wanted.extend(below);
            }
        }
        fetched.answers.push((id, answer));
    }
    fetched.parts.sort_unstable();
    fetched
}

fn load(
    node: &TestNode<'_>,
    block: &TestBlock,
    fetched: &FetchedState,
) -> Result<B256, StateError> {
    let mut txn = node.kv.begin_write()?;
    let at = BlockRef::new(block.number, block.hash);
    let mut entries = fetched.entries.iter().map(|(key, value)| Ok((*key, value.clone())));
    let (root, after) = node.store().load_chunks(at, &fetched.parts, &mut entries, &mut *txn)?;
    txn.commit()?;
    after.run()?;
    Ok(root)
}

/// More entries than one answer holds, of accounts and of one account's storage.
fn large(rng: &mut StdRng) -> StateEntries {
    let mut entries = StateEntries::new();
    let mut account = |address: Address, rng: &mut StdRng| {
        let balance = U256::from(rng.random::<u64>());
        let account = Account { nonce: 1, balance, code_hash: KECCAK256_EMPTY };
        entries.insert(StateKey::Account(address), account.encode());
    };
    for _ in 0..9_000 {
        account(Address::from(rng.random::<[u8; 20]>()), rng);
    }
    let contract = Address::from(rng.random::<[u8; 20]>());
    account(contract, rng);
    let value = |n: u64| encode_slot(U256::from(n)).expect("it is not zero");
    for n in 1..=6_000 {
        entries.insert(StateKey::Slot(contract, B256::from(U256::from(n))), value(n));
    }
    entries
}

/// The chunks of a state hold all of its entries, whatever its origin does meanwhile. The state
/// that is loaded from them has the root of its origin, and the next thousand blocks have the same
/// roots on both.
///
/// # Panics
/// If entries or roots differ.
pub fn a_state_in_chunks_goes_on_as_its_origin(kit: &TestKit<'_>) {
    if !has_chunks(kit) {
        return;
    }
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(KnownRoots::default());
        let large = Arc::new(large(&mut miner.rng));
        // An empty state, a grown one, and one that is split often.
        for (blocks, first, further) in [(kit.scale.blocks, None, FURTHER), (1, Some(large), 10)] {
            let origin = TestNode::new(kit, &roots, options(8, true));
            let mut chain: Vec<BlockPtr> = Vec::new();
            match first {
                Some(entries) => {
                    let block = block_to(None, 0, &entries);
                    let all = entries.iter().map(|(key, value)| Ok((*key, value.clone())));
                    roots.note(&block, bulk_load(&origin, &block, all).expect("bulk load"));
                    chain.push(block);
                }
                None => {
                    chain.push(miner.block(None, BlockSize::EraseAll));
                    origin.extend(&chain);
                    hand_over(kit, &origin, &chain[0], &[], &mut miner.rng);
                }
            }
            let tip = chain.last().cloned();
            chain.extend(miner.chain(tip.as_ref(), blocks, BlockSize::Any));
            origin.extend_each(&chain[1..]);
            let tip = chain.last().expect("there are blocks");
            let rest = miner.chain(Some(tip), further, BlockSize::Any);
            hand_over(kit, &origin, tip, &rest, &mut miner.rng);
        }
    });
}

/// Transfers the state of `origin`'s tip to a new node, and applies the blocks `rest` on both.
fn hand_over(
    kit: &TestKit<'_>,
    origin: &TestNode<'_>,
    tip: &TestBlock,
    rest: &[BlockPtr],
    rng: &mut StdRng,
) {
    let server = origin.store().at(StateId::Tip).and_then(|state| state.serve_chunks(None));
    let server = server.expect("a server");
    // The origin goes on while the state is transferred.
    origin.extend_each(rest);
    let fetched = fetch(origin, &*server, tip, rng);
    drop(server);
    assert!(
        fetched.entries == in_form(KeyForm::Plain, &tip.entries),
        "chunks of block {} are not all of it",
        tip.number
    );

    let mut synced = TestNode::new(kit, &origin.roots, options(8, true));
    let root = load(&synced, tip, &fetched).expect("the chunks load");
    origin.roots.note(tip, root);
    synced.check_tip(tip);
    synced.reopen();
    synced.check_tip(tip);
    // Each of these blocks has the same root as at the origin.
    for blocks in rest.chunks(7) {
        synced.extend(blocks);
    }
    if let Some(last) = rest.last() {
        synced.check_tip(last);
        origin.check_tip(last);
    }

    // Loading without one part fails, or gives another root.
    let Some(part) = (!fetched.parts.is_empty()).then(|| rng.random_range(0..fetched.parts.len()))
    else {
        return;
    };
    let mut broken = fetched;
    let (id, _) = broken.parts.remove(part);
    let chunks = origin.store().backend();
    let chunks = chunks.extensions().chunks.expect("chunks");
    let answer = broken.answers.iter().find(|(own, _)| *own == id).expect("it was asked for");
    if let Ok(OpenedChunk::Entries { entries, .. }) = chunks.open(&id, &answer.1) {
        broken.entries.retain(|key, _| entries.iter().all(|(own, _)| own != key));
    }
    let node = TestNode::new(kit, &Arc::default(), options(8, true));
    assert!(load(&node, tip, &broken).ok() != Some(root), "{id} is not needed");
}

/// An answer that is mutated in any way is refused, and so is an answer to another id, or of a
/// server of another state. Servers answer only the ids of their own state.
///
/// # Panics
/// If a wrong answer is accepted.
pub fn mutated_chunks_are_refused(kit: &TestKit<'_>) {
    if !has_chunks(kit) {
        return;
    }
    kit.each_seed(|seed| {
        let mut miner = kit.miner(seed, ValueFlavour::Ethereum, kit.scale.changes.min(8));
        let roots = Arc::new(KnownRoots::default());
        let node = TestNode::new(kit, &roots, options(5, true));
        let backend = node.store().backend();
        let chunks = backend.extensions().chunks.expect("chunks");
        let mut chain = vec![block_to(None, 0, &Arc::new(large(&mut miner.rng)))];
        node.extend(&chain);
        chain.extend(miner.chain(None, 1, BlockSize::Operations(40)));
        let last = block_to(Some(&chain[0]), 0, &chain[1].entries);
        chain[1] = last;
        chain.extend(miner.chain(Some(&chain[1].clone()), 1, BlockSize::Tiny));
        node.extend_each(&chain[1..]);

        let server = |block: &TestBlock| {
            let state = node.store().at(StateId::Block(block.hash));
            state.and_then(|state| state.serve_chunks(None)).expect("a server")
        };
        let servers: Vec<_> = chain.iter().map(|block| server(block)).collect();
        let fetched: Vec<_> = chain
            .iter()
            .zip(&servers)
            .map(|(block, server)| fetch(&node, &**server, block, &mut miner.rng))
            .collect();
        let all: Vec<_> = fetched.iter().flat_map(|fetched| &fetched.answers).collect();
        for (at, fetched) in fetched.iter().enumerate() {
            let sample = fetched.answers.len().div_ceil(6);
            for (id, answer) in fetched.answers.iter().step_by(sample) {
                let open = |bytes: &[u8]| chunks.open(id, bytes).is_ok();
                let mutations = kit.scale.mutations / 4;
                refuses_mutations(&mut miner.rng, answer, mutations, &id.to_string(), &open);
                for _ in 0..20 {
                    let (other, foreign) = all[miner.rng.random_range(0..all.len())];
                    if foreign != answer {
                        assert!(!open(foreign), "{id} is answered by {other}'s chunk");
                    }
                    // A chunk that several states share is the same from each server.
                    if let Some(own) = chunk(&*servers[(at + 1) % servers.len()], other) {
                        assert!(chunks.open(other, &own).is_ok(), "{other} is served wrongly");
                    }
                }
                // An id ends with a hash. A wrong position before the hash is noticed only if the
                // chunk's own answer is checked.
                let bits = id.bytes().len() * 8;
                for bit in
                    [miner.rng.random_range(0..bits), miner.rng.random_range(bits - 64..bits)]
                {
                    let mut unknown = id.bytes().to_vec();
                    unknown[bit / 8] ^= 1 << (bit % 8);
                    let unknown = ChunkId::new(unknown).expect("it is as long");
                    assert_eq!(chunk(&*servers[at], &unknown), None, "{unknown}");
                    let opened = chunks.open(&unknown, answer);
                    assert!(bit < bits - 64 || opened.is_err(), "{unknown} is answered");
                }
            }
        }
        for garbage in [vec![], vec![0], vec![1; 33], vec![0xff; ChunkId::MAX_LEN]] {
            let id = ChunkId::new(garbage).expect("it is short enough");
            assert_eq!(chunk(&*servers[0], &id), None);
            assert!(chunks.open(&id, &[]).is_err());
        }
        let empty: StateValue = Bytes::new();
        assert!(chunks.open(&all[0].0, &empty).is_err());
    });
}
