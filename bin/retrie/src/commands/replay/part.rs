//! Which blocks a replay covers, and which of them this process runs as its part.

use super::super::import::open_sources;
use eyre::{OptionExt, bail};
use retrie_pipeline::{
    replay::{NamedBundle, PartSpec, parse_blocks},
    report::{PartCoverage, PartInputs, ReplayPart, host},
};
use retrie_sources::{BlockFile, BlockSource, BundleFile, SourceLocation};
use std::{collections::BTreeMap, ops::RangeInclusive};

/// Flags that choose blocks.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PartArgs {
    /// First block to replay. Earlier blocks of a chain run too, but are not measured.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Last block to replay.
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX)]
    to: u64,
    /// The same as one flag: first and last block, both included. `FROM..=TO` means the same.
    #[arg(
        long,
        value_name = "FROM..TO",
        value_parser = parse_blocks,
        conflicts_with_all = ["from", "to"]
    )]
    blocks: Option<RangeInclusive<u64>>,
    /// Replay part I of N, I from 1 to N. Bundles are sorted and split by count. Chains are split
    /// by block number; the blocks before the part run too, but are not measured. The same inputs
    /// and flags give the same split on every machine, and `retrie bench merge` makes one report of
    /// all N.
    #[arg(long, value_name = "I/N")]
    part: Option<PartSpec>,
    /// Name of this machine in the report of a part [default: its host name].
    #[arg(long, value_name = "NAME", requires = "part")]
    host: Option<String>,
}

impl PartArgs {
    /// The requested blocks, before they are split into parts.
    pub(super) fn blocks(&self) -> RangeInclusive<u64> {
        self.blocks.clone().unwrap_or(self.from..=self.to)
    }

    /// Selects this part's bundles from all sorted `bundles` of the run; returns the part for the
    /// report too.
    pub(super) fn of_bundles(
        &self,
        bundles: &[BundleFile],
        run: ReplaySettings,
    ) -> (Vec<BundleFile>, Option<ReplayPart>) {
        let Some(part) = self.part else { return (bundles.to_vec(), None) };
        let names = NamedBundle::all(bundles);
        let inputs = PartInputs::Bundles {
            genesis: run.genesis,
            count: bundles.len() as u64,
            digest: NamedBundle::digest(&names),
        };
        let covered = match part.of_list(&names) {
            [] => PartCoverage::Nothing,
            names => PartCoverage::Bundles(names.to_vec()),
        };
        (part.of_list(bundles).to_vec(), Some(self.report(part, inputs, covered, run)))
    }

    /// Selects this part's blocks from `blocks` of a chain; `None` if it is empty.
    pub(super) fn cut(&self, blocks: &RangeInclusive<u64>) -> Option<RangeInclusive<u64>> {
        self.part.map_or_else(|| Some(blocks.clone()), |part| part.of_blocks(blocks))
    }

    /// The same, with the part for the report.
    pub(super) fn of_blocks(
        &self,
        blocks: &RangeInclusive<u64>,
        run: ReplaySettings,
    ) -> (Option<RangeInclusive<u64>>, Option<ReplayPart>) {
        let mine = self.cut(blocks);
        let Some(part) = self.part else { return (mine, None) };
        let covered = match &mine {
            None => PartCoverage::Nothing,
            Some(mine) => PartCoverage::Blocks { from: *mine.start(), to: *mine.end() },
        };
        let (from, to) = (*blocks.start(), *blocks.end());
        let inputs = PartInputs::Blocks { genesis: run.genesis, from, to };
        (mine, Some(self.report(part, inputs, covered, run)))
    }

    /// The requested blocks of `files`. Without parts, the replay finds the last block itself; to
    /// split them, it must be known first.
    pub(super) fn of_files(&self, files: &[SourceLocation]) -> eyre::Result<RangeInclusive<u64>> {
        let asked = self.blocks();
        if self.part.is_none() {
            return Ok(asked);
        }
        let sources = open_sources(files)?;
        let files = || sources.iter().flat_map(BlockSource::files);
        let first = files().map(|file| file.first_block).min().unwrap_or(0);
        let to = match *asked.end() {
            u64::MAX => {
                let highest = files().max_by_key(|file| file.first_block);
                last_block(highest.ok_or_eyre("there are no block files")?)?
            }
            given => given,
        };
        let from = first.max(*asked.start());
        if from > to {
            bail!("no block in the files lies within blocks {from} to {to}");
        }
        Ok(from..=to)
    }

    fn report(
        &self,
        part: PartSpec,
        inputs: PartInputs,
        covered: PartCoverage,
        run: ReplaySettings,
    ) -> ReplayPart {
        let host = self.host.clone().unwrap_or_else(host);
        ReplayPart { part, host, inputs, options: run.options, covered }
    }
}

/// What all parts of a replay have in common beside their inputs.
pub(super) struct ReplaySettings {
    /// Hash of the chain's genesis block.
    pub(super) genesis: alloy_primitives::B256,
    /// The flags that change results.
    pub(super) options: BTreeMap<String, String>,
}

fn last_block(file: &BlockFile) -> eyre::Result<u64> {
    let Some(count) = file.block_count else {
        bail!(
            "{} does not tell how many blocks it has, which has to be known to cut them into parts: \
             give --blocks FROM..TO",
            file.path.display()
        );
    };
    Ok((file.first_block.saturating_add(count)).saturating_sub(1))
}

/// Describes a part in words.
pub(super) fn describe(report: &ReplayPart) -> String {
    let all = match &report.inputs {
        PartInputs::Bundles { count, .. } => format!("{count} bundles"),
        PartInputs::Blocks { from, to, .. } => format!("blocks {from} to {to}"),
    };
    let mine = match &report.covered {
        PartCoverage::Nothing => "nothing, as there are more parts than that".into(),
        PartCoverage::Blocks { from, to } => format!("blocks {from} to {to}"),
        PartCoverage::Bundles(bundles) => match &bundles[..] {
            [] => "nothing".into(),
            [one] => format!("the bundle of block {}", one.number),
            [first, .., last] => {
                format!("{} bundles, blocks {} to {}", bundles.len(), first.number, last.number)
            }
        },
    };
    format!("part {} of {all}: {mine}", report.part)
}
