//! `bench trees` and `bench sync`: what they print and report, and bad input.

use crate::common::{TestFolder, fails_saying, misused_saying, retrie, succeeds, words};
use serde_json::Value;

/// The report of a command, and what it prints.
fn report(scene: &TestFolder, line: &str) -> (Value, String) {
    let mut command = retrie(words(line));
    let printed = succeeds(command.args(["--json".into(), scene.at("report.json")]));
    (scene.json("report.json"), printed)
}

#[test]
fn trees_are_raced_and_measured() {
    let scene = TestFolder::new();
    let line = "bench trees --elements 500,2k --bytes 32 --chunk 16 --rounds 1 --shapes 8,32 \
                --hash-every 0";
    let (json, printed) = report(&scene, line);
    for words in ["avlplus", "avlstar", "bplus", "bavl", "2,000", "root after all inserts"] {
        assert!(printed.contains(words), "`{words}` is not in:\n{printed}");
    }
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * 4 * 2, "sizes, trees, operations");
    assert!(results.iter().all(|one| one["workload"] == "trees"
        && one["ops_per_s"].as_f64().unwrap() > 0.0
        && one["params"]["hash_every"] == 0));
    let shapes = json["shapes"].as_array().unwrap();
    assert_eq!(shapes.len(), 1 + 3 * 2, "one of the tree without chunks");
    let bavl: Vec<_> = shapes.iter().filter(|shape| shape["tree"] == "bavl").collect();
    let space = bavl[0]["space"]["mean"].as_f64().unwrap();
    assert!((1.0..1.42).contains(&space), "{space}");
    assert_eq!(json["messages"].as_array().unwrap().len(), 3 * 2, "all but bplus");
    assert!(json["references"].as_array().unwrap().iter().any(|one| one["value"] == 3.17));
    fails_saying(&mut retrie(words("bench trees --trees bavl,bavl")), &["`bavl` twice"]);
    let (json, printed) = report(&scene, "bench trees --elements 1k --trees bavl --rounds 1");
    assert!(printed.contains("root after each insert"), "the paper's choice: {printed}");
    assert_eq!(json["results"][0]["params"]["hash_every"], 1);
}

#[test]
fn a_tree_is_fetched_from_processes_some_of_which_lie() {
    let scene = TestFolder::new();
    let line = "bench sync --elements 2k --bytes 64 --chunk 16 --peers 3 --byzantine 2 --seeds 2 \
                --delays 1,3";
    for (more, snapshots) in [("", false), (" --snapshots", true)] {
        let (json, printed) = report(&scene, &format!("{line}{more}"));
        assert!(printed.contains("2 of which lie"), "{printed}");
        let results = json["results"].as_array().unwrap();
        let names: Vec<_> = results.iter().map(|one| one["backend"].as_str().unwrap()).collect();
        let policies = ["refetch", "drop-random", "rational"];
        let baselines = policies.map(|policy| format!("avlplus:{policy}"));
        assert!(names[..3].iter().eq(&baselines) && names[3] == "bavl", "{names:?}");
        for (result, policy) in results.iter().zip(policies) {
            assert_eq!(result["params"]["policy"], policy);
        }
        assert!(results.iter().all(|one| one["params"]["byzantine"] == 2
            && one["params"]["snapshots"] == snapshots
            && one["slices"].as_array().unwrap().len() == 2));
        let phases = json["phases"].as_array().unwrap();
        assert_eq!(phases[3]["rounds"], 1.0, "liars cost bavl no round");
        assert!(phases[0]["rounds"].as_f64().unwrap() > 1.0);
        assert_eq!(results[3]["measures"]["rounds"], 1.0);
        let ratios = json["ratios"].as_array().unwrap();
        assert!(ratios.iter().zip(policies).all(|(ratio, policy)| ratio["policy"] == policy
            && ratio["byzantine"] == 2
            && ratio["median"].as_f64().unwrap() > 0.0));
    }
    let (json, _) = report(&scene, &format!("{line} --policies rational"));
    assert_eq!(json["results"].as_array().unwrap().len(), 2);
    misused_saying(&mut retrie(words("bench sync --policies none")), &["refetch, drop-random or"]);
    fails_saying(
        &mut retrie(words("bench sync --policies rational,rational")),
        &["`rational` twice"],
    );
    let line = "bench sync --elements 1k --peers 2 --byzantine 2";
    fails_saying(&mut retrie(words(line)), &["--byzantine 2 of --peers 2"]);
}
