//! [`ExecutionOutcome`]: the result of executing a block.

use crate::{BlockAccessList, ReadCounts};
use alloy_consensus::TxReceipt;
use alloy_eip7928::compute_block_access_list_hash;
use alloy_eips::eip7685::Requests;
use alloy_primitives::{B256, Bloom, Bytes};
use core::time::Duration;
use retrie_chainspec::primitives::Receipt;
use retrie_state::StateDelta;

/// The values of an executed block that its header commits to, and all its changes.
#[derive(Clone, Debug, Default)]
pub struct ExecutionOutcome {
    /// One receipt per transaction. Receipts before Byzantium commit to a state root, which is not
    /// part of them here: an observer collects these roots.
    pub receipts: Vec<Receipt>,
    /// Gas as the header's `gasUsed` counts it.
    pub gas_used: u64,
    /// Gas of blobs, zero before Cancun (EIP-4844).
    pub blob_gas_used: u64,
    /// Requests to the consensus layer (EIP-7685), empty before Prague.
    pub requests: Requests,
    /// All changes of the block, with rewards, withdrawals and system calls. It has the `codes` too.
    pub delta: StateDelta,
    /// Codes that accounts carry after the block and did not carry before, by hash, ordered.
    pub codes: Vec<(B256, Bytes)>,
    /// Accesses of the block (EIP-7928), from Amsterdam on.
    pub access_list: Option<BlockAccessList>,
    /// Keys read from the state, by kind.
    pub accesses: ReadCounts,
    /// Number of transactions whose outcome came from parallel execution on the block access list.
    pub precomputed_transactions: u64,
    /// Time of the execution.
    pub timing: ExecutionTiming,
}

impl ExecutionOutcome {
    /// Union of the blooms of all receipts, as in the header's `logsBloom`.
    pub fn logs_bloom(&self) -> Bloom {
        self.receipts.iter().fold(Bloom::ZERO, |bloom, receipt| bloom | receipt.bloom())
    }

    /// The header's `blockAccessListHash` (EIP-7928), from Amsterdam on.
    pub fn access_list_hash(&self) -> Option<B256> {
        self.access_list.as_deref().map(compute_block_access_list_hash)
    }
}

/// Wall-clock time of one block's execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutionTiming {
    /// From the start to the finished delta.
    pub total: Duration,
    /// Part of it in the readers of state, codes and block hashes, on the thread that executes the
    /// block.
    pub storage: Duration,
}

impl ExecutionTiming {
    /// Time outside the readers.
    pub const fn execution(&self) -> Duration {
        self.total.saturating_sub(self.storage)
    }
}
