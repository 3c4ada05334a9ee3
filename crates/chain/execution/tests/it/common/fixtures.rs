//! Hand-made states and blocks under mainnet's rules.

use super::MapState;
use alloy_consensus::{BlockBody, Signed, TxLegacy};
use alloy_eips::{
    BlobScheduleBlobParams,
    eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
    eip8282::{BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_EXIT_CONTRACT_ADDRESS},
};
use alloy_genesis::Genesis;
use alloy_primitives::{
    Address, B256, Bytes, Signature, TxKind, U256, address, keccak256, map::HashMap,
};
use retrie_chainspec::{
    ChainSpec, ChainSpecParts,
    primitives::{Block, Header, RecoveredBlock, Transaction},
    test_networks::test_network,
};
use retrie_execution::{
    ExecutionError, ExecutionInput, ExecutionOutcome, execute_block, execute_block_with_observer,
};
use retrie_state::{Account, StateDelta, StateKey, StateValue, encode_slot};

pub const SENDER: Address = address!("0x1000000000000000000000000000000000000001");
pub const COINBASE: Address = address!("0xc000000000000000000000000000000000000001");
pub const CONTRACT: Address = address!("0xaa00000000000000000000000000000000000001");
pub const FACTORY: Address = address!("0xfa00000000000000000000000000000000000001");
pub const RECIPIENT: Address = address!("0xee00000000000000000000000000000000000001");

/// SELFDESTRUCT to the caller.
pub const DESTROY_CODE: [u8; 2] = [0x33, 0xff];
/// CREATE2 with the call data as init code and salt 0.
pub const FACTORY_CODE: [u8; 16] = [
    0x36, 0x60, 0x00, 0x60, 0x00, 0x37, // copy the call data to memory
    0x60, 0x00, 0x36, 0x60, 0x00, 0x60, 0x00, 0xf5, // create2(0, 0, size, 0)
    0x50, 0x00,
];

/// A block number and time of mainnet, for the rules that are active there.
#[derive(Clone, Copy, Debug)]
pub struct ForkPoint {
    pub number: u64,
    pub timestamp: u64,
}

pub const HOMESTEAD: ForkPoint = ForkPoint { number: 1_150_001, timestamp: 1_457_981_400 };
pub const DAO: ForkPoint = ForkPoint { number: 1_920_000, timestamp: 1_469_020_840 };
pub const TANGERINE: ForkPoint = ForkPoint { number: 2_463_001, timestamp: 1_476_796_771 };
pub const SPURIOUS_DRAGON: ForkPoint = ForkPoint { number: 2_675_001, timestamp: 1_479_831_344 };
pub const PETERSBURG: ForkPoint = ForkPoint { number: 7_280_001, timestamp: 1_551_383_524 };
pub const SHANGHAI: ForkPoint = ForkPoint { number: 17_034_871, timestamp: 1_681_338_479 };
pub const CANCUN: ForkPoint = ForkPoint { number: 19_426_588, timestamp: 1_710_338_147 };
pub const PRAGUE: ForkPoint = ForkPoint { number: 22_431_085, timestamp: 1_746_612_335 };

pub fn header(at: ForkPoint) -> Header {
    let mut header = Header {
        number: at.number,
        timestamp: at.timestamp,
        beneficiary: COINBASE,
        gas_limit: 30_000_000,
        parent_hash: B256::repeat_byte(0x11),
        difficulty: U256::from(1),
        ..Default::default()
    };
    if at.number >= SHANGHAI.number {
        header.difficulty = U256::ZERO;
        header.base_fee_per_gas = Some(0);
    }
    if at.number >= CANCUN.number {
        header.excess_blob_gas = Some(0);
        header.blob_gas_used = Some(0);
        header.parent_beacon_block_root = Some(B256::repeat_byte(0xbe));
    }
    header
}

/// A chain that has the rules of one public test network.
pub fn network(name: &str) -> ChainSpec {
    let network = test_network(name).unwrap();
    ChainSpec::new(ChainSpecParts {
        name: name.into(),
        chain_id: 1,
        genesis: Genesis::default(),
        genesis_header: None,
        forks: network.forks,
        blob_schedule: BlobScheduleBlobParams::mainnet(),
        deposit_contract: None,
        dao_fork: network.dao_fork,
    })
}

pub fn signature() -> Signature {
    Signature::test_signature()
}

pub fn call(nonce: u64, to: Address, value: u64, input: impl Into<Bytes>) -> Transaction {
    legacy(nonce, TxKind::Call(to), value, input.into())
}

pub fn legacy(nonce: u64, to: TxKind, value: u64, input: Bytes) -> Transaction {
    let tx = TxLegacy {
        nonce,
        to,
        value: U256::from(value),
        input,
        gas_limit: 1_000_000,
        ..Default::default()
    };
    Transaction::Legacy(Signed::new_unhashed(tx, signature()))
}

/// A block whose transactions all come from [`SENDER`].
pub fn block(header: Header, transactions: Vec<Transaction>) -> RecoveredBlock {
    let senders = vec![SENDER; transactions.len()];
    let body = BlockBody { transactions, ommers: Vec::new(), withdrawals: None };
    RecoveredBlock::new_unhashed(Block { header, body }, senders)
}

pub fn balance(wei: u64) -> Account {
    Account { balance: U256::from(wei), ..Default::default() }
}

/// The contracts that requests are read from since Prague.
pub const PRAGUE_REQUEST_CONTRACTS: [Address; 2] =
    [WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS];
/// The request contracts that Amsterdam added.
pub const BUILDER_CONTRACTS: [Address; 2] =
    [BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_EXIT_CONTRACT_ADDRESS];

/// A state and its codes under construction.
#[derive(Debug, Default)]
pub struct StateFixture {
    pub state: MapState,
    pub codes: HashMap<B256, Bytes>,
}

impl StateFixture {
    pub fn new() -> Self {
        let mut world = Self::default();
        world.state.set_account(SENDER, balance(1_000_000));
        // Blocks from Prague on need the contracts that requests are read from; these return none.
        let contracts = PRAGUE_REQUEST_CONTRACTS.into_iter().chain(BUILDER_CONTRACTS);
        contracts.fold(world, |world, address| world.contract(address, &[0x00], &[]))
    }

    pub fn contract(mut self, address: Address, code: &[u8], slots: &[(u64, u64)]) -> Self {
        let code = Bytes::copy_from_slice(code);
        let code_hash = keccak256(&code);
        self.codes.insert(code_hash, code);
        let account = Account { nonce: 1, code_hash, ..Default::default() };
        self.state.set_account(address, account);
        for (slot, value) in slots {
            self.state.set_slot(address, U256::from(*slot), U256::from(*value));
        }
        self
    }

    pub fn account(mut self, address: Address, account: Account) -> Self {
        self.state.set_account(address, account);
        self
    }

    pub fn try_run(&self, block: &RecoveredBlock) -> Result<ExecutionOutcome, ExecutionError> {
        let input = ExecutionInput::new(&self.state, &self.codes, &());
        execute_block(&ChainSpec::mainnet(), block, input)
    }

    /// Executes, checks that the per-transaction deltas chain up, and returns the state after.
    pub fn run(&self, block: &RecoveredBlock) -> (ExecutionOutcome, MapState) {
        let outcome = self.try_run(block).unwrap();
        let mut after = self.state.clone();
        after.apply(&outcome.delta);

        let mut chained = self.state.clone();
        let input = ExecutionInput::new(&self.state, &self.codes, &());
        let observed = execute_block_with_observer(
            &ChainSpec::mainnet(),
            block,
            input,
            &mut |_, delta: StateDelta| {
                chained.apply(&delta);
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(observed.delta, outcome.delta);
        if block.body().transactions.is_empty() {
            return (outcome, after);
        }
        for key in chained.values.keys().chain(after.values.keys()) {
            let withdrawn = block
                .body()
                .withdrawals
                .iter()
                .flat_map(|list| list.iter())
                .any(|withdrawal| withdrawal.address == *key.address());
            if *key.address() != COINBASE && !withdrawn {
                assert_eq!(chained.values.get(key), after.values.get(key), "{key}");
            }
        }
        (outcome, after)
    }
}

pub fn slot(address: Address, slot: u64) -> StateKey {
    StateKey::Slot(address, U256::from(slot).into())
}

pub fn value(value: u64) -> Option<StateValue> {
    encode_slot(U256::from(value))
}

/// The change of `key`: values before and after.
pub fn change(
    delta: &StateDelta,
    key: StateKey,
) -> Option<(Option<StateValue>, Option<StateValue>)> {
    let change = delta.changes().iter().find(|change| change.key == key)?;
    Some((change.previous.clone(), change.next.clone()))
}

pub fn slot_changes(delta: &StateDelta) -> usize {
    delta.changes().iter().filter(|change| matches!(change.key, StateKey::Slot(..))).count()
}

/// Init code that writes slots and returns `runtime` (at most 32 bytes).
pub fn init_code(slots: &[(u8, u8)], runtime: &[u8]) -> Vec<u8> {
    let mut code = Vec::new();
    for (slot, value) in slots {
        code.extend([0x60, *value, 0x60, *slot, 0x55]);
    }
    if !runtime.is_empty() {
        code.push(0x5f + runtime.len() as u8);
        code.extend(runtime);
        code.extend([0x60, 0x00, 0x52]);
    }
    code.extend([0x60, runtime.len() as u8, 0x60, 32 - runtime.len() as u8, 0xf3]);
    code
}

pub fn create2_address(init: &[u8]) -> Address {
    FACTORY.create2(B256::ZERO, keccak256(init))
}
