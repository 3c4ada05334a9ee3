//! The corpus of real blocks: bundles, which are executed, and state diffs of consecutive blocks.

use super::{
    diffs::BlockDiff,
    model::{AccessModel, BlockAccesses},
    trace::AccessTrace,
};
use flate2::read::MultiGzDecoder;
use retrie_pipeline::{
    PipelineError,
    replay::{BundleReplayOptions, StatePadding, bundle_effects},
};
use retrie_sources::{Bundle, SourceError, SourceLocation, list_bundles};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// Folders of bundles, and the folder of state diffs. A block that is in several folders is taken
/// from the first.
const BUNDLES: [&str; 2] = ["witness", PRESTATE];
const PRESTATE: &str = "prestate";
const DIFFS: &str = "diffs";

/// Real blocks on disk: the folder `mainnet` of `RETRIE_DATA`.
#[derive(Clone, Debug)]
pub struct BlockCorpus {
    folder: PathBuf,
}

/// Why real blocks could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Real blocks are missing.
    #[error(
        "real blocks are read from {}/{{witness,prestate,diffs}}, and there is no {}: \
         RETRIE_DATA names the folder above `mainnet`",
        folder.display(), missing
    )]
    NoData {
        /// The searched folder.
        folder: PathBuf,
        /// The missing part.
        missing: &'static str,
    },
    /// A bundle cannot be read.
    #[error(transparent)]
    Source(Box<SourceError>),
    /// A bundle cannot be executed.
    #[error(transparent)]
    Execution(Box<PipelineError>),
    /// A file with a state diff cannot be read.
    #[error("{}: {source}", file.display())]
    Diff {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The user asked to stop.
    #[error("stopped while real blocks were being read")]
    Stopped,
}

/// A file of the corpus.
enum CorpusFile {
    Bundle(SourceLocation),
    Diff(PathBuf),
}

impl BlockCorpus {
    /// The corpus in a folder.
    pub const fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The folder `mainnet` of `RETRIE_DATA`, or of `../shared/data`.
    pub fn user_default() -> Self {
        let data = std::env::var_os("RETRIE_DATA").filter(|value| !value.is_empty());
        let data = data.map_or_else(|| PathBuf::from("../shared/data"), PathBuf::from);
        Self::at(data.join("mainnet"))
    }

    /// Reads all blocks in the order of their numbers, and executes the bundles. This takes some
    /// seconds.
    ///
    /// # Errors
    /// If data is missing or wrong, or `stop` was set.
    pub fn trace(
        &self,
        options: &BundleReplayOptions<'_>,
        padding: StatePadding,
        stop: &AtomicBool,
    ) -> Result<AccessTrace, TraceError> {
        let mut blocks = Vec::new();
        self.visit(options, stop, &mut |block| {
            blocks.push(block);
            Ok::<(), TraceError>(())
        })?;
        let trace = AccessTrace::new(blocks, padding);
        if trace.figures().blocks == 0 {
            let (folder, missing) = (self.folder.clone(), "block that touches the state");
            return Err(TraceError::NoData { folder, missing });
        }
        Ok(trace)
    }

    /// Calls `visit` with all blocks in the order of their numbers; bundles are executed.
    pub(in crate::state) fn visit<E: From<TraceError>>(
        &self,
        options: &BundleReplayOptions<'_>,
        stop: &AtomicBool,
        visit: &mut dyn FnMut(BlockAccesses) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut model = AccessModel::default();
        for (number, file) in self.files()? {
            if stop.load(Ordering::Relaxed) {
                return Err(TraceError::Stopped.into());
            }
            visit(match file {
                CorpusFile::Diff(path) => read_diff(&path)?.accesses(&mut model),
                CorpusFile::Bundle(path) => execute(number, &path, options, &mut model)?,
            })?;
        }
        Ok(())
    }

    /// The bundles with a plain pre-state, in the order of their numbers.
    ///
    /// # Errors
    /// If data is missing or wrong.
    pub fn prestate_bundles(&self) -> Result<Vec<Bundle>, TraceError> {
        let failed = |e| TraceError::Source(Box::new(e));
        let mut files = list_bundles(self.folder_of(PRESTATE)?).map_err(failed)?;
        files.sort();
        files.iter().map(|file| Bundle::load(&file.path).map_err(failed)).collect()
    }

    /// All bundles, by block number: those of a witness, and those with a plain pre-state. A block that is
    /// in both folders is there twice.
    ///
    /// # Errors
    /// If data is missing or wrong.
    pub fn bundles(&self) -> Result<Vec<Bundle>, TraceError> {
        let failed = |e| TraceError::Source(Box::new(e));
        let mut files = Vec::new();
        for name in BUNDLES {
            files.extend(list_bundles(self.folder_of(name)?).map_err(failed)?);
        }
        files.sort();
        files.iter().map(|file| Bundle::load(&file.path).map_err(failed)).collect()
    }

    fn folder_of(&self, name: &'static str) -> Result<PathBuf, TraceError> {
        let folder = self.folder.join(name);
        let missing = TraceError::NoData { folder: self.folder.clone(), missing: name };
        if folder.is_dir() { Ok(folder) } else { Err(missing) }
    }

    /// The file of each block.
    fn files(&self) -> Result<BTreeMap<u64, CorpusFile>, TraceError> {
        let mut files = BTreeMap::new();
        for name in BUNDLES {
            let bundles = list_bundles(self.folder_of(name)?);
            for bundle in bundles.map_err(|e| TraceError::Source(Box::new(e)))? {
                files.entry(bundle.number).or_insert(CorpusFile::Bundle(bundle.path));
            }
        }
        let folder = self.folder_of(DIFFS)?;
        let failed = |source| TraceError::Diff { file: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let number = name.strip_suffix(".json.gz").and_then(|number| number.parse().ok());
            if let Some(number) = number {
                files.entry(number).or_insert(CorpusFile::Diff(path));
            }
        }
        Ok(files)
    }
}

/// The accesses of a bundle's block.
fn execute(
    number: u64,
    file: &SourceLocation,
    options: &BundleReplayOptions<'_>,
    model: &mut AccessModel,
) -> Result<BlockAccesses, TraceError> {
    let bundle = Bundle::load(file).map_err(|e| TraceError::Source(Box::new(e)))?;
    let effects =
        bundle_effects(&bundle, options).map_err(|e| TraceError::Execution(Box::new(e)))?;
    let mut codes = bundle.codes();
    codes.extend(effects.delta.codes().clone());
    let changes = effects.delta.changes().iter();
    let writes = changes.map(|change| (change.key, change.next.clone())).collect();
    Ok(BlockAccesses { number, touches: model.push(effects.pre, writes), codes })
}

fn read_diff(file: &Path) -> Result<BlockDiff, TraceError> {
    let failed = |source| TraceError::Diff { file: file.to_owned(), source };
    let reader = MultiGzDecoder::new(File::open(file).map_err(failed)?);
    let diff: BlockDiff =
        serde_json::from_reader(io::BufReader::new(reader)).map_err(|e| failed(e.into()))?;
    let named = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if named.split('.').next() != Some(diff.number.to_string().as_str()) {
        return Err(failed(io::Error::other(format!("it holds block {}", diff.number))));
    }
    Ok(diff)
}
