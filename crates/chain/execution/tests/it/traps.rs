//! One test per way a delta goes wrong, on hand-made blocks under mainnet's rules.

use crate::common::fixtures::*;
use alloy_consensus::{Signed, TxEip7702};
use alloy_eips::{
    eip4895::{Withdrawal, Withdrawals},
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, U256, bytes, keccak256};
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, RecoveredBlock, Transaction},
};
use retrie_consensus::pre_byzantium_receipts_root;
use retrie_execution::{
    DatabaseError, ExecutionError, ExecutionInput, execute_block, execute_block_with_observer,
};
use retrie_state::{Account, StateError, StateKey, StateReader, StateValue};

#[test]
fn selfdestruct_before_cancun_lists_every_slot() {
    let slots: Vec<_> = (0..300).map(|n| (n, n + 1)).collect();
    let world = StateFixture::new().contract(CONTRACT, &DESTROY_CODE, &slots);
    let (outcome, after) = world.run(&block(header(SHANGHAI), vec![call(0, CONTRACT, 0, [])]));
    assert_eq!(outcome.delta.wiped(), [CONTRACT]);
    assert_eq!(slot_changes(&outcome.delta), 300);
    assert_eq!(change(&outcome.delta, slot(CONTRACT, 7)), Some((value(8), None)));
    assert_eq!(after.account(&CONTRACT).unwrap(), None);
    assert_eq!(after.slots_of(&CONTRACT).unwrap(), []);
    assert_eq!(outcome.accesses.listings, 1);
}

#[test]
fn selfdestruct_on_a_partial_state_keeps_the_marker_and_known_slots() {
    // SLOAD(3), then SELFDESTRUCT.
    let code = [0x60, 0x03, 0x54, 0x50, 0x33, 0xff];
    let mut world = StateFixture::new().contract(CONTRACT, &code, &[(3, 9), (4, 9)]);
    world.state.partial = true;
    let (outcome, _) = world.run(&block(header(PETERSBURG), vec![call(0, CONTRACT, 0, [])]));
    assert_eq!(outcome.delta.wiped(), [CONTRACT]);
    assert_eq!(change(&outcome.delta, slot(CONTRACT, 3)), Some((value(9), None)));
    assert_eq!(slot_changes(&outcome.delta), 1);
}

#[test]
fn selfdestruct_from_cancun_on_keeps_account_and_storage() {
    let world = StateFixture::new().contract(CONTRACT, &DESTROY_CODE, &[(1, 1)]);
    let world = StateFixture {
        state: {
            let mut state = world.state.clone();
            let account = state.account(&CONTRACT).unwrap().unwrap();
            state.set_account(CONTRACT, Account { balance: U256::from(5), ..account });
            state
        },
        ..world
    };
    let (outcome, after) = world.run(&block(header(CANCUN), vec![call(0, CONTRACT, 0, [])]));
    assert_eq!(outcome.delta.wiped(), [] as [Address; 0]);
    assert_eq!(slot_changes(&outcome.delta), 0);
    let account = after.account(&CONTRACT).unwrap().unwrap();
    assert_eq!((account.nonce, account.balance), (1, U256::ZERO));
    assert_eq!(after.slot_value(CONTRACT, 1), U256::from(1));
}

#[test]
fn a_contract_created_and_destroyed_in_one_transaction_leaves_no_trace() {
    // The init code writes a slot and destroys itself.
    let init = [0x60, 0x01, 0x60, 0x01, 0x55, 0x33, 0xff];
    for at in [PETERSBURG, CANCUN] {
        let world = StateFixture::new().contract(FACTORY, &FACTORY_CODE, &[]);
        let (outcome, after) = world.run(&block(header(at), vec![call(0, FACTORY, 0, init)]));
        assert_eq!(outcome.delta.wiped(), [] as [Address; 0], "{at:?}");
        assert_eq!(slot_changes(&outcome.delta), 0, "{at:?}");
        assert_eq!(after.account(&create2_address(&init)).unwrap(), None, "{at:?}");
        assert!(outcome.codes.is_empty(), "{at:?}");
    }
}

#[test]
fn destroy_and_recreate_in_one_block_keeps_only_the_new_slots() {
    let init = init_code(&[(1, 1), (5, 5), (9, 7)], &DESTROY_CODE);
    let child = create2_address(&init);
    let world = StateFixture::new().contract(FACTORY, &FACTORY_CODE, &[]).contract(
        child,
        &DESTROY_CODE,
        &[(1, 9), (2, 9), (3, 9), (5, 5)],
    );
    let txs = vec![call(0, child, 0, []), call(1, FACTORY, 0, init)];
    let (outcome, after) = world.run(&block(header(PETERSBURG), txs));
    let delta = &outcome.delta;
    assert_eq!(delta.wiped(), [child]);
    assert_eq!(change(delta, slot(child, 1)), Some((value(9), value(1))));
    assert_eq!(change(delta, slot(child, 2)), Some((value(9), None)));
    assert_eq!(change(delta, slot(child, 3)), Some((value(9), None)));
    assert_eq!(change(delta, slot(child, 5)), Some((value(5), value(5))), "survives the wipe");
    assert_eq!(change(delta, slot(child, 9)), Some((None, value(7))));
    // Nonce, balance and code are as before: only its storage differs.
    assert_eq!(change(delta, StateKey::Account(child)), None);
    assert!(outcome.codes.is_empty(), "its code was in the state before");
    assert_eq!(after.slots_of(&child).unwrap().len(), 3);
}

#[test]
fn recreated_storage_on_a_partial_state_keeps_known_previous_values() {
    let init = init_code(&[(1, 1)], &DESTROY_CODE);
    let child = create2_address(&init);
    let mut world = StateFixture::new().contract(FACTORY, &FACTORY_CODE, &[]).contract(
        child,
        &DESTROY_CODE,
        &[(1, 9), (2, 9)],
    );
    world.state.partial = true;
    let txs = vec![call(0, child, 0, []), call(1, FACTORY, 0, init)];
    let outcome = world.try_run(&block(header(PETERSBURG), txs)).unwrap();
    assert_eq!(outcome.delta.wiped(), [child]);
    assert_eq!(change(&outcome.delta, slot(child, 1)), Some((value(9), value(1))));
}

#[test]
fn money_sent_to_a_destroyed_contract_makes_a_fresh_account() {
    let world = StateFixture::new().contract(CONTRACT, &DESTROY_CODE, &[(1, 1)]);
    let txs = vec![call(0, CONTRACT, 0, []), call(1, CONTRACT, 77, [])];
    let (outcome, after) = world.run(&block(header(PETERSBURG), txs));
    assert_eq!(after.account(&CONTRACT).unwrap(), Some(balance(77)));
    assert_eq!(change(&outcome.delta, slot(CONTRACT, 1)), Some((value(1), None)));
}

#[test]
fn a_contract_created_over_storage_without_an_account_wipes_it() {
    let init = init_code(&[(1, 1)], &[0x00]);
    let child = create2_address(&init);
    let mut world = StateFixture::new().contract(FACTORY, &FACTORY_CODE, &[]);
    world.state.set_slot(child, U256::from(1), U256::from(9));
    world.state.set_slot(child, U256::from(2), U256::from(9));
    let (outcome, after) = world.run(&block(header(PETERSBURG), vec![call(0, FACTORY, 0, init)]));
    assert_eq!(change(&outcome.delta, slot(child, 1)), Some((value(9), value(1))));
    assert_eq!(change(&outcome.delta, slot(child, 2)), Some((value(9), None)));
    assert_eq!(after.slots_of(&child).unwrap().len(), 1);
    assert_eq!(outcome.codes, [(keccak256([0]), bytes!("00"))]);
    assert_eq!(outcome.delta.code(&keccak256([0])), Some(&bytes!("00")));
}

#[test]
fn touching_an_absent_account_makes_an_empty_leaf_only_before_eip161() {
    for (at, expected) in [(HOMESTEAD, true), (TANGERINE, true), (SPURIOUS_DRAGON, false)] {
        let (outcome, after) =
            StateFixture::new().run(&block(header(at), vec![call(0, RECIPIENT, 0, [])]));
        let empty = expected.then(Account::default);
        assert_eq!(after.account(&RECIPIENT).unwrap(), empty, "{at:?}");
        let expected = empty.map(|empty| (None, Some(empty.encode())));
        assert_eq!(change(&outcome.delta, StateKey::Account(RECIPIENT)), expected, "{at:?}");
    }
}

#[test]
fn touching_an_empty_account_removes_it_with_its_storage_only_from_eip161_on() {
    for (at, stays) in [(TANGERINE, true), (SPURIOUS_DRAGON, false), (CANCUN, false)] {
        let mut world = StateFixture::new().account(RECIPIENT, Account::default());
        world.state.set_slot(RECIPIENT, U256::from(1), U256::from(1));
        let (outcome, after) = world.run(&block(header(at), vec![call(0, RECIPIENT, 0, [])]));
        assert_eq!(after.account(&RECIPIENT).unwrap().is_some(), stays, "{at:?}");
        assert_eq!(after.slots_of(&RECIPIENT).unwrap().len(), usize::from(stays), "{at:?}");
        assert_eq!(outcome.delta.wiped().len(), usize::from(!stays), "{at:?}");
    }
}

#[test]
fn an_untouched_empty_account_stays() {
    let world = StateFixture::new().account(RECIPIENT, Account::default());
    let (outcome, _) = world.run(&block(header(SPURIOUS_DRAGON), vec![call(0, SENDER, 0, [])]));
    assert_eq!(change(&outcome.delta, StateKey::Account(RECIPIENT)), None);
}

#[test]
fn a_failed_call_still_clears_an_empty_ripemd_precompile() {
    // Mainnet block 2,675,119: the touch of 0x03 survives the failure of the call.
    let ripemd = Address::with_last_byte(3);
    // CALL(gas 0, ripemd, value 0), then INVALID: out of gas inside, then the frame itself fails.
    let code = [
        0x60, 0x00, 0x60, 0x00, 0x60, 0x00, 0x60, 0x00, 0x60, 0x00, 0x60, 0x03, 0x60, 0x00, 0xf1,
        0xfe,
    ];
    for (empty, cleared) in [(ripemd, true), (RECIPIENT, false)] {
        let mut code = code;
        if !cleared {
            code[11] = 0x44; // another empty account, at 0x44
        }
        let address = if cleared { empty } else { Address::with_last_byte(0x44) };
        let world =
            StateFixture::new().contract(CONTRACT, &code, &[]).account(address, Account::default());
        let (_, after) = world.run(&block(header(SPURIOUS_DRAGON), vec![call(0, CONTRACT, 0, [])]));
        assert_eq!(after.account(&address).unwrap().is_none(), cleared, "{address}");
    }
}

#[test]
fn writing_zero_deletes_and_writing_back_is_no_change() {
    // Stores call data word 1 at call data word 0.
    let code = [0x60, 0x20, 0x35, 0x60, 0x00, 0x35, 0x55];
    let store = |nonce, slot: u64, value: u64| {
        let mut input = U256::from(slot).to_be_bytes_vec();
        input.extend(U256::from(value).to_be_bytes_vec());
        call(nonce, CONTRACT, 0, input)
    };
    let world = StateFixture::new().contract(CONTRACT, &code, &[(1, 1), (2, 2), (3, 3)]);
    let txs = vec![
        store(0, 1, 0), // delete
        store(1, 2, 9), // there
        store(2, 2, 2), // and back
        store(3, 4, 4), // new
        store(4, 4, 0), // and gone
        store(5, 3, 3), // as it was
        store(6, 5, 5), // new
    ];
    let (outcome, after) = world.run(&block(header(PETERSBURG), txs));
    assert_eq!(change(&outcome.delta, slot(CONTRACT, 1)), Some((value(1), None)));
    assert_eq!(change(&outcome.delta, slot(CONTRACT, 5)), Some((None, value(5))));
    assert_eq!(slot_changes(&outcome.delta), 2);
    // Only its storage changed.
    assert_eq!(change(&outcome.delta, StateKey::Account(CONTRACT)), None);
    assert_eq!(after.slots_of(&CONTRACT).unwrap().len(), 3);
}

#[test]
fn withdrawals_are_in_the_delta() {
    let withdrawal = |address, amount| Withdrawal { address, amount, ..Default::default() };
    let mut sealed = block(header(SHANGHAI), Vec::new()).into_block();
    let list = vec![withdrawal(RECIPIENT, 3), withdrawal(RECIPIENT, 4), withdrawal(CONTRACT, 0)];
    sealed.body.withdrawals = Some(Withdrawals::new(list));
    let block = RecoveredBlock::new_unhashed(sealed, Vec::new());
    // A withdrawal of zero is a touch: it clears an empty account and creates none.
    for world in [StateFixture::new(), StateFixture::new().account(CONTRACT, Account::default())] {
        let (_, after) = world.run(&block);
        assert_eq!(after.account(&RECIPIENT).unwrap(), Some(balance(7_000_000_000)));
        assert_eq!(after.account(&CONTRACT).unwrap(), None);
        assert_eq!(after.account(&COINBASE).unwrap(), None);
    }
}

#[test]
fn block_and_ommer_rewards_are_in_the_delta() {
    const ETHER: u64 = 1_000_000_000_000_000_000;
    let ommer = |number, beneficiary| Header { number, beneficiary, ..Default::default() };
    let mut sealed = block(header(HOMESTEAD), Vec::new()).into_block();
    let number = HOMESTEAD.number;
    sealed.body.ommers = vec![ommer(number - 1, RECIPIENT), ommer(number - 2, COINBASE)];
    let block = RecoveredBlock::new_unhashed(sealed.clone(), Vec::new());
    let (outcome, after) = StateFixture::new().run(&block);
    assert_eq!(outcome.delta.len(), 2);
    assert_eq!(after.account(&RECIPIENT).unwrap(), Some(balance(5 * ETHER / 8 * 7)));
    let coinbase = U256::from(5 * ETHER) + U256::from(5 * ETHER / 16 + 5 * ETHER / 8 * 6);
    assert_eq!(after.account(&COINBASE).unwrap().unwrap().balance, coinbase);

    for number in [number, number - 8, 0, u64::MAX] {
        sealed.body.ommers = vec![ommer(number, RECIPIENT)];
        let block = RecoveredBlock::new_unhashed(sealed.clone(), Vec::new());
        let error = StateFixture::new().try_run(&block).unwrap_err();
        assert!(matches!(error, ExecutionError::InvalidBlock { .. }), "{error}");
    }
}

#[test]
fn the_dao_is_drained_before_the_first_transaction() {
    use alloy_evm::eth::dao_fork::{DAO_HARDFORK_ACCOUNTS, DAO_HARDFORK_BENEFICIARY};
    let [first, second, third, ..] = DAO_HARDFORK_ACCOUNTS;
    let world = StateFixture::new().account(first, balance(10)).account(second, balance(1 << 60));
    let mut sent = vec![call(0, first, 5, [])];
    let (outcome, after) = world.run(&block(header(DAO), sent.clone()));
    // A payment after the drain stays; all listed accounts exist from then on.
    assert_eq!(after.account(&first).unwrap(), Some(balance(5)));
    assert_eq!(after.account(&second).unwrap(), Some(Account::default()));
    assert_eq!(after.account(&third).unwrap(), Some(Account::default()));
    let beneficiary = after.account(&DAO_HARDFORK_BENEFICIARY).unwrap();
    assert_eq!(beneficiary, Some(balance((1 << 60) + 10)));
    assert_eq!(outcome.gas_used, 21_000);

    // The observer sees the transfer with transaction 0.
    sent.push(call(1, RECIPIENT, 1, []));
    let mut seen = Vec::new();
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    execute_block_with_observer(
        &ChainSpec::mainnet(),
        &block(header(DAO), sent),
        input,
        &mut |index, delta| {
            seen.push((
                index,
                change(&delta, StateKey::Account(DAO_HARDFORK_BENEFICIARY)).is_some(),
            ));
            Ok(())
        },
    )
    .unwrap();
    assert_eq!(seen, [(0, true), (1, false)]);
}

#[test]
fn system_calls_write_the_parent_hash_and_beacon_root() {
    let history = alloy_eips::eip2935::HISTORY_STORAGE_ADDRESS;
    let roots = alloy_eips::eip4788::BEACON_ROOTS_ADDRESS;
    let world = StateFixture::new()
        .contract(history, &alloy_eips::eip2935::HISTORY_STORAGE_CODE, &[])
        .contract(roots, &alloy_eips::eip4788::BEACON_ROOTS_CODE, &[]);
    let (outcome, after) = world.run(&block(header(PRAGUE), vec![call(0, RECIPIENT, 1, [])]));
    assert_eq!(slot_changes(&outcome.delta), 3);
    let stored = after.slot_value(history, (PRAGUE.number - 1) % 8191);
    assert_eq!(B256::from(stored), B256::repeat_byte(0x11));
    let index = PRAGUE.timestamp % 8191;
    assert_eq!(after.slot_value(roots, index), U256::from(PRAGUE.timestamp));
    assert_eq!(B256::from(after.slot_value(roots, index + 8191)), B256::repeat_byte(0xbe));
    // The system address is called from, and must not become an account.
    assert_eq!(
        change(&outcome.delta, StateKey::Account(alloy_eips::eip4788::SYSTEM_ADDRESS)),
        None
    );
}

#[test]
fn a_block_without_a_request_contract_is_invalid_from_prague_on() {
    for contract in PRAGUE_REQUEST_CONTRACTS {
        for account in [None, Some(balance(1))] {
            let mut world = StateFixture::new();
            world.state.values.remove(&StateKey::Account(contract));
            if let Some(account) = account {
                world = world.account(contract, account);
            }
            assert!(world.try_run(&block(header(CANCUN), vec![])).is_ok());
            let error = world.try_run(&block(header(PRAGUE), vec![])).unwrap_err();
            assert!(error.is_invalid_block(), "{error}");
            assert!(error.to_string().contains(&contract.to_string()), "{error}");
        }
    }
}

#[test]
fn an_observer_gets_the_codes_of_each_transaction() {
    let world = StateFixture::new().contract(FACTORY, &FACTORY_CODE, &[]);
    let [one, two] = [[0x00u8], [0x01]].map(|code| init_code(&[], &code));
    let txs = vec![call(0, FACTORY, 0, one), call(1, RECIPIENT, 1, []), call(2, FACTORY, 0, two)];
    let mut seen = Vec::new();
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    let spec = ChainSpec::mainnet();
    execute_block_with_observer(&spec, &block(header(PETERSBURG), txs), input, &mut |_, delta| {
        seen.push(delta.codes().values().cloned().collect::<Vec<_>>());
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, [vec![bytes!("00")], vec![], vec![bytes!("01")]]);
}

#[test]
fn delegation_puts_code_on_a_plain_account() {
    // No key is at hand, so take a signature that recovers to some authority.
    let authorization = Authorization { chain_id: U256::from(1), address: CONTRACT, nonce: 0 };
    let (signed, authority) = (1..100)
        .find_map(|s| {
            let (r, s) = (U256::from(1), U256::from(s));
            let signed = SignedAuthorization::new_unchecked(authorization.clone(), 0, r, s);
            let authority = signed.recover_authority().ok()?;
            Some((signed, authority))
        })
        .unwrap();
    let tx = TxEip7702 {
        chain_id: 1,
        gas_limit: 100_000,
        to: SENDER,
        authorization_list: vec![signed],
        ..Default::default()
    };
    let tx = Transaction::Eip7702(Signed::new_unhashed(tx, signature()));
    let (outcome, after) = StateFixture::new().run(&block(header(PRAGUE), vec![tx]));
    let designator = [&[0xef, 0x01, 0x00], CONTRACT.as_slice()].concat();
    let account = after.account(&authority).unwrap().unwrap();
    assert_eq!(account.code_hash, keccak256(&designator));
    assert!(outcome.codes.iter().map(|(hash, code)| (hash, code)).eq(outcome.delta.codes()));
    assert_eq!(outcome.codes, [(account.code_hash, designator.into())]);
}

#[test]
fn constantinople_without_petersburg_meters_net_gas() {
    let constantinople = network("Constantinople");
    // Code, value before, gas and refund: rows of the table in EIP-1283.
    let rows = [
        (bytes!("60006000556000600055"), 0, 412, 0),
        (bytes!("60006000556001600055"), 0, 20_212, 0),
        (bytes!("60016000556000600055"), 0, 20_212, 19_800),
        (bytes!("60016000556002600055"), 0, 20_212, 0),
        (bytes!("60006000556000600055"), 1, 5_212, 15_000),
        (bytes!("60006000556001600055"), 1, 5_212, 4_800),
        (bytes!("60016000556001600055"), 1, 412, 0),
        (bytes!("600160005560006000556001600055"), 0, 40_218, 19_800),
        (bytes!("600060005560016000556000600055"), 1, 10_218, 19_800),
    ];
    for (code, before, gas, refund) in rows {
        let world = StateFixture::new().contract(CONTRACT, &code, &[(0, before)]);
        let block =
            block(header(ForkPoint { number: 1, timestamp: 1 }), vec![call(0, CONTRACT, 0, [])]);
        let input = ExecutionInput::new(&world.state, &world.codes, &());
        let outcome = execute_block(&constantinople, &block, input).unwrap();
        let spent = 21_000 + gas;
        assert_eq!(outcome.gas_used, spent - u64::min(refund, spent / 2), "{code} from {before}");
        // Petersburg charges each write alone.
        let petersburg = execute_block(&network("Petersburg"), &block, input).unwrap();
        assert_ne!(petersburg.gas_used, outcome.gas_used);
    }
}

#[test]
fn errors_tell_a_bad_transaction_from_a_bad_state() {
    // A wrong nonce in the second transaction.
    let txs = vec![call(0, RECIPIENT, 1, []), call(5, RECIPIENT, 1, [])];
    let error = StateFixture::new().try_run(&block(header(PETERSBURG), txs)).unwrap_err();
    assert!(error.is_invalid_block());
    assert!(matches!(error, ExecutionError::InvalidTransaction { index: 1, .. }), "{error}");

    // More gas than the block has.
    let mut small = header(PETERSBURG);
    small.gas_limit = 1_010_000;
    let txs = vec![call(0, RECIPIENT, 1, []), call(1, RECIPIENT, 1, [])];
    let error = StateFixture::new().try_run(&block(small, txs)).unwrap_err();
    assert!(matches!(error, ExecutionError::InvalidTransaction { index: 1, .. }), "{error}");

    // A code that is not stored.
    let mut world = StateFixture::new().contract(CONTRACT, &DESTROY_CODE, &[]);
    world.codes.clear();
    let bad = block(header(PETERSBURG), vec![call(0, CONTRACT, 0, [])]);
    let error = world.try_run(&bad).unwrap_err();
    assert!(!error.is_invalid_block());
    let ExecutionError::Database { index: Some(0), source, .. } = &error else { panic!("{error}") };
    assert!(
        matches!(**source, DatabaseError::MissingCode { address: Some(CONTRACT), .. }),
        "{error}"
    );

    // A block hash that is not known: BLOCKHASH(number - 2); the parent's comes from the header.
    let ask = |back: u8| [0x60, back, 0x43, 0x03, 0x40, 0x60, 0x00, 0x55];
    let world = StateFixture::new().contract(CONTRACT, &ask(2), &[]);
    let error = world.try_run(&bad).unwrap_err();
    let ExecutionError::Database { source, .. } = &error else { panic!("{error}") };
    assert!(matches!(**source, DatabaseError::MissingBlockHash { .. }), "{error}");
    let (_, after) = StateFixture::new().contract(CONTRACT, &ask(1), &[]).run(&bad);
    assert_eq!(B256::from(after.slot_value(CONTRACT, 0)), B256::repeat_byte(0x11));

    // A state that cannot be read, in a transaction and around them.
    #[derive(Debug)]
    struct BrokenState(Address);
    impl StateReader for BrokenState {
        fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
            if *key.address() == self.0 { Err(StateError::Poisoned) } else { Ok(None) }
        }
        fn slots_of(&self, _: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
            Err(StateError::Poisoned)
        }
    }
    for (broken, at) in [(SENDER, Some(0)), (COINBASE, None)] {
        let txs = if at.is_some() { vec![call(0, RECIPIENT, 1, [])] } else { Vec::new() };
        let reader = BrokenState(broken);
        let input = ExecutionInput::new(&reader, &(), &());
        let error = execute_block(&ChainSpec::mainnet(), &block(header(PETERSBURG), txs), input)
            .unwrap_err();
        assert!(matches!(error.as_state(), Some(StateError::Poisoned)), "{error}");
        assert!(matches!(error, ExecutionError::Database { index, .. } if index == at), "{error}");
    }

    // A header without a field of its fork.
    let mut lacking = header(CANCUN);
    lacking.parent_beacon_block_root = None;
    let error = StateFixture::new().try_run(&block(lacking, Vec::new())).unwrap_err();
    assert!(matches!(error, ExecutionError::InvalidBlock { .. }), "{error}");
    let mut lacking = header(CANCUN);
    lacking.excess_blob_gas = None;
    let error =
        StateFixture::new().try_run(&block(lacking, vec![call(0, RECIPIENT, 0, [])])).unwrap_err();
    assert!(matches!(error, ExecutionError::InvalidBlock { .. }), "{error}");
}

#[test]
fn an_observer_can_stop_the_execution() {
    let world = StateFixture::new();
    let txs = vec![call(0, RECIPIENT, 1, []), call(1, RECIPIENT, 1, [])];
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    let error = execute_block_with_observer(
        &ChainSpec::mainnet(),
        &block(header(HOMESTEAD), txs),
        input,
        &mut |index, _| if index == 1 { Err("enough".into()) } else { Ok(()) },
    )
    .unwrap_err();
    assert!(matches!(error, ExecutionError::Observer { index: 1, .. }), "{error}");
    assert!(!error.is_invalid_block());
}

#[test]
fn receipts_before_byzantium_need_one_root_each() {
    let (outcome, _) =
        StateFixture::new().run(&block(header(HOMESTEAD), vec![call(0, RECIPIENT, 1, [])]));
    let root = |byte| pre_byzantium_receipts_root(&outcome.receipts, &[B256::repeat_byte(byte)]);
    assert!(root(1).is_some());
    assert_ne!(root(1), root(2));
    assert_eq!(pre_byzantium_receipts_root(&outcome.receipts, &[]), None);
}

#[test]
fn empty_blocks_execute_in_microseconds() {
    let world = StateFixture::new();
    let spec = ChainSpec::mainnet();
    let empty = block(header(HOMESTEAD), Vec::new());
    let input = ExecutionInput::new(&world.state, &world.codes, &());
    const BLOCKS: u32 = 2_000;
    let start = std::time::Instant::now();
    for _ in 0..BLOCKS {
        assert_eq!(execute_block(&spec, &empty, input).unwrap().delta.len(), 1);
    }
    let each = start.elapsed() / BLOCKS;
    println!("{each:?} per empty block");
    // Far above the measured time, to hold on a busy machine and unoptimised.
    assert!(each < std::time::Duration::from_micros(300), "{each:?}");
}
