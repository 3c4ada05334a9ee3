//! `bench paper`: each paper whole, at the smallest sizes and without any data.

use crate::common::{TestFolder, retrie, succeeds, words};

/// Runs all experiments of a paper; each figure has a section with a command or a stated reason.
fn runs_whole(paper: &str) {
    let scene = TestFolder::new();
    let mut command = retrie(words(&format!("bench paper {paper} --preset smoke --quiet")));
    let files =
        ["--json".into(), scene.at("paper.json"), "--report".into(), scene.at("paper.html")];
    let printed = succeeds(command.args(files).env("RETRIE_DATA", scene.at("nothing")));
    let report = scene.json("paper.json");
    assert_eq!(report["complete"], true, "{printed}");
    let steps = report["steps"].as_array().unwrap();
    assert!(!steps.is_empty() && steps.iter().all(|step| step["results"].as_u64().unwrap() > 0));
    let page = std::fs::read_to_string(scene.at("paper.html")).unwrap();
    for figure in report["figures"].as_array().unwrap() {
        let name = figure["name"].as_str().unwrap();
        assert!(page.contains(name), "{name}");
        let commands = figure["commands"].as_array().map_or(0, Vec::len);
        assert_ne!(commands > 0, figure["omission"].is_string(), "{name}: {figure}");
    }
}

#[test]
fn lvmt_runs_whole_without_data() {
    runs_whole("lvmt");
}

#[test]
fn cole_runs_whole_without_data() {
    runs_whole("cole");
}

#[test]
fn lmpt_runs_whole_without_data() {
    runs_whole("lmpt");
}

#[test]
fn locality_runs_whole_without_data() {
    runs_whole("locality");
}

#[test]
fn bavl_runs_whole_without_data() {
    runs_whole("bavl");
}
