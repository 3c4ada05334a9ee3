//! Output of results: lines for people, JSON for programs, an HTML page for both.

use eyre::{Report, WrapErr, bail, eyre};
use retrie_report::{ReportDocument, page};
use retrie_telemetry::{Metrics, MetricsServer};
use serde::Serialize;
use std::{
    fmt::{Arguments, Display, Formatter},
    fs::{File, OpenOptions, Permissions},
    io::{ErrorKind, Write},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

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
    /// For commands that measure nothing, and so have no metrics.
    pub(crate) const fn files_only(json: Option<PathBuf>, report: Option<PathBuf>) -> Self {
        Self { json, report, metrics: None }
    }
}

/// The output of a command. Lines go to stdout, or to stderr if stdout takes JSON or the page.
#[derive(Debug, Default)]
pub(crate) struct CommandOutput {
    json: Option<OutputTarget>,
    report: Option<OutputTarget>,
    metrics: Option<(Metrics, MetricsServer)>,
}

impl CommandOutput {
    /// Opens the files of the flags, so that a bad path is found before the measurement.
    pub(crate) fn open(args: &ReportArgs) -> eyre::Result<Self> {
        if args.json.is_some() && args.json == args.report {
            bail!("--json and --report cannot both go to the same place: give them two names");
        }
        let open = |path: &Option<PathBuf>| path.as_deref().map(OutputTarget::open).transpose();
        let serve = |address| {
            let metrics = Metrics::new().wrap_err("registering the metrics")?;
            let server = MetricsServer::start(address, metrics.clone())?;
            eyre::Ok((metrics, server))
        };
        let metrics = args.metrics.map(serve).transpose()?;
        Ok(Self { json: open(&args.json)?, report: open(&args.report)?, metrics })
    }

    /// Writes JSON to this file, or to stdout for `-`.
    pub(crate) fn new(json: Option<PathBuf>) -> eyre::Result<Self> {
        Self::open(&ReportArgs { json, ..ReportArgs::default() })
    }

    /// The metrics served under `--metrics`, if any.
    pub(crate) fn metrics(&self) -> Option<&Metrics> {
        self.metrics.as_ref().map(|(metrics, _)| metrics)
    }

    fn takes_stdout(&self) -> bool {
        [&self.json, &self.report]
            .into_iter()
            .flatten()
            .any(|to| matches!(to, OutputTarget::Stdout))
    }

    /// Prints a line for people. A closed pipe gives [`ClosedPipe`] and no panic.
    pub(crate) fn line(&self, line: Arguments<'_>) -> eyre::Result<()> {
        if self.takes_stdout() {
            writeln!(std::io::stderr(), "{line}").wrap_err("writing to stderr")
        } else {
            writeln!(std::io::stdout(), "{line}").map_err(stdout_failed)
        }
    }

    /// Writes `value` as JSON, if requested.
    pub(crate) fn json(self, value: &impl Serialize) -> eyre::Result<()> {
        let Some(target) = self.json else { return Ok(()) };
        let mut json = serde_json::to_string_pretty(value).wrap_err("encoding the results")?;
        json.push('\n');
        target.write(&json)
    }

    /// Writes a report as JSON and as a page, as requested. If one of them fails, the other is
    /// still written.
    pub(crate) fn report<'a, R>(mut self, report: &'a R) -> eyre::Result<()>
    where
        R: Serialize,
        ReportDocument: From<&'a R>,
    {
        let page = match self.report.take() {
            Some(target) => target.write(&page("retrie: measured", &[report.into()])),
            None => Ok(()),
        };
        match (self.json(report), page) {
            (Err(json), Err(page)) => Err(eyre!("{json:#}; and {page:#}")),
            (json, page) => json.and(page),
        }
    }
}

/// The reader of stdout has closed the pipe, as `head` does after its last line.
#[derive(Debug)]
pub(crate) struct ClosedPipe(std::io::Error);

impl Display for ClosedPipe {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "writing to stdout: {}", self.0)
    }
}

impl std::error::Error for ClosedPipe {}

fn stdout_failed(error: std::io::Error) -> Report {
    if error.kind() == ErrorKind::BrokenPipe {
        ClosedPipe(error).into()
    } else {
        Report::new(error).wrap_err("writing to stdout")
    }
}

/// The target of a text. A file appears under its name only when all of it is written, so a full
/// disk or an interruption leaves the old file intact.
#[derive(Debug)]
pub(crate) enum OutputTarget {
    Stdout,
    /// Pipes and devices, which cannot be replaced.
    Device(PathBuf, File),
    /// The file, and a temporary file that replaces it, or is removed on failure.
    File(PathBuf, NamedTempFile),
}

impl OutputTarget {
    /// Opens a target to write; `-` is stdout.
    pub(crate) fn open(path: &Path) -> eyre::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        Self::open_file(path).wrap_err_with(|| format!("opening {} to write", path.display()))
    }

    fn open_file(path: &Path) -> std::io::Result<Self> {
        let (path, mode) = match path.metadata() {
            // A link is followed: its file is replaced, not the link. The file must be writable.
            Ok(found) if found.is_file() => {
                OpenOptions::new().write(true).open(path)?;
                (path.canonicalize()?, found.permissions().mode() & 0o777)
            }
            Ok(_) => {
                return Ok(Self::Device(path.into(), OpenOptions::new().write(true).open(path)?));
            }
            Err(_) => (path.into(), 0o666),
        };
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let beside = tempfile::Builder::new()
            .prefix(".retrie-")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder)?;
        Ok(Self::File(path, beside))
    }

    /// Writes `text` as the whole content.
    pub(crate) fn write(self, text: &str) -> eyre::Result<()> {
        let text = text.as_bytes();
        match self {
            Self::Stdout => {
                let mut stdout = std::io::stdout();
                let written = stdout.write_all(text).and_then(|()| stdout.flush());
                written.map_err(stdout_failed)
            }
            Self::Device(path, mut file) => {
                file.write_all(text).wrap_err_with(|| format!("writing {}", path.display()))
            }
            Self::File(path, mut beside) => {
                let written = beside.write_all(text).and_then(|()| Ok(beside.persist(&path)?));
                written.map(drop).wrap_err_with(|| format!("writing {}", path.display()))
            }
        }
    }
}

/// `out.line(format_args!(..))?` with the syntax of `println!`.
macro_rules! say {
    ($out:expr, $($arg:tt)*) => {
        $out.line(format_args!($($arg)*))?
    };
}
pub(crate) use say;

/// Formats `1234567` as `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The command line of this process, for reports.
pub(crate) fn command_line() -> String {
    let words: Vec<_> = std::env::args_os().collect();
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_grouped() {
        assert_eq!(super::grouped(7), "7");
        assert_eq!(super::grouped(1234), "1,234");
        assert_eq!(super::grouped(1234567), "1,234,567");
    }
}
