//! Executes one block with alloy-evm and revm over any [`StateReader`], and says what it changed.
//!
//! ```text
//!  RecoveredBlock --.                             .--> receipts, gas, requests, access list
//!  ChainSpec -------+--> execute_block ----------+---> StateDelta  (to the state backend)
//!  StateReader -----+      |   ^                  '--> new contract codes
//!  CodeReader ------+      v   | reads
//!  BlockHashes -----'    revm over BlockState
//! ```
//!
//! # Vocabulary
//!
//! * **input** ([`ExecutionInput`]): where one block reads from: the state of its parent, contract
//!   codes by hash, hashes of ancestors, and (optionally) a [`CodeCache`] of analysed codes shared
//!   between blocks.
//! * **delta** ([`StateDelta`]): every key the block changes, with its value before and after. It is
//!   taken per block, after rewards, withdrawals and system calls, never from a longer run of
//!   blocks: what a SELFDESTRUCT wiped would be lost between them.
//! * **observer** ([`execute_block_with_observer`]): sees the delta of each single transaction.
//!   Receipts before Byzantium commit to the state root after every transaction; with an observer
//!   the caller chains one throw-away proposal per transaction to learn these roots.
//! * **access list** ([`BlockAccessList`]): what a block accesses, and every value it writes, by the index
//!   of who does (EIP-7928). The execution of a block records it. One that came with a block is a claim:
//!   its keys can be fetched [ahead](WarmState), and transactions executed
//!   [in parallel](execute_block_in_parallel) on its values, and nothing of it becomes part of an
//!   outcome unless execution finds it so.
//! * **simulation** ([`Simulation`]): an execution whose outcome nobody keeps: calls, estimates, traces
//!   of past transactions, simulated blocks. It runs on the same EVM, the same state and the same rules
//!   around the transactions as blocks do; in addition accounts can be overridden, an inspector can look
//!   on, and a deadline ends what takes too long.
//! * **cleared**: the storage of an account was dropped as a whole (SELFDESTRUCT, EIP-161 removal). Its
//!   slots before the block come from [`StateReader::slots_of`]; where that is unknown (a witness) the
//!   delta's `wiped` marker decides.
//!
//! # Rules that live here, and nowhere else
//!
//! Which accounts exist after a transaction is a rule of the fork: before Spurious Dragon a touched
//! empty account is a leaf of the state, from then on it is removed (EIP-161). The DAO's irregular
//! transfer (EIP-779) happens before the first transaction of its block. Rewards, withdrawals and the
//! system calls of EIP-2935, 4788, 7002, 7251 and 8282 are part of the delta; a block without the
//! contracts that requests are read from is invalid, and so is one in which the deposit contract has a
//! log of another form than that of EIP-6110. A creation over an account that has storage alone keeps
//! that storage. Backends apply the delta and know none of this.
//!
//! [`StateReader`]: retrie_state::StateReader
//! [`StateReader::slots_of`]: retrie_state::StateReader::slots_of
//! [`StateDelta`]: retrie_state::StateDelta

mod block_state;
mod constantinople;
mod database;
mod deadline;
mod deposits;
mod error;
mod evm;
mod executor;
mod known;
mod layered;
mod listed;
mod outcome;
mod parallel;
mod receipts;
mod record;
mod simulation;
mod source;
mod tables;
mod warm;

pub use block_state::{BlockState, ReadFailed};
pub use database::{ReadCounts, StateDatabase};
pub use deposits::DepositLayoutError;
pub use error::{DatabaseError, ExecutionError, ObserverError};
pub use evm::max_tx_gas_limit;
pub use executor::{
    Room, TransactionObserver, TransactionSource, evm_env, execute_block,
    execute_block_with_observer, execute_transaction, fill_block,
};
pub use known::{keys_of_body, keys_of_list};
pub use layered::{LayeredState, StateInRun};
pub use outcome::{ExecutionOutcome, Timing};
pub use parallel::execute_block_in_parallel;
pub use record::{AccessRecorder, RecordedAccesses};
pub use simulation::{
    AccountOverride, BlockContext, BlockEnd, Simulation, TransactError, simulated_env,
};
pub use source::{BlockHashes, CodeCache, CodeReader, ExecutionInput};
pub use tables::{load_trusted_setup, make_tables};
pub use warm::WarmState;

/// The block access list of EIP-7928, as the header's `blockAccessListHash` commits to it.
pub use alloy_eip7928::BlockAccessList;
