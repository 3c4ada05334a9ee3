//! `retrie bench page`: one HTML page of several JSON reports.

use crate::output::Target;
use retrie_bench::report::{Document, page};
use std::path::PathBuf;

/// Arguments of `retrie bench page`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the page goes, or `-` for stdout.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// The page's title.
    #[arg(long, value_name = "TEXT", default_value = "retrie: measured")]
    title: String,
    /// What `--json` of `retrie bench` or `retrie replay` wrote.
    #[arg(value_name = "JSON", required = true)]
    reports: Vec<PathBuf>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let documents = self.reports.iter().map(|path| Document::read(path));
        let documents = documents.collect::<Result<Vec<_>, _>>()?;
        Target::open(&self.output)?.write(&page(&self.title, &documents))
    }
}
