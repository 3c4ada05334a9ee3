//! Contracts that are created where there is storage already, on every fork.
//!
//! EIP-7610 forbade them, for all forks, until it was withdrawn. With that rule a block that geth
//! 1.17.8 builds was invalid here.

use crate::common::{MapState, fixtures::*};
use alloy_consensus::{Signed, TxLegacy};
use alloy_primitives::{Address, Bytes, TxKind, U256, keccak256};
use retrie_chainspec::primitives::Transaction;
use retrie_execution::{ExecutionInput, ExecutionOutcome, execute_block};
use retrie_state::{Account, StateReader};

/// CREATE2 with the call data as init code and salt 0; slot 0 records whether it failed.
const CREATE2_CODE: [u8; 19] = [
    0x36, 0x60, 0x00, 0x60, 0x00, 0x37, // copy the call data to memory
    0x60, 0x00, 0x36, 0x60, 0x00, 0x60, 0x00, 0xf5, // create2(0, 0, size, 0)
    0x15, 0x60, 0x00, 0x55, 0x00, // sstore(0, iszero(address))
];
/// The same by CREATE, with the value of the call.
const CREATE_CODE: [u8; 17] = [
    0x36, 0x60, 0x00, 0x60, 0x00, 0x37, 0x36, 0x60, 0x00, 0x34,
    0xf0, // create(value, 0, size)
    0x15, 0x60, 0x00, 0x55, 0x00, 0x00,
];
/// Copies slot 1 to slot 2: sstore(2, sload(1)).
const COPY: [u8; 6] = [0x60, 0x01, 0x54, 0x60, 0x02, 0x55];
/// sstore(1, 5)
const OVERWRITE: [u8; 5] = [0x60, 0x05, 0x60, 0x01, 0x55];
/// revert(0, 0)
const REVERT: [u8; 5] = [0x60, 0x00, 0x60, 0x00, 0xfd];
/// Gas of every test transaction.
const GAS: u64 = 2_500_000;

fn transaction(to: TxKind, value: u64, input: impl Into<Bytes>) -> Transaction {
    let value = U256::from(value);
    let tx = TxLegacy { to, value, input: input.into(), gas_limit: GAS, ..Default::default() };
    Transaction::Legacy(Signed::new_unhashed(tx, signature()))
}

fn call_factory(input: impl Into<Bytes>) -> Transaction {
    transaction(FACTORY.into(), 0, input)
}

/// `world` with an account at `address` that has 9 in slot 1, no nonce and no code.
fn with_bare_storage(mut world: StateFixture, address: Address, wei: u64) -> StateFixture {
    world = world.account(address, balance(wei));
    world.state.set_slot(address, U256::from(1), U256::from(9));
    world
}

fn failed(outcome: &ExecutionOutcome) -> bool {
    change(&outcome.delta, slot(FACTORY, 0)) == Some((None, value(1)))
}

/// Init code that copies slot 1, and returns `runtime`.
fn copying(runtime: &[u8]) -> Vec<u8> {
    [&COPY[..], &init_code(&[], runtime)].concat()
}

fn slots(state: &MapState, address: Address) -> Vec<(u64, u64)> {
    let slots = state.slots_of(&address).unwrap().into_iter();
    slots
        .map(|(slot, _)| {
            let slot = U256::from_be_bytes(slot.0);
            (slot.to(), state.slot_value(address, slot.to()).to())
        })
        .collect()
}

#[test]
fn init_code_reads_the_storage_that_was_there_and_leaves_it() {
    for (at, code, is_create2) in [
        (HOMESTEAD, &CREATE_CODE[..], false),
        (TANGERINE, &CREATE_CODE, false),
        (SPURIOUS_DRAGON, &CREATE_CODE, false),
        (CANCUN, &CREATE_CODE, false),
        (PETERSBURG, &CREATE2_CODE, true),
        (SHANGHAI, &CREATE2_CODE, true),
        (PRAGUE, &CREATE2_CODE, true),
    ] {
        for (wei, runtime) in [(0, &[0x00][..]), (3, &[0x00]), (0, &[]), (3, &[])] {
            let init = copying(runtime);
            let child = if is_create2 { create2_address(&init) } else { FACTORY.create(1) };
            let world = StateFixture::new().contract(FACTORY, code, &[]);
            let world = with_bare_storage(world, child, wei);
            let (outcome, after) = world.run(&block(header(at), vec![call_factory(init)]));
            assert!(!failed(&outcome), "{at:?}");
            let created = after.account(&child).unwrap().unwrap();
            let nonce = u64::from(at.number >= SPURIOUS_DRAGON.number);
            assert_eq!(created, Account { nonce, code_hash: keccak256(runtime), ..balance(wei) });
            assert_eq!(slots(&after, child), [(1, 9), (2, 9)], "{at:?}");
            assert_eq!(outcome.delta.wiped(), [] as [Address; 0], "{at:?}");
        }
    }
}

#[test]
fn a_creating_transaction_does_the_same() {
    let child = SENDER.create(0);
    for at in [HOMESTEAD, SPURIOUS_DRAGON, SHANGHAI, PRAGUE] {
        let world = with_bare_storage(StateFixture::new(), child, 3);
        let init = [&OVERWRITE[..], &copying(&[0x00])].concat();
        let (outcome, after) =
            world.run(&block(header(at), vec![transaction(TxKind::Create, 5, init)]));
        assert!(outcome.receipts[0].success, "{at:?}");
        let nonce = u64::from(at.number >= SPURIOUS_DRAGON.number);
        let created = Account { nonce, code_hash: keccak256([0]), ..balance(8) };
        assert_eq!(after.account(&child).unwrap(), Some(created), "{at:?}");
        assert_eq!(slots(&after, child), [(1, 5), (2, 5)], "{at:?}");
    }
}

/// The second transaction of a block finds what the first has left.
#[test]
fn a_creation_that_reverts_leaves_the_storage_as_it_was() {
    let child = SENDER.create(0);
    for at in [SPURIOUS_DRAGON, SHANGHAI, PRAGUE] {
        let world = with_bare_storage(StateFixture::new(), child, 3);
        let init = [&OVERWRITE[..], &COPY, &REVERT].concat();
        let (outcome, after) =
            world.run(&block(header(at), vec![transaction(TxKind::Create, 5, init)]));
        assert!(!outcome.receipts[0].success, "{at:?}");
        assert_eq!(after.account(&child).unwrap(), Some(balance(3)), "{at:?}");
        assert_eq!(slots(&after, child), [(1, 9)], "{at:?}");
    }
}

#[test]
fn a_contract_that_destroys_itself_in_its_creation_takes_the_storage_with_it() {
    let child = SENDER.create(0);
    for at in [HOMESTEAD, SPURIOUS_DRAGON, SHANGHAI, PRAGUE] {
        let world = with_bare_storage(StateFixture::new(), child, 3);
        let init = [&COPY[..], &DESTROY_CODE].concat();
        let (outcome, after) =
            world.run(&block(header(at), vec![transaction(TxKind::Create, 0, init)]));
        assert!(outcome.receipts[0].success, "{at:?}");
        assert_eq!(after.account(&child).unwrap(), None, "{at:?}");
        assert_eq!(slots(&after, child), [], "{at:?}");
    }
}

/// From Amsterdam on such a contract is left with its balance alone (EIP-8246).
#[test]
fn a_contract_that_keeps_its_balance_loses_the_storage() {
    let spec = network("Amsterdam");
    let child = SENDER.create(0);
    let world = with_bare_storage(StateFixture::new(), child, 3);
    // selfdestruct(address())
    let init = [&COPY[..], &[0x30, 0xff]].concat();
    let mut header = header(PRAGUE);
    header.slot_number = Some(1);
    let block = block(header, vec![transaction(TxKind::Create, 0, init)]);
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    let outcome = execute_block(&spec, &block, input).unwrap();
    assert!(outcome.receipts[0].success);
    let mut after = world.state.clone();
    after.apply(&outcome.delta);
    assert_eq!(after.account(&child).unwrap(), Some(balance(3)));
    assert_eq!(slots(&after, child), []);
}

#[test]
fn storage_that_an_earlier_transaction_cleared_is_not_seen() {
    // A touch removes the empty account with its storage (EIP-161).
    let init = copying(&[0x00]);
    let child = create2_address(&init);
    let world = StateFixture::new().contract(FACTORY, &CREATE2_CODE, &[]);
    let world = with_bare_storage(world, child, 0);
    let transactions = vec![call(0, child, 0, []), call(1, FACTORY, 0, init)];
    let (outcome, after) = world.run(&block(header(PETERSBURG), transactions));
    assert!(!failed(&outcome));
    let created = after.account(&child).unwrap().unwrap();
    assert_eq!((created.nonce, created.code_hash), (1, keccak256([0])));
    assert_eq!(slots(&after, child), []);
}

#[test]
fn a_creation_over_an_account_lists_no_storage() {
    let init = init_code(&[(1, 1)], &[0x00]);
    let child = create2_address(&init);
    let funded =
        StateFixture::new().contract(FACTORY, &CREATE2_CODE, &[]).account(child, balance(3));
    let transactions = vec![call_factory(init)];
    let (outcome, after) = funded.run(&block(header(PETERSBURG), transactions));
    assert!(!failed(&outcome));
    assert_eq!(outcome.accesses.listings, 0);
    assert_eq!(after.account(&child).unwrap().unwrap().balance, U256::from(3));
    assert_eq!(slots(&after, child), [(1, 1)]);
}
