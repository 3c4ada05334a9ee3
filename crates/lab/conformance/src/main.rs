//! `conformance DIR [SUITE...]`: runs the public suites found in a folder.

use clap::{ArgAction, Parser};
use eyre::bail;
use retrie_conformance::{
    ExceptionList, SUITES, SuiteGate, SuiteRunner, TestBackend, TestSuite, find, names,
};
use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Failures that are listed per suite.
const LISTED: usize = 50;

/// Runs the public test suites of Ethereum against this client.
///
/// Prints one line per suite. The last line is `N passed, M failed`, and the number of cases with
/// blocks that could not be sent, if there are any. Failures are listed on stderr.
#[derive(Debug, Parser)]
#[command(name = "conformance")]
struct ConformanceArgs {
    /// Folder of the suites: NAME.tar.zst archives, or unpacked folders NAME.
    dir: PathBuf,
    /// Suites to run; by default all suites in the folder.
    #[arg(value_name = "SUITE")]
    suites: Vec<String>,
    /// The state backend of the tests. It must have Ethereum's root.
    #[arg(long, value_name = "BACKEND", default_value = "mpt")]
    state_backend: String,
    /// Whether the Engine API executes transactions in parallel with block access lists. Blocks
    /// that have one are then also executed serially, and everything is compared.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set
    )]
    parallel_execution: bool,
    /// Tests at a time; by default the number of cores.
    #[arg(long)]
    threads: Option<usize>,
    /// List all failures.
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    match run(&ConformanceArgs::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &ConformanceArgs) -> eyre::Result<bool> {
    let mut runner = SuiteRunner::new(ExceptionList::committed()?);
    runner.backend = TestBackend(retrie_backends::find(&args.state_backend)?.make_temporary()?);
    if !runner.backend.0.profile().ethereum_root {
        eyre::bail!("the suites know Ethereum's roots, and `{}` has another", args.state_backend);
    }
    runner.parallel_execution = args.parallel_execution;
    if let Some(threads) = args.threads {
        runner.threads = threads;
    }
    if std::io::stderr().is_terminal() {
        runner.progress = |suite, done, all| eprint!("\r\x1b[K{suite}: {done} of {all} files");
    }
    let (mut passed, mut failed, mut not_sent) = (0, 0, 0);
    for suite in suites(args)? {
        if let SuiteGate::NotRun(reason) = suite.gate {
            println!("{:<38} not run: {reason}", suite.name);
            continue;
        }
        let report = match runner.run(&args.dir, suite) {
            Ok(report) => report,
            Err(error) => {
                failed += 1;
                eprintln!("FAILED {}: {error}", suite.name);
                println!("{:<38} cannot be read: {error}", suite.name);
                continue;
            }
        };
        clear_progress();
        let limit = if args.verbose { usize::MAX } else { LISTED };
        for failure in report.failures.iter().take(limit) {
            eprintln!("FAILED {}: {}: {}", suite.name, failure.case, failure.reason);
        }
        if report.failures.len() > limit {
            eprintln!("... and {} more; -v lists all", report.failures.len() - limit);
        }
        println!("{}", report.line(suite));
        passed += report.passed;
        not_sent += report.not_sent;
        failed += report.failures.len();
    }
    match not_sent {
        0 => println!("{passed} passed, {failed} failed"),
        _ => println!("{passed} passed, {failed} failed, {not_sent} not sent"),
    }
    Ok(failed == 0)
}

/// The requested suites in their order, or all suites in the folder.
fn suites(args: &ConformanceArgs) -> eyre::Result<Vec<&'static TestSuite>> {
    let found = names(&args.dir)?;
    let mut suites = Vec::new();
    for name in &args.suites {
        let Some(suite) = find(name) else {
            bail!("no suite is called {name}; known are those of docs/conformance.md")
        };
        if !found.iter().any(|found| found == suite.archive()) {
            bail!("{}: there is no suite {}", args.dir.display(), suite.archive());
        }
        suites.push(suite);
    }
    if args.suites.is_empty() {
        for name in &found {
            if find(name).is_none() {
                bail!("{}: {name} is no suite that is known here", args.dir.display());
            }
        }
        let is_there = |suite: &&TestSuite| found.iter().any(|found| found == suite.archive());
        suites.extend(SUITES.iter().filter(is_there));
    }
    if suites.is_empty() {
        bail!("{}: there are no suites here", args.dir.display());
    }
    Ok(suites)
}

fn clear_progress() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
        let _ = std::io::stderr().flush();
    }
}
