//! Blocks on witnesses: what one reads is enough to execute it, and less is not.

use crate::common;

use alloy_primitives::{B256, Bytes};
use common::witness_blocks;
use retrie_chainspec::ChainSpec;
use retrie_execution::{ExecutionInput, WitnessExecutionError, execute_on_witness, read_block};
use retrie_state::{
    BackendDelta, BackendKey, KeyForm, StateValue, WitnessError, descriptor::OpenedWitness,
};
use std::collections::BTreeMap;

/// Shows some values, and takes the number of changes for the next root.
#[derive(Debug)]
struct ShownValues(BTreeMap<BackendKey, Option<StateValue>>);

impl OpenedWitness for ShownValues {
    fn value(&self, key: &BackendKey) -> Result<Option<StateValue>, WitnessError> {
        self.0.get(key).cloned().ok_or(WitnessError::Unproven { key: *key })
    }

    fn wipes_unnamed_slots(&self) -> bool {
        true
    }

    fn apply(&self, number: u64, delta: &BackendDelta) -> Result<B256, WitnessError> {
        Ok(B256::left_padding_from(&(number + delta.len() as u64).to_be_bytes()))
    }
}

#[test]
fn a_block_needs_all_that_it_reads_and_nothing_else() {
    let Some(data) = common::data() else { return };
    let spec = ChainSpec::mainnet();
    let mut done = 0;
    for real in witness_blocks(&data) {
        let input = ExecutionInput::new(&real.state, &real.codes, &real.hashes);
        let reads = read_block(&spec, &real.block, input).unwrap();
        if reads.oldest_hash.is_some() || !reads.listed.is_empty() {
            continue;
        }
        let plain = |key: &_| KeyForm::Plain.key(key);
        let shown = reads.keys.iter().map(|key| (plain(key), real.state.values.get(key).cloned()));
        let mut witness = ShownValues(shown.collect());
        let run = |witness: &ShownValues| {
            let witness: (&dyn OpenedWitness, _) = (witness, KeyForm::Plain);
            execute_on_witness(&spec, &real.block, witness, &reads.codes, &[])
        };
        let again = run(&witness).unwrap();
        assert_eq!(again.outcome.delta, reads.outcome.delta, "{}", real.file);
        assert_eq!(
            Ok(again.root),
            witness.apply(real.block.number, &KeyForm::Plain.delta(&again.outcome.delta))
        );
        let surplus = [&reads.codes[..], &[Bytes::from_static(&[0xfe, 7])]].concat();
        let opened: (&dyn OpenedWitness, _) = (&witness, KeyForm::Plain);
        match execute_on_witness(&spec, &real.block, opened, &surplus, &[]) {
            Err(WitnessExecutionError::Unused { what }) => assert!(what.contains("code"), "{what}"),
            other => panic!("{}: a code that nothing reads: {other:?}", real.file),
        }
        let lost = reads.keys[reads.keys.len() / 2];
        witness.0.remove(&plain(&lost));
        match run(&witness) {
            Err(WitnessExecutionError::Execution(error)) => {
                let text = format!("{error:?}");
                assert!(text.contains("MissingWitness"), "{}: {text}", real.file);
            }
            other => panic!("{}: {other:?}", real.file),
        }
        done += 1;
        if done == 3 {
            break;
        }
    }
    assert!(done > 0);
}
