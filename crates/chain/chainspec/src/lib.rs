//! Chains: their names, genesis blocks and fork schedules, and the types blocks are made of.
//!
//! # Vocabulary
//! * **fork** (hardfork): a named change of the rules ([`EthereumHardfork`]). Up to Gray Glacier
//!   forks activate at a block number, Paris (the merge) at a total difficulty, later ones at a
//!   timestamp ([`ForkCondition`]).
//! * **terminal total difficulty** (TTD): the sum of difficulties that ends proof of work.
//! * **blob schedule**: target, maximum and fee fraction of blobs, by fork and by time (EIP-7840,
//!   EIP-7892).
//! * **binary tree time**: the time from which on headers carry the root of the partitioned binary
//!   tree (EIP-8297), if the chain has one. Before it they carry that of the Merkle Patricia trie.
//! * **index tables block**: the block from which on roots of index tables are stored in the index
//!   contract (EIP-8304), if the chain has one.
//! * **allocation** (alloc): the accounts that exist in block 0.
//!
//! # Where things are
//! * [`ChainSpec`] holds all that distinguishes one chain from another. The public networks are
//!   built in ([`ChainSpec::mainnet`] and so on), others come from genesis files
//!   ([`ChainSpec::from_genesis_json`]); [`parse_chain`] takes either.
//! * [`primitives`] fixes the block, transaction and receipt types of the whole workspace.
//! * [`alloc_codec`] is the packed form in which genesis allocations live in `res/`.
//! * [`blobs`] assembles blob schedules from the parameters of each fork; [`CellMask`] names cells
//!   of a blob (EIP-7594).
//! * [`test_networks`] maps the network names of the public test suites to fork schedules.
//!
//! [`ChainSpec`] implements [`EthereumHardforks`] and [`EthExecutorSpec`], so it is handed as it
//! is to the block executor of `alloy-evm`, which also holds the DAO drain list
//! (`alloy_evm::eth::dao_fork`).
//!
//! # Assumptions
//! Base fees follow EIP-1559 with mainnet's constants on every chain. Proof-of-authority chains
//! are refused unless they are merged from genesis on.

pub mod alloc_codec;
pub mod blobs;
mod cell_mask;
mod error;
mod genesis_json;
mod networks;
pub mod primitives;
mod spec;
pub mod test_networks;

pub use alloy_evm::eth::spec::EthExecutorSpec;
pub use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
pub use cell_mask::{CELLS_PER_BLOB, CellMask};
pub use error::{AllocError, ChainSpecError};
pub use networks::{
    DEV_ACCOUNTS, DEV_KEYS, DEV_MNEMONIC, KNOWN_CHAINS, MAINNET_GENESIS_HASH, parse_chain,
};
pub use spec::{ChainSpec, ChainSpecParts, DaoFork, genesis_state_root};
