//! A fixed sample of every suite, from the archives. `scripts/check/conformance` runs everything.

use retrie_conformance::{ExceptionList, SUITES, SuiteGate, SuiteRunner, TestSuite, find, names};
use retrie_state_testkit::data;
use std::path::PathBuf;

/// About one case in this many, chosen by name.
const ONE_IN: u64 = 12;

/// Folders of suites.
const FOLDERS: [&str; 3] = ["conformance", "amsterdam", "pbt"];

/// The folders of the suites; `None`, after a message, if the test is skipped.
fn data() -> Option<[PathBuf; 3]> {
    let [conformance, amsterdam, pbt] = FOLDERS.map(data::find);
    Some([conformance?, amsterdam?, pbt?])
}

#[test]
fn a_sample_of_every_suite_passes() {
    let Some(folders) = data() else { return };
    let found = folders.each_ref().map(|folder| names(folder).unwrap());
    let mut runner = SuiteRunner::new(ExceptionList::committed().unwrap());
    runner.one_in = ONE_IN;
    let (mut passed, mut expected) = (0, 0);
    let mut failures = Vec::new();
    for suite in SUITES.iter().filter(|suite| suite.gate == SuiteGate::Enforced) {
        let folder = (folders.iter().zip(&found))
            .find(|(_, found)| found.iter().any(|name| name == suite.archive()))
            .map_or_else(|| panic!("{} is nowhere", suite.archive()), |(folder, _)| folder);
        let report = runner.run(folder, suite).unwrap_or_else(|error| panic!("{error}"));
        eprintln!("{}", report.line(suite));
        assert!(report.passed > 0, "{}: nothing was chosen", suite.name);
        if suite.name.starts_with("engine:") && suite.name.contains("amsterdam") {
            // Few transactions have to be executed again, serially.
            let (ahead, all) = (report.ahead, report.transactions);
            assert!(all > 50 && ahead * 10 > all * 9, "{}: {ahead} of {all}", suite.name);
        }
        passed += report.passed;
        expected += report.expected;
        failures.extend(report.failures.into_iter().map(|failure| (suite.name, failure)));
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(passed > 2_000, "only {passed} cases ran");
    // Every exception must still fail: a listed case that passes is a failure. Families add to the
    // count.
    let listed = ExceptionList::committed().unwrap().iter().count() as u64;
    assert!(expected >= listed, "{expected} of {listed} listed cases failed");
}

#[test]
fn the_sample_of_amsterdam_passes_with_serial_execution_too() {
    let Some([_, folder, _]) = data() else { return };
    let found = names(&folder).unwrap();
    let mut runner = SuiteRunner::new(ExceptionList::committed().unwrap());
    assert!(runner.parallel_execution);
    (runner.one_in, runner.parallel_execution) = (ONE_IN, false);
    let is_there = |suite: &&TestSuite| {
        suite.name.starts_with("engine:") && found.iter().any(|name| name == suite.archive())
    };
    for suite in SUITES.iter().filter(is_there) {
        let report = runner.run(&folder, suite).unwrap_or_else(|error| panic!("{error}"));
        assert!(report.failures.is_empty(), "{:#?}", report.failures);
        assert!(report.passed > 50, "{}: only {} cases ran", suite.name, report.passed);
        assert_eq!(report.transactions, 0);
    }
}

#[test]
fn every_suite_that_is_there_is_known() {
    let Some(folders) = data() else { return };
    let names: Vec<_> = folders.iter().flat_map(|folder| names(folder).unwrap()).collect();
    let unknown: Vec<_> = names.iter().filter(|name| find(name).is_none()).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
