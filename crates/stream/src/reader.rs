//! [`RecordReader`]: makes the records of a stream from the chain.
//!
//! What comes next follows from the position and one view of the chain:
//!
//! | the block of the cursor | next record |
//! |---|---|
//! | is not canonical | a revert, down to the last block of the stream that is canonical |
//! | is canonical, and records of it are to come | the next one of them |
//! | is canonical and complete | the first record of the block above it, once there is one |
//!
//! So it does not matter whether the position is a millisecond or a year old, of this process or of
//! another one.

use crate::{
    RecordKind, RecordSelection, StreamCursor, StreamError, StreamPosition,
    json::{BlockName, DeltaFields, RecordLine},
};
use alloy_primitives::B256;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_db::ChainRead;
use retrie_engine::{DeltaError, LiveChain, LiveView, ReorgWalk, WalkEnd};
use retrie_pipeline::PipelineError;
use retrie_rpc::chain_json;
use retrie_state::BlockRef;
use serde::Serialize;
use std::{fmt::Display, sync::Arc};

/// Most records of a batch, which is read from one view: a view keeps the database from reusing pages.
const MAX_RECORDS: usize = 48;
/// Bytes of records after which a batch ends.
const MAX_BYTES: usize = 1 << 20;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRecord {
    /// The place behind it.
    pub cursor: StreamCursor,
    /// One line of JSON, without its end.
    pub json: String,
}

/// Reads the records of one stream.
#[derive(Debug)]
pub struct RecordReader {
    live: LiveChain,
    kinds: RecordSelection,
    /// The block that was read last: it has several records.
    block: Option<Arc<RecoveredBlock>>,
}

/// Why there is no next record.
enum ReadStop {
    /// The stream is at the head.
    AtHead,
    /// The store has moved on from this view, and the next view may have what was not found.
    StaleView,
    Failed(StreamError),
}

impl From<StreamError> for ReadStop {
    fn from(error: StreamError) -> Self {
        Self::Failed(error)
    }
}

impl From<PipelineError> for ReadStop {
    fn from(error: PipelineError) -> Self {
        Self::Failed(error.into())
    }
}

impl RecordReader {
    /// A reader of records of these kinds.
    pub const fn new(live: LiveChain, kinds: RecordSelection) -> Self {
        Self { live, kinds, block: None }
    }

    /// The next records after `position`, in order, and moves `position` behind them. None if there
    /// are none yet.
    ///
    /// # Errors
    /// [`StreamError::Chain`] if the chain cannot be read, [`StreamError::UnknownBlock`] and
    /// [`StreamError::WrongNumber`] if the position does not belong to it. Then `position` has not
    /// moved.
    pub fn read(
        &mut self,
        position: &mut StreamPosition,
    ) -> Result<Vec<StreamRecord>, StreamError> {
        let view = self.live.view()?;
        let mut records = Vec::new();
        let mut bytes = 0;
        while records.len() < MAX_RECORDS && bytes < MAX_BYTES {
            match self.next(&view, position) {
                Ok(record) => {
                    bytes += record.json.len();
                    position.advance(record.cursor);
                    records.push(record);
                }
                Err(ReadStop::AtHead | ReadStop::StaleView) => break,
                // It comes back with the next batch.
                Err(ReadStop::Failed(_)) if !records.is_empty() => break,
                Err(ReadStop::Failed(error)) => return Err(error),
            }
        }
        Ok(records)
    }

    fn next(
        &mut self,
        view: &LiveView,
        position: &StreamPosition,
    ) -> Result<StreamRecord, ReadStop> {
        let sequence = position.next_sequence();
        let Some(cursor) = position.cursor() else {
            // A node that was started from a state has no blocks below it.
            let first = view.durable().first().map_err(PipelineError::from)?;
            let number = first.map_or(0, |first| first.number).max(position.first());
            return self.first_of(view, sequence, number);
        };
        let block = cursor.block;
        if !view.is_canonical(&block.hash)? {
            return revert(view, position, block, sequence);
        }
        if let Some(number) = view.block_number(&block.hash)?.filter(|n| *n != block.number) {
            return Err(StreamError::WrongNumber { block, number }.into());
        }
        match self.kinds.after(cursor.kind) {
            Some(kind) => self.record(view, StreamCursor { sequence, block, kind }),
            None => self.first_of(view, sequence, block.number.saturating_add(1)),
        }
    }

    /// The first record of canonical block `number`.
    fn first_of(
        &mut self,
        view: &LiveView,
        sequence: u64,
        number: u64,
    ) -> Result<StreamRecord, ReadStop> {
        let hash = view.canonical_hash(number)?.ok_or(ReadStop::AtHead)?;
        let block = BlockRef::new(number, hash);
        self.record(view, StreamCursor { sequence, block, kind: self.kinds.first() })
    }

    /// A record of a canonical block.
    fn record(&mut self, view: &LiveView, cursor: StreamCursor) -> Result<StreamRecord, ReadStop> {
        let block = match self.block(view, &cursor.block.hash) {
            Ok(block) => block,
            // Receipts are pruned with the body, and deltas take an execution.
            Err(error) if error.is_pruned() => {
                return Ok(line(cursor, Err::<(), _>(error.to_string()))?);
            }
            Err(error) => return Err(error.into()),
        };
        let record = match cursor.kind {
            RecordKind::Receipts => {
                let receipts = view.receipts(&cursor.block.hash)?;
                let shown = receipts
                    .map(|all| chain_json::receipts(self.live.spec(), &block, &all))
                    .ok_or_else(|| format!("the receipts of block {} are not kept", cursor.block));
                line(cursor, shown)?
            }
            RecordKind::Delta => line(cursor, Self::delta(view, &block)?)?,
            RecordKind::Block | RecordKind::Revert => {
                line(cursor, Ok::<_, String>(chain_json::block(&block)))?
            }
        };
        Ok(record)
    }

    fn block(
        &mut self,
        view: &LiveView,
        hash: &B256,
    ) -> Result<Arc<RecoveredBlock>, PipelineError> {
        if let Some(block) = self.block.as_ref().filter(|block| block.hash() == *hash) {
            return Ok(block.clone());
        }
        let block = view.block(hash)?;
        let missing = || retrie_state::StateError::UnknownBlock { hash: *hash };
        Ok(self.block.insert(block.ok_or_else(missing)?).clone())
    }

    /// What a block changed, or why that is not known.
    fn delta(
        view: &LiveView,
        block: &RecoveredBlock,
    ) -> Result<Result<DeltaFields, String>, ReadStop> {
        match view.block_delta(block) {
            Ok(delta) => Ok(Ok(DeltaFields::new(view, &delta)?)),
            // Kept or not, it cannot be read on this view.
            Err(DeltaError::NotKept { .. }) if view.has_lost_state() => Err(ReadStop::StaleView),
            Err(error @ DeltaError::NotKept { .. }) => Ok(Err(error.to_string())),
            Err(DeltaError::Chain(error)) => Err(error.into()),
        }
    }
}

/// The revert from `block`, which is no longer canonical.
fn revert(
    view: &LiveView,
    position: &StreamPosition,
    block: BlockRef,
    sequence: u64,
) -> Result<StreamRecord, ReadStop> {
    let (undone, base) = undone(view, position, block)?;
    let cursor = StreamCursor { sequence, block: base, kind: RecordKind::Revert };
    let undone: Vec<BlockName> = undone.into_iter().map(BlockName::from).collect();
    Ok(line(cursor, Ok::<_, String>(undone))?)
}

/// The blocks that were undone from `block` downwards, the highest first, and the canonical block
/// below them. Blocks that the node does not know are those of the position.
fn undone(
    view: &LiveView,
    position: &StreamPosition,
    block: BlockRef,
) -> Result<(Vec<BlockRef>, BlockRef), StreamError> {
    let ReorgWalk { mut undone, end } = view.walk_back(block)?;
    let forgotten = match end {
        WalkEnd::Canonical(base) => return Ok((undone, base)),
        WalkEnd::Forgotten(block) => block,
    };
    for block in position.downwards(forgotten) {
        if view.canonical_hash(block.number)? == Some(block.hash) {
            return Ok((undone, block));
        }
        undone.push(block);
    }
    Err(StreamError::UnknownBlock { block: forgotten })
}

fn line<T: Serialize, R: Display>(
    cursor: StreamCursor,
    content: Result<T, R>,
) -> Result<StreamRecord, StreamError> {
    let content = content.map_err(|reason| reason.to_string());
    let json = serde_json::to_string(&RecordLine { cursor, content })
        .map_err(|source| StreamError::Json { block: cursor.block, source })?;
    Ok(StreamRecord { cursor, json })
}
