//! `prefix` against `mpt`, with old states kept and forgotten, in all layouts, and damaged.

use crate::common;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use common::{
    PLAIN, StateModel, TestStore,
    blocks::{account, keys, random_block, slots_of},
    random_address, state_root,
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IteratorRandom};
use retrie_state::{
    AccountProofs, AnyCache, Backend, KeyRange, Maintenance, NodeRead, RowScan, RowTable,
    ScanDirection, StateError, StateHistory, StateKey, encode_slot, flat, wire::WireReader,
};
use retrie_state_testkit::MemoryView;
use retrie_storage_mpt::Mpt;
use retrie_storage_prefix::prefix::{
    ACCOUNT_NODES, BLOCKS, DELETED_KEYS, Prefix, PrefixLayout, STORAGE_NODES, SUPERSEDED,
};
use std::{collections::BTreeMap, sync::Arc};

/// An earlier block: its root, its state, some keys, and `mpt`'s proof of these keys.
type PastBlock = (B256, StateModel, Vec<StateKey>, Bytes);

/// Random blocks on `prefix` and on `mpt`, whose roots and proofs are the same.
fn history(
    backend: Prefix,
    seed: u64,
    blocks: usize,
    mut after_each: impl FnMut(&mut TestStore<Prefix>, &[PastBlock]),
) -> (TestStore<Prefix>, Vec<PastBlock>) {
    let random = &mut StdRng::seed_from_u64(seed);
    let (addresses, slots) = keys(random);
    let (mut mpt, mut store) = (TestStore::<Mpt>::new(), TestStore::of(backend));
    let mut past = Vec::new();
    for block in 0..blocks {
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
        assert_eq!(mpt.mpt.prove(&mpt.view, &mpt.cache, &PLAIN.keys(&asked)).unwrap(), proof);
        for address in addresses.iter().take(4) {
            let nodes = store.mpt.account_nodes(
                &store.view,
                &store.any_cache(),
                &PLAIN.account(address),
                &slots[..3],
            );
            let of_mpt = mpt.mpt.account_nodes(
                &mpt.view,
                &mpt.any_cache(),
                &PLAIN.account(address),
                &slots[..3],
            );
            assert_eq!(nodes.unwrap(), of_mpt.unwrap());
        }
        let removed: Vec<_> = store.model.keys().step_by(3).copied().collect();
        let merged =
            store.mpt.merge_nodes(&store.view, &store.any_cache(), &PLAIN.keys(&removed)).unwrap();
        let of_mpt =
            mpt.mpt.merge_nodes(&mpt.view, &mpt.any_cache(), &PLAIN.keys(&removed)).unwrap();
        // Storages come in no particular order.
        let sorted = |mut nodes: Vec<Bytes>| {
            nodes.sort_unstable();
            nodes
        };
        assert_eq!(sorted(merged), sorted(of_mpt));
        past.push((store.root, store.model.clone(), asked, proof));
        if random.random_bool(0.2) {
            store.reopen();
        }
        after_each(&mut store, &past);
    }
    (store, past)
}

/// The faults that the check of all rows finds.
fn faults(store: &TestStore<Prefix>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut report = |fault: StateError| faults.push(fault.to_string());
    store.mpt.check(&store.view, &store.cache, store.root, true, None, &mut report).unwrap();
    faults
}

/// Checks all reads and proofs of the state of block `number` against `past`.
fn check_past(store: &TestStore<Prefix>, number: u64, past: &PastBlock) {
    let (root, model, asked, proof) = past;
    let TestStore { mpt, view, .. } = store;
    let (old_root, state) = mpt.open_at(view, &store.any_cache(), number).unwrap();
    let state = state.get().unwrap();
    assert_eq!(old_root, *root);
    let entries = mpt.entries(view, state, None, usize::MAX).unwrap();
    assert!(
        entries
            .iter()
            .map(|(key, value)| (key.plain().unwrap(), value))
            .eq(model.iter().map(|(k, v)| (*k, v))),
        "block {number}"
    );
    if let Some((key, _)) = entries.get(entries.len() / 2) {
        let rest = mpt.entries(view, state, Some(key), 2).unwrap();
        assert!(rest.iter().eq(entries[entries.len() / 2..].iter().take(2)));
    }
    for key in asked {
        assert_eq!(
            mpt.read(view, state, &PLAIN.key(key)).unwrap().as_ref(),
            model.get(key),
            "{key}"
        );
        let slots = mpt.slots_of(view, state, &PLAIN.account(key.address()), usize::MAX).unwrap();
        let expected = slots_of(model, *key.address());
        let keys = slots.iter().map(|(slot, _)| StateKey::Slot(*key.address(), *slot));
        assert!(keys.eq(expected.iter().copied()));
    }
    assert_eq!(mpt.prove(view, state, &PLAIN.keys(asked)).unwrap(), *proof, "block {number}");
}

#[test]
fn every_block_has_the_root_and_the_proofs_of_mpt_and_keeps_its_state() {
    for (seed, (layout, name)) in (0..).zip(PrefixLayout::ALL) {
        let (store, past) = history(Prefix::new(layout, None), seed, 40, |_, _| ());
        assert_eq!(faults(&store), Vec::<String>::new(), "{name}");
        assert_eq!(store.mpt.kept(&store.view).unwrap(), Some(0..=39));
        past.iter().enumerate().for_each(|(n, past)| check_past(&store, n as u64, past));
        let stats = store.mpt.stats(&store.view, &store.cache).unwrap();
        assert_eq!(stats.live_keys, store.model.len() as u64);
        let (view, root) = store.bulk_loaded();
        assert_eq!(root, store.root);
        let loaded = store.mpt.open(&view, None).unwrap();
        let (_, _, asked, proof) = past.last().unwrap();
        assert_eq!(store.mpt.prove(&view, &loaded, &PLAIN.keys(asked)).unwrap(), *proof, "{name}");
    }
}

/// Number of rows in all packs of a table.
fn packed_rows(view: &MemoryView, table: RowTable) -> usize {
    let in_pack = |pack: &Bytes| {
        let (mut rest, mut rows) = (WireReader::new(pack), 0);
        while !rest.is_empty() {
            rest.u8().unwrap();
            let len = rest.varint().unwrap();
            rest.take(len as usize).unwrap();
            rows += 1;
        }
        rows
    };
    view.tables.get(&table).map_or(0, |packs| packs.values().map(in_pack).sum())
}

fn rows(store: &TestStore<Prefix>, table: RowTable) -> usize {
    store.view.tables.get(&table).map_or(0, BTreeMap::len)
}

#[test]
fn what_is_forgotten_goes_whole_and_nothing_else_does() {
    for (seed, keep, budget) in [(1, 0, usize::MAX), (2, 5, 3), (3, 12, 40), (4, 0, 1)] {
        let retention = 4;
        let mut forgets_late = 0;
        let backend = Prefix::new(PrefixLayout::default(), Some(keep));
        let (mut store, past) = history(backend, seed, 60, |store, past| {
            let tip = past.len() as u64 - 1;
            let first_retained = tip.saturating_sub(retention);
            let cache = store.any_cache();
            store.mpt.maintain(&mut store.view, &cache, first_retained, budget).unwrap();
            assert_eq!(faults(store), Vec::<String>::new(), "block {tip}");
            let kept = store.mpt.kept(&store.view).unwrap().unwrap();
            assert_eq!(*kept.end(), tip);
            let due = first_retained.min(tip.saturating_sub(keep));
            assert!(*kept.start() <= due, "{kept:?} at block {tip}");
            forgets_late += usize::from(*kept.start() < due);
            for number in kept {
                check_past(store, number, &past[number as usize]);
            }
        });
        assert!(budget < 40 || forgets_late == 0, "seed {seed}: there was room for all");
        // With enough time one state remains, with few more rows than after a bulk load.
        loop {
            let before = store.view.rows();
            let cache = store.any_cache();
            store.mpt.maintain(&mut store.view, &cache, 59, budget).unwrap();
            if store.view.rows() == before {
                break;
            }
        }
        let tip_only = Prefix::new(PrefixLayout::default(), Some(0));
        let cache = store.any_cache();
        tip_only.maintain(&mut store.view, &cache, 59, usize::MAX).unwrap();
        assert_eq!(tip_only.kept(&store.view).unwrap(), Some(59..=59));
        check_past(&store, 59, &past[59]);
        assert_eq!(faults(&store), Vec::<String>::new());
        let (loaded, _) = store.bulk_loaded();
        for table in [BLOCKS, SUPERSEDED, DELETED_KEYS, flat::TABLE] {
            let expected = loaded.tables.get(&table).map_or(0, BTreeMap::len);
            assert_eq!(rows(&store, table), expected, "{}", table.name);
        }
        // Some rows are deltas of others.
        for table in [ACCOUNT_NODES, STORAGE_NODES] {
            let expected = packed_rows(&loaded, table);
            let found = packed_rows(&store.view, table);
            assert!(
                (expected..=2 * expected).contains(&found),
                "{}: {found} of {expected}",
                table.name
            );
        }
    }
}

#[test]
fn keeping_more_and_fewer_states_may_be_switched_at_any_time() {
    let (mut store, past) = history(Prefix::default(), 7, 40, |_, _| ());
    let few = Prefix::new(PrefixLayout::default(), Some(10));
    let cache = store.any_cache();
    few.maintain(&mut store.view, &cache, 35, usize::MAX).unwrap();
    assert_eq!(few.kept(&store.view).unwrap(), Some(29..=39));
    // Keeping more again does not bring back deleted states.
    let cache = store.any_cache();
    Prefix::default().maintain(&mut store.view, &cache, 39, usize::MAX).unwrap();
    assert_eq!(store.mpt.kept(&store.view).unwrap(), Some(29..=39));
    (29..40).for_each(|number| check_past(&store, number as u64, &past[number]));
    let forgotten = store.mpt.open_at(&store.view, &store.any_cache(), 28).unwrap_err().to_string();
    assert!(forgotten.contains("block 28"), "{forgotten}");
}

#[test]
fn orders_differ_in_nothing_but_the_order_of_keys() {
    let sizes = |name: &str| {
        let layout = PrefixLayout::named(&format!("{name},rows=2")).unwrap();
        let (store, _) = history(Prefix::new(layout, None), 5, 30, |_, _| ());
        [ACCOUNT_NODES, STORAGE_NODES].map(|table| {
            let rows = store.view.tables[&table].iter();
            let mut rows: Vec<_> = rows.map(|(key, row)| (key.len(), row.clone())).collect();
            rows.sort_unstable();
            rows
        })
    };
    assert_eq!(sizes("path"), sizes("hash"));
    assert_eq!(sizes("path,pad=64"), sizes("hash,pad=64"));
    let bytes =
        |name| sizes(name).iter().flatten().map(|(key, row)| key + row.len()).sum::<usize>();
    assert!(bytes("path,pad=64") > bytes("path"));
}

#[test]
fn large_tries_keep_their_root_and_are_loaded_as_they_grow() {
    let random = &mut StdRng::seed_from_u64(2);
    let mut model = StateModel::new();
    let big = Address::repeat_byte(1);
    for n in 0..3_000u64 {
        let address = if n == 0 { big } else { random_address(random) };
        model.insert(StateKey::Account(address), account(random).encode());
        let value = encode_slot(U256::from(n % 3 + 1)).unwrap();
        model.insert(StateKey::Slot(big, keccak256(n.to_be_bytes())), value);
    }
    for (layout, name) in PrefixLayout::ALL {
        let mut store = TestStore::of(Prefix::new(layout, None));
        store.block(model.clone(), &[]);
        assert_eq!(store.root, state_root(&model), "{name}");
        let (view, root) = store.bulk_loaded();
        assert_eq!(root, store.root);
        assert!(view.filled() == store.view.filled(), "{name}: rows");
        // Half of the slots go, then the account with the rest.
        for keep in [2, usize::MAX] {
            let mut after = store.model.clone();
            let gone = slots_of(&after, big).into_iter().enumerate();
            let gone = gone.filter(|(n, _)| keep == usize::MAX || n % keep == 0);
            gone.for_each(|(_, key)| drop(after.remove(&key)));
            if keep == usize::MAX {
                after.remove(&StateKey::Account(big));
            }
            store.block(after, &[]);
            assert_eq!(store.root, state_root(&store.model), "{name}");
        }
        assert_eq!(faults(&store), Vec::<String>::new(), "{name}");
    }
}

/// A damaged view as the framework reads it: a row that was not written there has a wrong checksum.
struct ChecksummedView<'a> {
    view: &'a MemoryView,
    written: &'a MemoryView,
}

impl ChecksummedView<'_> {
    fn check(&self, table: RowTable, key: &[u8], value: &Bytes) -> Result<(), StateError> {
        let written = self.written.tables.get(&table).and_then(|rows| rows.get(key));
        if written == Some(value) {
            return Ok(());
        }
        Err(StateError::corrupt(table.name, format!("wrong checksum of row {key:02x?}")))
    }
}

impl NodeRead for ChecksummedView<'_> {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let value = self.view.get(table, key)?;
        value.iter().try_for_each(|value| self.check(table, key, value))?;
        Ok(value)
    }

    fn scan<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        direction: ScanDirection,
    ) -> Result<RowScan<'a>, StateError> {
        let rows = self.view.scan(table, range, direction)?;
        Ok(Box::new(rows.map(move |row| {
            let (key, value) = row?;
            self.check(table, &key, &value).map(|()| (key, value))
        })))
    }
}

#[test]
fn damaged_rows_are_errors_and_never_other_values() {
    let (store, past) = history(Prefix::default(), 11, 25, |_, _| ());
    let random = &mut StdRng::seed_from_u64(12);
    let mut noticed = 0;
    for round in 0..400 {
        let table = [ACCOUNT_NODES, STORAGE_NODES, BLOCKS, SUPERSEDED][round % 4];
        let rows = &store.view.tables[&table];
        let (key, row) = rows.iter().choose(random).unwrap();
        let mut view = store.view.clone();
        let damaged = view.tables.get_mut(&table).unwrap();
        let damage = random.random_range(0..4);
        // Rows with other bytes or keys fail the framework's checksums; other damage shows without
        // them.
        let is_checksummed = damage == 1 || damage == 3;
        match damage {
            0 => drop(damaged.remove(key)),
            1 => {
                let mut bytes = row.to_vec();
                let at = random.random_range(0..bytes.len());
                bytes[at] ^= 1 << random.random_range(0..8);
                damaged.insert(key.clone(), bytes.into());
            }
            2 => drop(damaged.insert(key.clone(), row.slice(..random.random_range(0..row.len())))),
            // Another row of the same table in its place.
            _ => {
                let (_, other) = rows.iter().choose(random).unwrap();
                damaged.insert(key.clone(), other.clone());
            }
        }
        if view.tables == store.view.tables {
            continue;
        }
        let mut damaged = TestStore::of(Prefix::default());
        damaged.view = view;
        let checksummed = ChecksummedView { view: &damaged.view, written: &store.view };
        let view: &dyn NodeRead = if is_checksummed { &checksummed } else { &damaged.view };
        let Ok(cache) = damaged.mpt.open(view, None).map(Arc::new) else {
            noticed += 1;
            continue;
        };
        let any_cache = AnyCache::from(cache.clone());
        // A read of an old state is right, or an error.
        for (number, (root, model, asked, _)) in (0u64..).zip(&past) {
            let Ok((opened, state)) = damaged.mpt.open_at(view, &any_cache, number) else {
                continue;
            };
            assert_eq!(opened, *root, "block {number} has another root");
            for key in asked.iter().step_by(5) {
                if let Ok(value) = damaged.mpt.read(view, state.get().unwrap(), &PLAIN.key(key)) {
                    assert_eq!(value.as_ref(), model.get(key), "{key} in block {number}");
                }
            }
        }
        let mut found = 0;
        let check =
            damaged.mpt.check(&damaged.view, &cache, store.root, true, None, &mut |_| found += 1);
        assert!(
            check.is_err() || found > 0,
            "{}: damage {damage} at {key:02x?} is not found",
            table.name
        );
        noticed += 1;
    }
    assert!(noticed > 300);
}
