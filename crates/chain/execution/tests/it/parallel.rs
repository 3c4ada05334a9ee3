//! Parallel execution on the values of a block access list has the outcome of serial execution,
//! whatever the list contains.

use crate::common;

use alloy_consensus::{BlockBody, Signed, TxEip4844, TxEip7702, TxLegacy};
use alloy_eip7928::{AccountChanges, BalanceChange, BlockAccessIndex, NonceChange, StorageChange};
use alloy_eips::{
    eip4895::{Withdrawal, Withdrawals},
    eip7702::Authorization,
};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address, keccak256, map::HashMap};
use common::{MapState, fixtures::*};
use retrie_chainspec::primitives::{Block, Header, RecoveredBlock, Transaction};
use retrie_execution::{
    BlockAccessList, CodeCache, ExecutionError, ExecutionInput, ExecutionOutcome, execute_block,
    execute_block_in_parallel,
};
use retrie_state::{Account, StateReader};

const NUMBER: u64 = 400;
const GAS: u64 = 3_000_000;
const PRICE: u128 = 3;

const TOKEN: Address = address!("0x70ce000000000000000000000000000000000001");
const COUNTER: Address = address!("0xc0c0000000000000000000000000000000000001");
const REVERTS: Address = address!("0x4e00000000000000000000000000000000000001");
const LOOKS: Address = address!("0x1000700000000000000000000000000000000001");
const DOOMED: Address = address!("0xde00000000000000000000000000000000000001");
const IDENTITY: Address = address!("0x0000000000000000000000000000000000000004");

/// Moves word 1 from the caller to word 0, unchecked: balances are the slots of addresses.
const TOKEN_CODE: [u8; 24] = [
    0x33, 0x54, 0x60, 0x20, 0x35, 0x90, 0x03, 0x33, 0x55, // slot[caller] -= word 1
    0x60, 0x00, 0x35, 0x54, 0x60, 0x20, 0x35, 0x01, 0x60, 0x00, 0x35,
    0x55, // slot[word 0] += ..
    0x00, 0x00, 0x00,
];
/// Counts in slot 0, and logs the count.
const COUNTER_CODE: [u8; 19] = [
    0x60, 0x00, 0x54, 0x60, 0x01, 0x01, 0x80, 0x60, 0x00, 0x55, // slot[0] += 1
    0x60, 0x00, 0x52, 0x60, 0x20, 0x60, 0x00, 0xa0, 0x00, // log0(count)
];
/// Counts in slot 0, and reverts.
const REVERTS_CODE: [u8; 15] = [
    0x60, 0x00, 0x54, 0x60, 0x01, 0x01, 0x60, 0x00, 0x55, // slot[0] += 1
    0x60, 0x00, 0x60, 0x00, 0xfd, 0x00,
];
/// Stores what it reads: the balance of the coinbase, an ancestor's hash, the counter's code hash.
const LOOKS_CODE: [u8; 41] = [
    0x41, 0x31, 0x60, 0x00, 0x55, // slot[0] = balance(coinbase)
    0x60, 0x02, 0x43, 0x03, 0x40, 0x60, 0x01, 0x55, // slot[1] = blockhash(number - 2)
    0x60, 0x00, 0x35, 0x3f, 0x60, 0x02, 0x55, // slot[2] = extcodehash(word 0)
    0x60, 0x20, 0x60, 0x00, 0x60, 0x00, 0x60, 0x00, 0x60, 0x00, 0x60, 0x00, 0x35, 0x5a,
    0xf1, // call(word 0)
    0x60, 0x03, 0x55, 0x00, 0x00, 0x00, // slot[3] = whether it went well
];

fn sender(n: u8) -> Address {
    Address::repeat_byte(0x50 + n)
}

/// A block under construction: transactions, their senders, and the senders' next nonces.
#[derive(Clone, Default)]
struct BlockDraft {
    transactions: Vec<Transaction>,
    senders: Vec<Address>,
    nonces: HashMap<Address, u64>,
}

impl BlockDraft {
    fn nonce(&mut self, from: Address) -> u64 {
        let nonce = self.nonces.entry(from).or_default();
        *nonce += 1;
        *nonce - 1
    }

    fn push(&mut self, from: Address, transaction: Transaction) {
        self.senders.push(from);
        self.transactions.push(transaction);
    }

    fn send(&mut self, from: Address, to: impl Into<TxKind>, value: u64, input: impl Into<Bytes>) {
        let tx = TxLegacy {
            nonce: self.nonce(from),
            gas_price: PRICE,
            gas_limit: GAS,
            to: to.into(),
            value: U256::from(value),
            input: input.into(),
            ..Default::default()
        };
        self.push(from, Transaction::Legacy(Signed::new_unhashed(tx, signature())));
    }

    fn token(&mut self, from: Address, to: Address, amount: u64) {
        let words = [to.into_word(), B256::from(U256::from(amount))];
        self.send(from, TOKEN, 0, words.concat());
    }

    /// Delegates the account that the test signature recovers to; it does not exist before.
    fn delegate(&mut self, from: Address, to: Address) {
        let one = Authorization { chain_id: U256::ZERO, address: to, nonce: 0 };
        let tx = TxEip7702 {
            chain_id: 1,
            nonce: self.nonce(from),
            max_fee_per_gas: PRICE,
            gas_limit: GAS,
            to: COUNTER,
            authorization_list: vec![one.into_signed(signature())],
            ..Default::default()
        };
        self.push(from, Transaction::Eip7702(Signed::new_unhashed(tx, signature())));
    }

    fn blob(&mut self, from: Address, to: Address) {
        let tx = TxEip4844 {
            chain_id: 1,
            nonce: self.nonce(from),
            max_fee_per_gas: PRICE,
            gas_limit: GAS,
            to,
            blob_versioned_hashes: vec![B256::repeat_byte(1)],
            max_fee_per_blob_gas: 10,
            ..Default::default()
        };
        self.push(from, Transaction::Eip4844(Signed::new_unhashed(tx, signature())));
    }

    fn block(&self) -> RecoveredBlock {
        self.block_with(header())
    }

    fn block_with(&self, header: Header) -> RecoveredBlock {
        let paid = [COINBASE, sender(0), TOKEN].map(|address| Withdrawal {
            address,
            amount: 3,
            ..Default::default()
        });
        let body = BlockBody {
            transactions: self.transactions.clone(),
            ommers: Vec::new(),
            withdrawals: Some(Withdrawals::new(paid.to_vec())),
        };
        RecoveredBlock::new_unhashed(Block { header, body }, self.senders.clone())
    }
}

fn header() -> Header {
    Header {
        difficulty: U256::ZERO,
        base_fee_per_gas: Some(1),
        excess_blob_gas: Some(0),
        blob_gas_used: Some(0),
        parent_beacon_block_root: Some(B256::repeat_byte(0xbe)),
        slot_number: Some(1),
        gas_limit: 3_000_000_000,
        ..common::fixtures::header(ForkPoint { number: NUMBER, timestamp: 1_000 })
    }
}

struct ParallelFixture {
    world: StateFixture,
    hashes: HashMap<u64, B256>,
}

impl ParallelFixture {
    fn new() -> Self {
        let mut world = StateFixture::new()
            .contract(TOKEN, &TOKEN_CODE, &[])
            .contract(COUNTER, &COUNTER_CODE, &[(0, 41)])
            .contract(REVERTS, &REVERTS_CODE, &[(0, 1)])
            .contract(LOOKS, &LOOKS_CODE, &[])
            .contract(DOOMED, &DESTROY_CODE, &[(1, 1)])
            .contract(FACTORY, &FACTORY_CODE, &[]);
        for rich in (0..6).map(sender).chain([COINBASE]) {
            world = world.account(rich, balance(1_000_000_000_000));
        }
        for n in 0..6 {
            let slot = U256::from_be_bytes(sender(n).into_word().0);
            world.state.set_slot(TOKEN, slot, U256::from(1_000_000));
        }
        let hashes = (NUMBER - 256..NUMBER).map(|n| (n, keccak256(n.to_be_bytes()))).collect();
        Self { world, hashes }
    }

    fn input(&self) -> ExecutionInput<'_> {
        ExecutionInput::new(&self.world.state, &self.world.codes, &self.hashes)
    }

    fn serial(&self, block: &RecoveredBlock) -> Result<ExecutionOutcome, ExecutionError> {
        execute_block(&network("Amsterdam"), block, self.input())
    }

    fn parallel(
        &self,
        block: &RecoveredBlock,
        list: &BlockAccessList,
        threads: usize,
    ) -> Result<ExecutionOutcome, ExecutionError> {
        execute_block_in_parallel(&network("Amsterdam"), block, self.input(), list, threads)
    }

    /// Executes a block both ways, on its own list, and compares everything.
    fn compare(&self, block: &RecoveredBlock) -> ExecutionOutcome {
        let serial = self.serial(block).unwrap();
        let list = serial.access_list.clone().unwrap();
        assert_eq!(serial.precomputed_transactions, 0);
        let mut ahead = None;
        for threads in [1, 2, 5] {
            let parallel = self.parallel(block, &list, threads).unwrap();
            same(&serial, &parallel);
            assert_eq!(
                *ahead.get_or_insert(parallel.precomputed_transactions),
                parallel.precomputed_transactions
            );
        }
        // With a cache, the timing of the threads decides which of them misses a code first.
        let cached = |execute: &dyn Fn(ExecutionInput<'_>) -> ExecutionOutcome| {
            let codes = CodeCache::default();
            execute(self.input().with_code_cache(&codes))
        };
        let spec = network("Amsterdam");
        let one = cached(&|input| execute_block(&spec, block, input).unwrap());
        let mut other =
            cached(&|input| execute_block_in_parallel(&spec, block, input, &list, 3).unwrap());
        other.accesses.codes = one.accesses.codes;
        same(&one, &other);
        ExecutionOutcome { precomputed_transactions: ahead.unwrap(), ..serial }
    }

    fn after(&self, outcome: &ExecutionOutcome) -> MapState {
        let mut after = self.world.state.clone();
        after.apply(&outcome.delta);
        after
    }
}

#[track_caller]
fn same(one: &ExecutionOutcome, other: &ExecutionOutcome) {
    assert_eq!(one.receipts, other.receipts);
    assert_eq!((one.gas_used, one.blob_gas_used), (other.gas_used, other.blob_gas_used));
    assert_eq!(one.requests, other.requests);
    assert_eq!(one.delta, other.delta);
    assert_eq!(one.codes, other.codes);
    assert_eq!(one.access_list, other.access_list);
    assert_eq!(one.accesses, other.accesses);
}

/// Numbers from a seed.
struct TestRng(u64);

impl TestRng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// A block with many conflicts: its transactions use the same few accounts and slots.
fn crowd(seed: u64, transactions: usize) -> BlockDraft {
    let mut dice = TestRng(seed);
    let mut page = BlockDraft::default();
    while page.transactions.len() < transactions {
        let from = match dice.roll(7) {
            6 => COINBASE,
            n => sender(n as u8),
        };
        let other = sender(dice.roll(6) as u8);
        let amount = dice.roll(1_000);
        match dice.roll(14) {
            0 => page.send(from, other, amount, []),
            1 | 2 => page.token(from, other, amount),
            3 => page.send(from, COUNTER, 0, []),
            4 => page.send(from, REVERTS, amount, []),
            5 => page.send(from, LOOKS, 0, COUNTER.into_word()),
            6 => page.send(from, COINBASE, amount, []),
            7 => page.send(from, DOOMED, amount, []),
            8 => page.send(from, IDENTITY, amount, vec![7; 64]),
            // A new account.
            9 => {
                page.send(from, Address::with_last_byte(0x80 + dice.roll(64) as u8), amount + 1, [])
            }
            // A contract, which may exist already, and a call of it by another sender.
            10 => {
                let init = init_code(&[(1, amount as u8)], &COUNTER_CODE);
                page.send(from, FACTORY, 0, init.clone());
                page.send(other, create2_address(&init), 0, []);
            }
            // A contract that destroys itself in the same transaction.
            11 => page.send(from, TxKind::Create, amount, DESTROY_CODE),
            12 => page.blob(from, other),
            _ => {
                page.delegate(from, if amount.is_multiple_of(2) { COUNTER } else { LOOKS });
            }
        }
    }
    page
}

#[test]
fn blocks_full_of_conflicts_have_the_same_outcome() {
    let stage = ParallelFixture::new();
    for seed in 0..12 {
        let block = crowd(seed, 60).block();
        let outcome = stage.compare(&block);
        let (all, ahead) = (outcome.receipts.len() as u64, outcome.precomputed_transactions);
        // Only creations over accounts with nothing but a balance are executed by the caller.
        assert!(ahead > all * 9 / 10, "seed {seed}: {ahead} of {all}");
        assert!(outcome.receipts.iter().any(|receipt| receipt.success), "seed {seed}");
        stage.after(&outcome);
    }
}

fn without_blobs(page: BlockDraft) -> BlockDraft {
    let mut kept = BlockDraft::default();
    for (transaction, from) in page.transactions.into_iter().zip(page.senders) {
        match transaction {
            Transaction::Eip4844(tx) => kept.send(from, tx.tx().to, 0, []),
            transaction => {
                kept.nonce(from);
                kept.push(from, transaction);
            }
        }
    }
    kept
}

#[test]
fn each_sees_what_those_before_it_have_left() {
    let stage = ParallelFixture::new();
    let mut page = BlockDraft::default();
    // A payment creates an account, which then pays another one.
    let late = Address::repeat_byte(0x99);
    page.send(sender(0), late, 900_000_000, []);
    page.send(late, sender(1), 5, []);
    // A contract is made, called, and looked at.
    let made = sender(1).create(0);
    page.send(sender(1), TxKind::Create, 0, init_code(&[(0, 9)], &COUNTER_CODE));
    page.send(sender(2), made, 0, []);
    page.send(sender(3), LOOKS, 0, made.into_word());
    // A delegation is made, and used.
    page.delegate(sender(4), COUNTER);
    let outcome = stage.compare(&page.block());
    let list = outcome.access_list.as_ref().unwrap();
    let is_delegated = |account: &&AccountChanges| {
        account.code_changes.iter().any(|change| change.new_code.starts_with(&[0xef, 0x01, 0x00]))
    };
    let authority = list.iter().find(is_delegated).unwrap().address;
    page.send(sender(5), authority, 0, []);
    page.send(sender(5), authority, 0, []);
    // The coinbase pays out of what it has earned in this very block.
    page.send(COINBASE, sender(0), 1_000_000_000_000 - GAS * PRICE as u64, []);

    let outcome = stage.compare(&page.block());
    assert_eq!(outcome.precomputed_transactions, page.transactions.len() as u64);
    assert!(outcome.receipts.iter().all(|receipt| receipt.success));
    let after = stage.after(&outcome);
    assert_eq!(after.account(&late).unwrap().unwrap().nonce, 1);
    assert_eq!(after.slot_value(made, 0), U256::from(11));
    assert_eq!(after.slot_value(authority, 0), U256::from(2));
    assert_eq!(after.slot_value(LOOKS, 1), U256::from_be_bytes(stage.hashes[&(NUMBER - 2)].0));
    assert_eq!(after.slot_value(LOOKS, 2), U256::from_be_bytes(keccak256(COUNTER_CODE).0));
    assert_eq!(outcome.accesses.block_hashes, 1);
}

#[test]
fn a_creation_where_there_is_an_account_is_executed_ahead() {
    let mut stage = ParallelFixture::new();
    let init = init_code(&[(1, 1)], &[0x00]);
    let (paid, bare) = (create2_address(&init), sender(1).create(0));
    stage.world = stage.world.account(bare, balance(1));
    stage.world.state.set_slot(bare, U256::from(1), U256::from(9));
    let mut page = BlockDraft::default();
    page.send(sender(0), paid, 7, []);
    page.send(sender(0), FACTORY, 0, init);
    // There is storage here.
    page.send(sender(1), TxKind::Create, 0, init_code(&[], &[0x00]));
    page.send(sender(2), sender(3), 1, []);
    let outcome = stage.compare(&page.block());
    assert_eq!(outcome.precomputed_transactions, 4);
    assert!(outcome.receipts.iter().all(|receipt| receipt.success));
    let after = stage.after(&outcome);
    assert_eq!(after.account(&paid).unwrap().unwrap().nonce, 1);
    assert_eq!(after.account(&bare).unwrap().unwrap().nonce, 1);
    assert_eq!(after.slot_value(bare, 1), U256::from(9));
}

type BalMutation = fn(&mut BlockAccessList);

/// The account that has most changes of this kind.
fn busiest<T>(
    list: &mut BlockAccessList,
    changes: fn(&mut AccountChanges) -> &mut Vec<T>,
) -> &mut Vec<T> {
    list.iter_mut().map(changes).max_by_key(|changes| changes.len()).unwrap()
}

/// The slot that is written most often.
fn busiest_slot(list: &mut BlockAccessList) -> &mut Vec<StorageChange> {
    let slots = list.iter_mut().flat_map(|account| &mut account.storage_changes);
    slots.map(|slot| &mut slot.changes).max_by_key(|changes| changes.len()).unwrap()
}

/// Wrong contents that leave a list well-formed.
const LIES: [(&str, BalMutation); 18] = [
    ("nothing at all", |list| list.clear()),
    ("an account less, at the end", |list| drop(list.pop())),
    ("an account less, in the middle", |list| drop(list.remove(list.len() / 2))),
    ("an account more", |list| list.push(AccountChanges::new(Address::repeat_byte(0xff)))),
    ("a read more", |list| {
        list.iter_mut().for_each(|account| account.storage_reads.push(U256::MAX));
    }),
    ("reads less", |list| list.iter_mut().for_each(|account| account.storage_reads.clear())),
    ("no balances", |list| list.iter_mut().for_each(|account| account.balance_changes.clear())),
    ("a balance less", |list| {
        busiest(list, |a| &mut a.balance_changes).remove(1);
    }),
    ("another balance", |list| {
        busiest(list, |a| &mut a.balance_changes)[1].post_balance += U256::from(1);
    }),
    ("riches", |list| {
        for account in list {
            account.balance_changes =
                vec![BalanceChange::new(BlockAccessIndex::new(0), U256::MAX >> 1)];
        }
    }),
    ("poverty", |list| {
        for account in list {
            account.balance_changes =
                vec![BalanceChange::new(BlockAccessIndex::new(0), U256::ZERO)];
        }
    }),
    ("no nonces", |list| list.iter_mut().for_each(|account| account.nonce_changes.clear())),
    ("another nonce", |list| busiest(list, |a| &mut a.nonce_changes)[1].new_nonce += 1),
    ("nonces at once", |list| {
        for account in list {
            account.nonce_changes = vec![NonceChange::new(BlockAccessIndex::new(0), 77)];
        }
    }),
    ("another value of a slot", |list| busiest_slot(list)[0].new_value += U256::from(1)),
    ("a write less", |list| {
        busiest_slot(list).pop();
    }),
    ("writes one transaction later", |list| {
        for account in list {
            let slots = account.storage_changes.iter_mut().flat_map(|slot| &mut slot.changes);
            slots.for_each(|change| shift(&mut change.block_access_index));
            account.balance_changes.iter_mut().for_each(|one| shift(&mut one.block_access_index));
            account.nonce_changes.iter_mut().for_each(|one| shift(&mut one.block_access_index));
            account.code_changes.iter_mut().for_each(|one| shift(&mut one.block_access_index));
        }
    }),
    ("other codes", |list| {
        let codes = list.iter_mut().flat_map(|account| &mut account.code_changes);
        codes.for_each(|change| change.new_code = Bytes::from_static(&[0xfe]));
    }),
];

fn shift(index: &mut BlockAccessIndex) {
    *index = BlockAccessIndex::new(index.get() + 1);
}

#[test]
fn a_list_that_lies_changes_nothing() {
    let stage = ParallelFixture::new();
    let block = without_blobs(crowd(3, 40)).block();
    let serial = stage.serial(&block).unwrap();
    let list = serial.access_list.clone().unwrap();
    let truly = stage.parallel(&block, &list, 3).unwrap().precomputed_transactions;
    let mut found_out = 0;
    for (what, spoil) in LIES {
        let mut other = list.clone();
        spoil(&mut other);
        assert_ne!(other, list, "{what}");
        for threads in [1, 3] {
            let parallel = stage.parallel(&block, &other, threads).unwrap();
            // The read counts may differ: such a block is refused anyway.
            same(&serial, &ExecutionOutcome { accesses: serial.accesses, ..parallel.clone() });
            assert!(parallel.precomputed_transactions <= truly, "{what}");
            found_out += u64::from(parallel.precomputed_transactions < truly);
        }
        // The recorded list is the true one, so a header that commits to the wrong list is invalid.
        assert_ne!(serial.access_list_hash().unwrap(), keccak256(alloy_rlp::encode(&other)));
    }
    // Only few of the wrong entries are never read.
    assert!(found_out > 20, "{found_out}");
}

#[test]
fn a_block_is_invalid_for_the_same_reason() {
    let stage = ParallelFixture::new();
    let good = without_blobs(crowd(5, 30));
    let list = stage.serial(&good.block()).unwrap().access_list.unwrap();
    type BlockMutation = fn(&mut BlockDraft);
    let breaks: [(&str, BlockMutation); 5] = [
        ("nonce", |page| {
            page.nonce(sender(0));
            page.send(sender(0), sender(1), 1, []);
        }),
        ("nonce", |page| {
            page.nonces.insert(sender(0), 0);
            page.send(sender(0), sender(1), 1, []);
        }),
        ("lack of funds", |page| page.send(Address::repeat_byte(0x98), sender(1), 1, [])),
        ("lack of funds", |page| page.send(sender(1), sender(2), u64::MAX, [])),
        ("not enough gas", |page| {
            let nonce = page.nonce(sender(2));
            let tx = TxLegacy {
                nonce,
                gas_price: PRICE,
                gas_limit: 10_000,
                to: sender(1).into(),
                ..Default::default()
            };
            page.push(sender(2), Transaction::Legacy(Signed::new_unhashed(tx, signature())));
        }),
    ];
    for at_the_end in [true, false] {
        for (what, spoil) in breaks {
            let mut page = good.clone();
            spoil(&mut page);
            if at_the_end {
                page.send(sender(3), sender(4), 1, []);
            }
            let block = page.block();
            let Err(serial) = stage.serial(&block) else { panic!("{what}: valid") };
            assert!(serial.is_invalid_block(), "{what}: {serial}");
            for list in [&list, &Vec::new(), &rich(&list)] {
                let parallel = stage.parallel(&block, list, 3).unwrap_err();
                assert_eq!(parallel.to_string(), serial.to_string(), "{what}");
            }
        }
    }
}

/// A list that gives every account a very large balance.
fn rich(list: &BlockAccessList) -> BlockAccessList {
    let mut list = list.clone();
    for account in &mut list {
        account.balance_changes =
            vec![BalanceChange::new(BlockAccessIndex::new(0), U256::MAX >> 1)];
    }
    list
}

#[test]
fn room_in_a_block_is_counted_in_order() {
    let stage = ParallelFixture::new();
    let mut page = BlockDraft::default();
    for n in 0..5 {
        page.send(sender(n), COUNTER, 0, []);
    }
    let whole = stage.serial(&page.block()).unwrap();
    let list = whole.access_list.clone().unwrap();
    // Room for all of them, and for all but the last: each has to have all its gas left.
    let fits = whole.gas_used / 5 * 4 + GAS;
    for (gas_limit, is_valid) in [(fits + 50_000, true), (GAS * 2, true), (GAS + 1, false)] {
        let block = page.block_with(Header { gas_limit, ..header() });
        match (stage.serial(&block), stage.parallel(&block, &list, 2)) {
            (Ok(serial), Ok(parallel)) if is_valid => same(&serial, &parallel),
            (Err(serial), Err(parallel)) if !is_valid => {
                assert!(serial.to_string().contains("gas limit"), "{serial}");
                assert_eq!(serial.to_string(), parallel.to_string());
            }
            other => panic!("{gas_limit}: {other:?}"),
        }
    }
}

#[test]
fn what_cannot_be_read_is_told_as_in_serial_execution() {
    let mut stage = ParallelFixture::new();
    let block = without_blobs(crowd(1, 30)).block();
    let list = stage.serial(&block).unwrap().access_list.unwrap();
    assert!(stage.world.codes.remove(&keccak256(TOKEN_CODE)).is_some());
    let serial = stage.serial(&block).unwrap_err();
    assert!(!serial.is_invalid_block());
    let parallel = stage.parallel(&block, &list, 3).unwrap_err();
    assert_eq!(parallel.to_string(), serial.to_string());
}

#[test]
fn before_amsterdam_and_without_threads_it_is_serial() {
    let stage = ParallelFixture::new();
    let block = without_blobs(crowd(2, 20)).block();
    let serial = stage.serial(&block).unwrap();
    let list = serial.access_list.clone().unwrap();
    let none = stage.parallel(&block, &list, 0).unwrap();
    same(&serial, &none);
    assert_eq!(none.precomputed_transactions, 0);
    let spec = network("Osaka");
    let before = execute_block(&spec, &block, stage.input()).unwrap();
    let parallel = execute_block_in_parallel(&spec, &block, stage.input(), &list, 3).unwrap();
    same(&before, &parallel);
    assert_eq!(parallel.precomputed_transactions, 0);
}

#[test]
fn an_account_that_is_there_and_empty_is_no_lie() {
    // Mainnet has no such account any more; a test network may have some.
    let mut stage = ParallelFixture::new();
    let empty = Address::repeat_byte(0x97);
    stage.world = stage.world.account(empty, Account::default());
    let mut page = BlockDraft::default();
    page.send(sender(0), empty, 0, []);
    page.send(sender(1), LOOKS, 0, empty.into_word());
    page.send(sender(2), sender(3), 1, []);
    let block = page.block();
    let serial = stage.serial(&block).unwrap();
    let parallel = stage.parallel(&block, serial.access_list.as_ref().unwrap(), 2).unwrap();
    same(&serial, &parallel);
    assert_eq!(parallel.precomputed_transactions, 1);
}
