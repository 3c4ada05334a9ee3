//! The made chain, and nodes on it.

use crate::common::{NodeFixture, lvmt, mpt, test_chain};
use alloy_primitives::{Address, B256, Bytes, TxKind, hex};
use alloy_rpc_types_engine::ForkchoiceState;
use retrie_db::AddressBounds;
use retrie_pipeline::{
    PipelineError,
    testkit::{BlockPlan, TestCall, TestChain, TestRules, TestWallet},
};
use retrie_state::AnyBackend;
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
};

/// Passes its value on to the account that its input names.
const FORWARDER: &str = "5f5f5f5f345f355af100";
/// Reverts with the word 42.
const REVERTER: &str = "602a5f5260205ffd";
/// Creates a contract of its input, by CREATE.
const FACTORY: &str = "365f5f37365f5ff000";
/// The same by CREATE2.
const FACTORY2: &str = "365f5f375f365f5ff500";
/// Creates a contract of its input, and reverts.
const LOST_FACTORY: &str = "365f5f37365f5ff05f5ffd";
/// Runtime code that returns at once.
const NOTHING: &str = "00";
/// Initialisation code of a contract that destroys itself at once, for its creator.
const SHORT_LIVED: &str = "33ff";

/// Receives transfers, direct ones and through the forwarder.
pub(super) const TARGET: Address = Address::repeat_byte(0x77);
/// Never takes part.
pub(super) const UNUSED: Address = Address::repeat_byte(0x99);

/// Initialisation code that returns `code`.
fn initial(code: &str) -> Bytes {
    let code = hex::decode(code).unwrap();
    let length = code.len() as u8;
    let copy = [0x60, length, 0x60, 0x0c, 0x60, 0, 0x39, 0x60, length, 0x60, 0, 0xf3];
    [&copy[..], &code[..]].concat().into()
}

fn deploy(from: u8, code: &str) -> TestCall {
    TestCall { from, to: TxKind::Create, value: 0, input: initial(code) }
}

fn send(from: u8, to: Address, value: u64, input: impl Into<Bytes>) -> TestCall {
    TestCall { from, to: to.into(), value, input: input.into() }
}

/// The chain, and its contracts.
pub(super) struct OtsScene {
    pub(super) chain: TestChain,
    /// Hashes by number, genesis included.
    pub(super) blocks: Vec<B256>,
    pub(super) forwarder: Address,
    pub(super) reverter: Address,
    pub(super) factory: Address,
    /// Created by the factory: by CREATE, by CREATE2.
    pub(super) children: [Address; 2],
    /// Created and destroyed in one transaction.
    pub(super) short_lived: Address,
    /// Created by a call that was reverted.
    pub(super) lost: Address,
}

/// The first block of those that only pay the target.
pub(super) const FIRST_PAYMENT: usize = 5;

impl OtsScene {
    /// `payments` blocks follow the contracts, each with one or two transactions for the target.
    pub(super) fn new(payments: u64) -> Self {
        let mut chain = test_chain(TestRules::Prague);
        let genesis = chain.genesis();
        let wallet = |n| TestWallet::new(n).address;
        let contract = |nonce| wallet(1).create(nonce);
        let [forwarder, factory, factory2, reverter, lost_factory] = [0, 1, 2, 3, 4].map(contract);
        let child2 = factory2.create2_from_code(B256::ZERO, initial(NOTHING));
        let mut blocks = vec![genesis];
        let mut add = |calls: Vec<TestCall>| {
            let parent = *blocks.last().unwrap();
            blocks.push(chain.extend(parent, BlockPlan::new(calls)));
        };
        add(vec![
            deploy(1, FORWARDER),
            deploy(1, FACTORY),
            deploy(1, FACTORY2),
            deploy(1, REVERTER),
            deploy(1, LOST_FACTORY),
        ]);
        add(vec![
            send(2, forwarder, 1000, TARGET.into_word()),
            send(3, factory, 0, initial(NOTHING)),
            send(3, factory2, 0, initial(NOTHING)),
        ]);
        add(vec![
            send(2, reverter, 0, Bytes::new()),
            send(3, lost_factory, 0, initial(NOTHING)),
            send(3, factory, 0, hex::decode(SHORT_LIVED).unwrap()),
        ]);
        add(vec![TestCall::transfer(0, wallet(4), 5)]);
        for number in 0..payments {
            let mut calls = vec![TestCall::transfer(4, TARGET, 1 + number)];
            if number % 3 == 1 {
                calls.push(send(5, forwarder, 1, TARGET.into_word()));
                calls.push(TestCall::transfer(6, wallet(0), 1));
            }
            add(calls);
        }
        Self {
            chain,
            blocks,
            forwarder,
            reverter,
            factory,
            // Contracts begin with nonce 1.
            children: [factory.create(1), child2],
            short_lived: factory.create(2),
            lost: lost_factory.create(1),
        }
    }

    pub(super) fn head(&self) -> B256 {
        *self.blocks.last().unwrap()
    }

    /// Hash of a transaction.
    pub(super) fn transaction(&self, block: usize, index: usize) -> B256 {
        let block = self.chain.block(self.blocks[block]);
        *block.body.transactions[index].tx_hash()
    }

    /// A node with the whole chain. All but its last two blocks are durable, and these may be.
    pub(super) async fn node(&self, backend: Arc<dyn AnyBackend>) -> NodeFixture {
        let mut node = NodeFixture::new(&self.chain.spec, backend);
        node.add(&self.chain.path(self.chain.genesis(), self.head())).await;
        set_durable_head(&node, self.blocks[self.blocks.len() - 3]).await;
        node.set_head(self.head(), B256::ZERO, B256::ZERO).await;
        node
    }

    /// Hashes of the transactions that each account takes part in, by what the plans of the blocks
    /// say: those of the target.
    pub(super) fn of_target(&self) -> Vec<B256> {
        let mut found = vec![self.transaction(2, 0)];
        for number in FIRST_PAYMENT..self.blocks.len() {
            let count = self.chain.block(self.blocks[number]).body.transactions.len();
            found.extend((0..count.min(2)).map(|index| self.transaction(number, index)));
        }
        found
    }
}

/// The stores that the tests run on.
pub(super) fn stores() -> BTreeMap<&'static str, Arc<dyn AnyBackend>> {
    [("mpt", mpt()), ("lvmt", lvmt())].into_iter().collect()
}

/// Makes a block the head, and its whole chain durable.
pub(super) async fn set_durable_head(node: &NodeFixture, head: B256) {
    let engine = node.engine.handle();
    let state = ForkchoiceState {
        head_block_hash: head,
        safe_block_hash: B256::ZERO,
        finalized_block_hash: B256::ZERO,
    };
    assert!(engine.forkchoice(state).await.unwrap().status.is_valid());
    engine.flush().await.unwrap();
}

/// One step of the address index.
pub(super) fn step(node: &NodeFixture) -> bool {
    let live = node.live();
    let bounds = AddressBounds { participants: 20, blocks: 4 };
    let trace = |hash: &B256| live.view().and_then(|view| view.trace_participants(hash));
    let step: Result<bool, PipelineError> =
        live.chain().db().index_addresses(&bounds, &AtomicBool::new(false), trace);
    step.unwrap()
}

/// Indexes all durable blocks.
pub(super) fn index(node: &NodeFixture) {
    while step(node) {}
}
