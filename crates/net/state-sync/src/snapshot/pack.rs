//! [`PackWriter`]: answers, one after the other, in objects of bounded size.

use super::{
    MAX_ANSWER, SnapshotError,
    index::{AnswerPlace, IndexWriter},
};
use crate::answer::AnswerKey;
use retrie_sources::{ObjectFolder, SourceError};
use std::{
    collections::VecDeque,
    path::Path,
    thread::{Scope, ScopedJoinHandle},
};

/// Objects that are written at the same time.
const WRITES_AT_ONCE: usize = 4;

/// Name of an object with answers.
pub(super) fn chunks_object(number: u32) -> String {
    format!("chunks/{number:08}")
}

/// Writes answers into objects, on threads of `scope`, and their places into an index.
pub(super) struct PackWriter<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    folder: &'env ObjectFolder,
    object_bytes: usize,
    /// The object that is being filled.
    object: Vec<u8>,
    number: u32,
    index: IndexWriter,
    writes: VecDeque<ScopedJoinHandle<'scope, Result<(), SourceError>>>,
}

impl<'scope, 'env> PackWriter<'scope, 'env> {
    /// Writes objects of at most `object_bytes`, unless one answer is longer.
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        folder: &'env ObjectFolder,
        object_bytes: usize,
        scratch: &Path,
    ) -> Self {
        let index = IndexWriter::new(scratch);
        let writes = VecDeque::new();
        Self { scope, folder, object_bytes, object: Vec::new(), number: 0, index, writes }
    }

    /// Adds an answer.
    pub(super) fn put(
        &mut self,
        key: AnswerKey,
        answer: &[u8],
        what: impl FnOnce() -> String,
    ) -> Result<(), SnapshotError> {
        let len = u32::try_from(answer.len()).ok().filter(|len| *len <= MAX_ANSWER);
        let len =
            len.ok_or_else(|| SnapshotError::TooLarge { what: what(), bytes: answer.len() })?;
        if !self.object.is_empty() && self.object.len() + answer.len() > self.object_bytes {
            self.write()?;
        }
        let place = AnswerPlace { object: self.number, offset: self.object.len() as u32, len };
        self.object.extend_from_slice(answer);
        self.index.put(key, place)
    }

    fn write(&mut self) -> Result<(), SnapshotError> {
        if self.writes.len() >= WRITES_AT_ONCE {
            self.join_oldest()?;
        }
        let (folder, name) = (self.folder, chunks_object(self.number));
        let object = std::mem::take(&mut self.object);
        self.writes.push_back(self.scope.spawn(move || folder.write(&name, object)));
        self.number += 1;
        Ok(())
    }

    fn join_oldest(&mut self) -> Result<(), SnapshotError> {
        match self.writes.pop_front().map(ScopedJoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            Some(Ok(written)) => Ok(written?),
            None => Ok(()),
        }
    }

    /// Writes what is left, and the index. Returns the numbers of objects of both.
    pub(super) fn finish(mut self) -> Result<(u32, u32), SnapshotError> {
        if !self.object.is_empty() {
            self.write()?;
        }
        while !self.writes.is_empty() {
            self.join_oldest()?;
        }
        Ok((self.number, self.index.write(self.folder)?))
    }
}
