//! [`executed_code`]: which parts of contract codes a block executes.

use crate::{
    DatabaseError, EvmSimulation, ExecutionError, ExecutionInput, TransactError,
    simulation::InspectorContext,
};
use alloy_primitives::{B256, U256};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use revm::{
    bytecode::opcode,
    inspector::Inspector,
    interpreter::{
        Interpreter,
        interpreter_types::{InputsTr, Jumps, LegacyBytecode},
    },
};
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of the chunks that were executed, by the hash of the code.
pub type ExecutedChunks = BTreeMap<B256, BTreeSet<u32>>;

/// Why it is not known what a block executes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeTraceError {
    /// What comes before the transactions failed.
    #[error(transparent)]
    Block(#[from] ExecutionError),
    /// A transaction failed.
    #[error("transaction {index}: {source}")]
    Transaction {
        /// Its index.
        index: usize,
        /// What failed.
        source: TransactError,
    },
    /// The state could not be read.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// The chunks of `chunk_bytes` bytes, of codes, that the transactions of `block` execute, push from or
/// copy with CODECOPY. Not in it are system calls, EXTCODECOPY, and the initialisation of contracts, whose
/// code is no account's. `input` is the state of the block's parent.
///
/// # Errors
/// [`CodeTraceError`].
pub fn executed_code(
    spec: &ChainSpec,
    block: &RecoveredBlock,
    input: ExecutionInput<'_>,
    chunk_bytes: usize,
) -> Result<ExecutedChunks, CodeTraceError> {
    let mut simulation = EvmSimulation::of_block(spec, block, input)?;
    let mut trace = CodeTrace { chunk_bytes: chunk_bytes.max(1), executed: BTreeMap::new() };
    for index in 0..block.body().transactions.len() {
        let (_, outcome) = simulation
            .replay(block, index, Some(&mut trace))
            .map_err(|source| CodeTraceError::Transaction { index, source })?;
        simulation.commit(outcome.state)?;
    }
    Ok(trace.executed)
}

/// Records what is executed.
struct CodeTrace {
    chunk_bytes: usize,
    executed: ExecutedChunks,
}

impl<'a> Inspector<InspectorContext<'a>> for CodeTrace {
    fn step(&mut self, interpreter: &mut Interpreter, _: &mut InspectorContext<'a>) {
        // The code of a creation has no address.
        if interpreter.input.bytecode_address().is_none() {
            return;
        }
        let (at, operation) = (interpreter.bytecode.pc(), interpreter.bytecode.opcode());
        let len = interpreter.bytecode.bytecode_len();
        let bytes = match operation {
            opcode::PUSH1..=opcode::PUSH32 => at..at + 2 + usize::from(operation - opcode::PUSH1),
            opcode::CODECOPY => {
                let word = |n| interpreter.stack.peek(n).unwrap_or(U256::ZERO).saturating_to();
                let (from, count): (usize, usize) = (word(1), word(2));
                self.add(interpreter, at..at + 1);
                from..from.saturating_add(count)
            }
            _ => at..at + 1,
        };
        self.add(interpreter, bytes.start.min(len)..bytes.end.min(len));
    }
}

impl CodeTrace {
    fn add(&mut self, interpreter: &mut Interpreter, bytes: std::ops::Range<usize>) {
        if bytes.is_empty() {
            return;
        }
        let hash = interpreter.bytecode.get_or_calculate_hash();
        let chunk = |at| u32::try_from(at / self.chunk_bytes).unwrap_or(u32::MAX);
        let chunks = chunk(bytes.start)..=chunk(bytes.end - 1);
        self.executed.entry(hash).or_default().extend(chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{SignableTransaction, TxLegacy};
    use alloy_primitives::{
        Address, Bytes, KECCAK256_EMPTY, Signature, TxKind, keccak256, map::HashMap,
    };
    use retrie_chainspec::primitives::{Block, BlockBody, Header, Transaction};
    use retrie_state::{Account, StateError, StateKey, StateReader, StateValue};

    /// A rich sender, and one contract.
    struct OneContract(Bytes);

    const CONTRACT: Address = Address::repeat_byte(7);

    impl StateReader for OneContract {
        fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
            let account = |code_hash, balance| Account { nonce: 0, balance, code_hash };
            Ok(match key {
                StateKey::Account(CONTRACT) => {
                    Some(account(keccak256(&self.0), U256::ZERO).encode())
                }
                StateKey::Account(Address::ZERO) => {
                    Some(account(KECCAK256_EMPTY, U256::MAX >> 1).encode())
                }
                _ => None,
            })
        }

        fn slots_of(&self, _: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
            Ok(Vec::new())
        }
    }

    fn chunks_of(code: Vec<u8>) -> Vec<u32> {
        let state = OneContract(code.into());
        let unsigned =
            TxLegacy { gas_limit: 200_000, to: TxKind::Call(CONTRACT), ..TxLegacy::default() };
        let signed = unsigned.into_signed(Signature::test_signature());
        let body =
            BlockBody { transactions: vec![Transaction::from(signed)], ..BlockBody::default() };
        let header = Header { number: 5_000_000, gas_limit: 30_000_000, ..Header::default() };
        let block = RecoveredBlock::new_unhashed(Block { header, body }, vec![Address::ZERO]);
        let codes: HashMap<_, _> = [(keccak256(&state.0), state.0.clone())].into_iter().collect();
        let input = ExecutionInput::new(&state, &codes, &());
        let executed = executed_code(&ChainSpec::mainnet(), &block, input, 31).unwrap();
        executed.into_values().flatten().collect()
    }

    #[test]
    fn executed_pushed_and_copied_bytes_are_counted_and_others_are_not() {
        // A jump over chunk 1 to the last byte of chunk 2, where a push reaches into chunk 3.
        let mut code = vec![opcode::STOP; 31 * 6];
        code[..3].copy_from_slice(&[opcode::PUSH1, 91, opcode::JUMP]);
        code[91..93].copy_from_slice(&[opcode::JUMPDEST, opcode::PUSH1]);
        assert_eq!(chunks_of(code.clone()), [0, 2, 3]);
        // CODECOPY of four bytes from 153, across the border of chunks 4 and 5, to memory 0.
        let copy = [opcode::PUSH1, 4, opcode::PUSH1, 153, opcode::PUSH1, 0, opcode::CODECOPY];
        code[94..101].copy_from_slice(&copy);
        assert_eq!(chunks_of(code), [0, 2, 3, 4, 5]);
        assert_eq!(chunks_of(vec![]), [0; 0]);
    }
}
