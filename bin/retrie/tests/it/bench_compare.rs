//! `bench compare` and `bench page` on small reports: exit codes, and one line of error.

use crate::common::{TestFolder, fails_saying, retrie, succeeds};
use serde_json::json;

/// A very short race.
const RACE: [&str; 14] = [
    "bench",
    "state",
    "--keys",
    "200",
    "--pairs",
    "400",
    "--commit-every",
    "100",
    "--backends",
    "raw,mpt",
    "--sync",
    "none",
    "--state-cache",
    "none",
];

/// Writes a report of `raw` and `mpt`, the latter at `mpt` operations a second.
fn write_report(scene: &TestFolder, name: &str, mpt: f64) -> String {
    let result = |backend: &str, rate: f64| {
        let slices: Vec<_> = (1..=20)
            .map(|n| json!({"ops": n * 10, "ops_per_s": rate * (1.0 + f64::from(n % 3) / 100.0), "memory_bytes": 0}))
            .collect();
        json!({"backend": backend, "workload": "state", "params": {"keys": 1000}, "ops": 200,
               "seconds": 1.0, "ops_per_s": rate, "disk_bytes": 4096, "peak_rss_bytes": 1, "slices": slices})
    };
    let report = json!({"machine": "m", "version": "0", "command": "retrie bench state", "complete": true,
                        "results": [result("raw", 1000.0), result("mpt", mpt)]});
    let path = scene.at(name);
    std::fs::write(&path, report.to_string()).unwrap();
    path
}

#[test]
fn a_regression_is_printed_and_fails_only_if_asked_to() {
    let scene = TestFolder::new();
    let old = write_report(&scene, "old.json", 500.0);
    let new = write_report(&scene, "new.json", 400.0);
    let printed = succeeds(&mut retrie(["bench", "compare", &old, &new]));
    assert!(printed.contains("mpt on state, held against raw"), "{printed}");
    assert!(
        printed.contains("WORSE") && printed.contains("1 worse by more than 5.0 %"),
        "{printed}"
    );
    fails_saying(
        &mut retrie(["bench", "compare", &old, &new, "--fail"]),
        &["regression: mpt on state: ops/s −20 %"],
    );
    succeeds(&mut retrie(["bench", "compare", &old, &new, "--fail", "--threshold", "25%"]));
    succeeds(&mut retrie(["bench", "compare", &new, &old, "--fail"]));
}

#[test]
fn bad_files_are_named_in_one_line() {
    let scene = TestFolder::new();
    let good = write_report(&scene, "good.json", 500.0);
    let bad = scene.at("bad.json");
    std::fs::write(&bad, "{\"results\": 7}").unwrap();
    fails_saying(&mut retrie(["bench", "compare", &good, &bad]), &["bad.json", "is not a report"]);
    let missing = scene.at("missing.json");
    fails_saying(
        &mut retrie(["bench", "page", "-o", &scene.at("p.html"), &missing]),
        &["missing.json"],
    );
    assert!(!std::path::Path::new(&scene.at("p.html")).exists());
}

#[test]
fn one_page_of_several_reports() {
    let scene = TestFolder::new();
    let (a, b) = (write_report(&scene, "a.json", 500.0), write_report(&scene, "b.json", 400.0));
    let page = scene.at("page.html");
    succeeds(&mut retrie(["bench", "page", "-o", &page, "--title", "Both runs", &a, &b]));
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("<title>Both runs</title>"));
    assert!(
        html.contains("a.json") && html.contains("b.json"),
        "variants alike are told apart by file"
    );
}

#[test]
fn a_race_writes_its_page() {
    let scene = TestFolder::new();
    let page = scene.at("race.html");
    succeeds(retrie(RACE).args(["--report", &page]));
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("id=\"state-throughput\"") && html.contains("data-backend=\"mpt\""));
}

#[test]
fn a_path_that_cannot_be_written_fails_before_the_race_and_keeps_what_was_there() {
    let scene = TestFolder::new();
    let page = scene.at("kept.html");
    std::fs::write(&page, "old").unwrap();
    let nowhere = scene.at("no/such/folder/x.json");
    fails_saying(
        retrie(RACE).args(["--json", &nowhere, "--report", &page]),
        &["opening", "no/such/folder/x.json"],
    );
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "old");
    fails_saying(retrie(RACE).args(["--json", "-", "--report", "-"]), &["--json and --report"]);
    let json = scene.at("race.json");
    succeeds(retrie(RACE).args(["--json", &json, "--report", &page]));
    assert!(std::fs::read_to_string(&page).unwrap().starts_with("<!DOCTYPE html>"));
    assert!(std::fs::read_to_string(&json).unwrap().starts_with('{'));
    let folder = std::path::Path::new(&page).parent().unwrap();
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().starts_with(".retrie-")));
}
