//! `retrie snapshot`: states as static objects that prove themselves.

use super::existing::ExistingDatadir;
use crate::{
    args::{BackendArgs, ChainArgs, HttpArgs, KeyFormChoice},
    output::{CommandOutput, grouped, say},
    progress::LINE_EVERY,
};
use alloy_primitives::{B256, Bytes};
use eyre::{Context, OptionExt};
use retrie_chainspec::primitives::{Block, Receipt};
use retrie_db::{ChainRead, ReadError, ReadTxn};
use retrie_pipeline::open_state;
use retrie_sources::ObjectFolder;
use retrie_state::{BlockRef, StateError, StoreError};
use retrie_state_sync::{
    ExportOptions, ExportProgress, ExportedBlocks, SnapshotExport, SnapshotManifest,
    SnapshotSource, SnapshotSubject,
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
    /// Also write the last N blocks up to that block with their receipts, or `all` that the datadir
    /// has. A node that starts from the snapshot gets them as well.
    #[arg(long, value_name = "N")]
    blocks: Option<BlockCount>,
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

/// How many blocks.
#[derive(Clone, Copy, Debug)]
enum BlockCount {
    All,
    Last(u64),
}

impl FromStr for BlockCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "all" => Ok(Self::All),
            Ok(count) if count > 0 => Ok(Self::Last(count)),
            _ => Err(format!("`{text}` is neither `all` nor a number of blocks")),
        }
    }
}

impl BlockCount {
    /// The first of these blocks up to block `last`.
    fn first(self, read: &ReadTxn, last: u64) -> eyre::Result<u64> {
        let stored = read.first()?.map_or(0, |first| first.number);
        let kept = read.receipts_pruned_below()?.max(read.bodies_pruned_below()?);
        let kept = kept.max(stored).max(1);
        if kept > last {
            eyre::bail!("the datadir has no block up to {last} with its body and receipts");
        }
        match self {
            Self::All => Ok(kept),
            Self::Last(count) => {
                let first = (last + 1).saturating_sub(count).max(1);
                if first < kept {
                    eyre::bail!(
                        "blocks below {kept} lack bodies or receipts in this datadir: the last {} can be \
                         had (--blocks all)",
                        last + 1 - kept
                    );
                }
                Ok(first)
            }
        }
    }
}

/// A block with its receipts.
fn executed_block(read: &ReadTxn, number: u64) -> Result<(Block, Vec<Receipt>), StateError> {
    let failed = |error: ReadError| StoreError::new("reading a block", error);
    let missing = || {
        let what = format!("block {number} lacks its body or receipts: run `retrie db verify`");
        StoreError::new("reading a block", what)
    };
    let hash = read.canonical_hash(number).map_err(failed)?.ok_or_else(missing)?;
    let block = read.block(&hash).map_err(failed)?;
    let receipts = read.receipts(&hash).map_err(failed)?;
    Ok(block.zip(receipts).ok_or_else(missing)?)
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
        let read_block = |number| executed_block(&read, number);
        let blocks = self.blocks.map(|count| {
            let first = count.first(&read, block.number)?;
            Ok::<_, eyre::Report>(ExportedBlocks { first, read: &read_block })
        });
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
            blocks: blocks.transpose()?,
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
            let SnapshotManifest { answers, entries, codes, bytes, objects, first_block, .. } =
                manifest;
            say!(
                out,
                "wrote {} entries and {} codes in {} answers, {} bytes in {objects} objects: the \
                 state after block {number} ({hash}), to {place}",
                grouped(*entries),
                grouped(*codes),
                grouped(*answers),
                grouped(*bytes),
            );
            if let Some(first) = first_block {
                say!(out, "and the blocks {first} to {number} with receipts");
            }
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
