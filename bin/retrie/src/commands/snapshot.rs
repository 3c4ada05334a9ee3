//! `retrie snapshot`: states as static objects that prove themselves.

use super::existing::ExistingDatadir;
use crate::{
    args::{BackendArgs, ChainArgs, HttpArgs, KeyFormChoice},
    output::{CommandOutput, grouped, say},
    progress::LINE_EVERY,
};
use alloy_primitives::{B256, Bytes};
use eyre::{Context, OptionExt};
use retrie_db::{ChainRead, ReadTxn};
use retrie_pipeline::open_state;
use retrie_sources::ObjectFolder;
use retrie_state::{BlockRef, StoreError};
use retrie_state_sync::{
    ExportOptions, ExportProgress, SnapshotExport, SnapshotManifest, SnapshotSource,
    SnapshotSubject,
};
use std::{
    str::FromStr,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

/// Number of headers: the block's, and its 255 ancestors' for BLOCKHASH.
const HEADERS: u64 = 256;

/// `retrie snapshot ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Write the state after a block into a folder or bucket, from which new nodes start
    /// (`retrie node --checkpoint HASH --sync.from PLACE`). They check all of it.
    Export(SnapshotExportArgs),
}

impl SnapshotCommand {
    /// Runs the command.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        match self {
            Self::Export(args) => args.run(stop),
        }
    }
}

/// Arguments of `retrie snapshot export`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SnapshotExportArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    /// The block [default: the durable head]. It must be within the retention window.
    #[arg(long, value_name = "NUMBER_OR_HASH")]
    block: Option<BlockChoice>,
    /// Form of the keys in the snapshot: `plain`, or `hashed` [default: the datadir's]. Datadirs of
    /// mpt and prefix with plain keys can give both.
    #[arg(long = "state.keys", value_name = "FORM")]
    keys: Option<KeyFormChoice>,
    /// Size of the objects with chunks.
    #[arg(long, value_name = "MIB", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    object_size: u32,
    /// Replace another snapshot.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    http: HttpArgs,
    /// Where to write: a folder, or a prefix in an object store (s3://bucket/prefix,
    /// gs://bucket/prefix).
    #[arg(value_name = "FOLDER_OR_URL")]
    target: String,
}

/// A block by its number or hash.
#[derive(Clone, Copy, Debug)]
enum BlockChoice {
    Number(u64),
    Hash(B256),
}

impl FromStr for BlockChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().map(Self::Number).ok();
        let found = number.or_else(|| text.parse().map(Self::Hash).ok());
        found.ok_or_else(|| format!("`{text}` is neither the number nor the hash of a block"))
    }
}

impl SnapshotExportArgs {
    /// Runs the command, also beside a running node.
    fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        let found = ExistingDatadir::open(&self.chain)?;
        let metadata = found.db.metadata()?;
        let backend = found.backend(&metadata, &self.backends)?;
        let spec = found.spec()?;
        let read = Arc::new(found.db.begin_read()?);
        let block = self.block(&read)?;
        let header = read.header(&block.hash)?.ok_or_eyre("the block has no header")?;
        let state = open_state(&read, backend.clone(), block)?;
        let keys = self.keys.map_or_else(|| metadata.keys.into(), |KeyFormChoice(form)| form);
        let codes = |hash: &B256| {
            read.code(hash).map_err(|error| StoreError::new("reading a code", error).into())
        };
        let source = SnapshotSource {
            state: &state,
            backend,
            keys,
            codes: &codes,
            subject: SnapshotSubject {
                chain_id: spec.chain_id(),
                genesis_hash: spec.genesis_hash(),
                block_number: block.number,
                block_hash: block.hash,
                state_root: header.state_root,
            },
            headers: headers(&read, block.number)?,
        };
        let target = self.target.strip_prefix("file://").unwrap_or(&self.target);
        let folder = ObjectFolder::new(self.http.stores(stop).locate(target)?);
        let object_bytes = (self.object_size as usize) << 20;
        let options = ExportOptions { object_bytes, force: self.force };
        let (started, mut shown) = (Instant::now(), Instant::now());
        let done = source.export(&folder, &found.path, options, stop, &mut |progress| {
            if shown.elapsed() >= LINE_EVERY {
                shown = Instant::now();
                show(progress, started);
            }
        })?;
        report(&done, block, &folder)
    }

    fn block(&self, read: &ReadTxn) -> eyre::Result<BlockRef> {
        let number = match self.block {
            None => return read.tip()?.ok_or_eyre("the datadir holds no blocks"),
            Some(BlockChoice::Number(number)) => number,
            Some(BlockChoice::Hash(hash)) => {
                let header = read.header(&hash)?;
                header.ok_or_eyre(format!("block {hash} is not there"))?.number
            }
        };
        let hash = read.canonical_hash(number)?;
        let hash = hash.ok_or_eyre(format!("block {number} is not there"))?;
        match self.block {
            Some(BlockChoice::Hash(asked)) if asked != hash => {
                eyre::bail!("block {asked} is not canonical: block {number} is {hash}")
            }
            _ => Ok(BlockRef::new(number, hash)),
        }
    }
}

/// RLP of the headers up to this block, oldest first.
fn headers(read: &ReadTxn, number: u64) -> eyre::Result<Vec<Bytes>> {
    let first = read.first()?.map_or(0, |first| first.number);
    let first = first.max((number + 1).saturating_sub(HEADERS));
    let mut all = Vec::new();
    for header in read.canonical_headers(first) {
        let (_, header) = header.wrap_err("reading headers")?;
        if header.number > number {
            break;
        }
        all.push(alloy_rlp::encode(&header).into());
    }
    Ok(all)
}

fn report(done: &SnapshotExport, block: BlockRef, folder: &ObjectFolder) -> eyre::Result<()> {
    let (out, place) = (CommandOutput::default(), folder.name().display());
    let BlockRef { number, hash } = block;
    match done {
        SnapshotExport::Written(manifest) => {
            let SnapshotManifest { answers, entries, codes, bytes, objects, .. } = manifest;
            say!(
                out,
                "wrote {} entries and {} codes in {} answers, {} bytes in {objects} objects: the \
                 state after block {number} ({hash}), to {place}",
                grouped(*entries),
                grouped(*codes),
                grouped(*answers),
                grouped(*bytes),
            );
        }
        SnapshotExport::Existing(_) => {
            say!(out, "{place} has the state after block {number} ({hash}) already")
        }
    }
    say!(out, "to start from it: retrie node --checkpoint {hash} --sync.from PLACE");
    Ok(())
}

fn show(progress: &ExportProgress, started: Instant) {
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    tracing::info!(
        "{:.1} % of the state  {} entries  {} codes  {:.1} MiB/s",
        progress.share * 100.0,
        grouped(progress.entries),
        grouped(progress.codes),
        progress.bytes as f64 / f64::from(1 << 20) / seconds,
    );
}
