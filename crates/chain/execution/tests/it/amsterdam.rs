//! What Amsterdam adds to the execution of blocks.

use crate::common::fixtures::*;
use alloy_consensus::{Signed, TxLegacy, transaction::Recovered};
use alloy_eips::eip4895::{Withdrawal, Withdrawals};
use alloy_primitives::{B256, TxKind, U256};
use retrie_chainspec::primitives::{Header, RecoveredBlock, Transaction};
use retrie_execution::{
    EvmSimulation, ExecutionError, ExecutionInput, RemainingGas, TransactError, TransactionSource,
    execute_block, execute_transaction, fill_block,
};
use retrie_state::StateKey;
use revm::context::{TxEnv, result::InvalidTransaction};

/// The most gas that a transaction may ask for.
const MOST: u64 = (1 << 32) - 1;

/// Block 1.
fn first() -> Header {
    Header {
        difficulty: U256::ZERO,
        base_fee_per_gas: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(B256::ZERO),
        slot_number: Some(1),
        ..header(ForkPoint { number: 1, timestamp: 1 })
    }
}

/// The same with room for transactions of twice the gas that they may ask for.
fn large() -> Header {
    Header { gas_limit: 1 << 33, ..first() }
}

/// A payment to an existing account, with this gas limit.
fn payment(nonce: u64, gas_limit: u64) -> Transaction {
    let tx = TxLegacy { nonce, gas_limit, to: TxKind::Call(SENDER), ..Default::default() };
    Transaction::Legacy(Signed::new_unhashed(tx, signature()))
}

/// Whether a transaction is invalid for asking for too much gas.
fn is_over(error: &ExecutionError, cap: u64) -> bool {
    let ExecutionError::InvalidTransaction { source, .. } = error else { return false };
    source.to_string().contains(&format!("cap ({cap})"))
}

#[test]
fn a_block_has_an_access_list() {
    let mut plain = block(first(), vec![call(0, RECIPIENT, 5, [])]).into_block();
    let paid = Withdrawal { address: RECIPIENT, amount: 1, ..Default::default() };
    plain.body.withdrawals = Some(Withdrawals::new(vec![paid]));
    let block = RecoveredBlock::new_unhashed(plain, vec![SENDER]);

    let world = StateFixture::new();
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    let outcome = execute_block(&network("Amsterdam"), &block, input).unwrap();
    let list = outcome.access_list.as_ref().unwrap();
    assert!(list.is_sorted_by_key(|account| account.address));
    let nobody = list.iter().find(|account| account.address == RECIPIENT).unwrap();
    let balances: Vec<_> = nobody
        .balance_changes
        .iter()
        .map(|change| (change.block_access_index.get(), change.post_balance))
        .collect();
    // In transaction 0, and after the transactions.
    assert_eq!(balances, [(1, U256::from(5)), (2, U256::from(1_000_000_005))]);
    assert_ne!(outcome.access_list_hash(), None);

    let osaka = execute_block(&network("Osaka"), &block, input).unwrap();
    assert_eq!(osaka.access_list_hash(), None);
}

#[test]
fn a_transaction_asks_for_at_most_32_bits_of_gas() {
    let world = StateFixture::new();
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    let spec = network("Amsterdam");
    let run = |gas| execute_block(&spec, &block(large(), vec![payment(0, gas)]), input);
    run(MOST).unwrap();
    for gas in [MOST + 1, 1 << 33] {
        let error = run(gas).unwrap_err();
        assert!(error.is_invalid_block() && is_over(&error, MOST), "{error}");
    }
    // The same for one by itself.
    let alone = |gas| {
        let transaction = payment(0, gas);
        let transaction = Recovered::new_unchecked(&transaction, SENDER);
        execute_transaction(&spec, &large(), transaction, input)
    };
    alone(MOST).unwrap();
    assert!(is_over(&alone(MOST + 1).unwrap_err(), MOST));

    // Osaka has a lower cap, Prague none.
    let transactions = vec![payment(0, MOST + 1)];
    let block = block(large(), transactions);
    assert!(is_over(&execute_block(&network("Osaka"), &block, input).unwrap_err(), 1 << 24));
    execute_block(&network("Prague"), &block, input).unwrap();
}

#[test]
fn a_block_that_is_built_leaves_such_a_transaction_out() {
    struct OfferedTransactions(Vec<Transaction>, Vec<String>);
    impl TransactionSource for OfferedTransactions {
        fn next(&mut self, _: RemainingGas) -> Option<Recovered<Transaction>> {
            self.0.pop().map(|transaction| Recovered::new_unchecked(transaction, SENDER))
        }
        fn mark_invalid(&mut self, reason: &ExecutionError) {
            assert!(is_over(reason, MOST), "{reason}");
            self.1.push(reason.to_string());
        }
    }
    let world = StateFixture::new();
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    let mut offered =
        OfferedTransactions(vec![payment(1, MOST), payment(1, MOST + 1), payment(0, MOST)], vec![]);
    let template = block(large(), Vec::new());
    let (included, outcome) =
        fill_block(&network("Amsterdam"), &template, input, &mut offered).unwrap();
    let included: Vec<_> = included.iter().map(|transaction| transaction.inner().clone()).collect();
    assert_eq!(included, [payment(0, MOST), payment(1, MOST)]);
    assert_eq!((outcome.receipts.len(), offered.1.len()), (2, 1));
}

#[test]
fn a_block_that_is_built_has_room_by_the_larger_count_of_its_gas() {
    struct SingleTransaction(Option<Transaction>, Vec<u64>);
    impl TransactionSource for SingleTransaction {
        fn next(&mut self, room: RemainingGas) -> Option<Recovered<Transaction>> {
            self.1.push(room.gas);
            self.0.take().map(|transaction| Recovered::new_unchecked(transaction, SENDER))
        }
        fn mark_invalid(&mut self, reason: &ExecutionError) {
            panic!("{reason}");
        }
    }
    // Sets a slot: much state gas, and less of the other.
    let world = StateFixture::new().contract(CONTRACT, &[0x60, 0x01, 0x60, 0x01, 0x55], &[]);
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    for (fork, has_state_gas) in [("Osaka", false), ("Amsterdam", true)] {
        let mut once = SingleTransaction(Some(call(0, CONTRACT, 0, [])), vec![]);
        let (_, outcome) =
            fill_block(&network(fork), &block(first(), vec![]), input, &mut once).unwrap();
        let limit = first().gas_limit;
        assert_eq!(once.1, [limit, limit - outcome.gas_used], "{fork}");
        // All gas that is paid for is more than the larger count.
        let paid = outcome.receipts[0].cumulative_gas_used;
        assert_eq!(paid > outcome.gas_used, has_state_gas, "{fork}: {paid}, {}", outcome.gas_used);
    }
}

#[test]
fn calls_may_lift_the_caps_on_gas() {
    let world = StateFixture::new();
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    let spec = network("Amsterdam");
    let mut simulation = EvmSimulation::new(&spec, &large(), input);
    let call = || TxEnv { caller: SENDER, gas_limit: MOST + 1, ..Default::default() };
    let error = simulation.transact(call()).unwrap_err();
    assert!(
        matches!(
            &error,
            TransactError::Invalid(InvalidTransaction::TxGasLimitGreaterThanCap { cap: MOST, .. })
        ),
        "{error}"
    );
    simulation.env_mut().cfg_env.tx_gas_limit_cap = Some(u64::MAX);
    assert!(simulation.transact(call()).unwrap().result.is_success());
}

#[test]
fn a_block_without_a_contract_of_builders_is_invalid() {
    let empty = block(first(), Vec::new());
    for contract in PRAGUE_REQUEST_CONTRACTS.into_iter().chain(BUILDER_CONTRACTS) {
        for account in [None, Some(balance(1))] {
            let mut world = StateFixture::new();
            world.state.values.remove(&StateKey::Account(contract));
            if let Some(account) = account {
                world = world.account(contract, account);
            }
            let input = ExecutionInput::new(&world.state, &world.codes, &());
            let spec = network("Amsterdam");
            let mut simulation = EvmSimulation::new(&spec, &first(), input);
            let simulated = simulation.after_transactions(&first(), Vec::new(), None);
            for error in [execute_block(&spec, &empty, input).err(), simulated.err()] {
                let Some(ExecutionError::InvalidBlock { reason, .. }) = error else {
                    panic!("{contract}: {error:?}")
                };
                assert!(reason.contains(&contract.to_string()), "{reason}");
            }
            // Osaka asks for no requests of builders.
            let osaka = execute_block(&network("Osaka"), &empty, input);
            assert_eq!(osaka.is_ok(), BUILDER_CONTRACTS.contains(&contract), "{contract}");
        }
    }
}
