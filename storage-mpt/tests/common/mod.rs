//! A view in memory, a model of the state and its root by another implementation.
#![allow(dead_code, missing_docs, unreachable_pub)]

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_trie::{HashBuilder, Nibbles, TrieAccount};
use rand::Rng;
use retrie_state::{
    Account, ApplyContext, Backend, BulkSink, Cache, DeltaBuilder, Direction, Jobs, KeyRange,
    NodeRead, NodeWrite, Rows, StateDelta, StateError, StateKey, Table, Value,
};
use retrie_storage_mpt::Mpt;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub tables: BTreeMap<Table, BTreeMap<Vec<u8>, Bytes>>,
}

impl View {
    pub fn rows(&self) -> usize {
        self.tables.values().map(BTreeMap::len).sum()
    }

    fn set(&mut self, table: Table, key: &[u8], value: Option<Bytes>) -> Option<Bytes> {
        let rows = self.tables.entry(table).or_default();
        match value {
            Some(value) => rows.insert(key.to_vec(), value),
            None => rows.remove(key),
        }
    }
}

impl NodeRead for View {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        Ok(self.tables.get(&table).and_then(|rows| rows.get(key).cloned()))
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<Rows<'a>, StateError> {
        let mut rows: Vec<_> = self
            .tables
            .get(&table)
            .into_iter()
            .flatten()
            .filter(|(key, _)| range.contains(key))
            .map(|(key, value)| Ok((key.clone().into(), value.clone())))
            .collect();
        if direction == Direction::Backward {
            rows.reverse();
        }
        Ok(Box::new(rows.into_iter()))
    }
}

impl NodeWrite for View {
    fn put(&mut self, table: Table, key: &[u8], value: Bytes) -> Result<(), StateError> {
        self.set(table, key, Some(value));
        Ok(())
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), StateError> {
        self.set(table, key, None);
        Ok(())
    }

    fn replace(
        &mut self,
        table: Table,
        key: &[u8],
        previous: Option<Bytes>,
        next: Option<Bytes>,
    ) -> Result<(), StateError> {
        let stored = self.set(table, key, next);
        assert_eq!(stored, previous, "previous value of {} {key:02x?}", table.name);
        Ok(())
    }

    fn publish_file(&mut self, _: &str) -> Result<(), StateError> {
        unreachable!("no files")
    }

    fn retire_file(&mut self, _: &str) -> Result<(), StateError> {
        unreachable!("no files")
    }

    fn as_read(&self) -> &dyn NodeRead {
        self
    }
}

impl BulkSink for View {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        let rows = self.tables.entry(table).or_default();
        assert!(rows.last_key_value().is_none_or(|(last, _)| &last[..] < key), "out of order");
        rows.insert(key.to_vec(), Bytes::copy_from_slice(value));
        Ok(())
    }
}

pub fn random_address(random: &mut impl Rng) -> Address {
    Address::from(random.random::<[u8; 20]>())
}

pub fn random_word(random: &mut impl Rng) -> B256 {
    B256::from(random.random::<[u8; 32]>())
}

pub type Model = BTreeMap<StateKey, Value>;

/// The delta from `before` to `after`.
pub fn delta(before: &Model, after: &Model, wiped: &[Address]) -> StateDelta {
    let mut builder = DeltaBuilder::new();
    for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        builder.change(*key, before.get(key).cloned(), after.get(key).cloned());
    }
    wiped.iter().for_each(|address| builder.wipe(*address));
    builder.build()
}

fn trie_root(leaves: BTreeMap<B256, Vec<u8>>) -> B256 {
    let mut builder = HashBuilder::default();
    for (key, value) in leaves {
        builder.add_leaf(Nibbles::unpack(key), &value);
    }
    builder.root()
}

/// Storage root of `address` by alloy's builder.
pub fn storage_root(model: &Model, address: &Address) -> B256 {
    let from = StateKey::Slot(*address, B256::ZERO);
    let to = StateKey::Slot(*address, B256::repeat_byte(0xff));
    let leaf = |(key, value): (&StateKey, &Value)| match key {
        StateKey::Slot(_, slot) => (keccak256(slot), alloy_rlp::encode(U256::from_be_slice(value))),
        StateKey::Account(_) => unreachable!(),
    };
    trie_root(model.range(from..=to).map(leaf).collect())
}

/// State root by alloy's builder.
pub fn state_root(model: &Model) -> B256 {
    let leaf = |(key, value): (&StateKey, &Value)| match key {
        StateKey::Account(address) => {
            let Account { nonce, balance, code_hash } = Account::decode(value).unwrap();
            let storage_root = storage_root(model, address);
            let account = TrieAccount { nonce, balance, storage_root, code_hash };
            Some((keccak256(address), alloy_rlp::encode(account)))
        }
        StateKey::Slot(..) => None,
    };
    trie_root(model.iter().filter_map(leaf).collect())
}

/// A backend with its state.
pub struct Store {
    pub mpt: Mpt,
    pub view: View,
    pub cache: Cache,
    pub model: Model,
    pub root: B256,
    number: u64,
    jobs: Jobs,
}

impl Store {
    pub fn new() -> Self {
        let (mpt, view, jobs) = (Mpt::new(), View::default(), Jobs::new(None));
        let cache = mpt.open(&view, &jobs).unwrap();
        let root = mpt.empty_root();
        Self { mpt, view, cache, model: Model::new(), root, number: 0, jobs }
    }

    /// Moves on to the state `after`.
    pub fn block(&mut self, after: Model, wiped: &[Address]) {
        let delta = delta(&self.model, &after, wiped);
        self.apply(&delta).unwrap();
        self.model = after;
    }

    pub fn apply(&mut self, delta: &StateDelta) -> Result<(), StateError> {
        let context =
            ApplyContext { number: self.number, parent_root: self.root, jobs: &self.jobs };
        let applied = self.mpt.apply(&context, &mut self.view, &self.cache, delta)?;
        (self.root, self.cache) = (applied.root, applied.cache);
        self.number += 1;
        Ok(())
    }

    pub fn reopen(&mut self) {
        self.cache = self.mpt.open(&self.view, &self.jobs).unwrap();
    }

    /// The view that loading the state at once gives, and the root.
    pub fn bulk_loaded(&self) -> (View, B256) {
        let mut view = View::default();
        let mut entries = self.model.iter().map(|(key, value)| Ok((*key, value.clone())));
        let root = self.mpt.bulk_load(0, &mut entries, &mut view).unwrap();
        (view, root)
    }
}

/// Without the tables that have become empty.
pub fn filled(view: &View) -> BTreeMap<Table, BTreeMap<Vec<u8>, Bytes>> {
    view.tables.clone().into_iter().filter(|(_, rows)| !rows.is_empty()).collect()
}

/// The folder of the public data, or `None` after saying so.
pub fn data() -> Option<PathBuf> {
    let path = std::env::var_os("RETRIE_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data")),
        PathBuf::from,
    );
    if path.is_dir() {
        return Some(path);
    }
    assert!(
        std::env::var_os("RETRIE_REQUIRE_DATA").is_none_or(|value| value != "1"),
        "RETRIE_REQUIRE_DATA is set, but there is no folder {}",
        path.display()
    );
    println!("skipped: no RETRIE_DATA");
    None
}

pub fn json(path: &std::path::Path) -> serde_json::Value {
    let file = std::fs::File::open(path).unwrap();
    serde_json::from_reader(std::io::BufReader::new(flate2::read::GzDecoder::new(file))).unwrap()
}
