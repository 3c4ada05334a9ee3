//! [`SnapshotExport`]: writes the state of a block.
//!
//! It walks as a download does: the last ids first, some hundreds of one kind at a time. So what a
//! reader asks for at once lies close together.

use super::{
    HEADERS, SnapshotError, SnapshotManifest, SnapshotSubject,
    answers::AnswerSource,
    blocks::{ExportedBlocks, remove_surplus_blocks, write_blocks},
    index::index_object,
    manifest::{MANIFEST, RANGES},
    pack::{PackWriter, chunks_object},
};
use crate::{
    answer::{AnswerKey, AnswerKind},
    format::StateFormat,
};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};
use rayon::prelude::*;
use retrie_sources::ObjectFolder;
use retrie_state::{Account, AnyBackend, BackendKey, ChunkId, KeyForm, OpenedChunk, StateError};
use retrie_state_store::StateProvider;
use std::{
    collections::HashSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Most ids, and bytes of answers, of one batch: a reader asks for about as much at once.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 2 << 20;
/// Ids that are answered in parallel.
const GROUP: usize = 32;

/// Reads the code with a hash; `None` if there is none.
pub type CodeLookup<'a> = dyn Fn(&B256) -> Result<Option<Bytes>, StateError> + Sync + 'a;

/// The state to export.
#[expect(missing_debug_implementations, reason = "it has a function")]
pub struct SnapshotSource<'a> {
    /// The state.
    pub state: &'a StateProvider,
    /// Its backend.
    pub backend: Arc<dyn AnyBackend>,
    /// The form of its keys: plain ones are written in the backend's chunks, hashed ones in ranges.
    pub keys: KeyForm,
    /// The codes of its contracts.
    pub codes: &'a CodeLookup<'a>,
    /// The block.
    pub subject: SnapshotSubject,
    /// RLP of the block's header and those of its ancestors, oldest first.
    pub headers: Vec<Bytes>,
    /// Blocks that the snapshot has beside the state.
    pub blocks: Option<ExportedBlocks<'a>>,
}

/// How a snapshot is written.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// Bytes of an object, at most; one answer may be longer.
    pub object_bytes: usize,
    /// Whether another snapshot is replaced.
    pub force: bool,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self { object_bytes: 8 << 20, force: false }
    }
}

/// What has been exported so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportProgress {
    /// Chunks, splits and codes.
    pub answers: u64,
    /// Accounts and slots.
    pub entries: u64,
    /// Contract codes.
    pub codes: u64,
    /// Bytes of the answers.
    pub bytes: u64,
    /// Estimated share of the state, by the shape of the tree; 1 is all of it.
    pub share: f64,
}

/// What an export has done.
#[derive(Clone, Debug)]
pub enum SnapshotExport {
    /// It has written the snapshot.
    Written(SnapshotManifest),
    /// The same snapshot was there already.
    Existing(SnapshotManifest),
}

/// An id, or the hash of a code, that has no answer yet.
struct ExportItem {
    kind: AnswerKind,
    id: ChunkId,
    share: f64,
}

/// An answer, and what it names.
struct ExportAnswer {
    answer: Bytes,
    opened: Option<OpenedChunk>,
}

impl SnapshotSource<'_> {
    /// How the state is cut, and the name of that; `None` if its backend cannot do it.
    fn format(&self) -> Option<(StateFormat, &'static str)> {
        let extensions = self.backend.extensions();
        Some(match self.keys {
            KeyForm::Plain => {
                (StateFormat::Chunks(self.backend.clone()), extensions.chunks?.format())
            }
            KeyForm::Hashed => (StateFormat::Ranges(extensions.ranges?.range_format()), RANGES),
        })
    }

    /// Writes a snapshot into `folder`, the manifest last. Temporary files go to the folder
    /// `scratch`. `tell` is called after each batch of answers.
    ///
    /// # Errors
    /// [`SnapshotError`]. What was written is no snapshot then; the same call begins again.
    pub fn export(
        &self,
        folder: &ObjectFolder,
        scratch: &Path,
        options: ExportOptions,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&ExportProgress),
    ) -> Result<SnapshotExport, SnapshotError> {
        folder.check_writable()?;
        let name = self.backend.identity().name;
        let (format, chunks) = self.format().ok_or(SnapshotError::Unsupported { backend: name })?;
        // Ranges hang from the header's root, which is then the backend's as well.
        let root = self.state.root();
        let mut manifest = SnapshotManifest::new(&self.subject, root, name, chunks);
        manifest.headers = self.headers.len() as u64;
        manifest.first_block = self.blocks.map(|blocks| blocks.first);
        let before = match SnapshotManifest::read(folder) {
            Ok(Some(found)) if found.is_same(&manifest) && !options.force => {
                return Ok(SnapshotExport::Existing(found));
            }
            Ok(Some(found)) if !options.force => return Err(occupied(folder, found)),
            Err(SnapshotError::Manifest { .. }) if options.force => None,
            found => found?,
        };
        let source = AnswerSource::new(&format, self.state, scratch)?;
        // A half export must not look like the one before.
        folder.remove(MANIFEST)?;
        folder.write(HEADERS, self.headers.concat())?;
        if let Some(blocks) = self.blocks {
            write_blocks(blocks, manifest.block_number, folder, stop)?;
        }
        let walk = std::thread::scope(|scope| {
            let pack = PackWriter::new(scope, folder, options.object_bytes, scratch);
            let mut walk = ExportWalk::new((self, &format), &source, pack, root);
            while walk.step(stop)? {
                tell(&walk.progress);
            }
            let (objects, index_objects) = walk.pack.finish()?;
            Ok::<_, SnapshotError>((walk.progress, objects, index_objects))
        });
        let progress;
        (progress, manifest.objects, manifest.index_objects) = walk?;
        (manifest.answers, manifest.codes) = (progress.answers, progress.codes);
        (manifest.entries, manifest.bytes) = (progress.entries, progress.bytes);
        let failed = |reason| SnapshotError::Manifest { file: folder.name_of(MANIFEST), reason };
        folder.write(MANIFEST, manifest.encode().map_err(failed)?)?;
        if let Some(before) = before {
            remove_surplus(folder, &before, &manifest)?;
        }
        Ok(SnapshotExport::Written(manifest))
    }
}

fn occupied(folder: &ObjectFolder, found: SnapshotManifest) -> SnapshotError {
    SnapshotError::Occupied {
        folder: folder.name().to_owned(),
        number: found.block_number,
        hash: found.block_hash,
        chunks: found.chunks,
    }
}

/// Removes objects that an earlier snapshot has beyond those of the new one.
fn remove_surplus(
    folder: &ObjectFolder,
    before: &SnapshotManifest,
    now: &SnapshotManifest,
) -> Result<(), SnapshotError> {
    let chunks = (now.objects..before.objects).map(chunks_object);
    let index = (now.index_objects..before.index_objects).map(index_object);
    for name in chunks.chain(index) {
        folder.remove(&name)?;
    }
    remove_surplus_blocks(folder, before, now)
}

/// The walk over a state.
struct ExportWalk<'a, 'scope, 'env> {
    of: &'a SnapshotSource<'a>,
    format: &'a StateFormat,
    source: &'a AnswerSource,
    pack: PackWriter<'scope, 'env>,
    /// A stack: the last item is answered first.
    wanted: Vec<ExportItem>,
    codes: HashSet<B256>,
    progress: ExportProgress,
}

impl<'a, 'scope, 'env> ExportWalk<'a, 'scope, 'env> {
    fn new(
        (of, format): (&'a SnapshotSource<'a>, &'a StateFormat),
        source: &'a AnswerSource,
        pack: PackWriter<'scope, 'env>,
        root: B256,
    ) -> Self {
        let item = |id| ExportItem { kind: AnswerKind::Chunk, id, share: 1.0 };
        let wanted = format.whole(root).map(item).into_iter().collect();
        let progress = ExportProgress::default();
        Self { of, format, source, pack, wanted, codes: HashSet::new(), progress }
    }

    /// Answers a batch of ids of one kind; returns whether any is left.
    fn step(&mut self, stop: &AtomicBool) -> Result<bool, SnapshotError> {
        let Some(kind) = self.wanted.last().map(|item| item.kind) else { return Ok(false) };
        let (mut count, mut bytes, mut named) = (0, 0, Vec::new());
        while count < BATCH && bytes < BATCH_BYTES {
            if stop.load(Ordering::Relaxed) {
                return Err(SnapshotError::Stopped);
            }
            let alike = self.wanted.iter().rev().take_while(|item| item.kind == kind);
            let most = alike.take(GROUP.min(BATCH - count)).count();
            let group = self.wanted.split_off(self.wanted.len() - most);
            if group.is_empty() {
                break;
            }
            let answers: Vec<ExportAnswer> = group
                .par_iter()
                .rev()
                .map(|item| self.answer(item, stop))
                .collect::<Result<_, _>>()?;
            for (item, answer) in group.iter().rev().zip(answers) {
                (count, bytes) = (count + 1, bytes + answer.answer.len());
                let key = AnswerKey::new(item.kind, item.id.bytes());
                self.pack.put(key, &answer.answer, || item.to_string())?;
                self.take(item, answer, &mut named);
            }
        }
        self.wanted.extend(named);
        Ok(true)
    }

    fn answer(&self, item: &ExportItem, stop: &AtomicBool) -> Result<ExportAnswer, SnapshotError> {
        match item.kind {
            AnswerKind::Chunk => {
                let answer = self.source.answer(&item.id, stop)?;
                let opened = self.format.open(&item.id, &answer);
                let damaged = |source| SnapshotError::Damaged { id: item.id.clone(), source };
                Ok(ExportAnswer { answer, opened: Some(opened.map_err(damaged)?) })
            }
            AnswerKind::Code => {
                let hash = B256::from_slice(item.id.bytes());
                let code = (self.of.codes)(&hash)?;
                let missing = || SnapshotError::Missing { what: item.to_string() };
                Ok(ExportAnswer { answer: code.ok_or_else(missing)?, opened: None })
            }
        }
    }

    /// Counts an answer, and adds what it names in the order in which a download does.
    fn take(&mut self, item: &ExportItem, answer: ExportAnswer, named: &mut Vec<ExportItem>) {
        self.progress.answers += 1;
        self.progress.bytes += answer.answer.len() as u64;
        let chunk = |share| move |id| ExportItem { kind: AnswerKind::Chunk, id, share };
        match answer.opened {
            None => self.progress.codes += 1,
            Some(OpenedChunk::Split { below, .. }) => {
                let share = item.share / below.len().max(1) as f64;
                named.extend(below.into_iter().map(chunk(share)));
            }
            Some(OpenedChunk::Entries { entries, further }) => {
                self.progress.entries += entries.len() as u64;
                for (key, value) in entries {
                    if let BackendKey::Account(_) = key
                        && let Some(Account { code_hash, .. }) = Account::decode(&value)
                        && code_hash != KECCAK256_EMPTY
                        && self.codes.insert(code_hash)
                        && let Some(id) = ChunkId::new(code_hash.to_vec())
                    {
                        named.push(ExportItem { kind: AnswerKind::Code, id, share: 0.0 });
                    }
                }
                let share = item.share / (further.len() + 1) as f64;
                self.progress.share += share;
                named.extend(further.into_iter().map(chunk(share)));
            }
        }
    }
}

impl std::fmt::Display for ExportItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            AnswerKind::Chunk => "chunk",
            AnswerKind::Code => "code",
        };
        write!(f, "{kind} {}", self.id)
    }
}
