//! Transactions executed in parallel, on what the block's access list (EIP-7928) says of the state.
//!
//! ```text
//!  threads `execute`:  parent's state + the list's writes before transaction i --> outcome i, and what
//!                                                                                  it has seen
//!  the caller:         system calls -> 0 -> 1 -> 2 ... -> withdrawals, requests      |
//!                                           '-- all that i has seen is so here? <----'
//! ```
//!
//! | thread | work | bounded by | ends |
//! |---|---|---|---|
//! | the caller | everything around the transactions; takes their outcomes in order | | |
//! | `execute`, as many as were asked for | transactions, each on the list | [`AHEAD`] transactions a thread before the caller | no transactions left, the list has lied, the caller is done |
//!
//! # Why the outcome is that of serial execution
//!
//! A list is what somebody claims. The caller keeps the state that serial execution keeps, and holds
//! whatever a transaction has seen against it: accounts, slots, and that an account is absent. A
//! transaction that has seen what it would see here has the outcome that it would have here, and that
//! outcome goes the way that every outcome goes: block gas, receipt, changes, recorded accesses. One
//! that has seen anything else, or failed, is executed here, as if nobody had tried; and after the first
//! that saw something else all that follow are, too, for the list has lied. So nothing that is in a list
//! becomes part of an outcome, and a list that omits, adds, reorders or lies makes a block invalid by the
//! list that was recorded, whose hash is then another one than the header's, serially and in parallel
//! alike. It may cost the work of the transactions that were ahead, no more.

use crate::{
    ExecutionError, ExecutionInput, ExecutionOutcome,
    block_state::{BlockState, Seen, StateRules},
    evm::BlockEvm,
    executor::{evm_env, execute_block, run},
    listed::{Listed, ListedState},
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

/// Transactions that may be ahead of the caller, a thread.
const AHEAD: usize = 8;

/// Like [`execute_block`](crate::execute_block) for a block that came with its access list, which must be
/// well-formed: transactions are executed in parallel, on `threads` threads beside the caller's. The
/// outcome is the same in everything but [`ExecutionOutcome::ahead`], whatever the list says, and so is
/// the error.
///
/// Without a thread, or before Amsterdam, it is serial.
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
    let ahead = Ahead::new(transactions, threads);
    let listed = Listed::new(list);
    let work = || {
        let _working = Working(&ahead);
        let state = ListedState::new(&listed, input);
        let header = block.header();
        let rules = StateRules { clears_empty: true, has_access_list: false };
        let fresh =
            || Box::new(BlockState::new(state.input(), rules, header.number, header.parent_hash));
        let mut evm = BlockEvm::new(fresh(), env.clone(), false);
        let senders = block.senders();
        while let Some(mut claim) = ahead.claim() {
            state.go_before(claim.index as u64 + 1);
            let transaction = &block.body().transactions[claim.index];
            let transaction = TxEnv::from_recovered_tx(transaction, senders[claim.index]);
            let outcome = evm.transact_raw(transaction);
            // What has failed will fail again when it is its turn, or not.
            let outcome = outcome.ok();
            let seen = std::mem::replace(evm.db_mut(), fresh()).into_seen(outcome.is_some());
            claim.attempt = Some(Attempt { outcome, seen });
        }
    };
    thread::scope(|scope| {
        // However this ends, nobody waits for more.
        let _end = End(&ahead);
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

/// A transaction that was executed on the list.
struct Attempt {
    /// `None` if that has failed.
    outcome: Option<ResultAndState<HaltReason>>,
    seen: Seen,
}

/// What threads have executed ahead of the caller, and where both are.
pub(crate) struct Ahead {
    transactions: usize,
    most: usize,
    progress: Mutex<Progress>,
    /// There is room ahead, an attempt is there, or a thread has ended.
    moved: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Threads that take transactions.
    working: usize,
    /// The next transaction to be taken.
    next: usize,
    /// The one that the caller is at.
    at: usize,
    /// Nothing more is wanted.
    is_over: bool,
    /// Attempts by transaction; `None` of those that never ended.
    attempts: BTreeMap<usize, Option<Attempt>>,
}

impl Ahead {
    fn new(transactions: usize, threads: usize) -> Self {
        let most = threads.saturating_mul(AHEAD);
        Self { transactions, most, progress: Mutex::default(), moved: Condvar::new() }
    }

    /// Takes the next transaction, once it is not too far ahead.
    fn claim(&self) -> Option<Claim<'_>> {
        let mut progress = self.progress.lock();
        loop {
            let index = progress.next;
            if progress.is_over || index >= self.transactions {
                return None;
            }
            if index < progress.at + self.most {
                progress.next += 1;
                return Some(Claim { ahead: self, index, attempt: None });
            }
            self.moved.wait(&mut progress);
        }
    }

    /// The outcome of transaction `index` on `state`, which is that after the transactions before it,
    /// if it is known. They are asked for in order.
    pub(crate) fn outcome(
        &self,
        index: usize,
        state: &mut BlockState<'_>,
    ) -> Option<ResultAndState<HaltReason>> {
        let Attempt { outcome, seen } = self.wait_for(index)?;
        match state.agrees_with(&seen) {
            Ok(true) => outcome,
            Ok(false) => {
                self.end();
                None
            }
            // Execution here will run into the same.
            Err(_) => None,
        }
    }

    fn wait_for(&self, index: usize) -> Option<Attempt> {
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

/// A transaction that a thread has taken. Dropping it tells the caller what came of it.
struct Claim<'a> {
    ahead: &'a Ahead,
    index: usize,
    attempt: Option<Attempt>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut progress = self.ahead.progress.lock();
        progress.attempts.insert(self.index, self.attempt.take());
        self.ahead.moved.notify_all();
    }
}

/// A thread that takes transactions.
struct Working<'a>(&'a Ahead);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().working -= 1;
        self.0.moved.notify_all();
    }
}

/// Ends it all when dropped.
struct End<'a>(&'a Ahead);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
