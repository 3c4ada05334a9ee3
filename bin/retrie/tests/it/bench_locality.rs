//! `bench locality`: its counts, its report, and bad input.

use crate::common::{TestFolder, fails_saying, misused_saying, retrie, succeeds, words};
use std::process::Command;

fn locality(scene: &TestFolder, more: &str) -> Command {
    let mut command = retrie(words("bench locality --dir"));
    command.args([scene.at(""), "--json".into(), scene.at("report.json")]).args(words(more));
    command
}

#[test]
fn counts_are_those_of_the_theorems_and_times_make_a_page() {
    let scene = TestFolder::new();
    let page = scene.at("page.html");
    let more = format!("--heights 0,10 --p 8,32 --samples 50 --rows 100 --report {page}");
    let printed = succeeds(&mut locality(&scene, &more));
    assert!(printed.contains("duptree-plus-plus") && printed.contains("Delta(n, h)"), "{printed}");
    let report = scene.json("report.json");
    assert_eq!(report["complete"], true);
    let of = |name: &str, height: u64| {
        let trees = report["trees"].as_array().unwrap();
        let is = |tree: &&serde_json::Value| tree["name"] == name && tree["height"] == height;
        trees.iter().find(is).unwrap()["read"]["regions"].clone()
    };
    // (10 + 1)/3 + 4/9 + 2/9/1024 on average, 10/2 + 1 at most.
    let third = of("third", 10);
    let mean = third["mean"].as_f64().unwrap();
    assert!((mean - (11.0 / 3.0 + 4.0 / 9.0 + 2.0 / 9.0 / 1024.0)).abs() < 1e-9, "{third}");
    assert_eq!(third["max"], 6);
    assert_eq!(of("naive", 10)["max"], 11);
    assert_eq!(of("duptree-plus-plus:p=32", 10)["mean"], 2.0);
    assert_eq!(of("duptree-plus-plus:p=8", 10)["mean"], 4.0);
    assert_eq!(of("blocked:p=32", 10)["max"], 2);
    // Reads and writes of eight dense trees, counted and timed, and of three tries, counted; all at
    // two heights. Two orders of tries, and four accesses to rows.
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * (8 * 4 + 3 * 2 + 2) + 4);
    assert_eq!(report["tries"].as_array().unwrap().len(), 4);
    assert_eq!(report["trie_rows"].as_array().unwrap().len(), 6);
    assert_eq!(report["rows"].as_array().unwrap().len(), 4);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("id=\"locality-throughput\"") && html.contains("data-backend=\"third\""));
    // The files are gone; the reports are there.
    let left = scene.dir.path().read_dir().unwrap().count();
    assert_eq!(left, 2);
}

#[test]
fn counting_alone_makes_no_files_and_bad_input_is_named() {
    let scene = TestFolder::new();
    let counts = "--heights 5-6 --samples 0 --layouts third,blocked --tries none";
    succeeds(&mut locality(&scene, counts));
    let report = scene.json("report.json");
    let results = report["results"].as_array().unwrap();
    assert!(results.len() == 8 && results.iter().all(|one| one["params"]["medium"] == "counted"));
    assert_eq!(report["trees"].as_array().unwrap().len(), 4);
    let nowhere = "--heights 4 --samples 10 --dir /no/such/folder";
    fails_saying(retrie(words("bench locality")).args(words(nowhere)), &["/no/such/folder"]);
    misused_saying(&mut locality(&scene, "--layouts third,third"), &["`third` twice (place 2)"]);
    misused_saying(&mut locality(&scene, "--p 8,12"), &["a power of two", "`12`"]);
    let large = "--heights 4,36 --samples 10 --layouts third";
    fails_saying(&mut locality(&scene, large), &["third of height 36 takes 4096.0 GiB", "missing"]);
    let uncounted = "--heights 4 --samples 0 --tries prefix";
    fails_saying(&mut locality(&scene, uncounted), &["--tries prefix", "--samples must not be 0"]);
}

#[test]
fn tries_and_layouts_are_timed_as_rows_beside_a_backend_of_ours() {
    let scene = TestFolder::new();
    let more = "--heights 8 --samples 60 --media mdbx --layouts naive,blocked --tries \
                simple-mpt,prefix-tree,prefix:pad=64";
    let printed = succeeds(&mut locality(&scene, more));
    assert!(printed.contains("prefix:pad=64"), "{printed}");
    let report = scene.json("report.json");
    let rows = report["trie_rows"].as_array().unwrap();
    assert!(rows.len() == 3 && rows.iter().all(|one| one["insert"]["median_us"].is_number()));
    assert!(rows[1]["read"]["rows_read"].as_f64() > rows[0]["read"]["rows_read"].as_f64());
    assert_eq!(rows[2]["padded"], true);
    let timed = report["results"].as_array().unwrap().iter();
    assert_eq!(timed.filter(|one| one["params"]["medium"] == "mdbx").count(), 2 * 2 + 3 * 2);
    assert_eq!(scene.dir.path().read_dir().unwrap().count(), 1, "databases were left");
}
