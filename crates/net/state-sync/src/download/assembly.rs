//! Puts a state together from its answers, which are all on disk.

use super::{StateSyncError, StateSyncProgress, queue::code_of, spool::AnswerSpool};
use crate::format::StateFormat;
use alloy_primitives::B256;
use rayon::prelude::*;
use retrie_state::{ChunkId, OpenedChunk};
use retrie_state_store::EntrySorter;
use std::{
    collections::HashSet,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

/// How many answers are checked at once, and how many bytes of them about.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 16 << 20;

/// A state that is put together.
#[derive(Debug)]
pub(super) struct StateAssembly {
    pub(super) entries: EntrySorter,
    /// Id and number of entries of each chunk that has some, if the backend needs them.
    pub(super) parts: Vec<(ChunkId, u64)>,
    /// The hashes of all codes.
    pub(super) codes: HashSet<B256>,
    /// Chunks that are not on disk after all, or damaged there.
    pub(super) missing: Vec<ChunkId>,
}

impl StateAssembly {
    /// Reads and checks all answers from the chunk `whole` on, and counts them in `progress`.
    pub(super) fn of(
        (format, folder): (&StateFormat, &Path),
        whole: Option<ChunkId>,
        spool: &mut AnswerSpool,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&StateSyncProgress),
        progress: &mut StateSyncProgress,
    ) -> Result<Self, StateSyncError> {
        let mut assembly = Self {
            entries: EntrySorter::new(folder),
            parts: Vec::new(),
            codes: HashSet::new(),
            missing: Vec::new(),
        };
        (progress.answers, progress.entries, progress.bytes) = (0, 0, 0);
        let mut wanted: Vec<ChunkId> = whole.into_iter().collect();
        while !wanted.is_empty() {
            if stop.load(Ordering::Relaxed) {
                return Err(StateSyncError::Stopped);
            }
            let (mut batch, mut bytes) = (Vec::new(), 0);
            while batch.len() < BATCH
                && bytes < BATCH_BYTES
                && let Some(id) = wanted.pop()
            {
                match spool.chunk(&id) {
                    Some(entry) => {
                        let answer = spool.answer(&id, entry)?;
                        bytes += answer.len();
                        batch.push((id, answer));
                    }
                    None => assembly.missing.push(id),
                }
            }
            progress.bytes += bytes as u64;
            progress.answers += batch.len() as u64;
            let opened: Vec<_> =
                batch.into_par_iter().map(|(id, answer)| (format.open(&id, &answer), id)).collect();
            for (opened, id) in opened {
                match opened {
                    Ok(opened) => assembly.add(format, id, opened, &mut wanted, progress)?,
                    Err(error) => {
                        tracing::warn!(%error, "an answer on disk is damaged; it is asked for again");
                        spool.forget(&id);
                        assembly.missing.push(id);
                    }
                }
            }
            tell(progress);
        }
        Ok(assembly)
    }

    fn add(
        &mut self,
        format: &StateFormat,
        id: ChunkId,
        opened: OpenedChunk,
        wanted: &mut Vec<ChunkId>,
        progress: &mut StateSyncProgress,
    ) -> Result<(), StateSyncError> {
        match opened {
            OpenedChunk::Split { below, .. } => wanted.extend(below),
            OpenedChunk::Entries { entries, further } => {
                let count = entries.len() as u64;
                progress.entries += count;
                for (key, value) in entries {
                    self.codes.extend(code_of(&key, &value));
                    self.entries.put(&key, &value)?;
                }
                if format.needs_parts() {
                    self.parts.push((id, count));
                }
                wanted.extend(further);
            }
        }
        Ok(())
    }
}
