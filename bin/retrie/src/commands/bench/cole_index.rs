//! `retrie bench cole-index`: compares the learned index of COLE's runs with indexes without models.

use crate::{
    args::parse_count,
    output::{CommandOutput, ReportArgs, command_line, grouped, say},
};
use eyre::WrapErr;
use retrie_bench::cole_index::{
    KeyLayout,
    measure::{IndexBenchConfig, IndexComparison, compare},
    report::IndexReport,
};
use retrie_report::BenchReport;
use std::{path::PathBuf, sync::atomic::AtomicBool};

/// The meaning of the figures, for the end of `--help`.
const HELP: &str = "A run is built by the store's own code, in one piece, and searched without its filter. `learned` is \
COLE's index: models predict a page. `fence-tree` is a static B+-tree over the first key of each value page, \
`fence-array` a binary search over these first keys, `value-pages` a binary search over the value pages \
themselves. All pages are in memory when the clock runs; pages a lookup are counted apart, 4096 bytes each. \
Every lookup's result is checked. Times are medians over slices, ratios to fence-tree are medians of the \
ratios within a slice. Memory: 8 bytes a random key.";

/// Arguments of `retrie bench cole-index`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct ColeIndexArgs {
    /// Numbers of state keys; one run for each number and layout.
    #[arg(
        long,
        value_name = "N,N,..",
        value_delimiter = ',',
        default_value = "1m,10m",
        value_parser = parse_count
    )]
    keys: Vec<u64>,
    /// Versions of each key, a pair each.
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_count)]
    versions: u64,
    /// How keys lie, separated by commas: random (accounts), dense (every second slot of ten
    /// contracts) [default: both].
    #[arg(long, value_name = "LAYOUTS", value_delimiter = ',')]
    layouts: Vec<KeyLayout>,
    /// The largest error of models, in 64ths of a page, as --cole.epsilon.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u8).range(1..=32))]
    epsilon: u8,
    /// Lookups in a slice, first of present keys, then of absent ones.
    #[arg(long, value_name = "N", default_value = "100k", value_parser = parse_count)]
    lookups: u64,
    /// Slices: in each, every search does the same lookups.
    #[arg(long, value_name = "N", default_value_t = 10)]
    slices: u64,
    /// Folder for the files, which are removed afterwards [default: the system's folder for
    /// temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Seed of keys, values and lookups.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    report: ReportArgs,
}

impl ColeIndexArgs {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let out = CommandOutput::open(&self.report)?;
        let mut report = IndexReport::new(BenchReport::new(command_line(), Vec::new()));
        say!(out, "{}", report.bench.machine);
        let ended = self.measure(&out, stop, &mut report);
        // The results measured before an error are kept.
        report.bench.complete = ended.is_ok();
        out.report(&report)?;
        ended
    }

    fn measure(
        &self,
        out: &CommandOutput,
        stop: &AtomicBool,
        report: &mut IndexReport,
    ) -> eyre::Result<()> {
        let layouts = if self.layouts.is_empty() { &KeyLayout::ALL[..] } else { &self.layouts };
        for keys in &self.keys {
            for layout in layouts {
                let config = IndexBenchConfig {
                    keys: *keys,
                    versions: self.versions,
                    layout: *layout,
                    epsilon: self.epsilon,
                    lookups: self.lookups,
                    slices: self.slices,
                    folder: self.dir.clone().unwrap_or_else(std::env::temp_dir),
                    seed: self.seed,
                };
                let compared = compare(&config, stop)
                    .wrap_err_with(|| format!("{} {layout} keys", grouped(*keys)))?;
                print(out, &compared)?;
                report.add(compared, self.seed);
            }
        }
        Ok(())
    }
}

/// Prints a run: a line for each search and kind of lookup.
fn print(out: &CommandOutput, compared: &IndexComparison) -> eyre::Result<()> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    say!(
        out,
        "\n{} {} keys of {} versions, epsilon {}; value pages {:.1} MiB",
        grouped(compared.keys),
        compared.layout,
        grouped(compared.versions),
        compared.epsilon,
        mib(compared.value_bytes)
    );
    say!(
        out,
        "{:<8} {:<12} {:>10} {:>8} {:>12} {:>12} {:>6} {:>10}",
        "keys",
        "search",
        "ns/lookup",
        "faster",
        "index pages",
        "value pages",
        "most",
        "index MiB"
    );
    for figures in &compared.searches {
        let tree = compared
            .searches
            .iter()
            .find(|other| other.search == "fence-tree" && other.present == figures.present);
        let faster = tree
            .map_or_else(|| "-".to_owned(), |tree| format!("{:.2}x", figures.faster(tree).median));
        say!(
            out,
            "{:<8} {:<12} {:>10.0} {:>8} {:>12.2} {:>12.2} {:>6} {:>10.3}",
            if figures.present { "present" } else { "absent" },
            figures.search,
            figures.median_ns(),
            faster,
            figures.index_pages,
            figures.value_pages,
            figures.most_pages,
            mib(figures.index_bytes),
        );
    }
    Ok(())
}
