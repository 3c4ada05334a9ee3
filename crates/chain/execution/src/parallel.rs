//! Parallel execution of transactions on the values of the block access list (BAL, EIP-7928).
//!
//! ```text
//!  threads `execute`:  parent's state + the list's writes before transaction i --> outcome i and
//!                                                                                  reads of i
//!  the caller:         system calls -> 0 -> 1 -> 2 ... -> withdrawals, requests      |
//!                                           '-- equal to reads in this state? <------'
//! ```
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | the caller | everything around the transactions; takes their outcomes in order | | |
//! | `execute`, up to `threads` of them | transactions, each on the list's values | [`MAX_AHEAD`] transactions per thread before the caller | no transactions left, the list is wrong, the caller is done |
//!
//! # Why the outcome equals that of serial execution
//!
//! The list is only a claim. The caller keeps the state of serial execution and compares every read
//! of a transaction with it: accounts, absent accounts, slots. A transaction with equal reads has
//! an equal outcome, and the caller processes this outcome like any other: block gas, receipt,
//! changes, recorded accesses. A transaction whose reads differ, or that failed, is executed again
//! by the caller. After the first different read the list is known to be wrong, and the caller
//! executes all further transactions itself. So no value of the list becomes part of an outcome. A
//! list that omits, adds, reorders or changes entries differs from the recorded list, whose hash
//! then differs from the header's: the block is invalid, in serial and in parallel execution. A
//! wrong list costs at most the work of the transactions that were executed in advance.

use crate::{
    ExecutionError, ExecutionInput, ExecutionOutcome,
    bal_overlay::{BalOverlay, IndexedBal},
    block_state::{BlockState, StateRules, TransactionReads},
    evm::BlockEvm,
    executor::{evm_env, execute_block, run},
};
use alloy_eip7928::AccountChanges;
use alloy_evm::{Evm, FromRecoveredTx};
use parking_lot::{Condvar, Mutex};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use revm::{
    context::{
        TxEnv,
        result::{HaltReason, ResultAndState},
    },
    primitives::hardfork::SpecId,
};
use std::{collections::BTreeMap, thread};

/// Transactions that each thread may be ahead of the caller.
const MAX_AHEAD: usize = 8;

/// Like [`execute_block`](crate::execute_block) for a block that came with its access list, which
/// must be well-formed: `threads` threads beside the caller's execute transactions in parallel.
/// Whatever the list contains, outcome and error are the same, except
/// [`ExecutionOutcome::precomputed_transactions`].
///
/// With zero threads, or before Amsterdam, execution is serial.
///
/// # Errors
/// As [`execute_block`](crate::execute_block).
pub fn execute_block_in_parallel(
    spec: &ChainSpec,
    block: &RecoveredBlock,
    input: ExecutionInput<'_>,
    list: &[AccountChanges],
    threads: usize,
) -> Result<ExecutionOutcome, ExecutionError> {
    let transactions = block.body().transactions.len();
    let env = evm_env(spec, block.header());
    if threads.min(transactions) == 0 || !env.cfg_env.spec.is_enabled_in(SpecId::AMSTERDAM) {
        return execute_block(spec, block, input);
    }
    let ahead = ParallelExecution::new(transactions, threads);
    let listed = IndexedBal::new(list);
    let work = || {
        let _working = WorkerGuard(&ahead);
        let state = BalOverlay::new(&listed, input);
        let header = block.header();
        let rules = StateRules { clears_empty: true, has_access_list: false };
        let fresh =
            || Box::new(BlockState::new(state.input(), rules, header.number, header.parent_hash));
        let mut evm = BlockEvm::new(fresh(), env.clone(), false);
        let senders = block.senders();
        while let Some(mut claim) = ahead.claim() {
            state.move_to_index(claim.index as u64 + 1);
            let transaction = &block.body().transactions[claim.index];
            let transaction = TxEnv::from_recovered_tx(transaction, senders[claim.index]);
            let outcome = evm.transact_raw(transaction);
            // The caller executes a failed transaction again, and decides.
            let outcome = outcome.ok();
            let seen = std::mem::replace(evm.db_mut(), fresh()).into_reads(outcome.is_some());
            claim.attempt = Some(TransactionAttempt { outcome, seen });
        }
    };
    thread::scope(|scope| {
        // Releases all waiting threads, also on an error or a panic.
        let _end = StopGuard(&ahead);
        for _ in 0..threads.min(transactions) {
            ahead.progress.lock().working += 1;
            let thread = thread::Builder::new().name("execute".into());
            if thread.spawn_scoped(scope, work).is_err() {
                ahead.progress.lock().working -= 1;
            }
        }
        run(spec, block, input, None, None, Some(&ahead))
    })
}

/// One execution of a transaction on the list's values.
struct TransactionAttempt {
    /// `None` if it failed.
    outcome: Option<ResultAndState<HaltReason>>,
    seen: TransactionReads,
}

/// The attempts of the threads, and the positions of the threads and of the caller.
pub(crate) struct ParallelExecution {
    transactions: usize,
    most: usize,
    progress: Mutex<ParallelProgress>,
    /// Signals that the caller moved on, an attempt is ready, or a thread has ended.
    moved: Condvar,
}

#[derive(Default)]
struct ParallelProgress {
    /// Running threads.
    working: usize,
    /// The next transaction for a thread to claim.
    next: usize,
    /// The transaction that the caller is at.
    at: usize,
    /// Threads must stop.
    is_over: bool,
    /// Attempts by transaction; `None` for an attempt that panicked.
    attempts: BTreeMap<usize, Option<TransactionAttempt>>,
}

impl ParallelExecution {
    fn new(transactions: usize, threads: usize) -> Self {
        let most = threads.saturating_mul(MAX_AHEAD);
        Self { transactions, most, progress: Mutex::default(), moved: Condvar::new() }
    }

    /// Claims the next transaction, once it is not too far ahead of the caller.
    fn claim(&self) -> Option<TransactionClaim<'_>> {
        let mut progress = self.progress.lock();
        loop {
            let index = progress.next;
            if progress.is_over || index >= self.transactions {
                return None;
            }
            if index < progress.at + self.most {
                progress.next += 1;
                return Some(TransactionClaim { ahead: self, index, attempt: None });
            }
            self.moved.wait(&mut progress);
        }
    }

    /// The outcome of transaction `index`, if its reads agree with `state`, the state before it.
    /// Call it for the transactions in order.
    pub(crate) fn outcome(
        &self,
        index: usize,
        state: &mut BlockState<'_>,
    ) -> Option<ResultAndState<HaltReason>> {
        let TransactionAttempt { outcome, seen } = self.wait_for(index)?;
        match state.agrees_with(&seen) {
            Ok(true) => outcome,
            Ok(false) => {
                self.end();
                None
            }
            // The caller's own execution runs into the same failure and reports it.
            Err(_) => None,
        }
    }

    fn wait_for(&self, index: usize) -> Option<TransactionAttempt> {
        let mut progress = self.progress.lock();
        progress.at = index;
        self.moved.notify_all();
        loop {
            if progress.is_over {
                return None;
            }
            if let Some(attempt) = progress.attempts.remove(&index) {
                return attempt;
            }
            if progress.working == 0 {
                return None;
            }
            self.moved.wait(&mut progress);
        }
    }

    fn end(&self) {
        let mut progress = self.progress.lock();
        progress.is_over = true;
        progress.attempts.clear();
        self.moved.notify_all();
    }
}

/// A transaction that a thread has claimed. Dropping it hands the attempt to the caller.
struct TransactionClaim<'a> {
    ahead: &'a ParallelExecution,
    index: usize,
    attempt: Option<TransactionAttempt>,
}

impl Drop for TransactionClaim<'_> {
    fn drop(&mut self) {
        let mut progress = self.ahead.progress.lock();
        progress.attempts.insert(self.index, self.attempt.take());
        self.ahead.moved.notify_all();
    }
}

/// Counts a running thread until it is dropped.
struct WorkerGuard<'a>(&'a ParallelExecution);

impl Drop for WorkerGuard<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().working -= 1;
        self.0.moved.notify_all();
    }
}

/// Stops all threads when dropped.
struct StopGuard<'a>(&'a ParallelExecution);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
