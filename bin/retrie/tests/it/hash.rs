//! `mpt-archive` on the command line, with Ethereum's hash function and with BLAKE2b.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};
use retrie_pipeline::testkit::TestRules;

#[test]
fn archives_are_imported_inspected_and_opened_with_the_hash_they_were_made_with() {
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 6);
    succeeds(&mut scene.import("chain.rlp", "--state-backend mpt-archive"));
    let datadir = scene.at("data");
    let stats = |datadir: &str| {
        let chain = scene.at("genesis.json");
        succeeds(&mut retrie(["db", "stats", "--chain", &chain, "--datadir", datadir]))
    };
    assert!(stats(&datadir).contains("backend mpt-archive (state root header)"));
    fails_saying(
        &mut scene.import("chain.rlp", "--state-backend mpt-archive --hash blake2b"),
        &["hash function", "keccak256", "blake2b-256"],
    );

    std::fs::rename(scene.path("data"), scene.path("keccak")).unwrap();
    fails_saying(
        &mut scene
            .import("chain.rlp", "--state-backend mpt-archive --hash blake2b --state-root header"),
        &["mpt-archive", "--referee mpt"],
    );
    succeeds(&mut scene.import("chain.rlp", "--state-backend mpt-archive --hash blake2b"));
    assert!(stats(&datadir).contains("backend mpt-archive (state root shadow)"));
    let chain = scene.at("genesis.json");
    for datadir in [datadir, scene.at("keccak")] {
        succeeds(&mut retrie(["db", "verify", "--chain", &chain, "--datadir", &datadir]));
    }
}

#[test]
fn the_hash_is_for_backends_that_have_the_choice() {
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 2);
    for (backend, hash, having) in [
        ("raw", "blake2b", "mpt-archive"),
        ("mpt", "keccak", "mpt-archive, pbt"),
        ("pbt", "blake2b", "mpt-archive"),
        ("mpt-archive", "blake3", "pbt"),
    ] {
        let flags = format!("--state-backend {backend} --hash {hash}");
        fails_saying(
            &mut scene.import("chain.rlp", &flags),
            &[&format!("--hash {hash}"), backend, &format!("but of {having}")],
        );
    }
    assert!(!scene.path("data").exists(), "nothing is created for nothing");
    // In a list of backends `--hash` applies to those that support it.
    let line = format!(
        "replay --chain {} --state-backend mpt,mpt-archive --hash blake2b {}",
        scene.at("genesis.json"),
        scene.at("chain.rlp")
    );
    let printed = succeeds(&mut retrie(words(&line)));
    assert!(printed.lines().any(|line| line.starts_with("mpt-archive ")), "{printed}");
}
