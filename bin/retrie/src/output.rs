//! Output of results: lines for people, JSON for programs, and for measurements an HTML page.

#[cfg(feature = "lab")]
mod report;

#[cfg(feature = "lab")]
pub(crate) use report::{ReportArgs, command_line};
pub(crate) use retrie_telemetry::grouped;

use eyre::{Report, WrapErr};
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;
use std::{
    fmt::{Arguments, Display, Formatter},
    fs::{File, OpenOptions, Permissions},
    io::{ErrorKind, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// The output of a command. Lines go to stdout, or to stderr if stdout takes JSON or the page.
#[derive(Debug, Default)]
pub(crate) struct CommandOutput {
    json: Option<OutputTarget>,
    #[cfg(feature = "lab")]
    report: report::ReportTargets,
    /// Whether stdout takes JSON or the page.
    takes_stdout: bool,
}

impl CommandOutput {
    /// Writes JSON to this file, or to stdout for `-`.
    pub(crate) fn new(json: Option<PathBuf>) -> eyre::Result<Self> {
        let json = json.as_deref().map(OutputTarget::open).transpose()?;
        let takes_stdout = matches!(json, Some(OutputTarget::Stdout));
        Ok(Self {
            json,
            #[cfg(feature = "lab")]
            report: Default::default(),
            takes_stdout,
        })
    }

    /// Prints a line for people. A closed pipe gives [`ClosedPipe`] and no panic.
    pub(crate) fn line(&self, line: Arguments<'_>) -> eyre::Result<()> {
        if self.takes_stdout {
            writeln!(std::io::stderr(), "{line}").wrap_err("writing to stderr")
        } else {
            writeln!(std::io::stdout(), "{line}").map_err(stdout_failed)
        }
    }

    /// Writes `value` as JSON, if requested.
    pub(crate) fn json(self, value: &impl Serialize) -> eyre::Result<()> {
        let Some(target) = self.json else { return Ok(()) };
        target.write(&encoded(value)?)
    }

    /// Writes `value` as JSON now, if a file was requested, so that a killed command leaves what it
    /// had. [`json`](Self::json) replaces it at the end.
    #[cfg(feature = "lab")]
    pub(crate) fn save(&self, value: &impl Serialize) -> eyre::Result<()> {
        let Some(OutputTarget::File(path, _)) = &self.json else { return Ok(()) };
        OutputTarget::open(path)?.write(&encoded(value)?)
    }
}

fn encoded(value: &impl Serialize) -> eyre::Result<String> {
    let mut json = serde_json::to_string_pretty(value).wrap_err("encoding the results")?;
    json.push('\n');
    Ok(json)
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

/// The target of a text. A file whose name ends in `.gz` is compressed. A file appears under its name only when all of it is written, so a full
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
                let written = if path.extension().is_some_and(|extension| extension == "gz") {
                    let mut packed = GzEncoder::new(&mut beside, Compression::best());
                    packed.write_all(text).and_then(|()| packed.finish().map(drop))
                } else {
                    beside.write_all(text)
                };
                let written = written.and_then(|()| Ok(beside.persist(&path)?));
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
