//! The built-in chain: what `retrie replay` runs when it is given no path.

use super::{fresh_folder, part::PartArgs};
use crate::{
    args::root_maker,
    commands::bench::make_chain::as_report,
    output::{Output, grouped, say},
    progress::Progress,
};
use eyre::{OptionExt, bail};
use retrie_bench::chain::{CHAIN_FILE, ChainMaker, GENESIS_FILE, Recipe, write_chain};
use std::{ops::RangeInclusive, path::PathBuf, sync::atomic::AtomicBool};
use tempfile::TempDir;

/// Its length, unless `--to` asks for another.
const BLOCKS: u64 = 300;

/// The chain in files, which go with it.
pub(super) struct BuiltIn {
    /// The genesis file.
    pub(super) genesis: String,
    /// The block file.
    pub(super) file: PathBuf,
    /// The blocks that all parts together replay; the file may end with those of one part.
    pub(super) blocks: RangeInclusive<u64>,
    _folder: TempDir,
}

/// How much of the chain is needed.
pub(super) struct Wanted {
    /// The blocks that all parts together replay.
    all: RangeInclusive<u64>,
    /// Those of this part; none if it is empty.
    mine: Option<RangeInclusive<u64>>,
}

impl Wanted {
    /// What the flags say.
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

    /// Makes the chain up to the last block of the part; no figure counts that time.
    pub(super) fn make(self, out: &Output, stop: &AtomicBool) -> eyre::Result<BuiltIn> {
        let recipe = Recipe::default();
        let backend = root_maker()?;
        let mut maker = ChainMaker::new(recipe.clone(), backend)?;
        let folder = fresh_folder()?;
        // Of an empty part only the genesis is needed.
        let last = self.mine.as_ref().map_or(1, |mine| *mine.end());
        let mut progress = Progress::new(Some(last));
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
        Ok(BuiltIn { genesis, file, blocks: self.all, _folder: folder })
    }
}
