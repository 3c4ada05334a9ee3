//! `export --format ere`, `import` and `download ere`, run as a user runs them.

use crate::common::{TestFolder, fails_saying, misused_saying, retrie, succeeds, words};
use retrie_pipeline::testkit::TestRules;
use retrie_sources::testkit::{HttpServer, ScriptedReply};
use std::process::Command;

const BLOCKS: u64 = 8;

/// A datadir with a chain of these rules, and the name of its ere file without profile.
fn imported(rules: TestRules) -> (TestFolder, String) {
    let (scene, blocks) = TestFolder::with_chain(rules, BLOCKS);
    succeeds(&mut scene.import("chain.rlp", ""));
    let last = blocks.last().unwrap().header.hash_slow().to_string();
    let name = format!("chain-7331-00000-{}", &last[2..10]);
    (scene, name)
}

fn export(scene: &TestFolder, more: &str, folder: &str) -> Command {
    let mut command = retrie(["export", "--format", "ere", "--datadir", &scene.at("data")]);
    command.args(words(more)).arg(scene.at(folder));
    command
}

#[test]
fn a_chain_goes_out_and_comes_back() {
    for (rules, profile) in [
        (TestRules::Byzantium, ""),
        (TestRules::Merge(8_000_000), "-noproofs"),
        (TestRules::Prague, "-noproofs"),
        (TestRules::Amsterdam, "-noproofs"),
    ] {
        let (scene, name) = imported(rules);
        let head = scene.head("data");
        assert_eq!(head.0, BLOCKS);
        for (more, folder, profile) in [
            ("", "whole", profile.to_owned()),
            ("--without-receipts", "bare", format!("{profile}-noreceipts")),
        ] {
            let said = succeeds(&mut export(&scene, more, folder));
            let name = format!("{name}{profile}.ere");
            assert!(said.contains(&name) && said.contains("written"), "{said}");
            let sums = std::fs::read_to_string(scene.path(folder).join("checksums.txt")).unwrap();
            assert!(sums.starts_with("0x") && sums.trim_end().len() == 66, "{sums}");
            let data = format!("from-{folder}");
            let mut import = retrie(["import", "--chain", &scene.at("genesis.json")]);
            succeeds(import.args(["--datadir", &scene.at(&data), &scene.at(folder)]));
            assert_eq!(scene.head(&data), head, "{name}");
        }
    }
}

#[test]
fn an_export_goes_on_where_it_was_and_never_beside_another_file() {
    let (scene, name) = imported(TestRules::Byzantium);
    let path = scene.path("out").join(format!("{name}.ere"));
    succeeds(&mut export(&scene, "", "out"));
    let bytes = std::fs::read(&path).unwrap();
    assert!(succeeds(&mut export(&scene, "", "out")).contains("was there"));
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(succeeds(&mut export(&scene, "", "out")).contains("written"));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    fails_saying(&mut export(&scene, "--to 5", "out"), &["another file of the same epoch"]);
    succeeds(&mut export(&scene, "--to 5 --without-receipts", "out"));
    let count = std::fs::read_dir(scene.path("out")).unwrap().count();
    assert_eq!(count, 3, "two files and their checksums");
}

#[test]
fn what_cannot_be_exported_says_why() {
    let (scene, _) = imported(TestRules::Frontier);
    fails_saying(&mut export(&scene, "", "a"), &["before Byzantium", "--without-receipts"]);
    succeeds(&mut export(&scene, "--without-receipts", "b"));
    fails_saying(&mut export(&scene, "--from 5", "c"), &["8192 divides"]);
    fails_saying(&mut export(&scene, "--to 9", "c"), &["the head is 8"]);
    let mut rlp = retrie(["export", "--without-receipts", "--datadir", &scene.at("data")]);
    fails_saying(rlp.arg(scene.at("c.rlp")), &["--without-receipts", "--format ere"]);
    let mut unknown = retrie(["export", "--format", "era2", "--datadir", &scene.at("data")]);
    misused_saying(unknown.arg(scene.at("c")), &["era2", "ere"]);
    assert!(!scene.path("c").exists());

    // Dropped bodies and receipts.
    for (flags, what) in [
        ("--prune.receipts.distance 3", "the receipts of block"),
        ("--prune.bodies.distance 7", "the body of block"),
    ] {
        let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 20);
        for to in [10, 20] {
            succeeds(&mut scene.import("chain.rlp", &format!("--retention 3 --to {to} {flags}")));
        }
        fails_saying(&mut export(&scene, "", "out"), &[what, "kept from block"]);
        let left = std::fs::read_dir(scene.path("out")).unwrap().count();
        assert_eq!(left, 0, "{flags}: nothing is left of a failed export");
    }
}

#[test]
fn damaged_files_are_refused_before_a_block_of_them_is_imported() {
    let (scene, name) = imported(TestRules::Byzantium);
    succeeds(&mut export(&scene, "", "out"));
    let file = format!("{name}.ere");
    let bytes = std::fs::read(scene.path("out").join(&file)).unwrap();
    let mut damaged = bytes.clone();
    // In the middle, behind the headers.
    damaged[bytes.len() / 2] ^= 1;
    for (bytes, what) in [(damaged, "damaged"), (bytes[..bytes.len() - 9].to_vec(), "truncated")] {
        scene.write("bad.ere", bytes);
        let mut import = retrie(["import", "--chain", &scene.at("genesis.json")]);
        let target = ["--datadir", &scene.at("new"), &scene.at("bad.ere")];
        let said = fails_saying(import.args(target), &["bad.ere"]);
        assert!(said.contains(what) || said.contains("entry at byte"), "{said}");
        assert!(scene.head_beside("new").is_none_or(|head| head == 0));
    }
}

#[test]
fn exported_files_are_a_mirror() {
    let (scene, name) = imported(TestRules::Prague);
    succeeds(&mut export(&scene, "", "out"));
    let file = format!("{name}-noproofs.ere");
    let bytes = std::fs::read(scene.path("out").join(&file)).unwrap();
    let sums = std::fs::read(scene.path("out").join("checksums.txt")).unwrap();
    let (path, page) = (format!("/{file}"), file);
    let server = HttpServer::start(move |request| match request.path.as_str() {
        "/" => ScriptedReply::new(200, page.as_str()),
        "/checksums.txt" => ScriptedReply::new(200, sums.clone()),
        asked if asked == path => ScriptedReply::file(request, &bytes),
        _ => ScriptedReply::new(404, ""),
    })
    .unwrap();
    let line = format!(
        "download ere --chain {} --from 0 --to 0 --mirror {} {}",
        scene.at("genesis.json"),
        server.url(),
        scene.at("got")
    );
    let said = succeeds(&mut retrie(words(&line)));
    assert!(said.contains("blocks, receipts and SHA-256 checked"), "{said}");
    assert!(said.contains("1 files fetched"), "{said}");
    let mut import = retrie(["import", "--chain", &scene.at("genesis.json")]);
    succeeds(import.args(["--datadir", &scene.at("new"), &scene.at("got")]));
    assert_eq!(scene.head("new"), scene.head("data"));
    let nowhere = format!("download ere --from 0 --to 0 {}", scene.at("none"));
    fails_saying(&mut retrie(words(&nowhere)), &["mirror of ere files", "--mirror"]);
}
