//! Random histories against a model and alloy's trie builder.

use crate::common::{
    PLAIN, StateModel, TestStore,
    blocks::{account, keys, random_block, slot_value},
    delta, random_address, random_word, state_root,
};
use alloy_primitives::{Address, B256, U256};
use alloy_trie::EMPTY_ROOT_HASH;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use retrie_state::{
    Account, Backend, BlockRef, DeltaBuilder, Prefetcher, StateChange, StateError, StateKey,
    encode_slot,
};
use retrie_state_store::{KvStore, MemoryStore, StateId, StateSession, StateStore, StoreOptions};
use retrie_storage_mpt::Mpt;
use std::sync::Arc;

#[test]
fn roots_and_rows_are_those_of_the_state_whatever_its_history() {
    for seed in 0..6 {
        let random = &mut StdRng::seed_from_u64(seed);
        let (addresses, slots) = keys(random);
        let mut store = TestStore::new();
        for block in 0..120 {
            let shrink = [0.1, 0.4, 0.8][block / 10 % 3];
            let (after, wiped) = random_block(random, &store.model, &addresses, &slots, shrink);
            store.block(after, &wiped);
            assert_eq!(store.root, state_root(&store.model), "seed {seed} block {block}");
            if random.random_bool(0.2) {
                store.reopen();
            }
            if block % 10 == 0 {
                let (view, root) = store.bulk_loaded();
                assert_eq!(root, store.root);
                assert!(view.filled() == store.view.filled(), "rows, seed {seed} block {block}");
            }
        }
        store.block(StateModel::new(), &[]);
        assert_eq!(store.root, EMPTY_ROOT_HASH);
        assert_eq!(store.view.rows(), 0, "rows left behind");
    }
}

#[test]
fn large_tries_with_split_branches_and_parallel_updates_keep_their_root() {
    let random = &mut StdRng::seed_from_u64(1);
    let mut store = TestStore::new();
    let mut model = StateModel::new();
    let big = Address::repeat_byte(1);
    for n in 0..2_000u64 {
        let address = if n == 0 { big } else { random_address(random) };
        model.insert(StateKey::Account(address), account(random).encode());
    }
    let mut slots: Vec<B256> = (0..6_000).map(|_| random_word(random)).collect();
    for slot in &slots {
        let value = encode_slot(slot_value(random)).unwrap();
        model.insert(StateKey::Slot(big, *slot), value);
    }
    store.block(model, &[]);
    let (view, root) = store.bulk_loaded();
    assert_eq!(root, store.root);
    assert!(view == store.view, "rows of the first block");
    for block in 0..8 {
        let mut after = store.model.clone();
        for _ in 0..500 {
            let slot = if block % 3 == 2 {
                slots.swap_remove(random.random_range(0..slots.len()))
            } else {
                slots.push(random_word(random));
                *slots.choose(random).unwrap()
            };
            let key = StateKey::Slot(big, slot);
            if block % 3 == 2 {
                after.remove(&key);
            } else {
                after.insert(key, encode_slot(slot_value(random)).unwrap());
            }
        }
        store.block(after, &[]);
        assert_eq!(store.root, state_root(&store.model), "block {block}");
        if block == 3 {
            store.reopen();
        }
    }
    let (view, _) = store.bulk_loaded();
    assert!(view == store.view, "rows of the last block");
    let mut after = store.model.clone();
    after.retain(|key, _| matches!(key, StateKey::Account(_)));
    store.block(after, &[big]);
    assert_eq!(store.root, state_root(&store.model), "wiped");
}

#[test]
fn an_older_cache_extends_its_own_block() {
    let random = &mut StdRng::seed_from_u64(3);
    let (addresses, slots) = keys(random);
    let mut store = TestStore::new();
    for _ in 0..30 {
        let (after, wiped) = random_block(random, &store.model, &addresses, &slots, 0.2);
        store.block(after, &wiped);
    }
    // Two siblings on one parent: neither sees the other.
    let (parent_view, parent_cache, parent_model) =
        (store.view.clone(), store.cache.clone(), store.model.clone());
    let mut siblings = Vec::new();
    for _ in 0..2 {
        store.view = parent_view.clone();
        store.cache = parent_cache.clone();
        store.model = parent_model.clone();
        let (after, wiped) = random_block(random, &store.model, &addresses, &slots, 0.4);
        store.block(after, &wiped);
        assert_eq!(store.root, state_root(&store.model));
        siblings.push(store.root);
    }
    assert_ne!(siblings[0], siblings[1]);
}

#[test]
fn a_block_does_not_read_what_was_hinted_at() {
    let random = &mut StdRng::seed_from_u64(7);
    let (kv, backend) = (MemoryStore::new(), Arc::new(Mpt::new()));
    let store = StateStore::open(backend, Arc::new(kv.clone()), StoreOptions::default()).unwrap();
    let holders: Vec<Address> = (0..20_000).map(|_| random_address(random)).collect();
    let mut before = StateModel::new();
    for holder in &holders {
        before.insert(StateKey::Account(*holder), account(random).encode());
    }
    for _ in 0..20_000 {
        let value = encode_slot(slot_value(random)).unwrap();
        before.insert(StateKey::Slot(holders[0], random_word(random)), value);
    }
    let mut txn = kv.begin_write().unwrap();
    let mut entries = before.iter().map(|(key, value)| Ok((*key, value.clone())));
    let genesis = BlockRef::new(0, B256::ZERO);
    let (_, after) = store.bulk_load(genesis, &mut entries, &mut *txn).unwrap();
    txn.commit().unwrap();
    after.run().unwrap();

    let mut after = before.clone();
    for (key, value) in after.iter_mut().step_by(97) {
        *value = match key {
            StateKey::Account(_) => Account { nonce: 7, ..account(random) }.encode(),
            StateKey::Slot(..) => encode_slot(U256::from(77)).unwrap(),
        };
    }
    let changes = delta(&before, &after, &[]);
    let keys: Vec<_> = changes.changes().iter().map(|change| change.key).collect();
    let branches_read = || {
        let tables = store.counts().tables;
        let of_tries = tables.iter().filter(|(name, _)| name.ends_with("Nodes"));
        of_tries.map(|(_, counts)| counts.reads).sum::<u64>()
    };
    let read_by_a_block = |tell: &dyn Fn(&StateSession<'_>)| {
        // What a session has read is counted when it ends.
        tell(&store.begin(StateId::Tip).unwrap());
        let read = branches_read();
        let proposal = store.begin(StateId::Tip).unwrap().finish(&changes).unwrap();
        assert_eq!(proposal.root(), state_root(&after));
        branches_read() - read
    };
    // Builds for tests read each row that is replaced once more, to check it.
    let hinted = read_by_a_block(&|session| session.root_task().unwrap().prefetch(&keys));
    // The prefetched branches are dropped, because a block was applied on the state.
    let plain = read_by_a_block(&|_| ());
    assert!(hinted * 4 < plain, "{hinted}, {plain}");
    let prepared = read_by_a_block(&|session| session.root_task().unwrap().prepare_root(&changes));
    // Most reads are of branches near the roots, which no block has kept in memory yet. Each key
    // also has at least one branch below them.
    assert!(prepared + keys.len() as u64 <= plain, "{prepared}, {plain}");
}

#[test]
fn what_is_prepared_is_not_done_again_and_changes_nothing() {
    let random = &mut StdRng::seed_from_u64(8);
    let mut store = TestStore::new();
    let big = Address::repeat_byte(1);
    let mut model = StateModel::from([(StateKey::Account(big), account(random).encode())]);
    // Enough for branches at the slots that are updated early.
    for _ in 0..20_000 {
        model.insert(StateKey::Account(random_address(random)), account(random).encode());
        let value = encode_slot(slot_value(random)).unwrap();
        model.insert(StateKey::Slot(big, random_word(random)), value);
    }
    store.block(model, &[]);
    for block in 0..12 {
        let mut after = store.model.clone();
        let keys: Vec<_> = after.keys().copied().collect();
        for key in keys.choose_multiple(random, 300) {
            match key {
                _ if *key == StateKey::Account(big) => {}
                StateKey::Slot(..) if random.random_bool(0.2) => drop(after.remove(key)),
                StateKey::Slot(..) => {
                    after.insert(*key, encode_slot(slot_value(random)).unwrap());
                }
                StateKey::Account(_) => drop(after.insert(*key, account(random).encode())),
            }
        }
        for _ in 0..30 {
            after.insert(StateKey::Account(random_address(random)), account(random).encode());
            let value = encode_slot(slot_value(random)).unwrap();
            after.insert(StateKey::Slot(big, random_word(random)), value);
        }
        let delta = delta(&store.model, &after, &[]);
        let tell = |changes: &mut dyn Iterator<Item = &StateChange>| {
            let mut told = DeltaBuilder::new();
            for StateChange { key, previous, next } in changes {
                told.change(*key, previous.clone(), next.clone());
            }
            store.mpt.prepare_root(&store.view, &store.any_cache(), &PLAIN.delta(&told.build()));
        };
        let changes = delta.changes();
        match block % 4 {
            0 => tell(&mut changes.iter()),
            // One after the other, like transactions.
            1 => changes.chunks(7).for_each(|some| tell(&mut some.iter())),
            // Not all of it.
            2 => tell(&mut changes.iter().step_by(3)),
            // Wrong values for the same keys, of which some are corrected later.
            _ => {
                let mut others = changes.to_vec();
                let values = others.iter().rev().map(|change| change.next.clone());
                let values: Vec<_> = values.collect();
                for (change, next) in others.iter_mut().zip(values) {
                    let is_account = matches!(change.key, StateKey::Account(_));
                    let fits = next
                        .as_ref()
                        .is_some_and(|next| Account::decode(next).is_some() == is_account);
                    if fits {
                        change.next = next;
                    }
                }
                tell(&mut others.iter());
                tell(&mut changes.iter().step_by(2));
            }
        }
        store.block(after, &[]);
        assert_eq!(store.root, state_root(&store.model), "block {block}");
    }
    let (view, root) = store.bulk_loaded();
    assert_eq!(root, store.root);
    assert!(view == store.view, "rows of the last block");
}

#[test]
fn an_empty_account_is_a_leaf_and_an_absent_one_is_not() {
    let mut store = TestStore::new();
    let key = StateKey::Account(Address::repeat_byte(9));
    store.block(StateModel::from([(key, Account::default().encode())]), &[]);
    assert_ne!(store.root, EMPTY_ROOT_HASH);
    assert_eq!(store.root, state_root(&store.model));
    store.block(StateModel::new(), &[]);
    assert_eq!(store.root, EMPTY_ROOT_HASH);
}

#[test]
fn a_slot_below_an_absent_account_is_refused() {
    let mut store = TestStore::new();
    let mut builder = DeltaBuilder::new();
    let key = StateKey::Slot(Address::repeat_byte(9), B256::ZERO);
    builder.change(key, None, encode_slot(U256::from(1)));
    let error = store.apply(&builder.build()).unwrap_err();
    assert!(matches!(error, StateError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("account is absent"), "{error}");
}

#[test]
fn a_lost_row_is_reported_and_not_hashed_over() {
    let random = &mut StdRng::seed_from_u64(4);
    let mut store = TestStore::new();
    let model: StateModel = (0..200)
        .map(|_| (StateKey::Account(random_address(random)), account(random).encode()))
        .collect();
    store.block(model, &[]);
    let lost: Vec<_> =
        store.view.tables[&retrie_storage_mpt::ACCOUNT_NODES].keys().skip(2).cloned().collect();
    for key in &lost {
        store.view.tables.get_mut(&retrie_storage_mpt::ACCOUNT_NODES).unwrap().remove(key);
    }
    store.reopen();
    let keys: Vec<_> = store.model.keys().copied().collect();
    let error = store.mpt.prove(&store.view, &store.cache, &PLAIN.keys(&keys)).unwrap_err();
    assert!(error.to_string().contains("MptAccountNodes: no row for the branch"), "{error}");
}
