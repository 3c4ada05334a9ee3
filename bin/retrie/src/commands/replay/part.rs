//! Which blocks a replay is about, and which of them are this process's part.

use super::super::import::open_sources;
use eyre::{OptionExt, bail};
use retrie_pipeline::{
    replay::{NamedBundle, Part, parse_blocks},
    report::{Covered, PartInputs, ReplayPart, host},
};
use retrie_sources::{BlockFile, BlockSource, BundleFile, Location};
use std::{collections::BTreeMap, ops::RangeInclusive};

/// Flags that choose blocks.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PartArgs {
    /// First block to replay. Of a chain, those before it run too, but are not measured.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Last block to replay.
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX)]
    to: u64,
    /// The same in one word: the first block and the last, both of which are replayed. `FROM..=TO` says
    /// the same.
    #[arg(
        long,
        value_name = "FROM..TO",
        value_parser = parse_blocks,
        conflicts_with_all = ["from", "to"]
    )]
    blocks: Option<RangeInclusive<u64>>,
    /// Replay the I-th of N parts of these blocks, I from 1 to N. Bundles are cut by their number, sorted;
    /// chains by block numbers, where those before the part run too, but are not measured. Whoever is given
    /// the same inputs and flags cuts alike, and `retrie bench merge` makes one report of the N.
    #[arg(long, value_name = "I/N")]
    part: Option<Part>,
    /// Name of this machine in the report of a part; by default that of the system.
    #[arg(long, value_name = "NAME", requires = "part")]
    host: Option<String>,
}

impl PartArgs {
    /// The blocks asked for, before they are cut into parts.
    pub(super) fn blocks(&self) -> RangeInclusive<u64> {
        self.blocks.clone().unwrap_or(self.from..=self.to)
    }

    /// The bundles of this part, of all those of the run, sorted; and what to say of it in the report.
    pub(super) fn of_bundles(
        &self,
        bundles: &[BundleFile],
        run: Run,
    ) -> (Vec<BundleFile>, Option<ReplayPart>) {
        let Some(part) = self.part else { return (bundles.to_vec(), None) };
        let names = NamedBundle::all(bundles);
        let inputs = PartInputs::Bundles {
            genesis: run.genesis,
            count: bundles.len() as u64,
            digest: NamedBundle::digest(&names),
        };
        let covered = match part.of_list(&names) {
            [] => Covered::Nothing,
            names => Covered::Bundles(names.to_vec()),
        };
        (part.of_list(bundles).to_vec(), Some(self.report(part, inputs, covered, run)))
    }

    /// The blocks of this part, of `blocks` of a chain; none if it is empty.
    pub(super) fn cut(&self, blocks: &RangeInclusive<u64>) -> Option<RangeInclusive<u64>> {
        self.part.map_or_else(|| Some(blocks.clone()), |part| part.of_blocks(blocks))
    }

    /// The same, and what to say of it in the report.
    pub(super) fn of_blocks(
        &self,
        blocks: &RangeInclusive<u64>,
        run: Run,
    ) -> (Option<RangeInclusive<u64>>, Option<ReplayPart>) {
        let mine = self.cut(blocks);
        let Some(part) = self.part else { return (mine, None) };
        let covered = match &mine {
            None => Covered::Nothing,
            Some(mine) => Covered::Blocks { from: *mine.start(), to: *mine.end() },
        };
        let (from, to) = (*blocks.start(), *blocks.end());
        let inputs = PartInputs::Blocks { genesis: run.genesis, from, to };
        (mine, Some(self.report(part, inputs, covered, run)))
    }

    /// The blocks of `files` that were asked for. Without parts that is for the replay to find out; to cut
    /// them, their last one has to be known before.
    pub(super) fn of_files(&self, files: &[Location]) -> eyre::Result<RangeInclusive<u64>> {
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

    fn report(&self, part: Part, inputs: PartInputs, covered: Covered, run: Run) -> ReplayPart {
        let host = self.host.clone().unwrap_or_else(host);
        ReplayPart { part, host, inputs, options: run.options, covered }
    }
}

/// What all parts of a run have in common beside their inputs.
pub(super) struct Run {
    /// Hash of the chain's genesis.
    pub(super) genesis: alloy_primitives::B256,
    /// The flags that results depend on.
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

/// What a part is, for people.
pub(super) fn words(report: &ReplayPart) -> String {
    let all = match &report.inputs {
        PartInputs::Bundles { count, .. } => format!("{count} bundles"),
        PartInputs::Blocks { from, to, .. } => format!("blocks {from} to {to}"),
    };
    let mine = match &report.covered {
        Covered::Nothing => "nothing, as there are more parts than that".into(),
        Covered::Blocks { from, to } => format!("blocks {from} to {to}"),
        Covered::Bundles(bundles) => match &bundles[..] {
            [] => "nothing".into(),
            [one] => format!("the bundle of block {}", one.number),
            [first, .., last] => {
                format!("{} bundles, blocks {} to {}", bundles.len(), first.number, last.number)
            }
        },
    };
    format!("part {} of {all}: {mine}", report.part)
}
