//! `retrie pbt export`: the files of a block's state.

use super::files::with_context;
use crate::{
    args::{BackendArgs, ChainArgs},
    commands::{dump_state::write_headers, existing::ExistingDatadir},
    output::{CommandOutput, grouped, say},
};
use eyre::{Context, OptionExt};
use retrie_db::ChainRead;
use retrie_pipeline::{PagedEntries, open_state};
use retrie_sources::AtomicFile;
use retrie_state::{BlockRef, StoreError};
use retrie_storage_pbt::migration::{FileDigest, MigrationError, SnapshotLayout, StateExport};
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// The names of the files.
const PREIMAGES: &str = "preimages.bin";
const SNAPSHOT: &str = "snapshot.bin";
const HEADERS: &str = "headers.rlp";

/// Arguments of `retrie pbt export`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PbtExportArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    /// The block [default: the durable head]. It must be within the retention window, unless the
    /// backend is an archive. Other nodes can compare the files if it is final.
    #[arg(long, value_name = "NUMBER")]
    block: Option<u64>,
    /// Layout of the snapshot: `tagged`, `counts`, or `rlp`. EIP-8347 is a draft: its text of August 2026
    /// has `rlp`, and the other two are proposals to replace it, `tagged` the later one.
    #[arg(long, value_name = "LAYOUT", default_value_t)]
    layout: SnapshotLayout,
    /// Folder for temporary files [default: the new folder].
    #[arg(long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,
    /// Where to write preimages.bin, snapshot.bin, and headers.rlp, the headers of the block and of its
    /// 255 ancestors. Existing files are replaced.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl PbtExportArgs {
    /// Runs the command, also beside a running node. Each file is complete or as before.
    pub(super) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let found = ExistingDatadir::open(&self.chain)?;
        let metadata = found.db.metadata()?;
        if !retrie_state::KeyForm::from(metadata.keys).is_plain() {
            return Err(MigrationError::HashedKeys.into());
        }
        let backend = found.backend(&metadata, &self.backends)?;
        let read = Arc::new(found.db.begin_read()?);
        let block = match self.block {
            None => read.tip()?.ok_or_eyre("the datadir holds no blocks")?,
            Some(number) => {
                let hash = read.canonical_hash(number)?;
                BlockRef::new(number, hash.ok_or_eyre(format!("block {number} is not there"))?)
            }
        };
        let state = open_state(&read, backend, block)?;
        let folder = &self.folder;
        std::fs::create_dir_all(folder)
            .wrap_err_with(|| format!("creating the folder {}", folder.display()))?;
        let scratch = self.scratch.as_deref().unwrap_or(folder);
        let [preimage_path, snapshot_path] = [PREIMAGES, SNAPSHOT].map(|name| folder.join(name));
        let files = (AtomicFile::create(&preimage_path)?, AtomicFile::create(&snapshot_path)?);
        let mut codes = |hash: &_| {
            read.code(hash).map_err(|error| StoreError::new("reading a code", error).into())
        };
        let (export, preimages, snapshot) = with_context(scratch, stop, |mut context| {
            let mut entries = PagedEntries::new(&state, None);
            let mut export = StateExport::new(&mut context, &mut entries, &mut codes)?;
            let preimages = export.write_preimages(&mut context, files.0)?;
            let snapshot = export.leaves.write(&mut context, self.layout, files.1)?;
            Ok((export, preimages, snapshot))
        })?;
        preimages.1.finish(&preimage_path)?;
        snapshot.1.finish(&snapshot_path)?;
        write_headers(&read, block.number, &folder.join(HEADERS))?;

        let out = CommandOutput::default();
        let totals = export.leaves.totals;
        say!(
            out,
            "wrote {} accounts and {} slots in {} leaves, the state after block {} ({}), to {}: root {}",
            grouped(export.accounts),
            grouped(export.slots),
            grouped(totals.leaves),
            block.number,
            block.hash,
            folder.display(),
            totals.root
        );
        for (name, FileDigest { bytes, digest }) in
            [(PREIMAGES, preimages.0), (SNAPSHOT, snapshot.0)]
        {
            say!(out, "{name}: {} bytes, keccak-256 {digest}", grouped(bytes));
        }
        Ok(())
    }
}
