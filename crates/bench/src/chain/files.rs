//! A made chain as files that any client imports.

use super::{ChainMaker, MakeChainError};
use alloy_primitives::B256;
use retrie_pipeline::PipelineError;
use retrie_sources::BlockWriter;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::BufWriter,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};
use tempfile::NamedTempFile;

/// Name of the genesis file.
pub const GENESIS_FILE: &str = "genesis.json";
/// Name of the block file: concatenated RLP of the blocks from 1 on, as `geth import` reads it.
pub const CHAIN_FILE: &str = "chain.rlp";

/// What was made.
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

/// Makes `blocks` blocks and writes them to [`CHAIN_FILE`] in `folder`, which is created if need
/// be, beside [`GENESIS_FILE`]. One block at a time is in memory. Both files appear when they are
/// complete. `progress` is called after each block.
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
    let [genesis, chain] = [GENESIS_FILE, CHAIN_FILE].map(|name| folder.join(name));
    for file in [&genesis, &chain] {
        if file.exists() {
            return Err(MakeChainError::Exists { file: file.clone() });
        }
    }
    fs::create_dir_all(folder).map_err(io("creating folder", folder))?;
    // Both appear once the blocks are made.
    let file = NamedTempFile::new_in(folder).map_err(io("creating a file in", folder))?;
    let (made, writer) = make_blocks(maker, blocks, &chain, stop, progress)?;
    write_genesis(maker, file, &genesis)?;
    let bytes = writer.finish().map_err(PipelineError::from)?.rlp_bytes;
    Ok(MadeChain { bytes, ..made })
}

/// The blocks alone, into `file`.
///
/// # Errors
/// As [`write_chain`].
pub fn write_blocks(
    maker: &mut ChainMaker,
    blocks: u64,
    file: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&MadeChain),
) -> Result<MadeChain, MakeChainError> {
    let (made, writer) = make_blocks(maker, blocks, file, stop, progress)?;
    let bytes = writer.finish().map_err(PipelineError::from)?.rlp_bytes;
    Ok(MadeChain { bytes, ..made })
}

fn make_blocks(
    maker: &mut ChainMaker,
    blocks: u64,
    file: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&MadeChain),
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
        writer.write(&block.into_block()).map_err(PipelineError::from)?;
        progress(&made);
    }
    made.state_root = maker.head().state_root;
    Ok((made, writer))
}

fn write_genesis(
    maker: &ChainMaker,
    file: NamedTempFile,
    target: &Path,
) -> Result<(), MakeChainError> {
    let mut out = BufWriter::new(file);
    let file = maker
        .write_genesis(&mut out)
        .and_then(|()| out.into_inner().map_err(|error| error.into_error()))
        .and_then(|file| file.as_file().sync_all().map(|()| file))
        .map_err(io("writing", target))?;
    file.persist_noclobber(target).map_err(|error| io("writing", target)(error.error))?;
    Ok(())
}

fn io<'a>(action: &'a str, path: &'a Path) -> impl Fn(std::io::Error) -> MakeChainError + 'a {
    move |source| MakeChainError::Io { action: format!("{action} {}", path.display()), source }
}
