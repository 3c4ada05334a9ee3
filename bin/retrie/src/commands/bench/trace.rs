//! `retrie bench trace`: makes and shows trace files, which `bench state --keys trace:FILE` replays.

use crate::{
    args::{HttpArgs, parse_count, witness_opener},
    meter::TransferMeter,
    output::{CommandOutput, grouped, say},
};
use eyre::{WrapErr, bail};
use retrie_bench::state::{
    AccessSource, BlockCorpus, RecordedTrace, SyntheticRecipe, TraceFigures, TraceSummary,
    make_trace,
};
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_pipeline::replay::{BundleReplayOptions, StatePadding};
use retrie_sources::RpcClient;
use retrie_state::AnyBackend;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// `retrie bench trace ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum TraceCommand {
    /// Make a trace: the keys that blocks read and write, with their values, in one compact file.
    Make(MakeTraceArgs),
    /// Check a trace, and show its size.
    Show(ShowTraceArgs),
}

impl TraceCommand {
    /// Runs the command.
    pub(super) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        match self {
            Self::Make(args) => args.run(stop),
            Self::Show(args) => args.run(),
        }
    }
}

/// The meaning of the sources, for the end of `--help`.
const HELP: &str = "One source is needed: --rpc, --answers, --parquet, --corpus or --synthetic. \
A line of --answers is one block: {\"number\": N, \"diff\": RESULT, \"prestate\": RESULT}, where RESULT is the \
`result` of debug_traceBlockByNumber with the prestateTracer, with and without diffMode; without `prestate` \
nothing but the changed keys is read. If a source fails or is stopped, the trace has the blocks before.";

/// Arguments of `retrie bench trace make`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
#[command(group = clap::ArgGroup::new("source").required(true))]
pub(crate) struct MakeTraceArgs {
    /// JSON-RPC endpoint (http or https) of an archive node that offers debug_traceBlockByNumber
    /// with geth's prestateTracer.
    #[arg(long, value_name = "URL", group = "source", requires = "from", requires = "to")]
    rpc: Option<String>,
    /// First block of --rpc.
    #[arg(long, value_name = "NUMBER", requires = "rpc")]
    from: Option<u64>,
    /// Last block of --rpc.
    #[arg(long, value_name = "NUMBER", requires = "rpc")]
    to: Option<u64>,
    /// The chain of --rpc: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = "mainnet")]
    chain: String,
    #[command(flatten)]
    http: HttpArgs,
    /// Files of a node's answers: JSON lines, gzipped if the name ends in .gz, in the order of their
    /// blocks.
    #[arg(long, value_name = "FILE,..", group = "source", value_delimiter = ',')]
    answers: Vec<PathBuf>,
    /// A folder with the Parquet tables balance_diffs, nonce_diffs, code_diffs and storage_diffs of
    /// the same blocks, by `retrie export --format parquet` or cryo. Nothing but changed keys is
    /// read.
    #[arg(long, value_name = "DIR", group = "source")]
    parquet: Option<PathBuf>,
    /// The mainnet blocks in RETRIE_DATA (`../shared/data` by default), those of `--keys real`.
    #[arg(long, group = "source")]
    corpus: bool,
    /// Random accesses with the counts of a paper's trace: `lvmt` (section 6: 46,700 blocks, 4.2
    /// million reads, 2.4 million writes, 1.3 million keys), times --scale.
    #[arg(long, value_name = "PAPER", group = "source", value_parser = ["lvmt"])]
    synthetic: Option<String>,
    /// Scale of the counts of --synthetic, 0.001 to 1; blocks stay as large.
    #[arg(long, value_name = "FACTOR", default_value_t = 0.01)]
    scale: f64,
    /// Seed of --synthetic.
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_count)]
    seed: u64,
    /// The trace file to write.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

/// Arguments of `retrie bench trace show`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ShowTraceArgs {
    /// The trace file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// How the blocks of the data folder are executed. `opener` opens their witnesses.
pub(super) fn corpus_options(opener: Option<&dyn AnyBackend>) -> BundleReplayOptions<'_> {
    BundleReplayOptions {
        spec: ChainSpec::mainnet(),
        witness_opener: opener.and_then(|backend| backend.extensions().partial_state),
        witnesses: false,
    }
}

impl MakeTraceArgs {
    fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        if let (Some(url), Some(from), Some(to)) = (&self.rpc, self.from, self.to) {
            if from > to {
                bail!("--from {from} is after --to {to}");
            }
            let client = RpcClient::new(url, self.http.client(stop));
            let spec = parse_chain(&self.chain)?;
            client.check_chain(&spec)?;
            return self.make(&AccessSource::Node(&client, from..=to), Some(to - from + 1), stop);
        }
        if self.corpus {
            let (corpus, opener) = (BlockCorpus::user_default(), witness_opener()?);
            let options = corpus_options(opener.as_deref());
            return self.make(&AccessSource::Corpus(&corpus, options), None, stop);
        }
        let (source, blocks) = match (&self.parquet, &self.synthetic) {
            (Some(folder), _) => (AccessSource::Parquet(folder.clone()), None),
            (None, Some(_)) => {
                let recipe = SyntheticRecipe::lvmt(self.scale, self.seed)?;
                (AccessSource::Synthetic(recipe), Some(recipe.blocks))
            }
            (None, None) => (AccessSource::Answers(self.answers.clone()), None),
        };
        self.make(&source, blocks, stop)
    }

    fn make(
        &self,
        source: &AccessSource<'_>,
        blocks: Option<u64>,
        stop: &AtomicBool,
    ) -> eyre::Result<()> {
        let out = CommandOutput::default();
        let mut meter = TransferMeter::blocks(blocks.unwrap_or(0));
        let made = make_trace(source, &self.output, stop, &mut |done| meter.update(done, blocks));
        meter.finish();
        let TraceSummary { figures, last, ended } = made?;
        let bytes = std::fs::metadata(&self.output).map_or(0, |file| file.len());
        print_figures(&out, &figures)?;
        say!(out, "{}: {} bytes", self.output.display(), grouped(bytes));
        let file = self.output.display();
        ended.wrap_err_with(|| format!("{file} has the blocks up to {last}, and no later ones"))
    }
}

impl ShowTraceArgs {
    fn run(self) -> eyre::Result<()> {
        let out = CommandOutput::default();
        let trace = RecordedTrace::read(&self.file, StatePadding::default())?;
        if let Some((first, last)) = trace.range() {
            say!(out, "{}; blocks {first} to {last}", trace.source());
        }
        print_figures(&out, &trace.figures())
    }
}

fn print_figures(out: &CommandOutput, figures: &TraceFigures) -> eyre::Result<()> {
    say!(
        out,
        "{} blocks, {} keys read, {} written, {} of these removed, {} different keys",
        grouped(figures.blocks),
        grouped(figures.reads),
        grouped(figures.writes),
        grouped(figures.deletes),
        grouped(figures.keys)
    );
    Ok(())
}
