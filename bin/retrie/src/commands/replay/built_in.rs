//! The built-in chain: what `retrie replay` runs when it is given no path.

use super::fresh_folder;
use crate::{
    args::root_maker,
    commands::bench::make_chain::as_report,
    output::{Output, grouped, say},
    progress::Progress,
};
use eyre::{OptionExt, bail};
use retrie_bench::chain::{CHAIN_FILE, ChainMaker, GENESIS_FILE, Recipe, write_chain};
use std::{path::PathBuf, sync::atomic::AtomicBool};
use tempfile::TempDir;

/// Its length, unless `--to` asks for another.
const BLOCKS: u64 = 300;

/// The chain in files, which go with it.
pub(super) struct BuiltIn {
    /// The genesis file.
    pub(super) genesis: String,
    /// The block file.
    pub(super) blocks: PathBuf,
    /// Number of blocks to be replayed.
    pub(super) replayed: u64,
    _folder: TempDir,
}

/// Makes the chain up to the last block asked for; no figure counts that time.
pub(super) fn make(from: u64, to: u64, out: &Output, stop: &AtomicBool) -> eyre::Result<BuiltIn> {
    let last = if to == u64::MAX { BLOCKS } else { to };
    if last == 0 || from > last {
        bail!("blocks {from} to {last} are none of the built-in chain; it starts with block 1");
    }
    let recipe = Recipe::default();
    let backend = root_maker()?;
    let mut maker = ChainMaker::new(recipe.clone(), backend)?;
    let folder = fresh_folder()?;
    let mut progress = Progress::new(Some(last));
    let made = write_chain(&mut maker, last, folder.path(), stop, &mut |made| {
        progress.update(&as_report(made));
    });
    progress.finish();
    let made = made?;
    let first = from.max(1);
    say!(
        out,
        "replaying blocks {first} to {last} of the built-in chain ({} txs: {}, seed {}); for real \
         mainnet give paths of block files or bundles, which `retrie download` fetches",
        grouped(made.txs),
        recipe.mix,
        recipe.seed,
    );
    let [genesis, blocks] = [GENESIS_FILE, CHAIN_FILE].map(|name| folder.path().join(name));
    let genesis = genesis.to_str().ok_or_eyre("the path of the temporary folder is not UTF-8")?;
    let genesis = genesis.to_owned();
    Ok(BuiltIn { genesis, blocks, replayed: last - first + 1, _folder: folder })
}
