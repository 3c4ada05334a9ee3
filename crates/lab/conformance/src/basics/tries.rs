//! Trie roots, and neighbours of keys in an ordered store.
//!
//! Hashed keys go through the state's trie. Plain keys go through the trie for the roots of
//! transactions and receipts; as in every Ethereum trie, no key in it may be a prefix of another.

use crate::format::{TestVerdict, parse};
use alloy_primitives::{B256, Bytes, hex, keccak256};
use alloy_trie::{HashBuilder, Nibbles};
use retrie_state::{KeyRange, RowTable, ScanDirection, StoreError};
use retrie_state_store::{KvStore, MemoryStore};
use retrie_storage_mpt::{LeafUpdate, MemorySource, Trie};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
struct RootTest {
    r#in: Value,
    root: B256,
}

/// Text that starts with `0x` is hex; other text is taken as its bytes.
fn bytes(text: &str) -> Result<Vec<u8>, String> {
    match text.strip_prefix("0x") {
        Some(digits) => hex::decode(digits).map_err(|error| format!("{text}: {error}")),
        None => Ok(text.as_bytes().to_vec()),
    }
}

/// A key and its new value; `None` deletes.
type TrieChange = (Vec<u8>, Option<Vec<u8>>);

/// A list of pairs in order, or an object; a null value deletes.
fn changes(input: &Value) -> Result<Vec<TrieChange>, String> {
    let text = |value: &Value| value.as_str().map(bytes).transpose();
    let key = |value: &Value| text(value)?.ok_or_else(|| format!("{value} is no key"));
    match input {
        Value::Array(pairs) => {
            pairs.iter().map(|pair| Ok((key(&pair[0])?, text(&pair[1])?))).collect()
        }
        Value::Object(entries) => {
            entries.iter().map(|(key, value)| Ok((bytes(key)?, text(value)?))).collect()
        }
        _ => Err("`in` is neither a list nor an object".into()),
    }
}

/// The root of a trie after all changes.
pub(super) fn root(hashed: bool, json: &RawValue) -> TestVerdict {
    let test: RootTest = parse(json)?;
    let changes = changes(&test.r#in)?;
    let got = if hashed { state_trie(changes)? } else { plain_trie(changes)? };
    if got != test.root {
        Err(format!("the root is {got}, expected {}", test.root))
    } else {
        Ok(())
    }
}

/// Applies the changes one by one.
fn state_trie(changes: Vec<TrieChange>) -> Result<B256, String> {
    let mut trie = Trie::default();
    for (key, value) in changes {
        let item = LeafUpdate::new(keccak256(key), value.map(Bytes::from));
        trie = trie.update(&MemorySource, &[item], &mut ()).map_err(|error| error.to_string())?;
    }
    Ok(trie.hash())
}

fn plain_trie(changes: Vec<TrieChange>) -> Result<B256, String> {
    let mut leaves: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (key, value) in changes {
        match value {
            Some(value) => leaves.insert(key, value),
            None => leaves.remove(&key),
        };
    }
    let mut keys = leaves.keys().zip(leaves.keys().skip(1));
    if let Some((short, long)) = keys.find(|(short, long)| long.starts_with(short)) {
        return Err(format!(
            "key {} is the beginning of key {}, which no trie here can hold",
            hex::encode(short),
            hex::encode(long)
        ));
    }
    let mut builder = HashBuilder::default();
    for (key, value) in &leaves {
        builder.add_leaf(Nibbles::unpack(key), value);
    }
    Ok(builder.root())
}

#[derive(Debug, Deserialize)]
struct NeighbourTest {
    r#in: Vec<String>,
    tests: Vec<[String; 3]>,
}

/// Checks the keys before and after a probe; an empty answer means that there is none.
pub(super) fn neighbours(json: &RawValue) -> TestVerdict {
    const TABLE: RowTable = RowTable { name: "Neighbours", id: 1 };
    let test: NeighbourTest = parse(json)?;
    let fail = |error: StoreError| error.to_string();
    let store = MemoryStore::new();
    let mut txn = store.begin_write().map_err(fail)?;
    for key in &test.r#in {
        txn.put(TABLE, key.as_bytes(), &[]).map_err(fail)?;
    }
    txn.commit().map_err(fail)?;
    let rows = store.snapshot().map_err(fail)?;
    for [probe, previous, next] in &test.tests {
        let probe = probe.as_bytes();
        let after = [probe, &[0]].concat();
        let neighbour = |range, direction| {
            let rows = rows.scan(TABLE, range, direction, 1).map_err(fail)?;
            let key = rows.first().map(|(key, _)| String::from_utf8_lossy(key).into_owned());
            Ok::<_, String>(key.unwrap_or_default())
        };
        let got = [
            neighbour(KeyRange { start: &[], end: Some(probe) }, ScanDirection::Backward)?,
            neighbour(KeyRange { start: &after, end: None }, ScanDirection::Forward)?,
        ];
        if got != [previous.clone(), next.clone()] {
            let probe = String::from_utf8_lossy(probe);
            return Err(format!("around {probe} are {got:?}, expected {previous:?} and {next:?}"));
        }
    }
    Ok(())
}
