//! Small chains of valid blocks, for tests of code that imports, serves or follows a chain.
//!
//! A [`TestChain`] executes every block that it builds on the block's own parent, with the executor
//! of this workspace over a state in memory, and fills in all header fields. Every block may have
//! several children, so branches cost nothing. Proof-of-work seals are not made, as the tests do
//! not check them.
//!
//! The functions panic on errors.

use crate::{
    BlockAttributes, BlockBuilder, BuildParent, ProposalSet, RootSet, StoreSet, StoreSetId,
    chain::{genesis_delta, native_spec},
};
use alloy_consensus::{SignableTransaction, TxEip1559, TxLegacy};
use alloy_eips::{eip2935, eip4788, eip7002, eip7251, eip8282};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, address, map::HashMap};
use k256::ecdsa::SigningKey;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, BlockBody, Header, Receipt, SealedHeader, Transaction},
};
use retrie_db::add_to_table;
use retrie_execution::{BlockAccessList, BlockHashes, CodeCache};
use retrie_log_tables::{INDEX_CONTRACT, INDEX_CONTRACT_CODE, TableBuilder, TableSpan};
use retrie_sources::BlockWriter;
use retrie_state::{Account, AnyBackend, StateError, StateKey, StateReader};
use retrie_state_store::{MemoryStore, StateId, StateStore, StoreOptions};
use serde_json::json;
use std::{path::Path, sync::Arc};
use tempfile::TempDir;

/// Number of accounts that genesis funds.
pub const WALLETS: u8 = 8;
/// Chain id of every test chain.
pub const CHAIN_ID: u64 = 7331;
/// Gas limit of every block.
pub const GAS_LIMIT: u64 = 30_000_000;
/// Difficulty of genesis under proof of work: far enough above the minimum to fall.
pub const GENESIS_DIFFICULTY: u64 = 2_000_000;
/// A contract in genesis, with the code of [`TestCall::deploy`] and slots 1 to 3 set.
pub const GENESIS_CONTRACT: Address = address!("0x00000000000000000000000000000000000c0de5");

/// Runtime code. With two words as input it stores the second one at the slot that the first one
/// names, and logs the slot as a topic. Without input it destroys itself in favour of the caller.
const STORE_CODE: [u8; 24] = [
    0x36, 0x15, 0x60, 0x15, 0x57, // no input: to the JUMPDEST
    0x60, 0x20, 0x35, 0x60, 0x00, 0x35, 0x55, // SSTORE(word 0, word 1)
    0x60, 0x00, 0x35, 0x60, 0x00, 0x60, 0x00, 0xa1, // LOG1(topic: word 0)
    0x00, // STOP
    0x5b, 0x33, 0xff, // JUMPDEST, SELFDESTRUCT(CALLER)
];
/// Returns the 24 bytes that follow it.
const DEPLOY_CODE: [u8; 12] =
    [0x60, 0x18, 0x60, 0x0c, 0x60, 0x00, 0x39, 0x60, 0x18, 0x60, 0x00, 0xf3];

/// The fork rules of a test chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestRules {
    /// Frontier, from block 3 on Homestead; receipts hold state roots.
    Frontier,
    /// Proof of work with Byzantium's receipts.
    Byzantium,
    /// Proof of work with London's fees, up to this total difficulty; then proof of stake.
    Merge(u64),
    /// Proof of stake with withdrawals and the beacon root contract.
    Cancun,
    /// Proof of stake with requests and stored block hashes.
    Prague,
    /// The same with block access lists, state gas and requests of builders.
    Amsterdam,
}

impl TestRules {
    /// The genesis file, as `retrie init --chain` reads it.
    pub fn genesis_json(self) -> String {
        let mut config = json!({ "chainId": CHAIN_ID });
        let mut set = |names: &[&str], value: u64| {
            for name in names {
                config[*name] = value.into();
            }
        };
        set(&["homesteadBlock"], if self == Self::Frontier { 3 } else { 0 });
        if self != Self::Frontier {
            set(&["eip150Block", "eip155Block", "eip158Block", "byzantiumBlock"], 0);
        }
        if !matches!(self, Self::Frontier | Self::Byzantium) {
            set(&["constantinopleBlock", "petersburgBlock", "istanbulBlock"], 0);
            set(&["berlinBlock", "londonBlock"], 0);
        }
        match self {
            Self::Merge(difficulty) => set(&["terminalTotalDifficulty"], difficulty),
            Self::Cancun => set(&["terminalTotalDifficulty", "shanghaiTime", "cancunTime"], 0),
            Self::Prague | Self::Amsterdam => {
                set(&["terminalTotalDifficulty", "shanghaiTime", "cancunTime", "pragueTime"], 0)
            }
            Self::Frontier | Self::Byzantium => {}
        }
        if self == Self::Amsterdam {
            set(&["osakaTime", "amsterdamTime"], 0);
        }
        let is_pos = matches!(self, Self::Cancun | Self::Prague | Self::Amsterdam);
        let mut alloc = json!({});
        for wallet in 0..WALLETS {
            alloc[TestWallet::new(wallet).address.to_string()] =
                json!({ "balance": "0x3635c9adc5dea00000" });
        }
        alloc[GENESIS_CONTRACT.to_string()] = json!({
            "balance": "1",
            "nonce": "0x1",
            "code": Bytes::from_static(&STORE_CODE),
            "storage": { "0x1": "0x11", "0x2": "0x22", "0x3": "0x33" },
        });
        let mut contract = |address: Address, code: &Bytes| {
            alloc[address.to_string()] = json!({ "balance": "0", "nonce": "0x1", "code": code });
        };
        if is_pos {
            contract(eip4788::BEACON_ROOTS_ADDRESS, &eip4788::BEACON_ROOTS_CODE);
        }
        if matches!(self, Self::Prague | Self::Amsterdam) {
            contract(eip2935::HISTORY_STORAGE_ADDRESS, &eip2935::HISTORY_STORAGE_CODE);
            contract(
                eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
                &eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_CODE,
            );
            contract(
                eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
                &eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_CODE,
            );
        }
        if self == Self::Amsterdam {
            contract(
                eip8282::BUILDER_DEPOSIT_CONTRACT_ADDRESS,
                &eip8282::BUILDER_DEPOSIT_CONTRACT_CODE,
            );
            contract(eip8282::BUILDER_EXIT_CONTRACT_ADDRESS, &eip8282::BUILDER_EXIT_CONTRACT_CODE);
        }
        let genesis = json!({
            "config": config,
            "difficulty": if is_pos { 0 } else { GENESIS_DIFFICULTY },
            "gasLimit": GAS_LIMIT,
            "timestamp": "0x0",
            "alloc": alloc,
        });
        genesis.to_string()
    }
}

/// A key that signs transactions, and its account.
#[derive(Clone, Debug)]
pub struct TestWallet {
    key: SigningKey,
    /// The address of the account.
    pub address: Address,
}

impl TestWallet {
    /// The `n`-th account; genesis funds the first [`WALLETS`].
    pub fn new(n: u8) -> Self {
        let key = SigningKey::from_slice(&[n + 1; 32]).expect("small and not zero");
        Self { address: Address::from_private_key(&key), key }
    }

    /// Signs with an ECDSA signature of low `s`.
    pub fn sign(&self, hash: B256) -> Signature {
        self.key.sign_prehash_recoverable(hash.as_slice()).expect("32 bytes").into()
    }
}

/// A planned transaction. Nonce, fees and signature are filled in when its block is built.
#[derive(Clone, Debug)]
pub struct TestCall {
    /// Number of the wallet that signs.
    pub from: u8,
    /// Recipient, or creation.
    pub to: TxKind,
    /// Wei.
    pub value: u64,
    /// Input, or initialisation code.
    pub input: Bytes,
}

impl TestCall {
    /// A transfer.
    pub fn transfer(from: u8, to: Address, value: u64) -> Self {
        Self { from, to: to.into(), value, input: Bytes::new() }
    }

    /// Creates a contract for [`store`](Self::store) and [`destroy`](Self::destroy).
    pub fn deploy(from: u8) -> Self {
        let input = [&DEPLOY_CODE[..], &STORE_CODE].concat().into();
        Self { from, to: TxKind::Create, value: 0, input }
    }

    /// Sets a slot of a contract, and logs it.
    pub fn store(from: u8, contract: Address, slot: u64, value: u64) -> Self {
        let words = [B256::from(U256::from(slot)), B256::from(U256::from(value))];
        Self { from, to: contract.into(), value: 0, input: words.concat().into() }
    }

    /// Makes a contract destroy itself.
    pub fn destroy(from: u8, contract: Address) -> Self {
        Self { from, to: contract.into(), value: 0, input: Bytes::new() }
    }
}

/// The plan of a block.
#[derive(Clone, Debug)]
pub struct BlockPlan {
    /// Seconds after its parent. Under proof of work this steers the difficulty: it rises below 10
    /// and falls from 20 on.
    pub seconds: u64,
    /// Recipient of the fees.
    pub beneficiary: Address,
    /// Its transactions.
    pub calls: Vec<TestCall>,
    /// Headers of ommers.
    pub ommers: Vec<Header>,
}

impl BlockPlan {
    /// A block of `calls`, 12 seconds after its parent.
    pub fn new(calls: impl Into<Vec<TestCall>>) -> Self {
        Self {
            seconds: 12,
            beneficiary: Address::repeat_byte(0xbe),
            calls: calls.into(),
            ommers: Vec::new(),
        }
    }

    /// The same, `seconds` after its parent.
    #[must_use]
    pub fn after(self, seconds: u64) -> Self {
        Self { seconds, ..self }
    }

    /// The same with another beneficiary.
    #[must_use]
    pub fn paid_to(self, beneficiary: Address) -> Self {
        Self { beneficiary, ..self }
    }

    /// The same with ommers.
    #[must_use]
    pub fn with_ommers(self, ommers: impl Into<Vec<Header>>) -> Self {
        Self { ommers: ommers.into(), ..self }
    }
}

/// A growing tree of valid blocks.
pub struct TestChain {
    /// Its rules and genesis.
    pub spec: Arc<ChainSpec>,
    /// The genesis file.
    pub genesis_json: String,
    states: StoreSet,
    blocks: HashMap<B256, BuiltBlock>,
    codes: HashMap<B256, Bytes>,
    code_cache: CodeCache,
    /// Folder for the backend's files, if it writes any.
    _files: TempDir,
}

#[derive(Debug)]
struct BuiltBlock {
    block: Block,
    total_difficulty: U256,
    states: ProposalSet,
    receipts: Arc<Vec<Receipt>>,
    access_list: Option<BlockAccessList>,
}

/// What an execution asks of the ancestors of its block.
struct TestAncestors<'a> {
    chain: &'a TestChain,
    hashes: HashMap<u64, B256>,
}

impl BlockHashes for TestAncestors<'_> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        Ok(self.hashes.get(&number).copied())
    }

    fn table_root(&self, span: TableSpan) -> Result<Option<B256>, StateError> {
        let mut table = TableBuilder::default();
        for number in span.first()..=span.last() {
            let BuiltBlock { block, receipts, .. } = &self.chain.blocks[&self.hashes[&number]];
            assert!(add_to_table(&mut table, &block.header, &block.body.transactions, receipts));
        }
        Ok(Some(table.finish().root()))
    }
}

impl std::fmt::Debug for TestChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestChain").field("blocks", &self.blocks.len()).finish_non_exhaustive()
    }
}

impl TestChain {
    /// A chain of genesis alone. `backend` must compute Ethereum's state roots.
    pub fn new(rules: TestRules, backend: Arc<dyn AnyBackend>) -> Self {
        assert!(backend.profile().ethereum_root, "headers need Ethereum's state roots");
        let genesis_json = rules.genesis_json();
        let spec = Arc::new(ChainSpec::from_genesis_json(&genesis_json).expect("a genesis file"));
        Self::with(genesis_json, spec, backend)
    }

    /// The same with one more contract in genesis, which owns one ether.
    pub fn with_contract(
        rules: TestRules,
        backend: Arc<dyn AnyBackend>,
        address: Address,
        code: &[u8],
    ) -> Self {
        let mut genesis: serde_json::Value =
            serde_json::from_str(&rules.genesis_json()).expect("JSON");
        genesis["alloc"][address.to_string()] = json!({
            "balance": "0xde0b6b3a7640000",
            "nonce": "0x1",
            "code": Bytes::copy_from_slice(code),
        });
        let genesis_json = genesis.to_string();
        let spec = Arc::new(ChainSpec::from_genesis_json(&genesis_json).expect("a genesis file"));
        Self::with(genesis_json, spec, backend)
    }

    /// The same with index tables (EIP-8304), whose roots are in the headers' states.
    pub fn with_index_tables(rules: TestRules, backend: Arc<dyn AnyBackend>) -> Self {
        let mut genesis: serde_json::Value =
            serde_json::from_str(&rules.genesis_json()).expect("JSON");
        genesis["config"]["eip8304Block"] = 0.into();
        genesis["alloc"][INDEX_CONTRACT.to_string()] = json!({
            "balance": "0",
            "nonce": "0x1",
            "code": INDEX_CONTRACT_CODE,
        });
        let genesis_json = genesis.to_string();
        let spec = ChainSpec::from_genesis_json(&genesis_json).expect("a genesis file");
        let spec = native_spec(&spec, &backend).expect("in memory");
        Self::with(genesis_json, spec, backend)
    }

    /// The same with the roots of any backend in all headers, as `--state-root native` needs them.
    pub fn native(rules: TestRules, backend: Arc<dyn AnyBackend>) -> Self {
        let genesis_json = rules.genesis_json();
        let spec = ChainSpec::from_genesis_json(&genesis_json).expect("a genesis file");
        let spec = native_spec(&spec, &backend).expect("in memory");
        Self::with(genesis_json, spec, backend)
    }

    /// A chain that switches to the binary tree: the first block at `time` or later, in seconds after
    /// genesis, carries the root that `binary` computes, and the blocks before it those of `merkle`.
    pub fn switching(
        rules: TestRules,
        merkle: Arc<dyn AnyBackend>,
        binary: Arc<dyn AnyBackend>,
        time: u64,
    ) -> Self {
        assert!(merkle.profile().ethereum_root, "headers need Ethereum's state roots");
        assert!(binary.profile().binary_root, "headers need roots of the binary tree");
        let mut genesis: serde_json::Value =
            serde_json::from_str(&rules.genesis_json()).expect("JSON");
        genesis["config"]["binaryTrieTime"] = time.into();
        let genesis_json = genesis.to_string();
        let mut spec =
            Arc::new(ChainSpec::from_genesis_json(&genesis_json).expect("a genesis file"));
        if spec.has_binary_genesis() {
            spec = native_spec(&spec, &binary).expect("in memory");
        }
        let files = tempfile::tempdir().expect("a temporary folder");
        let (merkle, binary) = (memory_state(merkle, &files), memory_state(binary, &files));
        let states = StoreSet::pair(merkle, binary, time);
        Self::on(genesis_json, spec, states, files)
    }

    fn with(genesis_json: String, spec: Arc<ChainSpec>, backend: Arc<dyn AnyBackend>) -> Self {
        let files = tempfile::tempdir().expect("a temporary folder");
        let states = StoreSet::single(memory_state(backend, &files));
        Self::on(genesis_json, spec, states, files)
    }

    fn on(genesis_json: String, spec: Arc<ChainSpec>, states: StoreSet, files: TempDir) -> Self {
        let (delta, codes) = genesis_delta(&spec);
        let genesis =
            states.begin(StoreSetId::Tip).and_then(|session| session.finish_as(0, &delta));
        let header = spec.genesis_header();
        let built = BuiltBlock {
            block: Block { header: header.header().clone(), body: BlockBody::default() },
            total_difficulty: header.difficulty,
            states: genesis.expect("a state in memory").0,
            receipts: Arc::default(),
            access_list: None,
        };
        let root = states.header_root(built.states.roots(), header.timestamp);
        assert_eq!(root, header.state_root);
        Self {
            blocks: [(header.hash(), built)].into_iter().collect(),
            codes: codes.into_iter().collect(),
            code_cache: CodeCache::default(),
            genesis_json,
            spec,
            states,
            _files: files,
        }
    }

    /// Hash of genesis.
    pub fn genesis(&self) -> B256 {
        self.spec.genesis_hash()
    }

    /// A block of this chain.
    pub fn block(&self, hash: B256) -> &Block {
        &self.blocks[&hash].block
    }

    /// The BAL of a block (EIP-7928), from Amsterdam on.
    pub fn access_list(&self, hash: B256) -> Option<&BlockAccessList> {
        self.blocks[&hash].access_list.as_ref()
    }

    /// Total difficulty up to and including a block.
    pub fn total_difficulty(&self, hash: B256) -> U256 {
        self.blocks[&hash].total_difficulty
    }

    /// Blocks from the one after `ancestor` up to `tip`.
    pub fn path(&self, ancestor: B256, tip: B256) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut at = tip;
        while at != ancestor {
            let block = self.block(at);
            at = block.header.parent_hash;
            blocks.push(block.clone());
        }
        blocks.reverse();
        blocks
    }

    /// The account `address` after a block.
    pub fn account(&self, block: B256, address: Address) -> Option<Account> {
        let state = self
            .states
            .own()
            .at(StateId::Proposal(&self.blocks[&block].states.own))
            .expect("built");
        let value = state.get(&StateKey::Account(address)).expect("in memory")?;
        Some(Account::decode(&value).expect("canonical"))
    }

    /// The roots that the chain's stores have computed for a block. The first one is that of the
    /// header unless the chain has switched.
    pub fn roots(&self, block: B256) -> RootSet {
        self.blocks[&block].states.roots()
    }

    /// Address of the contract that the next [`TestCall::deploy`] of a wallet on top of `parent`
    /// creates.
    pub fn next_contract(&self, parent: B256, wallet: u8) -> Address {
        let address = TestWallet::new(wallet).address;
        address.create(self.account(parent, address).unwrap_or_default().nonce)
    }

    /// Builds the child of `parent` that `plan` describes; returns its hash.
    pub fn extend(&mut self, parent: B256, plan: BlockPlan) -> B256 {
        let BuiltBlock { block: parent_block, total_difficulty, states: parent_states, .. } =
            &self.blocks[&parent];
        let before = SealedHeader::new(parent_block.header.clone(), parent);
        let number = before.number + 1;
        let base_fee = retrie_consensus::next_base_fee(&self.spec, &before).expect("valid parent");
        let transactions = self.sign(parent, &plan.calls, base_fee);
        let senders = plan.calls.iter().map(|call| TestWallet::new(call.from).address).collect();
        let attributes = BlockAttributes {
            timestamp: before.timestamp + plan.seconds,
            beneficiary: plan.beneficiary,
            gas_limit: before.gas_limit,
            parent_beacon_block_root: B256::with_last_byte(number as u8),
            ommers: plan.ommers,
            slot_number: Some(number),
            ..Default::default()
        };
        let hashes = TestAncestors { chain: self, hashes: self.ancestors(parent) };
        let builder = BlockBuilder {
            spec: &self.spec,
            states: &self.states,
            codes: &self.codes,
            hashes: &hashes,
            code_cache: &self.code_cache,
        };
        let parent = BuildParent {
            header: &before,
            total_difficulty: *total_difficulty,
            states: StoreSetId::Proposals(parent_states),
        };
        let executed =
            builder.build(parent, attributes, transactions, senders).expect("a valid plan");
        let hash = executed.block().hash();
        self.codes.extend(executed.codes);
        let built = BuiltBlock {
            block: executed.data.block.clone_block(),
            total_difficulty: executed.chain.total_difficulty,
            states: executed.states,
            receipts: executed.data.receipts,
            access_list: executed.access_list,
        };
        self.blocks.insert(hash, built);
        hash
    }

    /// Hashes of a block and of the blocks below it, as far as its child can ask for: BLOCKHASH, or an
    /// index table.
    fn ancestors(&self, block: B256) -> HashMap<u64, B256> {
        let mut at = block;
        let one = |_| {
            let header = &self.blocks.get(&at)?.block.header;
            let found = (header.number, at);
            at = header.parent_hash;
            Some(found)
        };
        (0..320).map_while(one).collect()
    }

    /// Builds `count` blocks on `parent`, `seconds` apart, that use every kind of [`TestCall`];
    /// returns their hashes. Branches with different `salt` differ in beneficiary, contracts and
    /// slots, but share the transactions of wallet 0.
    pub fn branch(&mut self, parent: B256, count: u64, seconds: u64, salt: u8) -> Vec<B256> {
        let deployer = 1 + salt % (WALLETS - 1);
        let mut at = parent;
        let mut contract = GENESIS_CONTRACT;
        (0..count)
            .map(|i| {
                let number = self.block(at).header.number + 1;
                let recipient = Address::with_last_byte(number as u8);
                let mut calls = vec![TestCall::transfer(0, recipient, 1000 + number)];
                calls.extend(match i % 4 {
                    0 => {
                        contract = self.next_contract(at, deployer);
                        let slot = 1 + u64::from(salt) % 3;
                        vec![
                            TestCall::deploy(deployer),
                            TestCall::store(deployer, contract, 1, 1),
                            TestCall::store(deployer, GENESIS_CONTRACT, slot, number),
                        ]
                    }
                    1 => (2..6)
                        .map(|slot| TestCall::store(deployer, contract, slot, number))
                        .collect(),
                    2 => vec![
                        TestCall::store(deployer, contract, 2, 0),
                        TestCall::store(deployer, contract, 3, number + u64::from(salt)),
                    ],
                    _ => vec![TestCall::destroy(deployer, contract)],
                });
                let plan = BlockPlan::new(calls).after(seconds).paid_to(Address::repeat_byte(salt));
                at = self.extend(at, plan);
                at
            })
            .collect()
    }

    fn sign(&self, parent: B256, calls: &[TestCall], base_fee: Option<u64>) -> Vec<Transaction> {
        let mut nonces: HashMap<u8, u64> = HashMap::default();
        let mut sign = |call: &TestCall| {
            let wallet = TestWallet::new(call.from);
            let nonce = nonces
                .entry(call.from)
                .or_insert_with(|| self.account(parent, wallet.address).unwrap_or_default().nonce);
            let tx = signed(&wallet, call, *nonce, base_fee);
            *nonce += 1;
            tx
        };
        calls.iter().map(&mut sign).collect()
    }
}

/// An empty state in memory.
fn memory_state(backend: Arc<dyn AnyBackend>, files: &TempDir) -> StateStore {
    let folder = files.path().join(backend.identity().name);
    std::fs::create_dir_all(&folder).expect("a folder in a temporary one");
    let dir = Some(folder);
    let options = StoreOptions { dir, ..StoreOptions::default() };
    StateStore::open(backend, Arc::new(MemoryStore::new()), options).expect("empty")
}

/// A signed transaction: from London on with a dynamic fee, before that without chain id.
pub fn signed(
    wallet: &TestWallet,
    call: &TestCall,
    nonce: u64,
    base_fee: Option<u64>,
) -> Transaction {
    const GAS: u64 = 200_000;
    const GWEI: u128 = 1_000_000_000;
    let (to, value, input) = (call.to, U256::from(call.value), call.input.clone());
    match base_fee {
        None => {
            let tx = TxLegacy {
                nonce,
                gas_price: GWEI,
                gas_limit: GAS,
                to,
                value,
                input,
                ..Default::default()
            };
            let signature = wallet.sign(tx.signature_hash());
            tx.into_signed(signature).into()
        }
        Some(base_fee) => {
            let tx = TxEip1559 {
                chain_id: CHAIN_ID,
                nonce,
                gas_limit: GAS,
                max_fee_per_gas: 2 * u128::from(base_fee) + GWEI,
                max_priority_fee_per_gas: GWEI,
                to,
                value,
                input,
                ..Default::default()
            };
            let signature = wallet.sign(tx.signature_hash());
            tx.into_signed(signature).into()
        }
    }
}

/// Writes blocks to a file of concatenated RLP, gzipped if its name ends in `.gz`.
pub fn write_blocks<'a>(path: &Path, blocks: impl IntoIterator<Item = &'a Block>) {
    let mut writer = BlockWriter::create(path).expect("a folder to write to");
    for block in blocks {
        writer.write(block).expect("written");
    }
    writer.finish().expect("finished");
}
