//! `bench trace`, races on traces, and `bench crypto`.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};

#[test]
fn trace_is_made_shown_and_raced() {
    let scene = TestFolder::new();
    let trace = scene.at("lvmt.trace");
    let make = words("bench trace make --synthetic lvmt --scale 0.001 --output");
    let made = succeeds(retrie(make).arg(&trace));
    let size = "47 blocks, 4,200 keys read, 2,400 written";
    assert!(made.contains(size), "{made}");
    let shown = succeeds(retrie(words("bench trace show")).arg(&trace));
    assert!(shown.contains(size) && shown.contains("13500000 to 13500046"), "{shown}");
    let race = words("bench state --backends raw --sync none --slices 3");
    let more = ["--state-cache", &scene.at("cache"), "--json", &scene.at("report.json")];
    let keys = format!("trace:{trace}");
    let raced = succeeds(retrie(race).args(more).args(["--keys", &keys]));
    assert!(raced.contains("3,780 keys read after 420"), "{raced}");
    let report = scene.json("report.json");
    assert_eq!(report["results"][0]["params"]["keys"], "trace");
    // A trace without its end.
    let bytes = std::fs::read(&trace).unwrap();
    std::fs::write(&trace, &bytes[..bytes.len() - 1]).unwrap();
    let refused = ["lvmt.trace", "truncated"];
    fails_saying(retrie(words("bench state --keys")).arg(&keys), &refused);
    let scaled = words("bench trace make --synthetic lvmt --scale 3 --output x");
    fails_saying(&mut retrie(scaled), &["between 0.001 and 1"]);
}

#[test]
fn curve_arithmetic_is_timed_beside_the_paper() {
    let scene = TestFolder::new();
    let line = words("bench crypto --rounds 1 --samples 40 --batch 16 --json");
    let printed = succeeds(retrie(line).arg(scene.at("report.json")));
    for words in ["bn254", "bls12-381", "92,042", "Table 1"] {
        assert!(printed.contains(words), "`{words}` is not in:\n{printed}");
    }
    let report = scene.json("report.json");
    assert_eq!(report["results"].as_array().unwrap().len(), 12);
    assert_eq!(report["references"].as_array().unwrap().len(), 8);
}
