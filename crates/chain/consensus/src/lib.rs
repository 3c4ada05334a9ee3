//! The rules of consensus: which headers, bodies and execution results are valid, Frontier to
//! Amsterdam.
//!
//! # Vocabulary
//! * **header rules** ([`validate_header`], [`validate_header_against_parent`]): what a header
//!   must say by itself and after its parent.
//! * **body rules** ([`validate_body`]): what the header commits to, and limits of the block.
//! * **ommers** ([`validate_ommers`]): valid blocks off the chain, included by a later block.
//! * **block access list** (BAL, [`validate_access_list`]): the accesses and writes of a block
//!   (EIP-7928), where a list came with the block.
//! * **post-execution rules** ([`validate_post_execution`]): gas, receipts, logs and requests that
//!   execution must have given. The crate that owns the state checks the state root.
//! * **terminal total difficulty** ([`validate_merge`]): where proof of work must end.
//!
//! # The checks of a block, in order
//! ```text
//! header ── validate_header ── validate_header_against_parent ── validate_merge ─┐
//! body ──── validate_body ──── validate_ommers ──────────────────────────────────┤
//!                                                                             execute
//! receipts, gas, requests ──── validate_post_execution ──────────────────────────┘
//! ```
//! Every function is pure and says in a [`ConsensusError`] which rule is broken, what was found
//! and what was expected; [`ConsensusError::in_block`] adds the block's number and hash.
//! [`ForkChoice`] chooses between two valid chains where there is no consensus client.
//!
//! # Assumptions
//! * Parents are valid: every check relies on the chain below.
//! * The proof-of-work seal is not checked (see [`validate_header`]).
//! * Rules of single transactions are checked by the EVM during execution.

mod access_list;
mod body;
mod difficulty;
mod error;
mod fork_choice;
mod header;
mod ommers;
mod post_execution;

pub use access_list::validate_access_list;
pub use body::{MAX_RLP_BLOCK_SIZE, validate_body};
pub use difficulty::next_difficulty;
pub use error::{ConsensusError, InvalidBlock};
pub use fork_choice::{ChainHead, ForkChoice};
pub use header::{
    next_base_fee, next_excess_blob_gas, validate_header, validate_header_against_parent,
    validate_merge, validate_not_from_future,
};
pub use ommers::{HeaderProvider, MAX_OMMERS, validate_ommers};
pub use post_execution::{ExecutionResult, pre_byzantium_receipts_root, validate_post_execution};
