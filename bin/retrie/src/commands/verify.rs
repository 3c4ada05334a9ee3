//! `retrie db verify`: checks that a datadir is consistent.

use super::existing::ExistingDatadir;
use crate::{
    args::{BackendArgs, ChainArgs, DEFAULT_CHAIN, referee},
    output::{CommandOutput, grouped, say},
};
use eyre::bail;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use retrie_backends::find;
use retrie_chainspec::parse_chain;
use retrie_db::{ChainRead, StateRootMode};
use retrie_pipeline::{
    PipelineError, native_spec,
    verify::{VerifyOptions, VerifyReport, verify},
};
use std::{
    io::IsTerminal,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Most findings printed.
const MAX_FINDINGS: usize = 100;
/// Interval between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Arguments of `retrie db verify`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DbVerifyArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    /// Folder in which states are rebuilt to compare them. This takes as much space as the state;
    /// the folder is cleaned up afterwards [default: the datadir].
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Write the checks and findings as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl DbVerifyArgs {
    /// Runs the command. Fails if it finds anything wrong, and with [`CheckAborted`] if the check
    /// itself failed.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let found = ExistingDatadir::open(&self.chain)?;
        let metadata = found.db.begin_read()?.metadata()?;
        let spec = match &metadata {
            Some(_) => found.spec()?,
            // The check reports the missing identity under any rules.
            None => parse_chain(DEFAULT_CHAIN)?,
        };
        let is_native = metadata.as_ref().is_some_and(|of| of.state_root == StateRootMode::Native);
        let own = match metadata {
            Some(of) if find(&of.backend).is_ok() => {
                let own = found.backend(&of, &self.backends)?;
                Some((of.backend, own))
            }
            _ => None,
        };
        // The genesis block of a native chain has the root of its own backend.
        let spec = match &own {
            Some((_, own)) if is_native => native_spec(&spec, own)?,
            _ => spec,
        };
        let backend = |name: &str| match &own {
            Some((known, own)) if known == name => Some(own.clone()),
            // The referee.
            _ => referee(name).ok(),
        };
        let options = VerifyOptions {
            spec,
            backend: &backend,
            max_findings: MAX_FINDINGS,
            scratch: self.scratch.as_deref().unwrap_or(&found.path),
        };
        let mut shown = VerifyProgress::new();
        let report = verify(&found.db, &options, &mut |what, count| shown.update(what, count));
        shown.finish();
        let report = report.map_err(|error| match error {
            PipelineError::Check { .. } => eyre::Report::new(CheckAborted(error)),
            error => error.into(),
        })?;
        let out = CommandOutput::new(self.json)?;
        print(&out, &report)?;
        out.json(&report)?;
        if report.count > 0 {
            bail!(
                "datadir {}: {} findings; restore it from a copy, or import again into a fresh \
                 --datadir",
                found.path.display(),
                grouped(report.count)
            );
        }
        Ok(())
    }
}

/// The check itself failed, so the datadir may or may not be consistent.
#[derive(Debug)]
pub(crate) struct CheckAborted(PipelineError);

impl std::fmt::Display for CheckAborted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for CheckAborted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

fn print(out: &CommandOutput, report: &VerifyReport) -> eyre::Result<()> {
    say!(out, "{:<28} {:>14}", "table", "rows");
    for table in &report.tables {
        say!(out, "{:<28} {:>14}", table.name, grouped(table.rows));
    }
    say!(
        out,
        "{} blocks with {} transactions checked",
        grouped(report.blocks),
        grouped(report.txs)
    );
    for state in &report.states {
        say!(
            out,
            "state of {}: {} entries; {} blocks read whole, {} roots computed from values; {} changes \
             of history",
            state.backend,
            grouped(state.entries),
            state.blocks,
            state.roots,
            grouped(state.changes)
        );
        if state.files + state.leftover_files > 0 {
            say!(
                out,
                "state files of {}: {} in use, {} bytes; {} unused, {} bytes, are removed \
                 when the datadir is opened",
                state.backend,
                grouped(state.files),
                grouped(state.file_bytes),
                grouped(state.leftover_files),
                grouped(state.leftover_bytes)
            );
        }
    }
    for finding in &report.findings {
        say!(out, "{finding}");
    }
    if report.count > report.findings.len() as u64 {
        say!(out, "... {} findings in all", grouped(report.count));
    }
    if report.count == 0 {
        say!(out, "nothing is wrong");
    }
    Ok(())
}

/// Shows what is being checked: a spinner on a terminal, sometimes a line otherwise.
struct VerifyProgress {
    bar: Option<ProgressBar>,
    last: Instant,
}

impl VerifyProgress {
    fn new() -> Self {
        let shown = tracing::enabled!(tracing::Level::INFO);
        let bar = (shown && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_draw_target(ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, last: Instant::now() }
    }

    fn update(&mut self, what: &str, count: u64) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(format!("{what}: {}", grouped(count)));
                bar.tick();
            }
            None if self.last.elapsed() >= LINE_EVERY => {
                self.last = Instant::now();
                tracing::info!("checking {what}: {}", grouped(count));
            }
            None => {}
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
