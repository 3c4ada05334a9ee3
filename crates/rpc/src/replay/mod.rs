//! Past blocks, executed again.

mod clock;
mod derived;
mod recording;
mod stored;

pub(crate) use clock::Clock;
pub(crate) use derived::{access_list, intermediate_roots};
pub(crate) use recording::{Recorder, Recording};
pub(crate) use stored::StoredOutcome;

use crate::{
    RpcContext, RpcError, RpcResult,
    words::{TransactFailure, block_failure},
};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_engine::{StateAfter, View};
use retrie_execution::{BlockContext, Simulation};
use revm::{
    context::{
        TxEnv,
        result::{HaltReason, ResultAndState},
    },
    inspector::{Inspector, NoOpInspector},
};

/// Which transactions of a block are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All of them.
    All,
    /// The one of this index. Those before it are executed, those after it are not.
    Only(usize),
}

/// A transaction that was executed again; its changes are not yet part of the state.
pub(crate) struct Replayed<'r, 'a, I> {
    /// Index in its block.
    pub(crate) index: usize,
    /// What the EVM was given.
    pub(crate) tx: TxEnv,
    /// Who looked on.
    pub(crate) inspector: I,
    /// What came out.
    pub(crate) outcome: &'r ResultAndState<HaltReason>,
    /// Logs of the block before it.
    pub(crate) logs_before: usize,
    /// The state before it.
    pub(crate) simulation: &'r mut Simulation<'a>,
}

/// Replays transactions of `block`, each before the eyes of an inspector of its own, and gives what
/// `show` makes of them.
pub(crate) fn replay<I, T>(
    rpc: &RpcContext,
    view: &View,
    block: &RecoveredBlock,
    which: Which,
    clock: Clock,
    mut inspector: impl FnMut() -> RpcResult<I>,
    mut show: impl FnMut(Replayed<'_, '_, I>) -> RpcResult<T>,
) -> RpcResult<Vec<T>>
where
    I: Recorder + for<'a> Inspector<BlockContext<'a>>,
{
    if block.number == 0 {
        return Err(RpcError::Rejected("genesis is not traceable".into()));
    }
    let state = view.state_before(block)?;
    let spec = rpc.live.spec().for_header(block.header());
    let (first, end) = match which {
        Which::All => (0, block.body().transactions.len()),
        Which::Only(index) => (index, index + 1),
    };
    let mut stored = StoredOutcome::of(view, block)?;
    let (mut simulation, mut logs_before) =
        before(&spec, block, first, &state, clock, &mut stored)?;
    let mut recording = Recording::new(rpc.limits.max_response_size);
    let mut shown = Vec::with_capacity(end - first);
    for index in first..end {
        let mut inspector = inspector()?;
        simulation.set_deadline(clock.deadline());
        let replayed = simulation.replay(block, index, Some(&mut recording.watch(&mut inspector)));
        recording.check()?;
        let (tx, outcome) = replayed.map_err(|error| failure(block, index, error, clock))?;
        stored.check(index, &outcome.result)?;
        let simulated = &mut simulation;
        shown.push(show(Replayed {
            index,
            tx,
            inspector,
            outcome: &outcome,
            logs_before,
            simulation: simulated,
        })?);
        logs_before += logs_of(&outcome);
        if index + 1 < end {
            simulation.commit(outcome.state).map_err(TransactFailure::database)?;
        }
    }
    stored.check_sum()?;
    Ok(shown)
}

/// The state before transaction `index` of `block`, in the block's environment, for calls: `state`
/// is that of the parent.
pub(crate) fn state_before<'a>(
    rpc: &RpcContext,
    spec: &'a ChainSpec,
    block: &RecoveredBlock,
    index: usize,
    state: &'a StateAfter,
) -> RpcResult<Simulation<'a>> {
    let clock = Clock::new(rpc.limits.evm_timeout);
    let mut stored = StoredOutcome::of(state.view(), block)?;
    before(spec, block, index, state, clock, &mut stored).map(|(simulation, _)| simulation)
}

/// The same, and the number of logs before. What the transactions come to must be as `stored`.
fn before<'a>(
    spec: &'a ChainSpec,
    block: &RecoveredBlock,
    index: usize,
    state: &'a StateAfter,
    clock: Clock,
    stored: &mut StoredOutcome<'_>,
) -> RpcResult<(Simulation<'a>, usize)> {
    let mut logs = 0;
    let mut simulation = Simulation::of_block(spec, block, state.input()).map_err(block_failure)?;
    for index in 0..index {
        simulation.set_deadline(clock.deadline());
        let (_, outcome) = simulation
            .replay::<NoOpInspector>(block, index, None)
            .map_err(|error| failure(block, index, error, clock))?;
        stored.check(index, &outcome.result)?;
        logs += logs_of(&outcome);
        simulation.commit(outcome.state).map_err(TransactFailure::database)?;
    }
    simulation.set_deadline(clock.deadline());
    Ok((simulation, logs))
}

fn logs_of(outcome: &ResultAndState<HaltReason>) -> usize {
    if outcome.result.is_success() { outcome.result.logs().len() } else { 0 }
}

fn failure(
    block: &RecoveredBlock,
    index: usize,
    error: retrie_execution::TransactError,
    clock: Clock,
) -> RpcError {
    match error {
        retrie_execution::TransactError::TimedOut => {
            RpcError::Rejected(format!("execution timeout (timeout = {:?})", clock.each()))
        }
        retrie_execution::TransactError::Database(error) => TransactFailure::database(error),
        error => RpcError::Internal(format!(
            "transaction {index} of block {} cannot be executed again: {error}",
            block.number
        )),
    }
}
