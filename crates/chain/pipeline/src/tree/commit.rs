//! The thread that makes imported blocks durable while the next ones execute.

use super::spans::commit_span;
use crate::{
    BlockWithReceipts, ChainStore, ExecutedBlock, PipelineError, ProposalSet, block::InnerBlock,
};
use alloy_primitives::{B256, U256};
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use retrie_db::{NewBlock, WriteTxn};
use retrie_execution::BlockAccessList;
use retrie_telemetry::Metrics;
use std::{sync::Arc, time::Instant};

/// Canonical blocks or batches, each the child of the one before. The first one is the child of the
/// durable tip.
#[derive(Debug)]
pub(super) struct CommitJob {
    pub(super) blocks: Vec<Arc<ExecutedBlock>>,
    /// Notes to be written with the blocks.
    pub(super) notes: Vec<NamedNote>,
}

/// Name and content.
type NamedNote = (&'static str, Vec<u8>);

type CommitOutcome = Result<Vec<B256>, PipelineError>;

/// Handle of the commit thread. One commit runs in the background; the next one waits for it.
#[derive(Debug)]
pub(super) struct CommitThread<'a> {
    chain: &'a ChainStore,
    jobs: Sender<CommitJob>,
    outcomes: Receiver<CommitOutcome>,
    running: bool,
}

impl<'a> CommitThread<'a> {
    pub(super) fn start<'scope>(
        chain: &'a ChainStore,
        metrics: Metrics,
        scope: &'scope std::thread::Scope<'scope, 'a>,
    ) -> Result<Self, PipelineError> {
        let (jobs, inbox) = bounded::<CommitJob>(1);
        let (outbox, outcomes) = bounded(1);
        std::thread::Builder::new()
            .name("import-commit".into())
            .spawn_scoped(scope, move || {
                for job in inbox {
                    let start = Instant::now();
                    let outcome = commit_span(&job.blocks).in_scope(|| commit(chain, &job));
                    metrics.commit_seconds.observe(start.elapsed().as_secs_f64());
                    if let (Ok(_), Some(last)) = (&outcome, job.blocks.last()) {
                        metrics.durable.set(last.block().number as i64);
                    }
                    if outbox.send(outcome).is_err() {
                        return;
                    }
                }
            })
            .map_err(|source| PipelineError::Io {
                action: "starting thread import-commit".into(),
                source,
            })?;
        Ok(Self { chain, jobs, outcomes, running: false })
    }

    /// Starts a commit. Waits for the commit before, and returns the hashes that it made durable.
    pub(super) fn send(&mut self, job: CommitJob) -> CommitOutcome {
        let done = self.wait()?;
        self.jobs.send(job).map_err(|_| PipelineError::Thread { thread: "import-commit" })?;
        self.running = true;
        Ok(done)
    }

    /// Whether a commit is running, or its outcome was not taken yet.
    pub(super) const fn is_running(&self) -> bool {
        self.running
    }

    /// Waits for the running commit, if there is one. Returns the hashes that it made durable.
    pub(super) fn wait(&mut self) -> CommitOutcome {
        if !std::mem::take(&mut self.running) {
            return Ok(Vec::new());
        }
        self.outcomes.recv().map_err(|_| PipelineError::Thread { thread: "import-commit" })?
    }

    /// The hashes that the running commit made durable, once it is done.
    pub(super) fn poll(&mut self) -> Result<Option<Vec<B256>>, PipelineError> {
        if !self.running {
            return Ok(None);
        }
        let outcome = match self.outcomes.try_recv() {
            Err(TryRecvError::Empty) => return Ok(None),
            outcome => outcome.map_err(|_| PipelineError::Thread { thread: "import-commit" })?,
        };
        self.running = false;
        outcome.map(Some)
    }

    /// Stores blocks that are not canonical, at once: they are rare, and must not be lost when the
    /// tree drops them.
    pub(super) fn side_blocks(&self, blocks: &[Arc<ExecutedBlock>]) -> Result<(), PipelineError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let mut txn = self.chain.db.begin_write()?;
        for block in blocks {
            write_block(self.chain, &mut txn, block, BranchKind::Side)?;
        }
        Ok(txn.commit()?)
    }

    /// Writes notes at once, if there are any.
    pub(super) fn notes(
        &self,
        notes: impl ExactSizeIterator<Item = NamedNote>,
    ) -> Result<(), PipelineError> {
        if notes.len() == 0 {
            return Ok(());
        }
        let mut txn = self.chain.db.begin_write()?;
        for (name, note) in notes {
            txn.put_note(name, &note)?;
        }
        Ok(txn.commit()?)
    }

    /// Reverts the durable chain to block `number`, and stores the blocks `side` with it.
    pub(super) fn revert(
        &self,
        number: u64,
        side: &[Arc<ExecutedBlock>],
    ) -> Result<(), PipelineError> {
        self.chain.revert_with(number, |txn| {
            side.iter().try_for_each(|block| write_block(self.chain, txn, block, BranchKind::Side))
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BranchKind {
    Canonical,
    Side,
}

fn commit(chain: &ChainStore, job: &CommitJob) -> CommitOutcome {
    commit_blocks(chain, job).map_err(|source| PipelineError::Commit {
        first: job.blocks.first().map_or(0, |first| first.first().header().number),
        last: job.blocks.last().map_or(0, |last| last.block().header().number),
        source: Box::new(source),
    })
}

fn commit_blocks(chain: &ChainStore, job: &CommitJob) -> CommitOutcome {
    let CommitJob { blocks, notes } = job;
    let proposals: Vec<ProposalSet> = blocks.iter().map(|block| block.states.clone()).collect();
    chain.commit(&proposals, |txn| {
        for block in blocks {
            write_block(chain, txn, block, BranchKind::Canonical)?;
        }
        notes.iter().try_for_each(|(name, note)| Ok(txn.put_note(name, note)?))
    })?;
    Ok(blocks.iter().map(|block| block.block().hash()).collect())
}

/// Writes a block, and the blocks that were executed in one batch with it.
fn write_block(
    chain: &ChainStore,
    txn: &mut WriteTxn,
    block: &ExecutedBlock,
    place: BranchKind,
) -> Result<(), PipelineError> {
    for InnerBlock { data, access_list, total_difficulty } in &block.inner {
        insert(txn, data, access_list.as_ref(), *total_difficulty, place)?;
        chain.states.defer_roots(txn, data.block.hash())?;
    }
    let list = block.access_list.as_ref();
    insert(txn, &block.data, list, block.chain.total_difficulty, place)?;
    for (hash, code) in &block.codes {
        txn.insert_code(hash, code)?;
    }
    txn.insert_preimages(block.preimages.iter())?;
    if let Some(patch) = &block.patch {
        txn.insert_patch(&block.block().hash(), &patch.encode())?;
    }
    chain.states.write_roots(txn, block.block().hash(), block.roots())
}

fn insert(
    txn: &mut WriteTxn,
    data: &BlockWithReceipts,
    access_list: Option<&BlockAccessList>,
    total_difficulty: U256,
    place: BranchKind,
) -> Result<(), PipelineError> {
    let list = access_list.map(alloy_rlp::encode);
    let new = NewBlock::recovered(&data.block, Some(&data.receipts), total_difficulty);
    let new = NewBlock { access_list: list.as_deref(), ..new };
    match place {
        BranchKind::Canonical => txn.insert_block(&new)?,
        BranchKind::Side => txn.insert_side_block(&new)?,
    }
    Ok(())
}
