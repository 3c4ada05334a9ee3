//! `mpt-archive` against the model, against `mpt`, and against the definition of the root.

use crate::common::blocks::{account, keys, random_block};
use crate::common::{
    PLAIN, StateModel, TestStore, account_proof, delta, random_address, state_root,
    state_root_by_definition,
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use retrie_state::{
    Account, Backend, BlockRef, KeyRange, ScanDirection, StateError, StateHistory, StateKey,
    StateReader, TableRow, encode_slot,
};
use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
use retrie_state_testkit::MemoryView;
use retrie_storage_mpt::{KEYS, MptArchive, NODES, ROOTS, TrieHash};
use std::{collections::BTreeSet, sync::Arc};

const KECCAK: TrieHash = TrieHash::Keccak256;
const BLAKE2B: TrieHash = TrieHash::Blake2b256;

/// An archive that keeps almost no rows in memory.
fn archive(with: TrieHash) -> MptArchive {
    MptArchive::with_cache(with, 2048)
}

fn check_state(archive: &MptArchive, view: &MemoryView, root: &B256, model: &StateModel) {
    let entries = archive.entries(view, root, None, usize::MAX).unwrap();
    assert!(
        entries
            .iter()
            .map(|(key, value)| (key.plain().unwrap(), value))
            .eq(model.iter().map(|(k, v)| (*k, v)))
    );
    for (key, value) in model {
        assert_eq!(
            archive.read(view, root, &PLAIN.key(key)).unwrap().as_ref(),
            Some(value),
            "{key}"
        );
    }
}

/// The faults that the check of all rows finds.
fn faults(store: &TestStore<MptArchive>) -> Vec<String> {
    let (rebuilt, mut faults) = (store.bulk_loaded().0, Vec::new());
    let mut report = |fault: StateError| faults.push(fault.to_string());
    store
        .mpt
        .check(&store.view, &store.cache, store.root, true, Some(&rebuilt), &mut report)
        .unwrap();
    faults
}

#[test]
fn every_block_has_the_root_and_the_proofs_of_mpt_and_keeps_its_state() {
    for seed in 0..4 {
        let random = &mut StdRng::seed_from_u64(seed);
        let (addresses, slots) = keys(random);
        let (mut mpt, mut store) = (TestStore::new(), TestStore::of(archive(KECCAK)));
        let mut past = Vec::new();
        for block in 0..90 {
            let shrink = [0.1, 0.4, 0.8][block / 10 % 3];
            let (after, wiped) = random_block(random, &store.model, &addresses, &slots, shrink);
            mpt.block(after.clone(), &wiped);
            store.block(after, &wiped);
            assert_eq!(store.root, state_root(&store.model), "seed {seed} block {block}");
            let mut asked: Vec<_> = store.model.keys().copied().collect();
            asked.extend(addresses.iter().take(3).map(|address| StateKey::Account(*address)));
            asked.push(StateKey::Slot(addresses[0], slots[0]));
            asked.push(StateKey::Slot(Address::repeat_byte(7), slots[0]));
            let proof = store.mpt.prove(&store.view, &store.cache, &PLAIN.keys(&asked)).unwrap();
            // Both backends make the same proof.
            assert_eq!(mpt.mpt.prove(&mpt.view, &mpt.cache, &PLAIN.keys(&asked)).unwrap(), proof);
            let eip_1186 = |address, slots: &[B256]| {
                let owner = PLAIN.account(address);
                let of = store.mpt.nodes_of(&store.view, &store.cache, &owner, slots).unwrap();
                let proof = account_proof(of.clone(), &store.model, address, slots);
                assert_eq!(proof.verify(store.root), Ok(()));
                assert_eq!(of, mpt.mpt.nodes_of(&mpt.view, &mpt.cache, &owner, slots).unwrap());
            };
            addresses.iter().take(4).for_each(|address| eip_1186(address, &slots[..3]));
            past.push((store.root, store.model.clone(), asked, proof));
            if random.random_bool(0.2) {
                store.reopen();
            }
            if block % 10 == 0 {
                let (view, root) = store.bulk_loaded();
                assert_eq!(root, store.root);
                let nodes = &view.tables[&NODES];
                let all = &store.view.tables[&NODES];
                assert!(nodes.iter().all(|(hash, row)| all.get(hash) == Some(row)), "nodes");
                let cache = store.mpt.open(&view, None).unwrap();
                check_state(&archive(KECCAK), &view, &cache, &store.model);
            }
        }
        for (hash, row) in &store.view.tables[&NODES] {
            assert_eq!(keccak256(row).as_slice(), hash, "a node under another hash");
        }
        let stats = store.mpt.stats(&store.view, &store.cache).unwrap();
        assert_eq!(stats.live_keys, store.model.len() as u64);
        let ever: BTreeSet<_> = past.iter().flat_map(|(_, model, ..)| model.keys()).collect();
        assert_eq!(stats.live_keys + stats.dead_keys, ever.len() as u64);
        assert_eq!(faults(&store), Vec::<String>::new());
        assert_eq!(store.mpt.kept(&store.view).unwrap(), Some(0..=89));
        for (number, (root, model, asked, proof)) in (0..).zip(past) {
            let (old_root, cache) =
                store.mpt.open_at(&store.view, &store.any_cache(), number).unwrap();
            let cache = cache.get().unwrap();
            assert_eq!(old_root, root);
            check_state(&store.mpt, &store.view, cache, &model);
            assert_eq!(store.mpt.prove(&store.view, cache, &PLAIN.keys(&asked)).unwrap(), proof);
        }
    }
}

#[test]
fn blake2b_roots_are_those_of_the_definition() {
    let random = &mut StdRng::seed_from_u64(5);
    let (addresses, slots) = keys(random);
    let mut store = TestStore::of(archive(BLAKE2B));
    assert_eq!(store.root, state_root_by_definition(BLAKE2B, &StateModel::new()));
    for block in 0..60 {
        let shrink = [0.1, 0.4, 0.8][block / 10 % 3];
        let (after, wiped) = random_block(random, &store.model, &addresses, &slots, shrink);
        store.block(after, &wiped);
        assert_eq!(store.root, state_root_by_definition(BLAKE2B, &store.model), "block {block}");
        // The definition, as the test has it, is Ethereum's with the other hash function.
        let ethereum = state_root_by_definition(KECCAK, &store.model);
        assert_eq!(ethereum, state_root(&store.model));
        let asked: Vec<_> = store.model.keys().copied().collect();
        let proof = store.mpt.prove(&store.view, &store.cache, &PLAIN.keys(&asked)).unwrap();
        let shown = store.mpt.verify(store.root, &PLAIN.keys(&asked), &proof).unwrap();
        assert!(shown.into_iter().map(Option::unwrap).eq(store.model.values().cloned()));
        let kept: Vec<_> = asked.iter().take(1).copied().collect();
        let other = archive(KECCAK).verify(store.root, &PLAIN.keys(&kept), &proof);
        assert!(other.is_err(), "the hash function is part of the statement");
    }
    assert_eq!(store.bulk_loaded().1, store.root);
}

#[test]
fn large_tries_built_in_parts_and_in_parallel_keep_their_root() {
    let random = &mut StdRng::seed_from_u64(2);
    let mut model = StateModel::new();
    let big = Address::repeat_byte(1);
    for n in 0..3_000u64 {
        let address = if n == 0 { big } else { random_address(random) };
        model.insert(StateKey::Account(address), account(random).encode());
        let value = encode_slot(U256::from(n % 3 + 1)).unwrap();
        model.insert(StateKey::Slot(big, keccak256(n.to_be_bytes())), value);
    }
    let mut store = TestStore::of(archive(KECCAK));
    store.block(model, &[]);
    assert_eq!(store.root, state_root(&store.model));
    let (view, root) = store.bulk_loaded();
    assert_eq!(root, store.root);
    assert!(view.filled() == store.view.filled(), "rows of a bulk load are those of the block");
    let all: Vec<_> = store.model.keys().copied().collect();
    for _ in 0..5 {
        let mut after = store.model.clone();
        for key in all.choose_multiple(random, 700) {
            match key {
                StateKey::Slot(..) if random.random_bool(0.3) => drop(after.remove(key)),
                StateKey::Slot(..) => drop(after.insert(*key, encode_slot(U256::MAX).unwrap())),
                StateKey::Account(_) => drop(after.insert(*key, account(random).encode())),
            }
        }
        store.block(after, &[]);
        assert_eq!(store.root, state_root(&store.model));
    }
}

/// The rows of the backend's tables.
fn rows(kv: &MemoryStore) -> Vec<Vec<TableRow>> {
    let snapshot = kv.snapshot().unwrap();
    let rows =
        |table| snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap();
    [NODES, KEYS, ROOTS].into_iter().map(rows).collect()
}

/// Storage that comes and goes makes the same nodes again and again; two accounts share theirs.
#[test]
fn a_revert_takes_back_the_nodes_of_its_blocks_and_no_others() {
    let kv = MemoryStore::new();
    let backend = Arc::new(archive(KECCAK));
    let store = StateStore::open(backend, Arc::new(kv.clone()), StoreOptions::default()).unwrap();
    let hash = |number: u64, fork: u8| keccak256([&number.to_be_bytes()[..], &[fork]].concat());
    let commit = |before: &StateModel, after: &StateModel, fork: u8| {
        let session = store.begin(StateId::Tip).unwrap();
        let number = session.number();
        let proposal = session.finish(&delta(before, after, &[])).unwrap();
        store.seal(&proposal, hash(number, fork));
        let mut txn = kv.begin_write().unwrap();
        let after = store.commit(&[proposal], &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
    };
    let revert = |to| {
        let mut txn = kv.begin_write().unwrap();
        let after = store.revert(to, &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        store.flush().unwrap();
    };
    let random = &mut StdRng::seed_from_u64(8);
    let accounts: Vec<Address> = (0..3).map(|_| random_address(random)).collect();
    let value = encode_slot(U256::MAX).unwrap();
    let mut states = vec![StateModel::new()];
    for _ in 0..40 {
        let mut model = StateModel::new();
        for address in &accounts {
            model.insert(StateKey::Account(*address), Account::default().encode());
            let set = random.random_range(0..8u64);
            for slot in (0..3).filter(|bit| set >> bit & 1 == 1) {
                model.insert(StateKey::Slot(*address, B256::from(U256::from(slot))), value.clone());
            }
        }
        states.push(model);
    }
    let mut pictures = Vec::new();
    for (n, pair) in states.windows(2).enumerate() {
        commit(&pair[0], &pair[1], 0);
        store.flush().unwrap();
        pictures.push(rows(&kv));
        if n % 7 == 6 {
            for back in 1..=5 {
                revert((n - back) as u64);
                assert!(rows(&kv) == pictures[n - back], "{back} blocks back from {n}");
                // Another block in their place, which is reverted too.
                commit(&states[n + 1 - back], &states[back], 1);
                revert((n - back) as u64);
                assert!(rows(&kv) == pictures[n - back], "after another block");
                for at in n - back + 1..=n {
                    commit(&states[at], &states[at + 1], 0);
                }
                store.flush().unwrap();
                assert!(rows(&kv) == pictures[n], "the same blocks again");
            }
        }
    }
    for (number, model) in states[1..].iter().enumerate() {
        let old = store.history(BlockRef::new(number as u64, hash(number as u64, 0))).unwrap();
        let entries = old.entries(None, usize::MAX).unwrap().into_iter();
        assert!(entries.map(|(key, value)| (key.plain().unwrap(), value)).eq(model.clone()));
        let slots = old.slots_of(&accounts[0]).unwrap();
        assert!(slots.iter().map(|(slot, _)| slot).is_sorted());
    }
    assert_eq!(store.tip().unwrap().block, BlockRef::new(39, hash(39, 0)));
}

#[test]
fn lost_and_damaged_rows_are_reported() {
    let random = &mut StdRng::seed_from_u64(4);
    let mut store = TestStore::of(archive(KECCAK));
    let model: StateModel = (0..200)
        .map(|_| (StateKey::Account(random_address(random)), account(random).encode()))
        .collect();
    store.block(model, &[]);
    let asked: Vec<_> = store.model.keys().copied().collect();
    let hashes: Vec<_> = store.view.tables[&NODES].keys().cloned().collect();
    type RowDamage = fn(&Bytes) -> Option<Bytes>;
    let damages: [(&str, RowDamage); 4] = [
        ("no row for the node", |_| None),
        ("malformed", |row| Some(row.slice(..row.len() - 1))),
        ("malformed", |row| Some([&row[..], &[0x80]].concat().into())),
        ("malformed", |_| Some(Bytes::from_static(&[0x80]))),
    ];
    for (message, damage) in damages {
        for hash in &hashes {
            let mut view = store.view.clone();
            let rows = view.tables.get_mut(&NODES).unwrap();
            match damage(&rows[hash]) {
                Some(row) => drop(rows.insert(hash.clone(), row)),
                None => drop(rows.remove(hash)),
            }
            // The cache of a new backend is empty.
            let fresh = archive(KECCAK);
            let found: Vec<_> = asked
                .iter()
                .filter_map(|key| fresh.read(&view, &store.cache, &PLAIN.key(key)).err())
                .collect();
            assert!(!found.is_empty(), "reading past {hash:02x?}");
            let proof =
                archive(KECCAK).prove(&view, &store.cache, &PLAIN.keys(&asked)).unwrap_err();
            for error in found.iter().chain([&proof]) {
                let is_corrupt = matches!(error, StateError::Corrupt { .. });
                assert!(is_corrupt && error.to_string().contains(message), "{error}");
                assert!(error.to_string().contains(NODES.name), "{error}");
            }
        }
    }
    let mut view = store.view.clone();
    let last = view.tables.get_mut(&ROOTS).unwrap();
    last.insert(0u64.to_be_bytes().to_vec(), Bytes::from_static(b"short"));
    let error = store.mpt.open(&view, None).map(drop).unwrap_err();
    assert!(error.to_string().contains("MptArchiveRoots: the row of block 0"), "{error}");
}

#[test]
fn a_flipped_bit_of_any_row_of_any_age_is_found() {
    let random = &mut StdRng::seed_from_u64(9);
    let (addresses, slots) = keys(random);
    let mut store = TestStore::of(archive(KECCAK));
    for block in 0..12 {
        let (after, wiped) = random_block(random, &store.model, &addresses, &slots, 0.3);
        let wiped = if block % 2 == 0 { wiped } else { Vec::new() };
        store.block(after, &wiped);
    }
    assert_eq!(faults(&store), Vec::<String>::new());
    let whole = store.view.clone();
    for table in [NODES, KEYS, ROOTS] {
        for (key, row) in &whole.tables[&table] {
            let (bit, at) = (1 << random.random_range(0..8), random.random_range(0..1000));
            for flip_key in [false, true] {
                let (mut key, mut row, old) = (key.clone(), row.to_vec(), key.clone());
                let bytes = if flip_key { &mut key } else { &mut row };
                let at = at % bytes.len();
                bytes[at] ^= bit;
                store.view = whole.clone();
                let rows = store.view.tables.get_mut(&table).unwrap();
                rows.remove(&old);
                rows.insert(key, row.into());
                assert!(!faults(&store).is_empty(), "{} {old:02x?}: {flip_key}", table.name);
            }
            if table == NODES {
                store.view = whole.clone();
                store.view.tables.get_mut(&table).unwrap().remove(key);
                assert!(!faults(&store).is_empty(), "node {key:02x?} is lost");
            }
        }
    }
}
