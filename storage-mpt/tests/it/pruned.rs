//! `mpt-archive:prune` against a bulk load of the same state, and against `mpt-archive`.

use crate::common::blocks::{account, keys, random_block, slots_of};
use crate::common::{PLAIN, StateModel, TestStore, random_address, state_root};
use alloy_primitives::{Address, B256, U256, keccak256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use retrie_state::{Account, AccountProofs, Backend, StateError, StateKey, encode_slot};
use retrie_storage_mpt::{MptArchive, PRUNED_KEYS, PRUNED_NODES, PrunedMpt, TrieHash};

const KECCAK: TrieHash = TrieHash::Keccak256;

/// A store that keeps almost no rows in memory.
fn pruned() -> TestStore<PrunedMpt> {
    TestStore::of(PrunedMpt::with_cache(KECCAK, 2048))
}

/// Whether the rows are those of a bulk load: no node too many, none too few.
fn has_the_rows_of_its_state(store: &TestStore<PrunedMpt>) -> bool {
    let (view, root) = store.bulk_loaded();
    root == store.root && view.filled() == store.view.filled()
}

/// Gives one account the storage of another.
fn copy_storage(random: &mut StdRng, model: &mut StateModel, addresses: &[Address]) {
    let [from, to] = [(); 2].map(|()| *addresses.choose(random).unwrap());
    if model.contains_key(&StateKey::Account(to)) {
        let old = slots_of(model, to);
        model.retain(|key, _| !old.contains(key));
        for key in slots_of(model, from) {
            let StateKey::Slot(_, slot) = key else { continue };
            model.insert(StateKey::Slot(to, slot), model[&key].clone());
        }
    }
}

#[test]
fn each_block_leaves_exactly_the_nodes_of_its_state() {
    for seed in 0..2 {
        let random = &mut StdRng::seed_from_u64(seed);
        let (addresses, slots) = keys(random);
        let mut archive = TestStore::of(MptArchive::with_cache(KECCAK, 2048));
        let mut store = pruned();
        for block in 0..45 {
            let shrink = [0.1, 0.4, 0.8][block / 15 % 3];
            let (mut after, wiped) = random_block(random, &store.model, &addresses, &slots, shrink);
            if wiped.is_empty() && random.random_bool(0.3) {
                copy_storage(random, &mut after, &addresses);
            }
            archive.block(after.clone(), &wiped);
            store.block(after, &wiped);
            assert_eq!(store.root, state_root(&store.model), "seed {seed} block {block}");
            assert!(has_the_rows_of_its_state(&store), "seed {seed} block {block}");
            if block % 5 != 0 {
                continue;
            }
            let mut asked: Vec<_> = store.model.keys().copied().collect();
            asked.push(StateKey::Slot(addresses[0], slots[0]));
            let asked = PLAIN.keys(&asked);
            let proof = store.mpt.prove(&store.view, &store.cache, &asked).unwrap();
            assert_eq!(proof, archive.mpt.prove(&archive.view, &archive.cache, &asked).unwrap());
            let shown = store.mpt.verify(store.root, &asked, &proof).unwrap();
            for (key, shown) in asked.iter().zip(shown) {
                assert_eq!(store.mpt.read(&store.view, &store.cache, key).unwrap(), shown);
            }
            store.reopen();
        }
        let stats = store.mpt.stats(&store.view, &store.cache).unwrap();
        assert_eq!(stats.live_keys, store.model.len() as u64);
        store.block(StateModel::new(), &[]);
        assert_eq!((store.view.tables[&PRUNED_NODES].len(), store.root), (0, KECCAK.empty_root()));
    }
}

#[test]
fn large_batches_in_parallel_leave_exactly_the_nodes_of_their_state() {
    let random = &mut StdRng::seed_from_u64(2);
    let mut model = StateModel::new();
    let big = Address::repeat_byte(1);
    for n in 0..1_500u64 {
        let address = if n == 0 { big } else { random_address(random) };
        model.insert(StateKey::Account(address), account(random).encode());
        let value = encode_slot(U256::from(n % 3 + 1)).unwrap();
        model.insert(StateKey::Slot(big, keccak256(n.to_be_bytes())), value);
    }
    let mut store = pruned();
    store.block(model, &[]);
    let all: Vec<_> = store.model.keys().copied().collect();
    for _ in 0..3 {
        let mut after = store.model.clone();
        for key in all.choose_multiple(random, 500) {
            match key {
                StateKey::Account(address) if *address == big => {}
                _ if random.random_bool(0.4) => drop(after.remove(key)),
                StateKey::Slot(..) => drop(after.insert(*key, encode_slot(U256::MAX).unwrap())),
                StateKey::Account(_) => drop(after.insert(*key, account(random).encode())),
            }
        }
        store.block(after, &[]);
        assert_eq!(store.root, state_root(&store.model));
        assert!(has_the_rows_of_its_state(&store));
    }
}

/// LVMT counts reads and writes at the key-value store (section 6, Fig. 6).
#[test]
fn a_changed_value_reads_each_node_of_its_path_once_and_writes_and_deletes_each() {
    let random = &mut StdRng::seed_from_u64(4);
    let mut store = pruned();
    let address = random_address(random);
    let mut model: StateModel = (0..400)
        .map(|_| (StateKey::Account(random_address(random)), account(random).encode()))
        .collect();
    model.insert(StateKey::Account(address), Account::default().encode());
    for n in 0..400u64 {
        let slot = StateKey::Slot(address, B256::from(U256::from(n)));
        model.insert(slot, encode_slot(U256::from(1)).unwrap());
    }
    store.block(model, &[]);
    let changed = StateKey::Slot(address, B256::ZERO);
    let owner = PLAIN.account(&address);
    let (view, cache) = (&store.view, store.any_cache());
    let path = store.mpt.account_nodes(view, &cache, &owner, &[B256::ZERO]).unwrap();
    let path = (path.account.len() + path.storage[0].len()) as u64;
    assert!((6..12).contains(&path), "two paths of log16(400) branches and a leaf");

    // Nothing is in memory at first, and then everything.
    store.mpt = PrunedMpt::new(KECCAK);
    store.view = store.view.clone();
    let mut after = store.model.clone();
    after.insert(changed, encode_slot(U256::MAX).unwrap());
    store.block(after, &[]);
    let counts = store.view.counts(PRUNED_NODES);
    assert_eq!((counts.gets, counts.scans, counts.writes), (path, 0, 2 * path));
    // The row of the root.
    assert_eq!(store.view.counts(PRUNED_KEYS).writes, 1);
}

#[test]
fn the_check_finds_lost_damaged_and_leftover_rows() {
    let random = &mut StdRng::seed_from_u64(9);
    let (addresses, slots) = keys(random);
    let mut store = pruned();
    for _ in 0..6 {
        let (after, wiped) = random_block(random, &store.model, &addresses, &slots, 0.3);
        store.block(after, &wiped);
    }
    let (rebuilt, _) = store.bulk_loaded();
    let faults = |store: &TestStore<PrunedMpt>| {
        let mut faults = Vec::new();
        let mut report = |fault: StateError| faults.push(fault.to_string());
        let (view, cache) = (&store.view, &store.cache);
        store.mpt.check(view, cache, store.root, true, Some(&rebuilt), &mut report).unwrap();
        faults.len()
    };
    assert_eq!(faults(&store), 0);
    let whole = store.view.clone();
    for table in [PRUNED_NODES, PRUNED_KEYS] {
        for (key, row) in &whole.tables[&table] {
            let mut flipped = key.clone();
            flipped[0] ^= 0x40;
            let other = [&row[..], &[0]].concat().into();
            for (key, row) in [(key, None), (key, Some(other)), (&flipped, Some(row.clone()))] {
                store.view = whole.clone();
                let rows = store.view.tables.get_mut(&table).unwrap();
                match row {
                    Some(row) => drop(rows.insert(key.clone(), row)),
                    None => drop(rows.remove(key)),
                }
                assert_eq!(faults(&store), 1, "{} {key:02x?}", table.name);
            }
        }
    }
}
