//! Simulations do not read a large storage to its end.

use alloy_primitives::{Address, B256, TxKind, U256};
use retrie_chainspec::{ChainSpec, primitives::Header};
use retrie_execution::{
    AccountOverride, DatabaseError, EvmSimulation, ExecutionError, ExecutionInput,
};
use retrie_state::{Account, StateError, StateKey, StateReader, StateValue, encode_slot};
use revm::context::TxEnv;
use std::sync::atomic::{AtomicUsize, Ordering};

const SENDER: Address = Address::repeat_byte(0x11);

/// A state in which every account but the sender has a storage without end.
#[derive(Debug, Default)]
struct EndlessStorage {
    listed: AtomicUsize,
}

impl StateReader for EndlessStorage {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        let account = Account { balance: U256::from(1), ..Account::default() };
        Ok(match key {
            StateKey::Account(_) => Some(account.encode()),
            StateKey::Slot(SENDER, _) => None,
            StateKey::Slot(..) => encode_slot(U256::from(1)),
        })
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        panic!("the storage of {address} has no end")
    }

    fn some_slots(&self, _: &Address, limit: usize) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.listed.fetch_add(limit, Ordering::Relaxed);
        let slot = |number| Some((B256::from(U256::from(number)), encode_slot(U256::from(1))?));
        Ok((0..limit).filter_map(slot).collect())
    }
}

fn header() -> Header {
    let base_fee_per_gas = Some(0);
    Header { number: 13_000_000, gas_limit: 30_000_000, base_fee_per_gas, ..Header::default() }
}

#[test]
fn a_creation_over_an_account_lists_none_of_its_storage() {
    let (spec, state) = (ChainSpec::mainnet(), EndlessStorage::default());
    let input = ExecutionInput::new(&state, &(), &());
    let mut simulation = EvmSimulation::new(&spec, &header(), input);
    let tx = TxEnv { caller: SENDER, kind: TxKind::Create, gas_limit: 100_000, ..TxEnv::default() };
    let outcome = simulation.transact(tx).unwrap();
    assert!(outcome.result.is_success(), "{outcome:?}");
    simulation.commit(outcome.state).unwrap();
    let (delta, _) = simulation.changes().unwrap();
    assert!(!delta.is_empty() && delta.wiped().is_empty());
    assert_eq!(state.listed.load(Ordering::Relaxed), 0);
}

#[test]
fn a_simulated_block_clears_only_so_much() {
    let (spec, state) = (ChainSpec::mainnet(), EndlessStorage::default());
    let input = ExecutionInput::new(&state, &(), &());
    let mut simulation = EvmSimulation::new(&spec, &header(), input);
    let cleared = AccountOverride { clears_storage: true, ..AccountOverride::default() };
    let contract = Address::repeat_byte(0x22);
    simulation.override_account(contract, cleared).unwrap();
    assert_eq!(state.listed.load(Ordering::Relaxed), 0, "a call needs none of them");
    let error = simulation.after_transactions(&header(), Vec::new(), None).unwrap_err();
    let ExecutionError::Database { source, .. } = &error else { panic!("{error}") };
    let DatabaseError::StorageTooLarge { address, limit } = **source else { panic!("{error}") };
    assert_eq!(address, contract);
    assert_eq!(state.listed.load(Ordering::Relaxed), limit + 1);
}
