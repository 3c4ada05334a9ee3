//! Executes one block with alloy-evm and revm over any [`StateReader`], and returns its changes.
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
//! * **delta** ([`StateDelta`]): every key the block changes, with its value before and after. It
//!   is taken per block, after rewards, withdrawals and system calls, and never over several
//!   blocks: that would lose what a SELFDESTRUCT wiped in between.
//! * **observer** ([`execute_block_with_observer`]): sees the delta of each single transaction.
//!   Receipts before Byzantium commit to the state root after every transaction; with an observer
//!   the caller computes these roots with one temporary proposal per transaction.
//! * **block access list** (BAL, [`BlockAccessList`]): every key a block accesses and every value
//!   it writes, each write with the index of its transaction (EIP-7928). Execution records it. A
//!   list that came with a block is only a claim: threads can [prefetch](PrefetchedState) its keys
//!   and execute transactions [in parallel](execute_block_in_parallel) on its values, but the
//!   outcome contains nothing that execution did not confirm.
//! * **simulation** ([`EvmSimulation`]): an execution that changes no stored state: calls,
//!   estimates, traces of past transactions, simulated blocks. It uses the EVM, the state and the
//!   rules around transactions that blocks use. In addition it can override accounts, run an
//!   inspector, and end at a deadline.
//! * **cleared**: the storage of an account was dropped as a whole (SELFDESTRUCT, EIP-161 removal).
//!   Its slots before the block come from [`StateReader::slots_of`]; where a state cannot list them
//!   (a witness) the delta's `wiped` marker replaces the list.
//!
//! # Rules that live here, and nowhere else
//!
//! Which accounts exist after a transaction is a rule of the fork: before Spurious Dragon a touched
//! empty account is a leaf of the state, from then on it is removed (EIP-161). The DAO's irregular
//! transfer (EIP-779) happens before the first transaction of its block. Rewards, withdrawals and
//! the system calls of EIP-2935, 4788, 7002, 7251, 8282 and 8304 are part of the delta. A block is
//! invalid without the contracts that requests are read from, or if a deposit event in it has
//! another layout than EIP-6110 allows. A contract that is created over an account with only
//! storage keeps that storage. Backends apply the delta and contain none of these rules.
//!
//! [`StateReader`]: retrie_state::StateReader
//! [`StateReader::slots_of`]: retrie_state::StateReader::slots_of
//! [`StateDelta`]: retrie_state::StateDelta

mod bal_overlay;
mod block_state;
mod call;
mod constantinople;
mod database;
mod deadline;
mod deposits;
mod error;
mod evm;
mod executed_code;
mod executor;
mod index_tables;
mod layered;
mod outcome;
mod parallel;
mod participants;
mod prefetch;
mod prefetch_keys;
mod receipts;
mod record;
mod simulation;
mod source;
mod stateless;
mod tables;

pub use block_state::{BlockState, ReadFailure, TouchedSlots};
pub use call::{CallRequestError, CallRules, lowest_transaction_type, prepare_call};
pub use database::ReadCounts;
pub use deposits::DepositLayoutError;
pub use error::{DatabaseError, ExecutionError, ObserverError};
pub use evm::max_tx_gas_limit;
pub use executed_code::{CodeTraceError, ExecutedChunks, executed_code};
pub use executor::{
    RemainingGas, TransactionObserver, TransactionSource, evm_env, execute_block,
    execute_block_with_observer, execute_transaction, fill_block,
};
pub use layered::{BatchState, LayeredState};
pub use outcome::{ExecutionOutcome, ExecutionTiming};
pub use parallel::execute_block_in_parallel;
pub use participants::ParticipantInspector;
pub use prefetch::PrefetchedState;
pub use prefetch_keys::{keys_of_body, keys_of_list};
pub use record::{AccessRecorder, RecordedAccesses};
pub use simulation::{
    AccountOverride, EvmSimulation, InspectorContext, SimulatedBlockResult, TransactError,
    simulated_env,
};
pub use source::{BlockHashes, CodeCache, CodeReader, ExecutionInput};
pub use stateless::{
    BlockReads, WitnessExecutionError, WitnessOutcome, WitnessState, execute_on_witness, read_block,
};
pub use tables::{load_trusted_setup, make_tables};

/// The block access list of EIP-7928, as the header's `blockAccessListHash` commits to it.
pub use alloy_eip7928::BlockAccessList;
