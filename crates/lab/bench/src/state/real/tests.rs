//! Traces of artificial blocks. Traces of real blocks are raced in `tests/it/race.rs`.

use super::{
    model::{AccessModel, BlockAccesses},
    trace::AccessTrace,
};
use crate::state::{CommitBlock, KeyOp, ReadDigest};
use alloy_primitives::{Address, B256, Bytes};
use retrie_pipeline::replay::StatePadding;
use retrie_state::{Account, StateKey, StateValue};
use std::collections::BTreeMap;

fn account(n: u8) -> StateKey {
    StateKey::Account(Address::repeat_byte(n))
}

fn slot(n: u8, slot: u8) -> StateKey {
    StateKey::Slot(Address::repeat_byte(n), B256::with_last_byte(slot))
}

fn value(n: u8) -> Option<StateValue> {
    Some(Bytes::copy_from_slice(&[n]))
}

fn holder(nonce: u64) -> Option<StateValue> {
    Some(Account { nonce, ..Default::default() }.encode())
}

type KeyValues = Vec<(StateKey, Option<StateValue>)>;

fn trace(blocks: Vec<(KeyValues, KeyValues)>) -> AccessTrace {
    let mut model = AccessModel::default();
    let block = |(pre, writes): (KeyValues, KeyValues)| BlockAccesses {
        touches: model.push(pre.into_iter().collect(), writes.into_iter().collect()),
        ..BlockAccesses::default()
    };
    AccessTrace::new(blocks.into_iter().map(block).collect(), StatePadding::default())
}

/// Runs `blocks` of a trace on its state, and checks the values that each block reads.
fn run(trace: &AccessTrace, blocks: u64) -> Vec<BTreeMap<StateKey, StateValue>> {
    let mut state: BTreeMap<_, _> = trace.base_entries().into_iter().collect();
    let mut states = vec![state.clone()];
    for number in 0..blocks {
        let CommitBlock { ops, expected } = trace.block(number);
        assert_eq!(reads(&state, &ops), expected, "block {number}");
        for op in ops {
            match op {
                KeyOp::Read(_) => {}
                KeyOp::Write(key, value) => {
                    assert_ne!(state.insert(key, value.clone()), Some(value), "{key}: no change");
                }
                KeyOp::Delete(key) => assert!(state.remove(&key).is_some(), "{key}: no change"),
            }
        }
        for key in state.keys() {
            assert!(state.contains_key(&StateKey::Account(*key.address())), "{key}: no account");
        }
        let CommitBlock { ops, expected } = trace.read_back(number);
        assert_eq!(reads(&state, &ops), expected, "after block {number}");
        states.push(state.clone());
    }
    states
}

fn reads(state: &BTreeMap<StateKey, StateValue>, ops: &[KeyOp]) -> ReadDigest {
    let mut reads = ReadDigest::default();
    ops.iter().for_each(|op| reads.note(state.get(op.key()).map(|value| &value[..])));
    reads
}

#[test]
fn way_back_restores_what_the_way_forth_has_changed() {
    let trace = trace(vec![
        (
            vec![(account(1), holder(1)), (slot(1, 1), value(1)), (slot(1, 2), None)],
            vec![(slot(1, 1), None), (slot(1, 2), value(2))],
        ),
        (
            vec![(account(1), holder(9)), (account(2), None), (slot(1, 2), value(7))],
            vec![(account(2), holder(1)), (slot(1, 2), value(3))],
        ),
    ]);
    let figures = trace.figures();
    assert_eq!((figures.blocks, figures.reads, figures.writes), (2, 6, 4));
    assert_eq!((figures.deletes, figures.keys), (1, 4));
    let states = run(&trace, 8);
    assert_eq!(states[0].keys().copied().collect::<Vec<_>>(), [account(1), slot(1, 1)]);
    // The account keeps its first observed value.
    assert_eq!(states[2].get(&account(1)), holder(1).as_ref());
    assert_eq!(states[2].get(&slot(1, 2)), value(3).as_ref());
    assert_eq!(states[4], states[0]);
    assert_eq!((&states[3], &states[6]), (&states[1], &states[2]));
    assert_eq!(states[8], states[0]);
    assert_eq!(trace.lasting_keys(), [account(1)]);
    assert_eq!(trace.blocks_for(0, 1), 1);
    assert_eq!(trace.blocks_for(0, 4), 2);
    assert_eq!(trace.blocks_for(1, 6), 2);
    assert_eq!(trace.blocks_for(5, 0), 0);
}

#[test]
fn account_that_is_removed_takes_all_its_slots_along() {
    let trace = trace(vec![
        (vec![(account(1), holder(1)), (slot(1, 1), value(1)), (slot(1, 2), value(2))], vec![]),
        // A block that knows one slot only.
        (
            vec![(account(1), holder(1)), (slot(1, 1), value(1))],
            vec![(account(1), None), (slot(1, 1), None)],
        ),
        // On mainnet it exists again later: it is created when a slot is written, not when one is
        // read.
        (vec![(account(1), holder(5)), (slot(1, 3), value(3))], vec![]),
        (vec![(account(1), holder(5)), (slot(1, 4), value(3))], vec![(slot(1, 4), value(4))]),
    ]);
    let states = run(&trace, 16);
    assert_eq!(states[1].len(), 3);
    assert!(states[2].is_empty() && states[3].is_empty());
    let made: Vec<_> = states[4].iter().map(|(key, value)| (*key, Some(value.clone()))).collect();
    assert_eq!(made, [(account(1), holder(5)), (slot(1, 4), value(4))]);
    assert_eq!(states[8], states[0]);
    assert_eq!(states[12], states[4]);
}

#[test]
fn write_of_the_value_that_is_there_is_a_read() {
    let trace = trace(vec![
        (vec![(account(1), holder(1))], vec![(account(1), holder(2))]),
        (vec![(account(1), holder(1))], vec![(account(1), holder(2))]),
    ]);
    assert_eq!(trace.figures().writes, 1);
    run(&trace, 8);
}
