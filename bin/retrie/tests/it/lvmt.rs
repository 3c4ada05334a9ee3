//! `lvmt` on the command line: the source of its public parameters, and the checks that fix them.

use crate::common::{
    TestFolder, fails_saying, gunzip, mainnet, mainnet_blocks, retrie, succeeds, words,
};
use retrie_pipeline::testkit::TestRules;
use retrie_storage_lvmt::LvmtParams;
use serde_json::{Value, json};
use std::{ops::ControlFlow, process::Command};

/// Writes development parameters of a small height, which differ from every default. Returns their
/// flag and digest.
pub(crate) fn small_params(
    scene: &TestFolder,
    height: u8,
    with_quotients: bool,
) -> (String, String) {
    let file = scene.path(&format!("height-{height}-{with_quotients}.params"));
    let params =
        LvmtParams::insecure_dev(height, with_quotients, &|_, _, _| ControlFlow::Continue(()));
    let params = params.unwrap();
    params.write(&file).unwrap();
    (format!("--lvmt.params {}", file.display()), params.digest().to_string())
}

/// `retrie init` of a chain in the test's datadir `data`, on `lvmt`.
fn init(scene: &TestFolder, chain: &str, more: &str) -> Command {
    let line =
        format!("init --chain {chain} --datadir {} --state-backend lvmt {more}", scene.at("data"));
    retrie(words(&line))
}

/// A command on the test's datadir and chain.
fn on_data(scene: &TestFolder, line: &str) -> Command {
    let mut command = retrie(words(line));
    command.args(["--datadir", &scene.at("data"), "--chain", &scene.at("genesis.json")]);
    command
}

#[test]
fn public_networks_need_real_parameters_unless_forced() {
    let scene = TestFolder::new();
    let ways_out = ["retrie params lvmt", "--lvmt.params", "--lvmt.insecure-dev"];
    for chain in ["mainnet", "sepolia", "holesky", "hoodi"] {
        let line = fails_saying(&mut init(&scene, chain, ""), &ways_out);
        assert!(line.contains(chain), "{line}");
    }
    // Development parameters from a file are refused too.
    let (file, _) = small_params(&scene, 4, false);
    fails_saying(&mut init(&scene, "mainnet", &file), &["height-4", "--lvmt.insecure-dev"]);
    assert!(!scene.path("data").exists(), "nothing is created for nothing");

    let output = init(&scene, "mainnet", "--lvmt.insecure-dev").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("WARN") && stderr.contains("can forge proofs"), "{stderr}");
    // The datadir stores the digest of its parameters, so no flag is needed again.
    let printed = succeeds(&mut init(&scene, "mainnet", ""));
    assert!(printed.contains("backend lvmt"), "{printed}");
    fails_saying(&mut init(&scene, "mainnet", &file), &["height-4", "parameters"]);
}

/// A public network given as a genesis file still counts as public.
#[test]
fn public_networks_are_known_by_their_genesis_block() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let genesis = gunzip(&mainnet.join("genesis/mainnet.json.gz"));
    let mut genesis: Value = serde_json::from_slice(&genesis).unwrap();
    genesis["config"] = json!({ "chainId": 1, "homesteadBlock": 1_150_000 });
    let genesis = scene.write("genesis.json", genesis.to_string());
    fails_saying(&mut init(&scene, &genesis, ""), &["--lvmt.insecure-dev"]);
}

#[test]
fn private_chains_take_development_parameters_and_reopen_without_flags() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Byzantium, 30);
    let output = scene.import("chain.rlp", "--state-backend lvmt --referee mpt").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("can forge proofs"), "{stderr}");
    let (head, root) = scene.head("data");
    assert_eq!(head, blocks.len() as u64);
    let verified = succeeds(&mut on_data(&scene, "db verify"));
    assert!(verified.contains("state of lvmt") && verified.contains("nothing is wrong"));
    let unwound = succeeds(&mut on_data(&scene, "stage unwind --to 20"));
    assert!(unwound.contains("unwound to block 20"), "{unwound}");
    succeeds(&mut scene.import("chain.rlp", "--state-backend lvmt --referee mpt"));
    assert_eq!(scene.head("data"), (head, root));
}

#[test]
fn datadir_is_opened_with_the_parameters_it_was_made_with_or_not_at_all() {
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 12);
    let (four, digest) = small_params(&scene, 4, true);
    let (three, other) = small_params(&scene, 3, true);
    let lvmt = |flags: &str| scene.import("chain.rlp", &format!("--state-backend lvmt {flags}"));
    succeeds(&mut lvmt(&four));
    let commands = ["db stats", "db verify", "stage unwind --to 6"];
    for command in commands {
        fails_saying(&mut on_data(&scene, command), &[&digest, "--lvmt.params"]);
        let with_other = format!("{command} {three}");
        fails_saying(&mut on_data(&scene, &with_other), &[&digest, &other, "height-3"]);
        succeeds(&mut on_data(&scene, &format!("{command} {four}")));
    }
    fails_saying(&mut lvmt(""), &[&digest, "--lvmt.params"]);
    fails_saying(&mut lvmt("--lvmt.insecure-dev"), &[&digest, "--lvmt.params"]);
    fails_saying(&mut lvmt(&three), &[&digest, &other]);
    succeeds(&mut lvmt(&four));

    // Files that hold no parameters.
    let missing = format!("--lvmt.params {}", scene.at("missing.params"));
    fails_saying(&mut lvmt(&missing), &["missing.params"]);
    let file = scene.path("height-4-true.params");
    let bytes = std::fs::read(&file).unwrap();
    scene.write("cut.params", &bytes[..bytes.len() / 2]);
    let cut = format!("--lvmt.params {}", scene.at("cut.params"));
    fails_saying(&mut lvmt(&cut), &["cut.params", "retrie params lvmt"]);
    scene.write("text.params", "no parameters");
    let text = format!("--lvmt.params {}", scene.at("text.params"));
    fails_saying(&mut on_data(&scene, &format!("db stats {text}")), &["text.params"]);
}

#[test]
fn another_backend_is_refused_before_parameters_are_asked_for() {
    let scene = TestFolder::new();
    let line = format!("init --datadir {} --state-backend raw", scene.at("data"));
    succeeds(&mut retrie(words(&line)));
    fails_saying(&mut init(&scene, "mainnet", ""), &["backend raw, not lvmt"]);
    fails_saying(
        &mut retrie(words(&format!("init --datadir {} --referee lvmt", scene.at("new")))),
        &["lvmt", "cannot be the referee"],
    );
}

#[test]
fn proof_shards_are_one_of_a_power_of_two() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Byzantium, 8);
    let import = |flags: &str| scene.import("chain.rlp", &format!("--state-backend lvmt {flags}"));
    for wrong in ["16/16", "1/3", "-1/16", "3", "some", "1/", "0/131072"] {
        let mut command = import("");
        let output = command.arg(format!("--lvmt.proof-shard={wrong}")).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        // A usage error.
        assert_eq!(output.status.code(), Some(2), "{wrong}: {stderr}");
        assert!(stderr.contains(wrong) && stderr.contains("3/16"), "{wrong}: {stderr}");
    }
    let (four, _) = small_params(&scene, 4, true);
    let (without, _) = small_params(&scene, 4, false);
    fails_saying(&mut import(&format!("{four} --lvmt.proof-shard 0/32")), &["0/32", "16 entries"]);
    fails_saying(
        &mut import(&format!("{without} --lvmt.proof-shard 0/16")),
        &["0/16", "without-proofs"],
    );
    assert!(!scene.path("data").exists(), "nothing is created for nothing");
    // The proof shard changes nothing in the state.
    let mut heads = Vec::new();
    for shard in ["none", "3/16", "all"] {
        succeeds(&mut import(&format!("{four} --lvmt.proof-shard {shard}")));
        heads.push(scene.head_of("data", &four));
        std::fs::remove_dir_all(scene.path("data")).unwrap();
    }
    assert_eq!(heads[0].0, blocks.len() as u64);
    assert!(heads.iter().all(|head| *head == heads[0]), "{heads:?}");
}

#[test]
fn real_blocks_are_replayed_and_imported_beside_the_referee() {
    let Some(mainnet) = mainnet() else { return };
    let scene = TestFolder::new();
    let report = scene.at("report.json");
    let mut replay = retrie(words("replay --sync none --state-backend lvmt,raw --json"));
    replay.arg(&report);
    for name in ["witness/1", "witness/1150001", "prestate/46147", "prestate/19910734"] {
        replay.arg(mainnet.join(format!("{name}.json.gz")));
    }
    succeeds(&mut replay);
    let results = scene.json("report.json")["results"].take();
    assert_eq!(results[0]["backend"], "lvmt");
    for result in results.as_array().unwrap() {
        assert_eq!((&result["blocks"], &result["ok"]), (&4.into(), &true.into()), "{result}");
    }
    let line = "import --state-backend lvmt --lvmt.insecure-dev --referee mpt --to 600";
    let mut import = retrie(words(line));
    import.args(["--datadir", &scene.at("data"), "--json", &report]);
    succeeds(import.arg(&mainnet_blocks(&mainnet)[0]));
    assert_eq!(scene.json("report.json")["roots_checked"], 600);
}
