//! `bench locality`: its counts, its report, and bad input.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};
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
    let more = format!("--heights 0,10 --samples 50 --rows 100 --report {page}");
    let printed = succeeds(&mut locality(&scene, &more));
    assert!(printed.contains("duptree-plus-plus") && printed.contains("Delta(n, h)"), "{printed}");
    let report = scene.json("report.json");
    assert_eq!(report["complete"], true);
    let of = |layout: &str, height: u64| {
        let trees = report["trees"].as_array().unwrap();
        let is = |tree: &&serde_json::Value| tree["layout"] == layout && tree["height"] == height;
        trees.iter().find(is).unwrap()["read"]["regions"].clone()
    };
    // (10 + 1)/3 + 4/9 + 2/9/1024 on average, 10/2 + 1 at most.
    let third = of("third", 10);
    let mean = third["mean"].as_f64().unwrap();
    assert!((mean - (11.0 / 3.0 + 4.0 / 9.0 + 2.0 / 9.0 / 1024.0)).abs() < 1e-9, "{third}");
    assert_eq!(third["max"], 6);
    assert_eq!(of("naive", 10)["max"], 11);
    assert_eq!(of("duptree-plus-plus", 10)["mean"], 2.0);
    assert_eq!(of("blocked", 10)["max"], 2);
    // Six layouts at two heights, reads and writes of each.
    assert_eq!(report["results"].as_array().unwrap().len(), 24);
    assert_eq!(report["tries"].as_array().unwrap().len(), 4);
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
    succeeds(&mut locality(&scene, "--heights 5-6 --samples 0 --layouts third,blocked"));
    let report = scene.json("report.json");
    assert_eq!(report["results"].as_array().unwrap().len(), 0);
    assert_eq!(report["trees"].as_array().unwrap().len(), 4);
    let nowhere = "--heights 4 --samples 10 --dir /no/such/folder";
    fails_saying(retrie(words("bench locality")).args(words(nowhere)), &["/no/such/folder"]);
    fails_saying(&mut locality(&scene, "--layouts third,third"), &["`third` twice (place 2)"]);
}
