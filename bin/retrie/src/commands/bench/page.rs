//! `retrie bench page`: makes one HTML page, or one SVG, from several JSON reports.

use crate::output::OutputTarget;
use retrie_report::{ReportDocument, page, picture};
use std::path::PathBuf;

/// Arguments of `retrie bench page`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PageArgs {
    /// Output file, or `-` for stdout. A name that ends in `.svg` gets one picture of bars, any
    /// other an HTML page.
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
        let is_picture = self.output.extension().is_some_and(|extension| extension == "svg");
        let text = if is_picture { picture(&documents) } else { page(&self.title, &documents) };
        OutputTarget::open(&self.output)?.write(&text)
    }
}
