//! Runs suites on all cores, counts the outcomes, and compares them with the exceptions.
//!
//! A file is a unit of work; the largest files come first. The threads are plain ones: tests wait
//! for commits, and the trie's parallel work must not queue behind them.

use crate::{
    archive::{ArchiveError, TestFile, read},
    exceptions::ExceptionList,
    format::{CaseResult, TestMembers},
    seal::Ethash,
    suite::TestSuite,
    worker::{TestBackend, TestWorker},
};
use alloy_primitives::keccak256;
use retrie_storage_mpt::Mpt;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Options of a run, and the shared Ethash cache.
#[derive(Debug)]
pub struct SuiteRunner {
    /// Threads.
    pub threads: usize,
    /// Runs about one case in this many, chosen by name, and all exceptions; 1 for all cases.
    pub one_in: u64,
    /// Cases that are known to fail.
    pub exceptions: ExceptionList,
    /// The state backend of all chains; `mpt` by default.
    pub backend: TestBackend,
    /// Whether the engine executes transactions in parallel. Blocks with a BAL are then also
    /// executed both serially and in parallel, and compared, before they are sent.
    pub parallel_execution: bool,
    /// Called from time to time with the suite's name, the number of finished files, and of all
    /// files.
    pub progress: fn(&str, usize, usize),
    ethash: Arc<OnceLock<Ethash>>,
}

/// The outcome of a suite.
#[derive(Clone, Debug, Default)]
pub struct SuiteReport {
    /// Cases that passed and were sent completely.
    pub passed: u64,
    /// Engine API cases with a block or call that must be rejected, but is malformed, so that it
    /// could not be sent. Everything else in them is right.
    pub not_sent: u64,
    /// Number of these blocks and calls.
    pub blocks_not_sent: u64,
    /// Cases that failed and are exceptions.
    pub expected: u64,
    /// Failed cases with their reasons, and exceptions that passed.
    pub failures: Vec<CaseFailure>,
    /// Transactions of blocks that were executed serially and in parallel, with their own BALs.
    pub transactions: u64,
    /// Transactions of these that the parallel execution did not leave to the serial one.
    pub ahead: u64,
    /// Wall-clock time.
    pub time: Duration,
}

/// A failed case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CaseFailure {
    /// File and name within it.
    pub case: String,
    /// What went wrong, in one line.
    pub reason: String,
}

impl SuiteRunner {
    /// Runs all cases on all cores, with the committed exceptions.
    pub fn new(exceptions: ExceptionList) -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            one_in: 1,
            exceptions,
            backend: TestBackend(Arc::new(Mpt::default())),
            parallel_execution: true,
            progress: |_, _, _| (),
            ethash: Arc::default(),
        }
    }

    /// Runs a suite from `dir`.
    ///
    /// # Errors
    /// If its files cannot be read at all.
    pub fn run(&self, dir: &Path, suite: &TestSuite) -> Result<SuiteReport, ArchiveError> {
        let start = Instant::now();
        let files = read(dir, suite.archive())?;
        let mut report = self.run_files(suite, &files);
        report.time = start.elapsed();
        Ok(report)
    }

    /// Runs the tests of these files.
    pub fn run_files(&self, suite: &TestSuite, files: &[TestFile]) -> SuiteReport {
        let mut queue: Vec<&TestFile> =
            files.iter().filter(|file| suite.has_tests(&file.path)).collect();
        queue.sort_by_key(|file| std::cmp::Reverse(file.content.len()));
        let (next, report) = (AtomicUsize::new(0), Mutex::new(SuiteReport::default()));
        std::thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, queue.len().max(1)) {
                scope.spawn(|| {
                    let mut part =
                        WorkerReport { runner: self, suite, report: SuiteReport::default() };
                    let (backend, ethash) = (self.backend.clone(), self.ethash.clone());
                    match TestWorker::new(backend, self.parallel_execution, ethash) {
                        Ok(worker) => {
                            loop {
                                let at = next.fetch_add(1, Ordering::Relaxed);
                                let Some(file) = queue.get(at) else { break };
                                part.run_file(file, files, &worker);
                                (self.progress)(suite.name, at + 1, queue.len());
                            }
                            part.report.transactions = worker.transactions.all.get();
                            part.report.ahead = worker.transactions.ahead.get();
                        }
                        Err(reason) => part.fail("all".into(), reason),
                    }
                    report.lock().unwrap_or_else(PoisonError::into_inner).add(part.report);
                });
            }
        });
        let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
        if queue.is_empty() {
            let reason = "the suite holds no tests".into();
            report.failures.push(CaseFailure { case: suite.name.into(), reason });
        }
        report.failures.sort();
        report
    }

    fn selects(&self, suite: &TestSuite, case: &str) -> bool {
        let mark = || u64::from_be_bytes(keccak256(case)[..8].try_into().unwrap_or_default());
        self.one_in <= 1
            || self.exceptions.reason(suite.name, case).is_some()
            || mark() % self.one_in == 0
    }
}

impl SuiteReport {
    fn add(&mut self, part: Self) {
        self.passed += part.passed;
        self.not_sent += part.not_sent;
        self.blocks_not_sent += part.blocks_not_sent;
        self.expected += part.expected;
        self.transactions += part.transactions;
        self.ahead += part.ahead;
        self.failures.extend(part.failures);
    }

    /// The output line of a suite.
    pub fn line(&self, suite: &TestSuite) -> String {
        let (passed, failed, expected) = (self.passed, self.failures.len(), self.expected);
        let seconds = self.time.as_secs_f64();
        let ahead = match self.transactions {
            0 => String::new(),
            all => format!(" {} of {all} transactions in parallel,", self.ahead),
        };
        let not_sent = match self.not_sent {
            0 => String::new(),
            cases => format!(" {cases} not sent ({} blocks),", self.blocks_not_sent),
        };
        format!(
            "{:<38} {passed:>6} passed, {failed:>5} failed, {expected:>3} expected failures,\
             {not_sent}{ahead} {seconds:>7.1} s",
            suite.name
        )
    }
}

/// The report of one thread on a suite.
struct WorkerReport<'a> {
    runner: &'a SuiteRunner,
    suite: &'a TestSuite,
    report: SuiteReport,
}

impl WorkerReport<'_> {
    fn run_file(&mut self, file: &TestFile, all: &[TestFile], worker: &TestWorker) {
        if self.suite.has_case_files() && !self.runner.selects(self.suite, &file.path) {
            return;
        }
        let run = AssertUnwindSafe(|| self.suite.run_file(file, all, worker));
        let panicked = || Some(Err("panicked".into()));
        if let Some(verdict) = catch_unwind(run).unwrap_or_else(|_| panicked()) {
            return self.judge(file.path.clone(), verdict.into());
        }
        let members: TestMembers<'_> = match serde_json::from_slice(&file.content) {
            Ok(members) => members,
            Err(error) => return self.fail(file.path.clone(), format!("bad JSON: {error}")),
        };
        if members.0.is_empty() {
            self.fail(file.path.clone(), "holds no tests".into());
        }
        for (name, json) in members.0 {
            let case = format!("{}: {name}", file.path);
            if self.runner.selects(self.suite, &case) {
                let run = AssertUnwindSafe(|| self.suite.run_case(&file.path, json, worker));
                let panicked = || Some(Err("panicked".into()).into());
                if let Some(ran) = catch_unwind(run).unwrap_or_else(|_| panicked()) {
                    self.judge(case, ran);
                }
            }
        }
    }

    fn judge(&mut self, case: String, ran: CaseResult) {
        let exception = self.runner.exceptions.reason(self.suite.name, &case);
        match (ran.verdict, exception) {
            (Ok(()), None) if ran.not_sent > 0 => {
                self.report.not_sent += 1;
                self.report.blocks_not_sent += ran.not_sent;
            }
            (Ok(()), None) => self.report.passed += 1,
            (Err(_), Some(_)) => self.report.expected += 1,
            (Err(_), None) if self.runner.exceptions.family_reason(&case).is_some() => {
                self.report.expected += 1;
            }
            (Err(reason), None) => self.fail(case, reason),
            (Ok(()), Some(_)) => {
                self.fail(case, "passes, but is listed as an exception: take it off".into());
            }
        }
    }

    fn fail(&mut self, case: String, reason: String) {
        let reason = reason.replace('\n', " ");
        self.report.failures.push(CaseFailure { case, reason });
    }
}
