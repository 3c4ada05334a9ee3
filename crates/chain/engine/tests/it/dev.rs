//! Dev chains: accepted transactions are mined, and the user's changes, times and snapshots hold,
//! on every backend.

use crate::common::{NodeSetup, RunningNode, TestNode};
use alloy_consensus::{SignableTransaction, TxEip1559, crypto::secp256k1::sign_message};
use alloy_primitives::{Address, B256, TxKind, U256, bytes};
use retrie_chainspec::{ChainSpec, DEV_ACCOUNTS, DEV_KEYS};
use retrie_db::ChainRead;
use retrie_engine::{
    DevChain, DevError, EngineConfig, EngineError, SealingMode,
    pool::{PooledTransaction, TransactionOrigin},
    re_execute,
};
use retrie_execution::AccountOverride;
use retrie_state::{Account, StateReader};
use retrie_state_testkit::sample;
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

const GWEI: u128 = 1_000_000_000;

struct RunningDevChain {
    running: RunningNode,
    chain: DevChain,
}

impl RunningDevChain {
    fn start(node: &TestNode, sealing: SealingMode) -> Self {
        let config = EngineConfig { is_dev: true, ..node.config };
        let running = RunningNode::on(Arc::new(node.open()), config, node.dir.clone());
        let chain = DevChain::new(
            running.engine.handle().clone(),
            running.payloads.clone(),
            running.pool.clone(),
            running.maintainer(),
            sealing,
            DEV_ACCOUNTS[0],
        );
        running.runtime.spawn(chain.clone().run());
        Self { running, chain }
    }

    fn new(setup: NodeSetup, sealing: SealingMode) -> Self {
        Self::start(&TestNode::new(&ChainSpec::dev(), setup), sealing)
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.running.runtime.block_on(work)
    }

    fn send(&self, transaction: PooledTransaction) -> B256 {
        self.running.pool.add(transaction, TransactionOrigin::Local, &self.running.live).unwrap()
    }

    fn account(&self, address: &Address) -> Account {
        let view = self.running.live.view().unwrap();
        view.state(&view.head().hash()).unwrap().account(address).unwrap().unwrap_or_default()
    }

    fn mine(&self, count: u64) {
        self.wait(self.chain.mine(count, None, None)).unwrap();
    }

    fn head(&self) -> (u64, u64) {
        let head = self.running.live.head();
        (head.number, head.timestamp)
    }
}

fn transfer(from: usize, nonce: u64, to: Address, value: u128) -> PooledTransaction {
    let tx = TxEip1559 {
        chain_id: ChainSpec::dev().chain_id(),
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 100 * GWEI,
        max_priority_fee_per_gas: GWEI,
        to: TxKind::Call(to),
        value: U256::from(value),
        ..Default::default()
    };
    let signature = sign_message(DEV_KEYS[from], tx.signature_hash()).unwrap();
    tx.into_signed(signature).into()
}

/// Sends `each` transactions of each account without waiting, and checks that all are mined, each
/// account's in order.
fn all_are_mined(setup: NodeSetup, accounts: usize, each: u64) {
    let dev = RunningDevChain::new(setup, SealingMode::Instant);
    let mut hashes = Vec::new();
    for nonce in 0..each {
        for from in 0..accounts {
            hashes.push(dev.send(transfer(from, nonce, Address::repeat_byte(0xee), 1)));
        }
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while DEV_ACCOUNTS[..accounts].iter().any(|account| dev.account(account).nonce < each) {
        let left = dev.running.pool.status();
        assert!(Instant::now() < deadline, "{setup:?}: {left:?} wait at {:?}", dev.head());
        std::thread::sleep(Duration::from_millis(10));
    }
    dev.running.pool.check_invariants().unwrap();
    let view = dev.running.live.view().unwrap();
    let places: Vec<_> = (hashes.iter())
        .map(|hash| view.transaction(hash).unwrap().map(|one| (one.block.number, one.index)))
        .collect();
    for from in 0..accounts {
        let own: Vec<_> = places.iter().skip(from).step_by(accounts).collect();
        assert!(own.iter().all(|place| place.is_some()), "{setup:?}: all are mined");
        assert!(own.is_sorted(), "{setup:?}: in the order of their nonces");
    }
}

#[test]
fn a_thousand_transactions_of_one_account_are_all_mined() {
    sample::of(NodeSetup::native(), 3).into_iter().for_each(|setup| all_are_mined(setup, 1, 1_000));
}

#[test]
fn a_thousand_transactions_of_many_accounts_are_all_mined() {
    sample::of(NodeSetup::native(), 3).into_iter().for_each(|setup| all_are_mined(setup, 20, 50));
}

#[test]
fn changes_of_the_state_show_at_once_and_are_part_of_the_next_block() {
    for setup in sample::of(NodeSetup::native(), 3) {
        let node = TestNode::new(&ChainSpec::dev(), setup);
        let dev = RunningDevChain::start(&node, SealingMode::Manual);
        let someone = Address::repeat_byte(7);
        let set = |changed| dev.wait(dev.chain.set_account(someone, changed)).unwrap();
        let code = bytes!("600160005260206000f3");
        set(AccountOverride { balance: Some(U256::from(5)), ..Default::default() });
        set(AccountOverride { nonce: Some(9), ..Default::default() });
        set(AccountOverride { code: Some(code.clone()), ..Default::default() });
        let slot = (U256::from(3), U256::from(4));
        set(AccountOverride { slots: vec![slot], ..Default::default() });
        let has_changed = |dev: &RunningDevChain| {
            let account = dev.account(&someone);
            assert_eq!((account.balance, account.nonce), (U256::from(5), 9), "{setup:?}");
            let view = dev.running.live.view().unwrap();
            assert_eq!(view.code(&account.code_hash).unwrap().as_ref(), Some(&code));
            let state = view.state(&view.head().hash()).unwrap();
            assert_eq!(state.slot(&someone, &B256::from(slot.0)).unwrap(), slot.1);
        };
        has_changed(&dev);
        assert_eq!(dev.head().0, 0, "no block was needed");
        let before = dev.running.live.head().state_root;
        dev.mine(1);
        has_changed(&dev);
        if setup.backend().profile().proofs {
            assert_ne!(dev.running.live.head().state_root, before, "{setup:?}");
        }
        dev.mine(3);
        has_changed(&dev);
        // The patch is part of reads of its block's state, and not of the block before.
        let view = dev.running.live.view().unwrap();
        let genesis = view.canonical_hash(0).unwrap().unwrap();
        let at_genesis = view.state(&genesis).unwrap().account(&someone).unwrap();
        assert_eq!(at_genesis.map(|account| account.nonce), Some(9), "{setup:?}");
        drop(view);
        let lower = AccountOverride { nonce: Some(8), ..Default::default() };
        let refused = dev.wait(dev.chain.set_account(someone, lower));
        assert!(matches!(refused, Err(DevError::NonceGoesBack { have: 9, .. })));
        // It is durable like every other change.
        let RunningDevChain { running, chain } = dev;
        drop(chain);
        drop(running);
        has_changed(&RunningDevChain::start(&node, SealingMode::Manual));
    }
}

#[test]
fn a_snapshot_takes_back_blocks_changes_time_and_pool() {
    for setup in sample::of(NodeSetup::native(), 3) {
        let dev = RunningDevChain::new(setup, SealingMode::Manual);
        let someone = Address::repeat_byte(7);
        let fund = |wei| {
            let changed = AccountOverride { balance: Some(U256::from(wei)), ..Default::default() };
            dev.wait(dev.chain.set_account(someone, changed)).unwrap();
        };
        let kept = dev.send(transfer(1, 0, someone, 1));
        fund(100);
        let snapshot = dev.wait(dev.chain.snapshot());
        let later = dev.wait(dev.chain.snapshot());
        for round in 0..3 {
            // Enough blocks that the first are durable.
            let sent = dev.send(transfer(0, 0, someone, 1));
            dev.mine(1);
            assert_eq!(dev.account(&someone).balance, U256::from(102), "{setup:?}");
            dev.chain.increase_time(1_000_000);
            fund(7);
            dev.mine(10);
            assert_eq!(dev.head().0, 11);
            let queued = dev.send(transfer(2, 5, someone, 1));
            let again = if round == 0 { snapshot } else { later + round };
            assert!(dev.wait(dev.chain.revert(again)).unwrap());
            assert!(!dev.wait(dev.chain.revert(later)).unwrap(), "later ones are gone");
            assert_eq!(dev.head().0, 0);
            assert_eq!(dev.account(&someone).balance, U256::from(100), "{setup:?}");
            let pool = &dev.running.pool;
            assert!(pool.get(&kept).is_some() && pool.get(&sent).is_none());
            assert!(pool.get(&queued).is_none());
            assert!(dev.running.live.view().unwrap().transaction(&sent).unwrap().is_none());
            // The same transaction can be sent again, and gives the same block.
            assert_eq!(dev.wait(dev.chain.snapshot()), later + round + 1);
        }
        let ahead = dev.chain.next_block().timestamp;
        dev.mine(1);
        assert!(dev.head().1 <= ahead + 5, "the clock went back too");
    }
}

#[test]
fn times_are_those_that_were_asked_for() {
    let dev = RunningDevChain::new(NodeSetup::MPT, SealingMode::Manual);
    dev.mine(1);
    let (_, start) = dev.head();
    dev.chain.set_next_timestamp(start + 1_000).unwrap();
    assert_eq!(dev.chain.next_block().timestamp, start + 1_000);
    dev.mine(2);
    let (_, second) = dev.head();
    assert!((start + 1_001..start + 1_010).contains(&second), "the clock goes on from there");
    let refused = dev.chain.set_next_timestamp(second);
    assert!(matches!(refused, Err(DevError::TimeGoesBack { .. })));
    dev.wait(dev.chain.mine(5, Some(60), None)).unwrap();
    let (number, last) = dev.head();
    assert_eq!(number, 8);
    assert!((second + 240..second + 255).contains(&last));
}

#[test]
fn an_impersonated_contract_sends_transactions() {
    for setup in sample::of(NodeSetup::native(), 3) {
        let node = TestNode::new(&ChainSpec::dev(), setup);
        let dev = RunningDevChain::start(&node, SealingMode::Instant);
        let contract = Address::repeat_byte(0xcc);
        let changed = AccountOverride {
            balance: Some(U256::from(GWEI * GWEI)),
            code: Some(bytes!("00")),
            ..Default::default()
        };
        dev.wait(dev.chain.set_account(contract, changed)).unwrap();
        dev.chain.impersonate(contract, true);
        assert!(dev.chain.is_impersonated(&contract));
        let unsigned = transfer(0, 0, Address::repeat_byte(1), 5);
        let hash = dev.running.pool.add_unsigned(unsigned, contract, &dev.running.live).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while dev.account(&contract).nonce == 0 {
            assert!(Instant::now() < deadline, "{setup:?}: it is not mined");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Its sender is not the signature's, in memory and on disk.
        dev.mine(5);
        let view = dev.running.live.view().unwrap();
        assert_eq!(view.transaction(&hash).unwrap().unwrap().sender, contract);
        assert_eq!(dev.account(&DEV_ACCOUNTS[0]).nonce, 0);
    }
}

#[test]
fn going_back_further_than_the_retention_is_refused() {
    let node = TestNode { retention: 5, ..TestNode::new(&ChainSpec::dev(), NodeSetup::MPT) };
    let dev = RunningDevChain::start(&node, SealingMode::Manual);
    let snapshot = dev.wait(dev.chain.snapshot());
    dev.mine(20);
    let refused = dev.wait(dev.chain.revert(snapshot));
    let is_too_deep = matches!(refused, Err(DevError::Engine(EngineError::TooDeepReorg { .. })));
    assert!(is_too_deep, "{refused:?}");
    assert_eq!(dev.head().0, 20, "nothing has changed");
}

fn balance(wei: u64) -> AccountOverride {
    AccountOverride { balance: Some(U256::from(wei)), ..Default::default() }
}

/// Regression: the patch before a block was only in memory, so that the block was different when it
/// was executed again after a restart.
#[test]
fn blocks_are_executed_again_with_what_was_changed_before_them() {
    for setup in sample::of(NodeSetup::native(), 3) {
        let node = TestNode::new(&ChainSpec::dev(), setup);
        let dev = RunningDevChain::start(&node, SealingMode::Manual);
        let poor = Address::repeat_byte(7);
        for (number, changed) in [(1, poor), (4, DEV_ACCOUNTS[5])] {
            // An account that a transaction of the block then pays.
            dev.wait(dev.chain.set_account(changed, balance(100 * number))).unwrap();
            dev.send(transfer(0, number - 1, changed, 1));
            dev.mine(1);
            for nonce in number..number + 2 {
                dev.send(transfer(0, nonce, poor, 1));
                dev.mine(1);
            }
        }
        let head = dev.head().0;
        let read = |live: &retrie_engine::LiveChain, number: u64, address| {
            let view = live.view().unwrap();
            let block = view.canonical_hash(number).unwrap().unwrap();
            let block = view.block(&block).unwrap().unwrap();
            let state = view.state_before(&block).unwrap();
            state.account(&address).unwrap().unwrap_or_default().balance
        };
        let before = |live: &_| [read(live, 1, poor), read(live, 4, DEV_ACCOUNTS[5])];
        let expected = [U256::from(100), U256::from(400)];
        assert_eq!(before(&dev.running.live), expected, "{setup:?}");
        drop(dev);
        let running = node.start();
        assert_eq!(before(&running.live), expected, "{setup:?}, after a restart");
        let stop = AtomicBool::new(false);
        let report = re_execute(&running.live, 1..=head, &stop, &mut |_| {}).unwrap();
        assert_eq!(report.failures, Vec::<String>::new(), "{setup:?}");
        assert_eq!((report.blocks, report.complete), (head, true));
        drop(running);
        // The patch is removed together with its block.
        let chain = node.open();
        assert!(chain.db().begin_read().unwrap().has_patches().unwrap());
        chain.unwind(0, &mut |_| {}).unwrap();
        assert!(!chain.db().begin_read().unwrap().has_patches().unwrap(), "{setup:?}");
    }
}

/// Regression: a balance that was set was lost when the node stopped before the next block.
#[test]
fn what_was_changed_of_the_head_outlives_stops_and_reverts() {
    for setup in sample::of(NodeSetup::native(), 3) {
        let node = TestNode::new(&ChainSpec::dev(), setup);
        let someone = Address::repeat_byte(7);
        let dev = RunningDevChain::start(&node, SealingMode::Manual);
        let set = |dev: &RunningDevChain, wei| {
            dev.wait(dev.chain.set_account(someone, balance(wei))).unwrap()
        };
        dev.mine(5);
        set(&dev, 7);
        let snapshot = dev.wait(dev.chain.snapshot());
        set(&dev, 8);
        drop(dev);
        let dev = RunningDevChain::start(&node, SealingMode::Manual);
        assert_eq!(dev.account(&someone).balance, U256::from(8), "{setup:?}");
        assert!(!dev.wait(dev.chain.revert(snapshot)).unwrap(), "snapshots end with the process");
        // A patch in a block is no longer pending, even if the block is reverted.
        let snapshot = dev.wait(dev.chain.snapshot());
        dev.mine(1);
        set(&dev, 9);
        assert!(dev.wait(dev.chain.revert(snapshot)).unwrap());
        drop(dev);
        let dev = RunningDevChain::start(&node, SealingMode::Manual);
        assert_eq!((dev.head().0, dev.account(&someone).balance), (5, U256::from(8)), "{setup:?}");
        dev.wait(dev.chain.set_head(dev.running.live.head().parent_hash)).unwrap();
        assert_eq!(dev.account(&someone).balance, U256::ZERO, "it was of another block");
        drop(dev);
        let dev = RunningDevChain::start(&node, SealingMode::Manual);
        assert_eq!((dev.head().0, dev.account(&someone).balance), (4, U256::ZERO), "{setup:?}");
    }
}

/// A kill must not lose a patch on a durable block: it is stored before the tool gets its answer.
#[test]
fn what_was_changed_of_a_durable_head_is_durable_at_once() {
    let node = TestNode::new(&ChainSpec::dev(), NodeSetup::MPT);
    let dev = RunningDevChain::start(&node, SealingMode::Manual);
    let noted = || {
        let read = dev.running.live.chain().db().begin_read().unwrap();
        read.note("dev-patch").unwrap().filter(|note| !note.is_empty())
    };
    for _ in 0..2 {
        dev.mine(3);
        dev.wait(dev.running.engine.handle().flush()).unwrap();
        assert_eq!(noted(), None);
        let someone = Address::repeat_byte(7);
        dev.wait(dev.chain.set_account(someone, balance(dev.head().0))).unwrap();
        assert_eq!(noted().unwrap()[..32], dev.running.live.head().hash()[..]);
    }
}
