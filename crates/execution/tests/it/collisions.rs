//! EIP-7610: a creation collides with an account that has nothing but storage, on every fork.

use crate::common::world::*;
use alloy_consensus::{Signed, TxLegacy};
use alloy_primitives::{Address, Bytes, TxKind, U256, keccak256};
use retrie_chainspec::primitives::Transaction;
use retrie_execution::ExecutionOutcome;
use retrie_state::{Account, StateReader};

/// CREATE2 with the call data as init code and salt 0; slot 0 tells whether it failed.
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
/// CREATE of nothing with a value of 7 wei, which the contract does not have.
const POOR_CODE: [u8; 13] =
    [0x60, 0x00, 0x60, 0x00, 0x60, 0x07, 0xf0, 0x15, 0x60, 0x00, 0x55, 0x00, 0x00];
/// Gas of every test transaction: a 64th of it pays for setting a slot.
const GAS: u64 = 2_500_000;

fn transaction(to: TxKind, value: u64, input: impl Into<Bytes>) -> Transaction {
    let value = U256::from(value);
    let tx = TxLegacy { to, value, input: input.into(), gas_limit: GAS, ..Default::default() };
    Transaction::Legacy(Signed::new_unhashed(tx, signature()))
}

fn call_factory(input: impl Into<Bytes>) -> Transaction {
    transaction(FACTORY.into(), 0, input)
}

/// `world` with an account at `address` that has a slot, no nonce and no code.
fn with_bare_storage(mut world: World, address: Address, wei: u64) -> World {
    world = world.account(address, balance(wei));
    world.state.set_slot(address, U256::from(1), U256::from(9));
    world
}

fn failed(outcome: &ExecutionOutcome) -> bool {
    change(&outcome.delta, slot(FACTORY, 0)) == Some((None, value(1)))
}

#[test]
fn create_and_create2_over_storage_fail_with_all_gas_but_a_64th() {
    let init = init_code(&[(1, 1)], &[0x00]);
    for (at, code, child) in [
        (TANGERINE, &CREATE_CODE[..], FACTORY.create(1)),
        (SPURIOUS_DRAGON, &CREATE_CODE, FACTORY.create(1)),
        (CANCUN, &CREATE_CODE, FACTORY.create(1)),
        (PETERSBURG, &CREATE2_CODE, create2_address(&init)),
        (PRAGUE, &CREATE2_CODE, create2_address(&init)),
    ] {
        for wei in [0, 3] {
            let world = World::new().contract(FACTORY, code, &[]);
            let world = with_bare_storage(world, child, wei);
            let (outcome, after) = world.run(&block(header(at), vec![call_factory(init.clone())]));
            assert!(failed(&outcome), "{at:?}");
            assert!(outcome.gas_used > GAS / 64 * 62, "{at:?}: {}", outcome.gas_used);
            assert!(outcome.receipts[0].success, "{at:?}");
            assert_eq!(after.account(&FACTORY).unwrap().unwrap().nonce, 2, "{at:?}");
            assert_eq!(after.account(&child).unwrap(), Some(balance(wei)), "{at:?}");
            assert_eq!(after.slot_value(child, 1), U256::from(9), "{at:?}");
        }
    }
}

#[test]
fn a_creating_transaction_over_storage_uses_up_its_gas_and_nonce() {
    let child = SENDER.create(0);
    for at in [HOMESTEAD, SPURIOUS_DRAGON, SHANGHAI, PRAGUE] {
        let world = with_bare_storage(World::new(), child, 3);
        let create = transaction(TxKind::Create, 5, init_code(&[], &[0x00]));
        let (outcome, after) = world.run(&block(header(at), vec![create]));
        assert!(!outcome.receipts[0].success, "{at:?}");
        assert_eq!(outcome.gas_used, GAS, "{at:?}");
        let sender = Account { nonce: 1, ..balance(1_000_000) };
        assert_eq!(after.account(&SENDER).unwrap(), Some(sender), "{at:?}");
        assert_eq!(after.account(&child).unwrap(), Some(balance(3)), "{at:?}");
        assert_eq!(after.slot_value(child, 1), U256::from(9), "{at:?}");
        assert!(outcome.codes.is_empty(), "{at:?}");
    }
}

#[test]
fn an_account_that_cannot_be_listed_has_storage() {
    let init = init_code(&[], &[0x00]);
    let child = create2_address(&init);
    let mut world = World::new().contract(FACTORY, &CREATE2_CODE, &[]).account(child, balance(1));
    world.state.partial = true;
    let block = block(header(PETERSBURG), vec![call_factory(init)]);
    assert!(failed(&world.try_run(&block).unwrap()));
}

#[test]
fn a_creation_that_is_refused_before_is_no_collision() {
    // Without the money neither nonce nor gas is lost.
    let world = World::new().contract(FACTORY, &POOR_CODE, &[]);
    let world = with_bare_storage(world, FACTORY.create(1), 0);
    let (outcome, after) = world.run(&block(header(PRAGUE), vec![call_factory([])]));
    assert!(failed(&outcome));
    assert!(outcome.gas_used < 100_000, "{}", outcome.gas_used);
    assert_eq!(after.account(&FACTORY).unwrap().unwrap().nonce, 1);
}

#[test]
fn storage_that_an_earlier_transaction_cleared_does_not_collide() {
    // A touch removes the empty account with its storage (EIP-161).
    let init = init_code(&[(2, 2)], &[0x00]);
    let child = create2_address(&init);
    let world = World::new().contract(FACTORY, &CREATE2_CODE, &[]);
    let world = with_bare_storage(world, child, 0);
    let transactions = vec![call(0, child, 0, []), call(1, FACTORY, 0, init)];
    let (outcome, after) = world.run(&block(header(PETERSBURG), transactions));
    assert!(!failed(&outcome));
    let created = after.account(&child).unwrap().unwrap();
    assert_eq!((created.nonce, created.code_hash), (1, keccak256([0])));
    assert_eq!(after.slots_of(&child).unwrap().len(), 1);
}

#[test]
fn only_a_creation_over_a_bare_account_costs_one_more_listing() {
    let init = init_code(&[], &[0x00]);
    let child = create2_address(&init);
    let fresh = World::new().contract(FACTORY, &CREATE2_CODE, &[]);
    let transactions = vec![call_factory(init)];
    let (outcome, _) = fresh.run(&block(header(PETERSBURG), transactions.clone()));
    assert!(!failed(&outcome));
    assert_eq!(outcome.accesses.listings, 1); // for the delta
    // Money that was there before hinders nobody.
    let funded = World::new().contract(FACTORY, &CREATE2_CODE, &[]).account(child, balance(3));
    let (outcome, after) = funded.run(&block(header(PETERSBURG), transactions));
    assert!(!failed(&outcome));
    assert_eq!(outcome.accesses.listings, 2);
    assert_eq!(after.account(&child).unwrap().unwrap().balance, U256::from(3));
}
