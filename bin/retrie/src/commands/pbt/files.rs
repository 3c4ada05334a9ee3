//! What the subcommands share: the flags that name files, sorting, progress.

use crate::{output::grouped, progress::LINE_EVERY};
use alloy_primitives::B256;
use eyre::{Context, OptionExt};
use retrie_chainspec::primitives::Header;
use retrie_sources::{HeaderItem, read_headers};
use retrie_state::BulkSorter;
use retrie_state_store::RecordSorter;
use retrie_storage_pbt::{
    hash::TreeHash,
    migration::{
        CheckedState, DualCheck, MigrationContext, MigrationError, MigrationFile,
        MigrationProgress, PreimageReader, SnapshotLayout, SnapshotReader,
    },
};
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// The hash function of the draft.
pub(super) const HASH: TreeHash = TreeHash::Blake3;

/// The files of a state, and what they must be.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PbtFileArgs {
    /// Layout of the snapshot: `tagged`, `counts`, or `rlp`.
    #[arg(long, value_name = "LAYOUT", default_value_t)]
    layout: SnapshotLayout,
    /// keccak-256 that the preimage file must have.
    #[arg(long, value_name = "DIGEST")]
    preimage_digest: Option<B256>,
    /// keccak-256 that the snapshot must have.
    #[arg(long, value_name = "DIGEST")]
    snapshot_digest: Option<B256>,
    /// Root of the partitioned tree that the snapshot must have.
    #[arg(long, value_name = "ROOT")]
    pbt_root: Option<B256>,
    /// Folder for temporary files [default: that of the snapshot].
    #[arg(long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,
    /// The preimage file.
    #[arg(value_name = "PREIMAGE_FILE")]
    preimage_file: PathBuf,
    /// The snapshot.
    #[arg(value_name = "SNAPSHOT_FILE")]
    snapshot_file: PathBuf,
}

impl PbtFileArgs {
    /// The folder for temporary files.
    pub(super) fn scratch(&self) -> PathBuf {
        self.scratch.clone().unwrap_or_else(|| folder_of(&self.snapshot_file).to_owned())
    }

    /// Checks the files against a state root.
    pub(super) fn check(&self, state_root: B256, stop: &AtomicBool) -> eyre::Result<CheckedState> {
        let open =
            |path: &Path| File::open(path).wrap_err_with(|| format!("opening {}", path.display()));
        let snapshot = SnapshotReader::new(self.layout, open(&self.snapshot_file)?);
        let preimages = PreimageReader::new(open(&self.preimage_file)?);
        let checked = with_context(&self.scratch(), stop, |context| {
            DualCheck { context, state_root }.run(snapshot, preimages)
        })?;
        for (file, digest, expected) in [
            (MigrationFile::Preimages, checked.preimages, self.preimage_digest),
            (MigrationFile::Snapshot, checked.snapshot.file, self.snapshot_digest),
        ] {
            expected.map_or(Ok(()), |expected| digest.expect(file, expected))?;
        }
        if let Some(claimed) = self.pbt_root.filter(|root| *root != checked.snapshot.root) {
            let found = checked.snapshot.root;
            eyre::bail!("the snapshot has the root {found}, and --pbt-root asks for {claimed}");
        }
        Ok(checked)
    }
}

/// What the check found, for the output.
pub(super) fn describe(checked: &CheckedState) -> String {
    let CheckedState { snapshot, preimages, accounts, slots, codes, .. } = checked;
    format!(
        "{} accounts, {} slots and {} codes in {} leaves; root {}; preimages: {} bytes, keccak-256 {}; \
         snapshot: {} bytes, keccak-256 {}",
        grouped(*accounts),
        grouped(*slots),
        grouped(*codes),
        grouped(snapshot.leaves),
        snapshot.root,
        grouped(preimages.bytes),
        preimages.digest,
        grouped(snapshot.file.bytes),
        snapshot.file.digest,
    )
}

/// The folder of a file.
pub(super) fn folder_of(file: &Path) -> &Path {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or_else(|| Path::new("."))
}

/// Runs work that sorts in the folder `scratch`, shows its progress, and stops it with `stop`.
pub(super) fn with_context<T>(
    scratch: &Path,
    stop: &AtomicBool,
    work: impl FnOnce(MigrationContext<'_>) -> Result<T, MigrationError>,
) -> eyre::Result<T> {
    let sorters = || -> Box<dyn BulkSorter> { Box::new(RecordSorter::new(Some(scratch))) };
    let mut told = Instant::now();
    let mut watch = |MigrationProgress { step, done }| {
        if told.elapsed() >= LINE_EVERY {
            told = Instant::now();
            tracing::info!("{} {step}", grouped(done));
        }
        !stop.load(Ordering::Relaxed)
    };
    let context = MigrationContext { hash: HASH, sorters: &sorters, watch: &mut watch };
    Ok(work(context)?)
}

/// The last header of a file of headers or blocks, which must have the hash `expected` if that is given.
pub(super) fn last_header(file: &Path, expected: Option<B256>) -> eyre::Result<Header> {
    let last = read_headers(file)?.pop().ok_or_eyre("the file of headers is empty")?;
    let header = match last {
        HeaderItem::Header(header) => header,
        HeaderItem::Block(block) => block.header,
    };
    let hash = header.hash_slow();
    if let Some(expected) = expected.filter(|expected| *expected != hash) {
        eyre::bail!(
            "the last header of {} is block {} with hash {hash}, and --header-hash asks for {expected}",
            file.display(),
            header.number
        );
    }
    Ok(header)
}
