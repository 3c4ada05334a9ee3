//! [`ChainSpec`]: everything that distinguishes one Ethereum chain from another.

use std::sync::{Arc, OnceLock};

use alloy_consensus::constants::{EMPTY_ROOT_HASH, EMPTY_WITHDRAWALS};
use alloy_eip7928::constants::EMPTY_BLOCK_ACCESS_LIST_HASH;
use alloy_eips::{
    BlobScheduleBlobParams,
    eip1559::{BaseFeeParams, INITIAL_BASE_FEE},
    eip7685::EMPTY_REQUESTS_HASH,
    eip7840::BlobParams,
};
use alloy_evm::eth::spec::EthExecutorSpec;
use alloy_genesis::{Genesis, GenesisAccount};
use alloy_hardforks::{EthereumChainHardforks, EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_primitives::{Address, B64, B256, U256};
use alloy_trie::{TrieAccount, root::state_root_unhashed};

use crate::primitives::{Header, SealedHeader};

/// The irregular state change of block 1,920,000 on mainnet (EIP-779).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DaoFork {
    /// The block at which the two chains part.
    pub block: u64,
    /// Whether this chain makes the change (Ethereum) or refuses it (Ethereum Classic).
    pub support: bool,
}

/// The parts a [`ChainSpec`] is built from.
#[derive(Debug, Clone)]
pub struct ChainSpecParts {
    /// Name for logs and messages.
    pub name: String,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// Genesis header fields and initial accounts.
    pub genesis: Genesis,
    /// The genesis header, where it is known and need not be derived from `genesis` (which costs
    /// the state root of all accounts).
    pub genesis_header: Option<Header>,
    /// Activation of each fork. Forks not named never activate; Frontier is implied.
    pub forks: Vec<(EthereumHardfork, ForkCondition)>,
    /// Blob parameters by fork and by time (EIP-7840, EIP-7892).
    pub blob_schedule: BlobScheduleBlobParams,
    /// Contract whose logs are deposit requests (EIP-6110).
    pub deposit_contract: Option<Address>,
    /// DAO fork, if the chain crossed it.
    pub dao_fork: Option<DaoFork>,
}

/// One chain: its id, genesis and the blocks and times at which its rules change.
///
/// **The merge.** Paris activates by total difficulty, but callers ask for rules by block number.
/// Where the first proof-of-stake block is known (the public networks, and chains merged from
/// genesis) that number decides. Elsewhere the specification starts with an unknown merge block:
/// [`Self::is_pos`] then reads the header's difficulty (zero from the merge on, EIP-3675), and
/// [`Self::for_header`] gives the executor a specification in which Paris is active or not.
/// The consensus crate (`validate_merge`) checks against the parent's total difficulty that a
/// difficulty of zero is allowed.
#[derive(Debug, Clone)]
pub struct ChainSpec {
    name: String,
    chain_id: u64,
    genesis: Arc<Genesis>,
    genesis_header: SealedHeader,
    forks: EthereumChainHardforks,
    blob_schedule: BlobScheduleBlobParams,
    deposit_contract: Option<Address>,
    dao_fork: Option<DaoFork>,
    binary_tree_time: Option<u64>,
    index_tables_block: Option<u64>,
    /// The same chain with Paris active, where the merge block is unknown. Built on first use.
    merged: OnceLock<Arc<Self>>,
}

/// Stands for a merge block that is not known yet.
const UNKNOWN_MERGE_BLOCK: u64 = u64::MAX;

impl ChainSpec {
    /// Assembles a specification.
    ///
    /// A Paris condition without a known block has `activation_block_number: u64::MAX`.
    pub fn new(parts: ChainSpecParts) -> Self {
        Self::with_root(parts, genesis_state_root)
    }

    /// As [`new`](Self::new); `root` gives the state root of the initial accounts.
    pub(crate) fn with_root(parts: ChainSpecParts, root: impl FnOnce(&Genesis) -> B256) -> Self {
        let ChainSpecParts {
            name,
            chain_id,
            mut genesis,
            genesis_header,
            mut forks,
            blob_schedule,
            deposit_contract,
            dao_fork,
        } = parts;
        genesis.config.chain_id = chain_id;
        forks.retain(|(fork, _)| {
            !matches!(fork, EthereumHardfork::Frontier | EthereumHardfork::Dao)
        });
        forks.push((EthereumHardfork::Frontier, ForkCondition::ZERO_BLOCK));
        if let Some(DaoFork { block, support: true }) = dao_fork {
            forks.push((EthereumHardfork::Dao, ForkCondition::Block(block)));
        }
        let forks = EthereumChainHardforks::new(forks);
        let header =
            genesis_header.unwrap_or_else(|| genesis_header_of(&genesis, &forks, root(&genesis)));
        Self {
            name,
            chain_id,
            genesis: Arc::new(genesis),
            genesis_header: SealedHeader::seal_slow(header),
            forks,
            blob_schedule,
            deposit_contract,
            dao_fork,
            binary_tree_time: None,
            index_tables_block: None,
            merged: OnceLock::new(),
        }
    }

    /// The condition under which Paris activates on a chain with terminal total difficulty
    /// `ttd` and the given genesis difficulty, when the merge block is not known.
    ///
    /// A chain whose genesis already reaches `ttd` is proof of stake from block 1 on.
    pub(crate) fn paris_condition(
        ttd: U256,
        genesis_difficulty: U256,
        netsplit_block: Option<u64>,
    ) -> ForkCondition {
        ForkCondition::TTD {
            activation_block_number: if ttd <= genesis_difficulty {
                0
            } else {
                UNKNOWN_MERGE_BLOCK
            },
            fork_block: netsplit_block,
            total_difficulty: ttd,
        }
    }

    /// Name for logs and messages, such as `mainnet`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// EIP-155 chain id.
    pub const fn chain_id(&self) -> u64 {
        self.chain_id
    }

    /// Genesis header fields and initial accounts. Its `config` has only the chain id: the
    /// specification itself holds the forks, and [`Self::to_genesis_json`] writes them.
    pub fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    /// The initial accounts in ascending order of address.
    ///
    /// Slots with value zero and empty code mean the same as their absence. In WebAssembly the
    /// public networks have none.
    pub fn genesis_accounts(&self) -> impl Iterator<Item = (&Address, &GenesisAccount)> {
        self.genesis.alloc.iter()
    }

    /// Header of block 0.
    pub const fn genesis_header(&self) -> &SealedHeader {
        &self.genesis_header
    }

    /// Hash of block 0.
    pub fn genesis_hash(&self) -> B256 {
        self.genesis_header.hash()
    }

    /// Replaces the genesis state root, for chains whose headers commit to another state store
    /// than the Merkle-Patricia trie. Changes the genesis hash.
    pub fn with_genesis_state_root(mut self, state_root: B256) -> Self {
        let mut header = self.genesis_header.clone_header();
        header.state_root = state_root;
        self.genesis_header = SealedHeader::seal_slow(header);
        self.merged = OnceLock::new();
        self
    }

    /// The same chain, whose headers carry the root of the partitioned binary tree (EIP-8297) from
    /// this time on, in seconds; with `None` they never do. The header of block 0 keeps its root: if
    /// it lies in that time too, [`with_genesis_state_root`](Self::with_genesis_state_root) gives it
    /// the right one.
    pub fn with_binary_tree_time(mut self, time: Option<u64>) -> Self {
        self.binary_tree_time = time;
        self.merged = OnceLock::new();
        self
    }

    /// The time from which on headers carry the root of the partitioned binary tree (EIP-8297), in
    /// seconds: `binaryTrieTime` of a genesis file. `None` if they never do.
    pub const fn binary_tree_time(&self) -> Option<u64> {
        self.binary_tree_time
    }

    /// The same chain, whose blocks store the roots of index tables (EIP-8304) in the index contract
    /// from this block on; with `None` they never do. Without that contract nothing is stored.
    pub fn with_index_tables_block(mut self, block: Option<u64>) -> Self {
        self.index_tables_block = block;
        self.merged = OnceLock::new();
        self
    }

    /// The block from which on roots of index tables (EIP-8304) are stored: `eip8304Block` of a
    /// genesis file. `None` if they never are.
    pub const fn index_tables_block(&self) -> Option<u64> {
        self.index_tables_block
    }

    /// Whether a header with this timestamp carries the root of the partitioned binary tree.
    pub const fn is_binary_tree_active_at_timestamp(&self, timestamp: u64) -> bool {
        match self.binary_tree_time {
            Some(time) => timestamp >= time,
            None => false,
        }
    }

    /// Whether the header of block 0 carries the root of the partitioned binary tree.
    pub fn has_binary_genesis(&self) -> bool {
        self.is_binary_tree_active_at_timestamp(self.genesis.timestamp)
    }

    /// Fixes the number of the first proof-of-stake block, once it is known.
    ///
    /// Has no effect on a chain without terminal total difficulty.
    pub fn with_merge_block(mut self, number: u64) -> Self {
        if let ForkCondition::TTD { fork_block, total_difficulty, .. } =
            self.ethereum_fork_activation(EthereumHardfork::Paris)
        {
            let paris = ForkCondition::TTD {
                activation_block_number: number,
                fork_block,
                total_difficulty,
            };
            self.forks = EthereumChainHardforks::new(
                self.forks()
                    .filter(|(fork, _)| *fork != EthereumHardfork::Paris)
                    .chain([(EthereumHardfork::Paris, paris)]),
            );
            self.merged = OnceLock::new();
        }
        self
    }

    /// All scheduled forks with their conditions, in protocol order.
    pub fn forks(&self) -> impl Iterator<Item = (EthereumHardfork, ForkCondition)> + '_ {
        EthereumHardfork::VARIANTS
            .iter()
            .map(|fork| (*fork, self.ethereum_fork_activation(*fork)))
            .filter(|(_, condition)| *condition != ForkCondition::Never)
    }

    /// The newest fork active at a block.
    ///
    /// Where the merge block is unknown, a merged chain is only recognised from Shanghai on; use
    /// [`Self::fork_at_header`].
    pub fn fork_at(&self, number: u64, timestamp: u64) -> EthereumHardfork {
        EthereumHardfork::VARIANTS
            .iter()
            .rev()
            .copied()
            .find(|fork| {
                self.ethereum_fork_activation(*fork)
                    .active_at_timestamp_or_number(timestamp, number)
            })
            .unwrap_or(EthereumHardfork::Frontier)
    }

    /// The newest fork active at the block of this header.
    pub fn fork_at_header(&self, header: &Header) -> EthereumHardfork {
        let fork = self.fork_at(header.number, header.timestamp);
        if self.is_pos(header) { fork.max(EthereumHardfork::Paris) } else { fork }
    }

    /// Total difficulty that a block must reach so that its child is the first proof-of-stake
    /// block (EIP-3675). `None` on chains that never merge.
    pub fn terminal_total_difficulty(&self) -> Option<U256> {
        self.ethereum_fork_activation(EthereumHardfork::Paris).ttd()
    }

    /// Number of the first proof-of-stake block, where it is known (0 when merged from genesis).
    pub fn merge_block(&self) -> Option<u64> {
        match self.ethereum_fork_activation(EthereumHardfork::Paris) {
            ForkCondition::TTD { activation_block_number, .. } => {
                (activation_block_number != UNKNOWN_MERGE_BLOCK).then_some(activation_block_number)
            }
            ForkCondition::Block(number) => Some(number),
            ForkCondition::Timestamp(_) | ForkCondition::Never => None,
        }
    }

    /// Whether block `number` follows proof of stake, given its parent's total difficulty where
    /// the merge block is unknown.
    pub fn is_paris_active(&self, number: u64, parent_total_difficulty: Option<U256>) -> bool {
        match (self.merge_block(), self.terminal_total_difficulty(), parent_total_difficulty) {
            (Some(block), ..) => number >= block,
            (None, Some(ttd), Some(parent)) => parent >= ttd,
            _ => false,
        }
    }

    /// Whether this header claims to be of a proof-of-stake block: by number where the merge
    /// block is known, else by its difficulty of zero (EIP-3675).
    pub fn is_pos(&self, header: &Header) -> bool {
        match self.merge_block() {
            Some(block) => header.number >= block,
            None => {
                self.terminal_total_difficulty().is_some()
                    && header.number > 0
                    && header.difficulty.is_zero()
            }
        }
    }

    /// The specification with which to execute the block of this header.
    ///
    /// It is `self`, except for proof-of-stake blocks of a chain whose merge block is unknown;
    /// those get a copy in which Paris is active.
    pub fn for_header(self: &Arc<Self>, header: &Header) -> Arc<Self> {
        if self.merge_block().is_some() || !self.is_pos(header) {
            return Arc::clone(self);
        }
        Arc::clone(self.merged.get_or_init(|| Arc::new((**self).clone().with_merge_block(0))))
    }

    /// Contract whose logs are deposit requests (EIP-6110), where the chain names one.
    pub const fn deposit_contract(&self) -> Option<Address> {
        self.deposit_contract
    }

    /// DAO fork, if the chain crossed it.
    pub const fn dao_fork(&self) -> Option<DaoFork> {
        self.dao_fork
    }

    /// Base fee parameters (EIP-1559): elasticity 2, change denominator 8, on every chain here.
    pub const fn base_fee_params(&self) -> BaseFeeParams {
        BaseFeeParams::ethereum()
    }

    /// Blob parameters by fork and time.
    pub const fn blob_schedule(&self) -> &BlobScheduleBlobParams {
        &self.blob_schedule
    }

    /// Blob parameters in force at a timestamp (seconds); `None` before Cancun.
    pub fn blob_params_at_timestamp(&self, timestamp: u64) -> Option<BlobParams> {
        // Scheduled entries start at Osaka or later, so the newest one wins over the fork's own.
        if self.is_osaka_active_at_timestamp(timestamp) {
            let scheduled = self.blob_schedule.active_scheduled_params_at_timestamp(timestamp);
            return Some(*scheduled.unwrap_or(&self.blob_schedule.osaka));
        }
        if self.is_prague_active_at_timestamp(timestamp) {
            return Some(self.blob_schedule.prague);
        }
        self.is_cancun_active_at_timestamp(timestamp).then_some(self.blob_schedule.cancun)
    }
}

impl EthereumHardforks for ChainSpec {
    fn ethereum_fork_activation(&self, fork: EthereumHardfork) -> ForkCondition {
        self.forks.ethereum_fork_activation(fork)
    }
}

impl EthExecutorSpec for ChainSpec {
    fn deposit_contract_address(&self) -> Option<Address> {
        self.deposit_contract
    }
}

/// State root (Merkle-Patricia trie) of a genesis allocation.
///
/// Every account of the file becomes a leaf, an empty one too.
pub fn genesis_state_root(genesis: &Genesis) -> B256 {
    state_root_unhashed(
        genesis
            .alloc
            .iter()
            .map(|(address, account)| (*address, TrieAccount::from(account.clone()))),
    )
}

/// Builds the header of block 0. Fields that a fork adds are present when that fork is active at
/// genesis, with the values of a block without content.
fn genesis_header_of(
    genesis: &Genesis,
    forks: &EthereumChainHardforks,
    state_root: B256,
) -> Header {
    let number = genesis.number.unwrap_or_default();
    let time = genesis.timestamp;
    // A fork by time is only active where London, on which it builds, is.
    let london = forks.is_london_active_at_block(number);
    let shanghai = london && forks.is_shanghai_active_at_timestamp(time);
    let cancun = london && forks.is_cancun_active_at_timestamp(time);
    let prague = london && forks.is_prague_active_at_timestamp(time);
    let amsterdam = london && forks.is_amsterdam_active_at_timestamp(time);
    let base_fee = || {
        genesis
            .base_fee_per_gas
            .map_or(INITIAL_BASE_FEE, |fee| u64::try_from(fee).unwrap_or(u64::MAX))
    };
    Header {
        parent_hash: genesis.parent_hash.unwrap_or_default(),
        number,
        timestamp: time,
        nonce: B64::from(genesis.nonce.to_be_bytes()),
        extra_data: genesis.extra_data.clone(),
        gas_limit: genesis.gas_limit,
        difficulty: genesis.difficulty,
        mix_hash: genesis.mix_hash,
        beneficiary: genesis.coinbase,
        state_root,
        transactions_root: EMPTY_ROOT_HASH,
        receipts_root: EMPTY_ROOT_HASH,
        base_fee_per_gas: london.then(base_fee),
        withdrawals_root: shanghai.then_some(EMPTY_WITHDRAWALS),
        parent_beacon_block_root: cancun.then_some(B256::ZERO),
        blob_gas_used: cancun.then(|| genesis.blob_gas_used.unwrap_or_default()),
        excess_blob_gas: cancun.then(|| genesis.excess_blob_gas.unwrap_or_default()),
        requests_hash: prague.then_some(EMPTY_REQUESTS_HASH),
        block_access_list_hash: amsterdam.then_some(EMPTY_BLOCK_ACCESS_LIST_HASH),
        slot_number: amsterdam.then(|| genesis.slot_number.unwrap_or_default()),
        ..Default::default()
    }
}
