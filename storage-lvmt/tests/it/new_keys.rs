//! The rows that a write of a new key reads: its record, and a free slot.

use crate::common;

use alloy_primitives::Bytes;
use common::chain::{TestChain, key};
use retrie_storage_lvmt::{Lvmt, ProofShard};
use std::ops::Range;

fn backend() -> Lvmt {
    Lvmt::new(common::params_without_proofs(8), ProofShard::None).unwrap()
}

/// Rows of keys and of slots that a block reads, a key, if it writes these keys.
fn reads(chain: &mut TestChain, keys: Range<u64>) -> [f64; 2] {
    let before = chain.store.counts();
    let count = (keys.end - keys.start) as f64;
    let value = Bytes::from_static(&[7]);
    chain.block(&keys.map(|n| (key(n), Some(value.clone()))).collect::<Vec<_>>());
    let counts = &chain.store.counts() - &before;
    ["LvmtKeys", "LvmtSlots"].map(|table| counts.table(table).reads as f64 / count)
}

#[test]
fn a_new_key_reads_its_record_and_one_slot_below_the_root_at_most() {
    let mut chain = TestChain::new(backend(), 16);
    // The root AMT has room for 1,280 keys.
    assert_eq!(reads(&mut chain, 0..200), [1.0, 0.0]);
    assert_eq!(reads(&mut chain, 200..400), [1.0, 0.0]);
    for first in (400..4000).step_by(400) {
        reads(&mut chain, first..first + 400);
    }
    // Two levels: the sub-AMTs have 2,700 keys in 65,536 entries.
    let [keys, slots] = reads(&mut chain, 4000..4400);
    assert!(keys == 1.0 && slots <= 1.1, "{keys} {slots}");

    // The occupied slots are those of the state that the block builds on, whatever blocks came and
    // went, and after a restart.
    let (number, values) = (chain.number - 1, chain.values.clone());
    reads(&mut chain, 5000..5300);
    let gone = reads(&mut chain, 5300..5600);
    chain.revert(number, values);
    let [keys, slots] = reads(&mut chain, 5600..6000);
    assert!(keys == 1.0 && slots <= 1.1, "{keys} {slots}, on the other branch {gone:?}");
    let root = chain.store.tip().unwrap().root;
    let (kv, values) = (chain.kv.clone(), chain.values.clone());
    drop(chain);
    let mut chain = TestChain::on(kv, backend(), 16);
    chain.values = values;
    assert_eq!(chain.store.tip().unwrap().root, root);
    let [keys, slots] = reads(&mut chain, 6000..6400);
    assert!(keys == 1.0 && slots <= 1.1, "{keys} {slots} after the restart");
    assert_eq!(chain.faults(), [""; 0]);
}

/// While the root AMT fills, after a restart in between.
#[test]
fn slots_of_the_root_are_read_once_after_a_restart() {
    let mut chain = TestChain::new(backend(), 16);
    reads(&mut chain, 0..400);
    let (kv, values) = (chain.kv.clone(), chain.values.clone());
    drop(chain);
    let mut chain = TestChain::on(kv, backend(), 16);
    chain.values = values;
    let before = chain.store.counts().table("LvmtSlots").reads;
    reads(&mut chain, 400..500);
    let occupied = chain.store.counts().table("LvmtSlots").reads - before;
    assert!((350..=420).contains(&occupied), "{occupied}");
    // Few entries are full yet.
    let [_, slots] = reads(&mut chain, 500..600);
    assert!(slots < 0.2, "{slots}");
    assert_eq!(chain.faults(), [""; 0]);
}
