//! `retrie bench page`: makes one HTML page from several JSON reports.

use crate::output::OutputTarget;
use retrie_report::{ReportDocument, page};
use std::path::PathBuf;

/// Arguments of `retrie bench page`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PageArgs {
    /// Output file, or `-` for stdout.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Title of the page.
    #[arg(long, value_name = "TEXT", default_value = "retrie: measured")]
    title: String,
    /// Files written by `--json` of `retrie bench` or `retrie replay`.
    #[arg(value_name = "JSON", required = true)]
    reports: Vec<PathBuf>,
}

impl PageArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let documents = self.reports.iter().map(|path| ReportDocument::read(path));
        let documents = documents.collect::<Result<Vec<_>, _>>()?;
        OutputTarget::open(&self.output)?.write(&page(&self.title, &documents))
    }
}
