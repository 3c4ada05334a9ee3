//! `retrie`: an Ethereum execution client whose state store is swappable.
//!
//! This crate is the command line only: one file for each command in [`commands`]. The node, and the
//! groups of flags that commands share, are in [`retrie_node`]; everything else is in libraries too.
//! Commands that need the crates of `crates/lab` are behind the feature `lab`.

mod advice;
mod commands;
#[cfg(feature = "lab")]
mod limit;
mod meter;
mod output;
mod progress;

pub(crate) use retrie_node::args;

use args::VerbosityArgs;
use clap::{Parser, Subcommand};
use eyre::Context;
use output::ClosedPipe;
use retrie_node::{NodeCommand, config, raise_limit};
use retrie_telemetry::SpanExport;
use std::{
    io::Write,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Import allocates and frees memory very often, from several threads.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// An Ethereum execution client with a swappable state store.
#[derive(Debug, Parser)]
#[command(name = "retrie", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
    #[command(flatten)]
    verbosity: VerbosityArgs,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run a node.
    Node(Box<NodeCommand>),
    /// Show or check the configuration file of a node.
    Config(commands::config::ConfigArgs),
    /// Create a datadir with the genesis block.
    Init(commands::init::InitArgs),
    /// Create a datadir that starts from the state after some block, from a state dump.
    InitState(Box<commands::init_state::InitStateArgs>),
    /// Write the state after a block as a state dump.
    DumpState(commands::dump_state::DumpStateArgs),
    /// Write states as snapshots, from which new nodes start without trust.
    #[command(subcommand)]
    Snapshot(commands::snapshot::SnapshotCommand),
    /// Import blocks from files into a datadir.
    Import(commands::import::ImportArgs),
    /// Execute stored blocks again, on the state history, and compare.
    ReExecute(commands::re_execute::ReExecuteArgs),
    /// Print the genesis of a chain as JSON.
    DumpGenesis(commands::dump_genesis::DumpGenesisArgs),
    /// Run real blocks on a fresh temporary store of each backend and measure.
    #[cfg(feature = "lab")]
    Replay(commands::replay::ReplayArgs),
    /// Make bundles: real blocks with the state they touch.
    #[command(subcommand)]
    Bundle(commands::bundle::BundleCommand),
    /// Fetch real chain data from public servers.
    #[command(subcommand)]
    Download(commands::download::DownloadCommand),
    /// Write blocks of a datadir to a file.
    Export(commands::export::ExportArgs),
    /// Measure state stores, and generate chains to measure with.
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Bench(commands::bench::BenchCommand),
    /// Make public parameters of backends.
    #[command(subcommand)]
    Params(commands::params::ParamsCommand),
    /// Get proofs of the state from a node, and verify them.
    #[command(subcommand)]
    Proof(commands::proof::ProofCommand),
    /// Make, verify and compare witnesses: what it takes to execute a block without a state.
    #[command(subcommand)]
    Witness(commands::witness::WitnessCommand),
    /// Write, check and import the files of the partitioned binary tree (EIP-8347).
    #[command(subcommand)]
    Pbt(commands::pbt::PbtCommand),
    /// Inspect a datadir.
    #[command(subcommand)]
    Db(commands::db::DbCommand),
    /// Work on parts of an import.
    #[command(subcommand)]
    Stage(commands::stage::StageCommand),
}

impl CliCommand {
    /// Whether the command only prints. Such a command is done once its reader closes the pipe.
    /// Other commands have changed something, so lost output is an error for them.
    const fn only_prints(&self) -> bool {
        match self {
            Self::Db(command) => command.only_prints(),
            Self::Pbt(command) => command.only_prints(),
            Self::Witness(command) => command.only_prints(),
            Self::Config(_) | Self::DumpGenesis(_) | Self::Proof(_) | Self::ReExecute(_) => true,
            #[cfg(feature = "lab")]
            Self::Replay(_) => true,
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return fail(&error),
    };
    ignore_file_size_signal();
    let (files, spans) = match &cli.command {
        CliCommand::Node(command) => (command.log_files(), command.span_export()),
        CliCommand::Import(args) => (None, args.span_export()),
        _ => (None, None),
    };
    let spans = match spans.as_ref().map(SpanExport::start).transpose() {
        Ok(spans) => spans,
        Err(error) => return fail(&error.into()),
    };
    if let Err(error) = retrie_telemetry::init_logs(cli.verbosity.level(), files, spans.as_ref()) {
        return fail(&error.into());
    }
    if let Err(error) = raise_limit() {
        tracing::debug!(%error, "the limit of open files could not be raised");
    }
    let stop = match stop_signal() {
        Ok(stop) => stop,
        Err(error) => return fail(&error),
    };
    let only_prints = cli.command.only_prints();
    let outcome = match cli.command {
        CliCommand::Node(command) => command.run(&stop),
        CliCommand::Config(args) => args.run(),
        CliCommand::Init(args) => args.run(),
        CliCommand::InitState(args) => args.run(&stop),
        CliCommand::DumpState(args) => args.run(&stop),
        CliCommand::Snapshot(command) => command.run(&stop),
        CliCommand::Import(args) => args.run(&stop),
        CliCommand::ReExecute(args) => args.run(&stop),
        CliCommand::DumpGenesis(args) => args.run(),
        #[cfg(feature = "lab")]
        CliCommand::Replay(args) => args.run(&stop),
        CliCommand::Bundle(command) => command.run(&stop),
        CliCommand::Download(command) => command.run(&stop),
        CliCommand::Export(args) => args.run(&stop),
        #[cfg(feature = "lab")]
        CliCommand::Bench(command) => command.run(&stop),
        CliCommand::Params(command) => command.run(&stop),
        CliCommand::Proof(command) => command.run(&stop),
        CliCommand::Witness(command) => command.run(&stop),
        CliCommand::Pbt(command) => command.run(&stop),
        CliCommand::Db(command) => command.run(&stop),
        CliCommand::Stage(command) => command.run(),
    };
    if let Some(spans) = spans {
        spans.stop();
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if only_prints && error.is::<ClosedPipe>() => ExitCode::from(CLOSED_PIPE),
        Err(error) => fail(&error),
    }
}

/// A flag that Ctrl-C or SIGTERM sets. A second signal ends the process at once.
fn stop_signal() -> eyre::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        let line = "stopping at the next block; press Ctrl-C again to stop at once";
        let _ = writeln!(std::io::stderr(), "{line}");
    })
    .wrap_err("installing the signal handler")?;
    Ok(stop)
}

/// Parses the command line. The flags of a node's configuration file go before those given, which
/// override them.
fn parse() -> eyre::Result<Cli> {
    let cli = Cli::parse();
    let CliCommand::Node(node) = &cli.command else { return Ok(cli) };
    let Some(file) = node.config_file()? else { return Ok(cli) };
    let flags = config::flags_of(&file)?;
    config::check(&file, &flags)?;
    let mut line: Vec<_> = std::env::args_os().collect();
    if let Some(at) = line.iter().position(|arg| arg == "node") {
        line.splice(at + 1..at + 1, flags);
    }
    Ok(Cli::parse_from(line))
}

/// The exit code that a shell shows for a program killed by SIGPIPE: 128 + 13.
const CLOSED_PIPE: u8 = 141;

/// Exit code of `db verify` if the check itself failed. (2 is for invalid command lines.)
const NOT_CHECKED: u8 = 3;

/// Exit code of `witness lint` if there was nothing to compare, as for invalid command lines.
const NOT_COMPARED: u8 = 2;

/// Prints one line on stderr: the error, and the advice about it.
fn fail(error: &eyre::Report) -> ExitCode {
    let mut line = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Messages of typed errors often quote their cause already.
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    if let Some(advice) = advice::for_error(error) {
        line = format!("{line}; {advice}");
    }
    // Ignored: with stderr closed there is no place to report to.
    let _ = writeln!(std::io::stderr(), "error: {}", line.replace('\n', " "));
    if error.is::<commands::verify::CheckAborted>() {
        return ExitCode::from(NOT_CHECKED);
    }
    if error.is::<commands::witness::LintAborted>() {
        return ExitCode::from(NOT_COMPARED);
    }
    ExitCode::FAILURE
}

/// Ignores SIGXFSZ, so that a file that exceeds `ulimit -f` gives an error like a full disk.
fn ignore_file_size_signal() {
    #[cfg(unix)]
    // SAFETY: no handler is installed, and no other thread runs yet.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// The heading of `flag` in the help of `retrie node`.
    fn heading(help: &str, flag: &str) -> String {
        let mut heading = "";
        for line in help.lines() {
            if !line.starts_with(' ') && line.ends_with(':') {
                heading = line.trim_end_matches(':');
            }
            if line.split([' ', ',']).any(|word| word == flag) && line.starts_with(' ') {
                return heading.to_owned();
            }
        }
        panic!("{flag} is not in {help}")
    }

    #[test]
    fn flags_of_a_node_stand_under_the_heading_of_their_group_and_backends_by_name() {
        let mut cli = Cli::command().term_width(0);
        cli.build();
        cli.clone().debug_assert();
        let help = cli.find_subcommand_mut("node").unwrap().render_help().to_string();
        for (flag, group) in [
            ("--chain", "Chain and datadir"),
            ("--state-backend", "State backend"),
            ("--lvmt.proof-shard", "State backend"),
            ("--full", "Pruning"),
            ("--prune.bodies.before", "Pruning"),
            ("--db.sync-mode", "Database"),
            ("--metrics", "Metrics"),
            ("--ethstats", "Metrics"),
            ("--tracing-otlp-protocol", "Tracing"),
            ("-v", "Logging"),
            ("--quiet", "Logging"),
        ] {
            assert_eq!(heading(&help, flag), group, "{flag}");
        }
        for backend in retrie_backends::all() {
            let row = format!("{} ", backend.name);
            let is_row = |line: &str| {
                let text = line.trim_start();
                text.starts_with(&row) && text.contains(backend.about)
            };
            assert!(help.lines().any(is_row), "{}: {help}", backend.name);
        }
    }
}
