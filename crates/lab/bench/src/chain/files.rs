//! A generated chain as files that any client can import.

use super::{ChainMaker, MakeChainError};
use crate::random::SplitMix64;
use alloy_primitives::B256;
use retrie_chainspec::primitives::Block;
use retrie_pipeline::PipelineError;
use retrie_sources::BlockWriter;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{BufWriter, Write as _},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};
use tempfile::NamedTempFile;

/// Name of the genesis file.
pub const GENESIS_FILE: &str = "genesis.json";
/// Name of the block file: concatenated RLP of the blocks from 1 on, as `geth import` reads it.
pub const CHAIN_FILE: &str = "chain.rlp";

/// Name of the file of access lists, from Amsterdam on: their RLP, concatenated, one of each block
/// of the block file.
pub const ACCESS_LISTS_FILE: &str = "access-lists.rlp";

/// Name of the file that also has side branches.
const BRANCHES_FILE: &str = "branches.rlp";
/// Blocks of the longest side branch.
const LONGEST_BRANCH: u64 = 16;

/// What was generated so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MadeChain {
    /// Number of blocks, genesis not counted.
    pub blocks: u64,
    /// Their transactions.
    pub txs: u64,
    /// Their gas.
    pub gas: u64,
    /// Bytes of the block file.
    pub bytes: u64,
    /// Hash of the last block.
    pub head: B256,
    /// Its state root.
    pub state_root: B256,
}

/// Generates `blocks` blocks and writes them to [`CHAIN_FILE`] in `folder`, beside
/// [`GENESIS_FILE`] and, from Amsterdam on, [`ACCESS_LISTS_FILE`]. Creates the folder if it is
/// missing. One block at a time is in memory. The files appear when they are complete. `progress` is called after each block.
///
/// # Errors
/// [`MakeChainError::Exists`] rather than overwriting anything; [`MakeChainError::Stopped`] once
/// `stop` is set; errors of disk and execution.
pub fn write_chain(
    maker: &mut ChainMaker,
    blocks: u64,
    folder: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&MadeChain),
) -> Result<MadeChain, MakeChainError> {
    write(maker, blocks, folder, stop, progress, &mut |_, _| Ok(()))
}

/// Called with each generated block.
type BlockVisitor<'a> = dyn FnMut(&mut ChainMaker, &Block) -> Result<(), MakeChainError> + 'a;

fn write(
    maker: &mut ChainMaker,
    blocks: u64,
    folder: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&MadeChain),
    each: &mut BlockVisitor<'_>,
) -> Result<MadeChain, MakeChainError> {
    let [genesis, chain, lists] =
        [GENESIS_FILE, CHAIN_FILE, ACCESS_LISTS_FILE].map(|name| folder.join(name));
    for file in [&genesis, &chain, &lists] {
        if file.exists() {
            return Err(MakeChainError::Exists { file: file.clone() });
        }
    }
    fs::create_dir_all(folder).map_err(io("creating folder", folder))?;
    // These files appear after the blocks are generated.
    let new_file = || NamedTempFile::new_in(folder).map_err(io("creating a file in", folder));
    let genesis_file = new_file()?;
    let mut list_file = BufWriter::new(new_file()?);
    let mut has_lists = false;
    let (made, writer) =
        make_blocks(maker, blocks, &chain, stop, progress, &mut |maker, block| {
            if let Some(list) = maker.access_list() {
                has_lists = true;
                list_file.write_all(list).map_err(io("writing", &lists))?;
            }
            each(maker, block)
        })?;
    if has_lists {
        persist(list_file, &lists)?;
    }
    let mut out = BufWriter::new(genesis_file);
    maker.write_genesis(&mut out).map_err(io("writing", &genesis))?;
    persist(out, &genesis)?;
    let bytes = writer.finish().map_err(PipelineError::from)?.rlp_bytes;
    Ok(MadeChain { bytes, ..made })
}

/// Like [`write_chain`], and also writes `branches.rlp`: the same blocks with side branches of
/// up to 16 blocks, one after about every `every` blocks. A branch follows its parent block and
/// comes before the next block of the chain. So a client that imports the file block by block
/// reorgs to the branch and back.
///
/// # Errors
/// As [`write_chain`].
pub fn write_chain_with_branches(
    maker: &mut ChainMaker,
    blocks: u64,
    every: u64,
    folder: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&MadeChain),
) -> Result<MadeChain, MakeChainError> {
    let file = folder.join(BRANCHES_FILE);
    if file.exists() {
        return Err(MakeChainError::Exists { file });
    }
    fs::create_dir_all(folder).map_err(io("creating folder", folder))?;
    let mut branches = BranchWriter {
        writer: BlockWriter::create(&file).map_err(PipelineError::from)?,
        random: SplitMix64::new(every),
        every,
        last: blocks,
    };
    let made = write(maker, blocks, folder, stop, progress, &mut |maker, block| {
        branches.write(maker, block)
    })?;
    branches.writer.finish().map_err(PipelineError::from)?;
    Ok(made)
}

/// Writes a chain with side branches.
struct BranchWriter {
    writer: BlockWriter,
    random: SplitMix64,
    every: u64,
    /// Number of the block at which the chain ends.
    last: u64,
}

impl BranchWriter {
    /// Writes the latest block, and at random a branch on it.
    fn write(&mut self, maker: &mut ChainMaker, block: &Block) -> Result<(), MakeChainError> {
        self.writer.write(block).map_err(PipelineError::from)?;
        if block.header.number == self.last || self.random.below(self.every.max(1)) > 0 {
            return Ok(());
        }
        for side in maker.side_branch(1 + self.random.below(LONGEST_BRANCH))? {
            self.writer.write(&side.into_block()).map_err(PipelineError::from)?;
        }
        Ok(())
    }
}

/// Writes the blocks alone to `file`.
///
/// # Errors
/// As [`write_chain`].
pub(crate) fn write_blocks(
    maker: &mut ChainMaker,
    blocks: u64,
    file: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&MadeChain),
) -> Result<MadeChain, MakeChainError> {
    let (made, writer) = make_blocks(maker, blocks, file, stop, progress, &mut |_, _| Ok(()))?;
    let bytes = writer.finish().map_err(PipelineError::from)?.rlp_bytes;
    Ok(MadeChain { bytes, ..made })
}

fn make_blocks(
    maker: &mut ChainMaker,
    blocks: u64,
    file: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&MadeChain),
    each: &mut BlockVisitor<'_>,
) -> Result<(MadeChain, BlockWriter), MakeChainError> {
    let mut writer = BlockWriter::create(file).map_err(PipelineError::from)?;
    let mut made = MadeChain { head: maker.head().hash(), ..Default::default() };
    for number in 1..=blocks {
        if stop.load(Ordering::Relaxed) {
            return Err(MakeChainError::Stopped { number });
        }
        let block = maker.next_block()?;
        made.blocks = number;
        made.txs += block.body().transactions.len() as u64;
        made.gas += block.header().gas_used;
        made.head = block.hash();
        let block = block.into_block();
        writer.write(&block).map_err(PipelineError::from)?;
        each(maker, &block)?;
        progress(&made);
    }
    made.state_root = maker.head().state_root;
    Ok((made, writer))
}

/// Gives a complete file its name.
fn persist(out: BufWriter<NamedTempFile>, target: &Path) -> Result<(), MakeChainError> {
    let file = out
        .into_inner()
        .map_err(|error| error.into_error())
        .and_then(|file| file.as_file().sync_all().map(|()| file))
        .map_err(io("writing", target))?;
    file.persist_noclobber(target).map_err(|error| io("writing", target)(error.error))?;
    Ok(())
}

fn io<'a>(action: &'a str, path: &'a Path) -> impl Fn(std::io::Error) -> MakeChainError + 'a {
    move |source| MakeChainError::Io { action: format!("{action} {}", path.display()), source }
}
