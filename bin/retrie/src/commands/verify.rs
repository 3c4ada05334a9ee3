//! `retrie db verify`: a datadir held against itself.

use super::existing::Existing;
use crate::{
    args::{BackendArgs, ChainArgs, DEFAULT_CHAIN, referee},
    output::{Output, grouped, say},
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

/// Findings that are printed.
const MAX_FINDINGS: usize = 100;
/// How often a plain line is printed.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Arguments of `retrie db verify`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    /// Build states again in this folder, to compare them: it takes as much space as the state. It is
    /// left as it was. [default: the datadir]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Write what was checked and found as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    /// Runs the command; fails if anything is wrong with the datadir, and with [`NotChecked`] if the
    /// check itself could not be done.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let found = Existing::open(&self.chain)?;
        let metadata = found.db.begin_read()?.metadata()?;
        let spec = match &metadata {
            Some(_) => found.spec()?,
            // That it has no identity will be found, whatever the rules.
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
        // Genesis of a native chain has the root of its own backend.
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
        let mut shown = Shown::new();
        let report = verify(&found.db, &options, &mut |what, count| shown.update(what, count));
        shown.finish();
        let report = report.map_err(|error| match error {
            PipelineError::Check { .. } => eyre::Report::new(NotChecked(error)),
            error => error.into(),
        })?;
        let out = Output::new(self.json)?;
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

/// The check could not be done, which says nothing of the datadir.
#[derive(Debug)]
pub(crate) struct NotChecked(PipelineError);

impl std::fmt::Display for NotChecked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for NotChecked {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

fn print(out: &Output, report: &VerifyReport) -> eyre::Result<()> {
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
                "state files of {}: {} in use, {} bytes; {} that nobody needs any more, {} bytes, go \
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

/// What is being checked: a spinner on a terminal, a line now and then otherwise.
struct Shown {
    bar: Option<ProgressBar>,
    last: Instant,
}

impl Shown {
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
