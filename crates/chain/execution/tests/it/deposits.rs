//! Deposits to the consensus layer (EIP-6110): which logs are deposits, and which make a block
//! invalid.

use crate::common::fixtures::*;
use alloy_consensus::transaction::Recovered;
use alloy_eips::eip6110::MAINNET_DEPOSIT_CONTRACT_ADDRESS;
use alloy_primitives::{Bytes, U256, hex};
use retrie_chainspec::{ChainSpec, primitives::Transaction};
use retrie_execution::{
    ExecutionError, ExecutionInput, ExecutionOutcome, RemainingGas, TransactionSource,
    execute_block, fill_block,
};

/// Logs the call data as the event of the deposit contract.
const LOG_DEPOSIT: [u8; 40] =
    hex!("365f5f377f649bbc62d0e31342afea4e5cd82d4049e7e1ee912fc0889aa790803be39038c5365fa1");

/// The data of a deposit event (EIP-6110) with a pubkey of `pubkey` bytes.
fn deposit_event(pubkey: usize) -> Vec<u8> {
    let word = |value: usize| U256::from(value).to_be_bytes::<32>();
    let fields = [vec![1; pubkey], vec![2; 32], vec![3; 8], vec![4; 96], vec![5; 8]];
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    for field in fields {
        head.extend(word(5 * 32 + tail.len()));
        tail.extend(word(field.len()));
        tail.extend(&field);
        tail.resize(tail.len().next_multiple_of(32), 0);
    }
    [head, tail].concat()
}

/// Events that an ABI decoder reads and EIP-6110 refuses: data at the end, a pubkey of another
/// length, and an index that lies where the amount does.
fn odd_deposit_events() -> [Vec<u8>; 3] {
    let mut longer = deposit_event(48);
    longer.resize(608, 0);
    let mut shared = deposit_event(48);
    shared[128..160].copy_from_slice(&U256::from(320).to_be_bytes::<32>());
    [longer, deposit_event(47), shared]
}

fn depositing(nonce: u64, event: &[u8]) -> Transaction {
    call(nonce, MAINNET_DEPOSIT_CONTRACT_ADDRESS, 0, Bytes::copy_from_slice(event))
}

fn with_deposit_contract() -> StateFixture {
    StateFixture::new().contract(MAINNET_DEPOSIT_CONTRACT_ADDRESS, &LOG_DEPOSIT, &[])
}

fn deposits(outcome: &ExecutionOutcome) -> Vec<usize> {
    outcome.requests.iter().filter(|request| request[0] == 0).map(|request| request.len()).collect()
}

/// Regression: deposit logs were decoded by ABI, so that a block whose logs have another layout
/// than EIP-6110 allows was valid here, while all other clients refuse it.
#[test]
fn deposit_logs_of_any_other_layout_make_a_block_invalid() {
    let world = with_deposit_contract();
    let good = deposit_event(48);
    let two = vec![depositing(0, &good), depositing(1, &good)];
    let outcome = world.try_run(&block(header(PRAGUE), two)).unwrap();
    assert_eq!(deposits(&outcome), [1 + 2 * 192]);
    assert_eq!(outcome.receipts.len(), 2);
    for event in odd_deposit_events() {
        let transactions = vec![depositing(0, &good), depositing(1, &event)];
        let error = world.try_run(&block(header(PRAGUE), transactions.clone())).unwrap_err();
        let is_named = matches!(
            error,
            ExecutionError::InvalidDeposit { number, transaction: 1, log: 0, .. }
                if number == PRAGUE.number
        );
        assert!(is_named && error.is_invalid_block(), "{error}");
        // Before Prague it is a log like any other.
        let outcome = world.try_run(&block(header(CANCUN), transactions)).unwrap();
        assert!(outcome.requests.is_empty());
    }
}

/// alloy-evm takes mainnet's contract where a chain names none.
#[test]
fn a_chain_without_a_deposit_contract_has_no_deposits() {
    let world = with_deposit_contract();
    let spec = network("Prague");
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    for event in [&[deposit_event(48)], &odd_deposit_events()[..]].concat() {
        let block = block(header(PRAGUE), vec![depositing(0, &event)]);
        let outcome = execute_block(&spec, &block, input).unwrap();
        assert_eq!(outcome.receipts[0].logs.len(), 1);
        assert!(outcome.requests.is_empty());
    }
}

/// Offers transactions of the sender, and counts those that are refused.
struct OfferedDeposits {
    left: Vec<Transaction>,
    refused: usize,
}

impl TransactionSource for OfferedDeposits {
    fn next(&mut self, _: RemainingGas) -> Option<Recovered<Transaction>> {
        self.left.pop().map(|transaction| Recovered::new_unchecked(transaction, SENDER))
    }

    fn mark_invalid(&mut self, reason: &ExecutionError) {
        assert!(matches!(reason, ExecutionError::InvalidDeposit { .. }), "{reason}");
        self.refused += 1;
    }
}

/// Otherwise a sender that makes the contract emit such a log stops the building of blocks.
#[test]
fn a_block_is_built_without_transactions_whose_deposits_would_spoil_it() {
    let world = with_deposit_contract();
    let template = block(header(PRAGUE), Vec::new());
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    let good = deposit_event(48);
    for event in odd_deposit_events() {
        let mut offered =
            OfferedDeposits { left: vec![depositing(0, &good), depositing(0, &event)], refused: 0 };
        let (included, outcome) =
            fill_block(&ChainSpec::mainnet(), &template, input, &mut offered).unwrap();
        assert_eq!((included.len(), offered.refused), (1, 1));
        assert_eq!(deposits(&outcome), [1 + 192]);
        let included = included.into_iter().map(|transaction| transaction.into_inner()).collect();
        let again = world.try_run(&block(header(PRAGUE), included)).unwrap();
        assert_eq!((again.delta, again.requests), (outcome.delta, outcome.requests));
    }
}
