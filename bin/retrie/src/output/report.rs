//! Output of measurements: the report as JSON and as a page, and the metrics.

use super::{CommandOutput, OutputTarget};
use eyre::{WrapErr, bail, eyre};
use retrie_report::{ReportDocument, page};
use retrie_telemetry::{Metrics, MetricsServer};
use serde::Serialize;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Where the figures of a measurement go. Every command that measures includes these flags.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Report")]
pub(crate) struct ReportArgs {
    /// Write the figures as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the figures as one HTML page with plots to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Serve Prometheus metrics on this address while measuring.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
}

impl ReportArgs {
    /// The file of `--json`, if it is one.
    pub(crate) fn json_file(&self) -> Option<&Path> {
        self.json.as_deref().filter(|path| *path != Path::new("-"))
    }

    /// For commands that measure nothing, and so have no metrics.
    pub(crate) const fn files_only(json: Option<PathBuf>, report: Option<PathBuf>) -> Self {
        Self { json, report, metrics: None }
    }
}

/// Where a measurement shows its figures, beside lines and JSON.
#[derive(Debug, Default)]
pub(super) struct ReportTargets {
    page: Option<OutputTarget>,
    metrics: Option<(Metrics, MetricsServer)>,
}

impl CommandOutput {
    /// Opens the files of the flags, so that a bad path is found before the measurement.
    pub(crate) fn open(args: &ReportArgs) -> eyre::Result<Self> {
        if args.json.is_some() && args.json == args.report {
            bail!("--json and --report cannot both go to the same place: give them two names");
        }
        let serve = |address| {
            let metrics = Metrics::new().wrap_err("registering the metrics")?;
            let server = MetricsServer::start(address, metrics.clone())?;
            eyre::Ok((metrics, server))
        };
        let metrics = args.metrics.map(serve).transpose()?;
        let out = Self::new(args.json.clone())?;
        let page = args.report.as_deref().map(OutputTarget::open).transpose()?;
        let takes_stdout = out.takes_stdout || matches!(page, Some(OutputTarget::Stdout));
        Ok(Self { report: ReportTargets { page, metrics }, takes_stdout, ..out })
    }

    /// The metrics served under `--metrics`, if any.
    pub(crate) fn metrics(&self) -> Option<&Metrics> {
        self.report.metrics.as_ref().map(|(metrics, _)| metrics)
    }

    /// Writes a report as JSON and as a page, as requested. If one of them fails, the other is
    /// still written.
    pub(crate) fn report<'a, R>(mut self, report: &'a R) -> eyre::Result<()>
    where
        R: Serialize,
        ReportDocument: From<&'a R>,
    {
        let page = match self.report.page.take() {
            Some(target) => target.write(&page("retrie: measured", &[report.into()])),
            None => Ok(()),
        };
        match (self.json(report), page) {
            (Err(json), Err(page)) => Err(eyre!("{json:#}; and {page:#}")),
            (json, page) => json.and(page),
        }
    }
}

/// The command line of this process, for reports.
pub(crate) fn command_line() -> String {
    let words: Vec<_> = std::env::args_os().collect();
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
