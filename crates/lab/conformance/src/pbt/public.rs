//! Vectors of other clients.

use super::{
    JsonNumber, expect,
    model::{HASH, ModelBlock, ModelState, TestTree, code_hash},
};
use crate::format::{CodeMap, TestVerdict, parse, to_u64};
use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use retrie_state::{Account, AccountKey};
use retrie_storage_pbt::{
    hash::{EMPTY_ROOT, Subtree, Sweep},
    key::{
        BASIC_DATA, CODE_HASH, CODE_ZONE, DELEGATION, HEADER_ZONE, SlotPlace, Stem, account_path,
        account_word, group_path,
    },
    leaf::{CodeFacts, basic_data, chunks, code_leaf},
    migration::{SnapshotLayout, SnapshotReader, SnapshotTotals, SnapshotWriter},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};

/// Runs a vector by the name of its file and of its member.
pub(super) fn run(path: &str, json: &RawValue) -> TestVerdict {
    let (file, case) = path.split_once(": ").unwrap_or((path, ""));
    let file = file.rsplit('/').next().unwrap_or(file);
    let member = case.split('/').next().unwrap_or(case);
    match (file, member) {
        ("geth_eip8297_vectors.json", "meta") => meta(json),
        ("geth_eip8297_vectors.json", "empty_root") => {
            expect("the root of the empty tree", EMPTY_ROOT, parse(json)?)
        }
        ("geth_eip8297_vectors.json", "state_vectors") => state(json),
        ("geth_eip8297_vectors.json", "trie_vectors") => tree(json),
        ("geth_eip8297_vectors.json", "sequence_vectors") => sequence(json),
        ("geth_eip8297_vectors.json", "embedding_vectors") => embedding(json),
        ("geth_eip8297_vectors.json", "basic_data_vectors") => basic(json),
        ("geth_eip8297_vectors.json", "chunkify_vectors") => chunkify(json),
        ("geth_blobs.json", _) => node(json),
        ("erigon_artifact_golden_counts.json", _) => golden(SnapshotLayout::Counts, json),
        ("erigon_artifact_golden_tagged.json", _) => golden(SnapshotLayout::Tagged, json),
        _ => Err("no vectors of this name are known".into()),
    }
}

// -- geth_eip8297_vectors.json ----------------------------------------------------------------------

#[derive(Debug, Deserialize)]
struct VectorMeta {
    hasher: String,
}

fn meta(json: &RawValue) -> TestVerdict {
    let VectorMeta { hasher } = parse(json)?;
    expect("the hash function", HASH.id().name(), hasher.as_str())
}

#[derive(Debug, Deserialize)]
struct StateVector {
    accounts: Vec<VectorAccount>,
    root: B256,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VectorAccount {
    address: Address,
    #[serde(default)]
    nonce: u64,
    #[serde(default)]
    balance: JsonNumber,
    #[serde(default)]
    code: Bytes,
    #[serde(default)]
    storage: BTreeMap<String, JsonNumber>,
}

fn state(json: &RawValue) -> TestVerdict {
    let vector: StateVector = parse(json)?;
    let (mut block, mut codes) = (ModelBlock::default(), CodeMap::new());
    for VectorAccount { address, nonce, balance, code, storage } in vector.accounts {
        let code_hash = code_hash(&code);
        let account = Account { nonce, balance: balance.0, code_hash };
        codes.insert(code_hash, code);
        let slot = |(slot, value): (String, JsonNumber)| {
            let slot: U256 = slot.parse().map_err(|_| format!("`{slot}` is not a slot"))?;
            Ok((B256::from(slot), value.0))
        };
        let slots = storage.into_iter().map(slot).collect::<Result<_, String>>()?;
        block.accounts.insert(address, Some(account));
        block.slots.insert(address, slots);
    }
    let (mut state, mut tree) = (ModelState::default(), TestTree::new()?);
    tree.apply(&state.apply(&block, &codes)?)?;
    expect("the root of all leaves", state.totals(&codes)?.1, vector.root)?;
    expect("the root of the backend", tree.root, vector.root)?;
    let (root, rows) = state.load(&codes)?;
    expect("the root of a load", root, vector.root)?;
    tree.expect_rows(&rows)
}

#[derive(Debug, Deserialize)]
struct TreeVector {
    entries: Vec<VectorLeaf>,
    root: B256,
}

#[derive(Debug, Deserialize)]
struct VectorLeaf {
    key: Bytes,
    value: B256,
}

/// The root of leaves, in one sweep.
fn swept(leaves: &BTreeMap<Bytes, B256>) -> B256 {
    let mut sweep = Sweep::new(HASH);
    for (key, value) in leaves {
        sweep.push(key, Subtree::Leaf(HASH.leaf(key, value)));
    }
    sweep.root()
}

fn tree(json: &RawValue) -> TestVerdict {
    let TreeVector { entries, root } = parse(json)?;
    let leaves = entries.into_iter().map(|VectorLeaf { key, value }| (key, value)).collect();
    expect("the root", swept(&leaves), root)
}

#[derive(Debug, Deserialize)]
struct SequenceVector {
    ops: Vec<SequenceStep>,
    roots_after: Vec<B256>,
}

#[derive(Debug, Deserialize)]
struct SequenceStep {
    op: String,
    key: Bytes,
    value: Option<B256>,
}

/// Leaves that come and go. Their keys are of no state, so the sweep alone can have them.
fn sequence(json: &RawValue) -> TestVerdict {
    let SequenceVector { ops, roots_after } = parse(json)?;
    expect("the number of roots", roots_after.len(), ops.len())?;
    let mut leaves = BTreeMap::new();
    for (number, (SequenceStep { op, key, value }, root)) in
        ops.into_iter().zip(roots_after).enumerate()
    {
        match (&*op, value) {
            ("set", Some(value)) => leaves.insert(key, value),
            ("delete", None) => leaves.remove(&key),
            _ => return Err(format!("step {number} is neither a set nor a delete")),
        };
        expect(&format!("the root after step {number}"), swept(&leaves), root)?;
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EmbeddingVector {
    address: Address,
    basic_data_key: Bytes,
    code_hash_key: Bytes,
    delegation_key: Bytes,
    delegation_designator: Bytes,
    delegation_value: B256,
    slots: Vec<SlotKey>,
    chunks: Vec<ChunkKey>,
}

#[derive(Debug, Deserialize)]
struct SlotKey {
    slot: JsonNumber,
    key: Bytes,
}

#[derive(Debug, Deserialize)]
struct ChunkKey {
    chunk: u32,
    key: Bytes,
}

/// The code hash of the vectors' chunks, which they do not give.
const VECTOR_CODE: B256 = B256::repeat_byte(0xbb);

fn embedding(json: &RawValue) -> TestVerdict {
    let vector: EmbeddingVector = parse(json)?;
    let account = AccountKey::from(vector.address);
    let (word, path) = (account_word(&account), account_path(HASH, &account));
    let header = Stem::short(HEADER_ZONE, &path);
    let expect_key = |what: &str, stem: &Stem, sub: u8, expected: &Bytes| {
        let (key, len) = stem.key(sub);
        expect(what, hex::encode(&key[..len]), hex::encode(expected))
    };
    expect_key("the key of basic data", &header, BASIC_DATA, &vector.basic_data_key)?;
    expect_key("the key of the code hash", &header, CODE_HASH, &vector.code_hash_key)?;
    expect_key("the key of the delegation", &header, DELEGATION, &vector.delegation_key)?;
    let facts = CodeFacts::of(&vector.delegation_designator).ok_or("the code is too long")?;
    let (sub, value) = code_leaf(&Account::default(), &facts);
    expect("the sub-index of the delegation", sub, DELEGATION)?;
    expect("the delegation", value, vector.delegation_value)?;
    for SlotKey { slot: JsonNumber(slot), key } in vector.slots {
        let (stem, sub) = match SlotPlace::of(&slot.into()) {
            SlotPlace::Header(sub) => (header, sub),
            SlotPlace::Storage { group, sub } => {
                (Stem::storage(&path, &group_path(HASH, &word, &group)), sub)
            }
        };
        expect_key(&format!("the key of slot {slot}"), &stem, sub, &key)?;
    }
    for ChunkKey { chunk, key } in vector.chunks {
        let group = B256::from(U256::from(chunk / 256));
        let stem = Stem::short(CODE_ZONE, &group_path(HASH, &VECTOR_CODE, &group));
        expect_key(&format!("the key of chunk {chunk}"), &stem, (chunk % 256) as u8, &key)?;
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
struct BasicDataVector {
    code_size: u32,
    nonce: JsonNumber,
    balance: JsonNumber,
    value: B256,
}

fn basic(json: &RawValue) -> TestVerdict {
    let BasicDataVector { code_size, nonce, balance, value } = parse(json)?;
    let nonce = to_u64(nonce.0, "nonce")?;
    let account = Account { nonce, balance: balance.0, ..Account::default() };
    let got = basic_data(&account, code_size).ok_or("the balance has no leaf")?;
    expect("the basic data", got, value)
}

#[derive(Debug, Deserialize)]
struct ChunkifyVector {
    code: Bytes,
    chunks: Vec<B256>,
}

fn chunkify(json: &RawValue) -> TestVerdict {
    let vector: ChunkifyVector = parse(json)?;
    let got = chunks(&vector.code);
    expect("the number of chunks", got.len(), vector.chunks.len())?;
    got.into_iter()
        .zip(vector.chunks)
        .enumerate()
        .try_for_each(|(at, (got, expected))| expect(&format!("chunk {at}"), got, expected))
}

// -- geth_blobs.json --------------------------------------------------------------------------------

/// A node as geth stores it. The bytes of a leaf and of a branch are those that are hashed; the bytes of
/// a group are geth's own, so only its hash is compared.
#[derive(Debug, Deserialize)]
struct NodeVector {
    kind: String,
    key: Option<Bytes>,
    /// The value of a leaf; else empty.
    value: String,
    prefix: Option<Bytes>,
    left: Option<B256>,
    right: Option<B256>,
    stem: Option<Bytes>,
    #[serde(default)]
    leaves: Vec<GroupLeaf>,
    /// The first bit of the key that the group's prefix may have.
    #[serde(default)]
    position: usize,
    blob: Bytes,
    hash: B256,
}

#[derive(Debug, Deserialize)]
struct GroupLeaf {
    sub: u8,
    value: B256,
}

fn node(json: &RawValue) -> TestVerdict {
    let node: NodeVector = parse(json)?;
    let lacks = |what: &str| format!("a {} without {what}", node.kind);
    let hash = match &*node.kind {
        "leaf" => {
            let key = node.key.as_ref().ok_or_else(|| lacks("key"))?;
            let value = node.value.parse().map_err(|_| lacks("value"))?;
            expect("the hash of the blob", HASH.hash(&node.blob), node.hash)?;
            HASH.leaf(key, &value)
        }
        "branch" => {
            let prefix = node.prefix.as_ref().ok_or_else(|| lacks("prefix"))?;
            let left = node.left.ok_or_else(|| lacks("left child"))?;
            let right = node.right.ok_or_else(|| lacks("right child"))?;
            expect("the hash of the blob", HASH.hash(&node.blob), node.hash)?;
            // The number of bits is in the blob alone.
            let count = node.blob.get(1..3).and_then(|bytes| bytes.try_into().ok());
            let count = u16::from_be_bytes(count.ok_or_else(|| lacks("number of bits"))?);
            HASH.branch(prefix, 0, usize::from(count), &left, &right)
        }
        "group" => {
            let stem = node.stem.as_ref().ok_or_else(|| lacks("stem"))?;
            let mut sweep = Sweep::new(HASH);
            for GroupLeaf { sub, value } in &node.leaves {
                let key = [&stem[..], &[*sub]].concat();
                sweep.push(&key, Subtree::Leaf(HASH.leaf(&key, value)));
            }
            let subtree = sweep.finish().ok_or_else(|| lacks("leaves"))?;
            subtree.hash(HASH, node.position)
        }
        kind => return Err(format!("a node of kind `{kind}`")),
    };
    expect("the hash", hash, node.hash)
}

// -- erigon_artifact_golden_*.json ------------------------------------------------------------------

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GoldenFile {
    bytes: Bytes,
    snapshot_digest: B256,
}

/// Reads a snapshot, whose root is none of a tree, and writes its leaves to the same bytes.
fn golden(layout: SnapshotLayout, json: &RawValue) -> TestVerdict {
    let fail = |error: retrie_storage_pbt::migration::MigrationError| error.to_string();
    let GoldenFile { bytes, snapshot_digest } = parse(json)?;
    expect("the digest", keccak256(&bytes), snapshot_digest)?;
    let mut reader = SnapshotReader::new(layout, &bytes[..]);
    let mut leaves = Vec::new();
    while let Some(leaf) = reader.next_leaf().map_err(fail)? {
        leaves.push(leaf);
    }
    let summary = reader.finish().map_err(fail)?;
    expect("the digest that was read", summary.file.digest, snapshot_digest)?;
    let stems = |zone: u8| -> BTreeSet<&[u8]> {
        leaves.iter().filter(|leaf| leaf.key.zone() == zone).map(|leaf| leaf.key.stem()).collect()
    };
    let mut groups: BTreeMap<B256, u64> = BTreeMap::new();
    for stem in stems(0xff) {
        *groups.entry(B256::from_slice(&stem[1..33])).or_default() += 1;
    }
    let totals = SnapshotTotals {
        root: summary.root,
        leaves: summary.leaves,
        headers: stems(HEADER_ZONE).len() as u64,
        code_groups: stems(CODE_ZONE).len() as u64,
        storages: groups.len() as u64,
    };
    let groups = Box::new(groups.into_values().map(Ok));
    let mut writer = SnapshotWriter::new(layout, Vec::new(), totals, groups).map_err(fail)?;
    leaves.iter().try_for_each(|leaf| writer.push(leaf)).map_err(fail)?;
    let (digest, written) = writer.finish().map_err(fail)?;
    expect("the digest that was written", digest.digest, snapshot_digest)?;
    expect("the snapshot", hex::encode(written), hex::encode(bytes))
}
