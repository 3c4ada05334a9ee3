//! The bytes of the framework's rows, as `docs/formats/state.md` documents them. A change here
//! needs a new format version, because existing datadirs contain these bytes.

use alloy_primitives::{Address, B256, Bytes, U256, address, b256, hex};
use retrie_state::{
    Account, DeltaBuilder, KeyRange, RowTable, ScanDirection, StateKey, encode_slot,
};
use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
use retrie_storage_raw::Raw;
use std::sync::Arc;

const OWNER: Address = address!("00112233445566778899aabbccddeeff00112233");

fn rows(kv: &MemoryStore, id: u8, name: &'static str) -> Vec<(String, String)> {
    let rows = kv.snapshot().unwrap().scan(
        RowTable { id, name },
        KeyRange::ALL,
        ScanDirection::Forward,
        usize::MAX,
    );
    rows.unwrap().iter().map(|(key, value)| (hex::encode(key), hex::encode(value))).collect()
}

/// Block 0 with one account, block 1 with one slot; nothing folded.
fn two_blocks() -> MemoryStore {
    let kv = MemoryStore::new();
    let store =
        StateStore::open(Arc::new(Raw), Arc::new(kv.clone()), StoreOptions::default()).unwrap();
    let account = Account { nonce: 258, balance: U256::from(0x1234), ..Default::default() };
    let changes: [(StateKey, Option<Bytes>); 2] = [
        (StateKey::Account(OWNER), Some(account.encode())),
        (StateKey::Slot(OWNER, B256::with_last_byte(9)), encode_slot(U256::from(0xabcd))),
    ];
    for (n, (key, value)) in changes.into_iter().enumerate() {
        let mut delta = DeltaBuilder::new();
        delta.change(key, None, value);
        let proposal = store.begin(StateId::Tip).unwrap().finish(&delta.build()).unwrap();
        store.seal(&proposal, B256::repeat_byte(n as u8 + 1));
        let mut txn = kv.begin_write().unwrap();
        let after = store.commit(&[proposal], &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
    }
    kv
}

#[test]
fn journal_undo_and_tip_rows_keep_their_bytes() {
    let kv = two_blocks();
    // Length, CRC-32; then table, shared and other bytes of the key, value length * 2 + 1, value.
    let account = "1f000000a6cf47d0\
                   f00015_0000112233445566778899aabbccddeeff00112233_0d_020201021234";
    let slot = "3b0000002f105030\
                f00035_0100112233445566778899aabbccddeeff00112233\
                0000000000000000000000000000000000000000000000000000000000000009_05_abcd";
    assert_eq!(
        rows(&kv, 0xf1, "Journal"),
        [row("000000000000000100000000", account), row("000000000000000200000000", slot)]
    );
    // Hash and root of the block, hash and root of its parent; then the rows as they were.
    let zero = "00".repeat(32);
    let undo = format!(
        "b9000000e73b1b15{}{zero}{}{zero}f00035_0100112233445566778899aabbccddeeff00112233\
         0000000000000000000000000000000000000000000000000000000000000009_00",
        "02".repeat(32),
        "01".repeat(32)
    );
    assert_eq!(rows(&kv, 0xf2, "Undo"), [row("000000000000000100000000", &undo)]);
    let tip = format!("0000000000000001{}{zero}0000000000000002", "02".repeat(32));
    assert_eq!(rows(&kv, 0xf3, "Meta"), [row(&hex::encode("tip"), &tip)]);
}

fn row(key: &str, value: &str) -> (String, String) {
    (key.into(), value.replace('_', ""))
}

#[test]
fn values_keep_their_bytes() {
    let code_hash = b256!("c0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0de");
    let contract = Account { nonce: 1, balance: U256::ZERO, code_hash };
    assert_eq!(
        contract.encode()[..],
        hex!("800101c0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0de")
    );
    assert_eq!(Account::default().encode()[..], hex!("0000"));
    let whale = Account { nonce: u64::MAX, balance: U256::MAX, ..Default::default() };
    let bytes = format!("2008{}{}", "ff".repeat(8), "ff".repeat(32));
    assert_eq!(hex::encode(whale.encode()), bytes);
    assert_eq!(encode_slot(U256::from(256)).unwrap()[..], hex!("0100"));
}
