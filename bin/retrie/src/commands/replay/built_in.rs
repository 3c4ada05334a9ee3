//! The built-in chain, which `retrie replay` runs without any path.

use super::{fresh_folder, part::PartArgs};
use crate::{
    args::root_backend,
    commands::bench::make_chain::as_report,
    output::{CommandOutput, grouped, say},
    progress::ImportProgress,
};
use eyre::{OptionExt, bail};
use retrie_bench::chain::{CHAIN_FILE, ChainMaker, ChainRecipe, GENESIS_FILE, write_chain};
use std::{ops::RangeInclusive, path::PathBuf, sync::atomic::AtomicBool};
use tempfile::TempDir;

/// Its length without `--to`.
const BLOCKS: u64 = 300;

/// The chain in files, which are removed on drop.
pub(super) struct BuiltInChain {
    /// The genesis file.
    pub(super) genesis: String,
    /// The block file.
    pub(super) file: PathBuf,
    /// The blocks that all parts together replay. The file may end with the blocks of one part.
    pub(super) blocks: RangeInclusive<u64>,
    _folder: TempDir,
}

/// The blocks needed of the built-in chain.
pub(super) struct BuiltInRange {
    /// The blocks that all parts together replay.
    all: RangeInclusive<u64>,
    /// The blocks of this part; `None` if it is empty.
    mine: Option<RangeInclusive<u64>>,
}

impl BuiltInRange {
    /// The blocks that the flags request.
    ///
    /// # Errors
    /// If the chain has no such block.
    pub(super) fn of(part: &PartArgs) -> eyre::Result<Self> {
        let asked = part.blocks();
        let (from, last) = match *asked.end() {
            u64::MAX => (*asked.start(), BLOCKS),
            last => (*asked.start(), last),
        };
        if last == 0 || from > last {
            bail!("blocks {from} to {last} are none of the built-in chain; it starts with block 1");
        }
        let all = from.max(1)..=last;
        Ok(Self { mine: part.cut(&all), all })
    }

    /// Generates the chain up to the last block of the part. This time is not measured.
    pub(super) fn make(self, out: &CommandOutput, stop: &AtomicBool) -> eyre::Result<BuiltInChain> {
        let recipe = ChainRecipe::default();
        let backend = root_backend()?;
        let mut maker = ChainMaker::new(recipe.clone(), backend)?;
        let folder = fresh_folder()?;
        // An empty part needs only the genesis.
        let last = self.mine.as_ref().map_or(1, |mine| *mine.end());
        let mut progress = ImportProgress::new(Some(last));
        let made = write_chain(&mut maker, last, folder.path(), stop, &mut |made| {
            progress.update(&as_report(made));
        });
        progress.finish();
        let made = made?;
        if let Some(mine) = &self.mine {
            say!(
                out,
                "replaying blocks {} to {} of the built-in chain ({} txs: {}, seed {}); for real \
                 mainnet give paths of block files or bundles, which `retrie download` fetches",
                mine.start(),
                mine.end(),
                grouped(made.txs),
                recipe.mix,
                recipe.seed,
            );
        }
        let [genesis, file] = [GENESIS_FILE, CHAIN_FILE].map(|name| folder.path().join(name));
        let genesis =
            genesis.to_str().ok_or_eyre("the path of the temporary folder is not UTF-8")?;
        let genesis = genesis.to_owned();
        Ok(BuiltInChain { genesis, file, blocks: self.all, _folder: folder })
    }
}
