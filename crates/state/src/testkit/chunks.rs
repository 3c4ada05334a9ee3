//! States handed out in chunks: all of them is the state, and nothing else passes for one.

use super::{
    Kit,
    model::{Block, BlockPtr, Entries, Flavour, Miner, Size, block_to},
    node::{Node, Roots, options},
    proofs::refuses_mutations,
    roots::bulk_load,
};
use crate::{
    Account, At, BlockRef, ChunkAnswer, ChunkId, ChunkServer, Opened, StateError, StateKey, Value,
    encode_slot,
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256};
use rand::{Rng, rngs::StdRng};
use std::{sync::Arc, time::Duration};

/// How many blocks a state goes on for after it was handed over.
const FURTHER: usize = 1000;

/// Whether there are chunks to test; says so if not.
fn has_chunks(kit: &Kit<'_>) -> bool {
    let has = kit.backend().chunks().is_some();
    if !has {
        eprintln!("skipped: this backend has no chunks");
    }
    has
}

/// A state, as it was fetched.
#[derive(Debug, Default)]
struct Fetched {
    /// Every id that was asked for, with its answer.
    answers: Vec<(ChunkId, Bytes)>,
    /// Those that were answered with entries, and with how many.
    parts: Vec<(ChunkId, u64)>,
    entries: Entries,
}

/// What a server has for an id, once that is ready.
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
fn fetch(node: &Node<'_>, server: &dyn ChunkServer, block: &Block, rng: &mut StdRng) -> Fetched {
    let backend = node.store().backend();
    let chunks = backend.chunks().expect("chunks");
    let root = node.roots.of(block).expect("a root");
    let mut wanted: Vec<_> = chunks.whole(root).into_iter().collect();
    let mut fetched = Fetched::default();
    while !wanted.is_empty() {
        let id = wanted.swap_remove(rng.random_range(0..wanted.len()));
        let answer = chunk(server, &id).expect("the state has its own chunks");
        match chunks.open(&id, &answer).expect("the answer is the chunk") {
            Opened::Entries { entries, further } => {
                fetched.parts.push((id.clone(), entries.len() as u64));
                for (key, value) in entries {
                    assert_eq!(fetched.entries.insert(key, value), None, "{key} comes twice");
                }
                wanted.extend(further);
            }
            Opened::Split { below, .. } => {
                assert!(below.len() > 1, "a split into {}", below.len());
                wanted.extend(below);
            }
        }
        fetched.answers.push((id, answer));
    }
    fetched.parts.sort_unstable();
    fetched
}

fn load(node: &Node<'_>, block: &Block, fetched: &Fetched) -> Result<B256, StateError> {
    let mut txn = node.kv.begin_write()?;
    let at = BlockRef::new(block.number, block.hash);
    let mut entries = fetched.entries.iter().map(|(key, value)| Ok((*key, value.clone())));
    let (root, after) = node.store().load_chunks(at, &fetched.parts, &mut entries, &mut *txn)?;
    txn.commit()?;
    after.run()?;
    Ok(root)
}

/// More entries than one answer holds, of accounts and of one account's storage.
fn large(rng: &mut StdRng) -> Entries {
    let mut entries = Entries::new();
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

/// The chunks of a state are all of its entries, whatever its origin does meanwhile; the state that
/// they are loaded as has the root of its origin, and so have the next thousand blocks on both.
///
/// # Panics
/// If not.
pub fn a_state_in_chunks_goes_on_as_its_origin(kit: &Kit<'_>) {
    if !has_chunks(kit) {
        return;
    }
    kit.each_seed(|seed| {
        let mut miner = Miner::new(seed, Flavour::Ethereum, kit.scale.changes);
        let roots = Arc::new(Roots::default());
        let large = Arc::new(large(&mut miner.rng));
        // States that grew, nothing, and one that is split often.
        for (blocks, first, further) in [(kit.scale.blocks, None, FURTHER), (1, Some(large), 10)] {
            let origin = Node::new(kit, &roots, options(8, true));
            let mut chain: Vec<BlockPtr> = Vec::new();
            match first {
                Some(entries) => {
                    let block = block_to(None, 0, &entries);
                    let all = entries.iter().map(|(key, value)| Ok((*key, value.clone())));
                    roots.note(&block, bulk_load(&origin, &block, all).expect("bulk load"));
                    chain.push(block);
                }
                None => {
                    chain.push(miner.block(None, Size::EraseAll));
                    origin.extend(&chain);
                    hand_over(kit, &origin, &chain[0], &[], &mut miner.rng);
                }
            }
            let tip = chain.last().cloned();
            chain.extend(miner.chain(tip.as_ref(), blocks, Size::Any));
            origin.extend_each(&chain[1..]);
            let tip = chain.last().expect("there are blocks");
            let rest = miner.chain(Some(tip), further, Size::Any);
            hand_over(kit, &origin, tip, &rest, &mut miner.rng);
        }
    });
}

/// Hands the state of `origin`'s tip over, and takes both through the blocks behind it.
fn hand_over(kit: &Kit<'_>, origin: &Node<'_>, tip: &Block, rest: &[BlockPtr], rng: &mut StdRng) {
    let server = origin.store().at(At::Tip).and_then(|state| state.serve_chunks(None));
    let server = server.expect("a server");
    // The origin goes on.
    origin.extend_each(rest);
    let fetched = fetch(origin, &*server, tip, rng);
    drop(server);
    assert!(fetched.entries == *tip.entries, "chunks of block {} are not all of it", tip.number);

    let mut synced = Node::new(kit, &origin.roots, options(8, true));
    let root = load(&synced, tip, &fetched).expect("the chunks load");
    origin.roots.note(tip, root);
    synced.check_tip(tip);
    synced.reopen();
    synced.check_tip(tip);
    // Each of these has the root that it has at its origin.
    for blocks in rest.chunks(7) {
        synced.extend(blocks);
    }
    if let Some(last) = rest.last() {
        synced.check_tip(last);
        origin.check_tip(last);
    }

    // Loaded without a part it is nothing, or another state.
    let Some(part) = (!fetched.parts.is_empty()).then(|| rng.random_range(0..fetched.parts.len()))
    else {
        return;
    };
    let mut broken = fetched;
    let (id, _) = broken.parts.remove(part);
    let chunks = origin.store().backend();
    let chunks = chunks.chunks().expect("chunks");
    let answer = broken.answers.iter().find(|(own, _)| *own == id).expect("it was asked for");
    if let Ok(Opened::Entries { entries, .. }) = chunks.open(&id, &answer.1) {
        broken.entries.retain(|key, _| entries.iter().all(|(own, _)| own != key));
    }
    let node = Node::new(kit, &Arc::default(), options(8, true));
    assert!(load(&node, tip, &broken).ok() != Some(root), "nobody misses {id}");
}

/// An answer that is mutated in any way is refused, and so is one under another id, or one that a
/// server of another state gives; servers know no ids but their own.
///
/// # Panics
/// If one passes.
pub fn mutated_chunks_are_refused(kit: &Kit<'_>) {
    if !has_chunks(kit) {
        return;
    }
    kit.each_seed(|seed| {
        let mut miner = Miner::new(seed, Flavour::Ethereum, kit.scale.changes.min(8));
        let roots = Arc::new(Roots::default());
        let node = Node::new(kit, &roots, options(5, true));
        let backend = node.store().backend();
        let chunks = backend.chunks().expect("chunks");
        let mut chain = vec![block_to(None, 0, &Arc::new(large(&mut miner.rng)))];
        node.extend(&chain);
        chain.extend(miner.chain(None, 1, Size::Operations(40)));
        let last = block_to(Some(&chain[0]), 0, &chain[1].entries);
        chain[1] = last;
        chain.extend(miner.chain(Some(&chain[1].clone()), 1, Size::Tiny));
        node.extend_each(&chain[1..]);

        let server = |block: &Block| {
            let state = node.store().at(At::Block(block.hash));
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
                        assert!(!open(foreign), "{id} is answered by that of {other}");
                    }
                    // One that many states have may be served by each of them, and is the same.
                    if let Some(own) = chunk(&*servers[(at + 1) % servers.len()], other) {
                        assert!(chunks.open(other, &own).is_ok(), "{other} is served wrongly");
                    }
                }
                // Ids end with a hash; of the place before it only their own answers show that it is right.
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
        let empty: Value = Bytes::new();
        assert!(chunks.open(&all[0].0, &empty).is_err());
    });
}
