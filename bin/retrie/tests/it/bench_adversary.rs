//! `bench adversary`: its report, its page, what it keeps, and bad input.

use crate::common::{TestFolder, fails_saying, keys, retrie, succeeds, words};
use std::process::Command;

fn adversary(scene: &TestFolder, more: &str) -> Command {
    let mut command =
        retrie(words("bench adversary --sync none --keys 2k --pairs 1k --commit-every 100"));
    command.args(["--state-cache", &scene.at("cache"), "--json", &scene.at("report.json")]);
    command.args(words("--grind 20k --slots 3k")).args(words(more));
    command
}

#[test]
fn every_attack_stands_beside_its_baseline_in_report_and_page() {
    let scene = TestFolder::new();
    let page = scene.at("page.html");
    let more = format!("--backends raw,mpt --slices 2 --proofs 5 --report {page}");
    let printed = succeeds(&mut adversary(&scene, &more));
    for part in
        ["of baseline", "20000 addresses and as many slots hashed", "10 empty ones", "free MiB"]
    {
        assert!(printed.contains(part), "{part} is not in: {printed}");
    }
    let report = scene.json("report.json");
    assert_eq!(report["complete"], true);
    let results = report["results"].as_array().unwrap();
    let attacks =
        ["ground-keys", "big-contract", "tiny-blocks", "empty-blocks", "one-slot", "churn"];
    assert_eq!(results.len(), 4 * attacks.len());
    for (results, attack) in results.chunks(4).zip(attacks) {
        let names = |n: usize| (&results[n]["backend"], &results[n]["params"]["attack"]);
        let baseline = format!("{attack}: baseline");
        let expected = [("raw", &*baseline), ("mpt", &baseline), ("raw", attack), ("mpt", attack)];
        for (n, (backend, attack)) in expected.into_iter().enumerate() {
            assert_eq!(names(n), (&backend.into(), &attack.into()));
            assert_eq!(
                (&results[n]["workload"], &results[n]["ops"]),
                (&"adversary".into(), &2000.into())
            );
            assert!(results[n]["free_bytes"].is_u64());
            let of = &results[n]["of_baseline"];
            match n {
                0 | 1 => assert!(of.is_null()),
                _ => {
                    assert_eq!(keys(of), ["median", "spread", "sustained"]);
                    assert!(of["median"].as_f64() > Some(0.0));
                }
            }
        }
    }
    let (baseline, attacked) = (&results[0]["params"], &results[2]["params"]);
    assert!(attacked["path_branches"].as_f64() > baseline["path_branches"].as_f64());
    assert!(
        report["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|note| note.to_string().contains("branches"))
    );
    let html = std::fs::read_to_string(&page).unwrap();
    for part in
        ["id=\"adversary-attacks\"", "of its own baseline", ">tiny-blocks<", ">churn: baseline<"]
    {
        assert!(html.contains(part), "{part} is not on the page");
    }
    // Cached: the keys are not ground again, and the states not loaded again.
    let more = "--backends raw,mpt --attacks ground-keys --slices 2";
    let again = adversary(&scene, more).output().unwrap();
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(
        again.status.success() && !said.contains("loading") && !said.contains("grinding"),
        "{said}"
    );
}

#[test]
fn bad_flags_are_one_line_errors() {
    let scene = TestFolder::new();
    for (flags, says) in [
        ("--backends raw --keys 1", "--keys"),
        ("--backends raw --slots 0", "--slots"),
        ("--backends raw --tiny 0", "--tiny"),
        ("--backends raw --grind 10", "--grind"),
        ("--backends raw --pairs 0", "--pairs"),
        ("--backends raw --commit-every 0", "--commit-every"),
        ("--backends raw --pairs 1k --slices 2", "1, the number of measured commits"),
        ("--backends raw --attacks churn,churn", "`churn` twice"),
        ("--backends mptt", "no backend is called `mptt`"),
    ] {
        let mut command = retrie(words("bench adversary --state-cache none"));
        fails_saying(command.args(words(flags)), &[says]);
    }
    let output = adversary(&scene, "--attacks storm").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("ground-keys, big-contract"), "{stderr}");
}
