//! Where results go: lines for people, JSON for programs.

use eyre::WrapErr;
use serde::Serialize;
use std::{
    fmt::Arguments,
    io::Write,
    path::{Path, PathBuf},
};

/// Results of a command. Lines go to stdout, or to stderr if the JSON goes to stdout.
#[derive(Debug, Default)]
pub(crate) struct Output {
    json: Option<PathBuf>,
}

impl Output {
    /// JSON goes to this file, or to stdout for `-`.
    pub(crate) const fn new(json: Option<PathBuf>) -> Self {
        Self { json }
    }

    fn json_on_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Prints a line for people. A closed pipe is an error, not a panic.
    pub(crate) fn line(&self, line: Arguments<'_>) -> eyre::Result<()> {
        if self.json_on_stdout() {
            writeln!(std::io::stderr(), "{line}").wrap_err("writing to stderr")
        } else {
            writeln!(std::io::stdout(), "{line}").wrap_err("writing to stdout")
        }
    }

    /// Writes `value` as JSON, if it was asked for.
    pub(crate) fn json(&self, value: &impl Serialize) -> eyre::Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let mut json = serde_json::to_string_pretty(value).wrap_err("encoding the results")?;
        json.push('\n');
        if self.json_on_stdout() {
            let mut stdout = std::io::stdout();
            return stdout
                .write_all(json.as_bytes())
                .and_then(|()| stdout.flush())
                .wrap_err("writing to stdout");
        }
        std::fs::write(path, json).wrap_err_with(|| format!("writing {}", path.display()))
    }
}

/// `out.line(format_args!(..))?` in the words of `println!`.
macro_rules! say {
    ($out:expr, $($arg:tt)*) => {
        $out.line(format_args!($($arg)*))?
    };
}
pub(crate) use say;
