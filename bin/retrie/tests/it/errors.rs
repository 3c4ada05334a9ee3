//! Error paths: exit code 1, one line on stderr that names the block, file or key, all earlier
//! blocks kept, and a datadir that still works.

use crate::common::{
    TestFolder, fails, fails_saying, gunzip, gzip, mainnet, mainnet_blocks, program, retrie,
    succeeds, words,
};
use retrie_db::{DatabaseEnv, OpenOptions};
use retrie_pipeline::testkit::{TestRules, write_blocks};
use std::{fs::File, process::Command};

fn chain() -> (TestFolder, Vec<retrie_chainspec::primitives::Block>) {
    TestFolder::with_chain(TestRules::Byzantium, 6)
}

#[test]
fn bad_arguments_are_one_line() {
    let (scene, _) = chain();
    let nowhere = scene.at("nowhere.rlp");
    fails_saying(&mut scene.import("nowhere.rlp", ""), &[&nowhere, "cannot read the path"]);
    assert!(!scene.path("data").exists(), "nothing is created for nothing");
    fails_saying(
        &mut scene.import("chain.rlp", "--state-backend nope"),
        &["`nope`", "mpt, mpt-archive, raw"],
    );
    fails_saying(&mut scene.import("chain.rlp", "--referee raw"), &["`raw`", "referee"]);
    fails_saying(
        &mut scene.import("chain.rlp", "--state-backend raw --state-root header"),
        &["raw", "--referee mpt"],
    );
    fails_saying(
        &mut scene.import("chain.rlp", "--state-backend raw --check-receipt-roots"),
        &["raw", "--referee mpt"],
    );
    fails_saying(&mut scene.import("genesis.json", ""), &["genesis.json", "blocks"]);
    fails_saying(&mut scene.import("chain.rlp", "--from 40"), &["no block", "40"]);
    for chain in ["nonet", &nowhere] {
        let line = format!(
            "import --chain {chain} --datadir {} {}",
            scene.at("data"),
            scene.at("chain.rlp")
        );
        fails_saying(&mut retrie(words(&line)), &[chain]);
    }
    std::fs::create_dir(scene.path("empty")).unwrap();
    fails_saying(&mut scene.import("empty", ""), &["empty", "contains no block"]);
    fails_saying(&mut retrie(["db", "stats", "--datadir", &scene.at("none")]), &["retrie init"]);
    fails_saying(&mut retrie(["replay", "--state-backend", "mpt,nope", &nowhere]), &["nowhere"]);
    let chain = scene.at("chain.rlp");
    fails_saying(&mut retrie(["replay", "--state-backend", "mpt,nope", &chain]), &["`nope`"]);
}

#[test]
fn unsupported_fork_is_named() {
    let (scene, _) = chain();
    let genesis = std::fs::read_to_string(scene.path("genesis.json")).unwrap();
    let genesis = genesis.replace("\"byzantiumBlock\":0", "\"byzantiumBlock\":0,\"verkleTime\":0");
    scene.write("genesis.json", genesis);
    fails_saying(&mut scene.import("chain.rlp", ""), &["verkleTime", "genesis.json"]);
}

#[test]
fn damaged_block_files_keep_the_blocks_before() {
    let (scene, blocks) = chain();
    let bytes = std::fs::read(scene.path("chain.rlp")).unwrap();
    let gz = gzip(&bytes);
    let flipped = |bytes: &[u8], at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 4;
        bytes
    };
    for (name, damaged) in [
        ("short.rlp", bytes[..bytes.len() - 9].to_vec()),
        ("flip.rlp", flipped(&bytes, bytes.len() / 2)),
        ("tail.rlp", [&bytes[..], b"tail"].concat()),
        ("short.rlp.gz", gz[..gz.len() - 9].to_vec()),
        ("flip.rlp.gz", flipped(&gz, gz.len() / 2)),
        ("checksum.rlp.gz", flipped(&gz, gz.len() - 7)),
    ] {
        scene.write(name, damaged);
        let line = fails(&mut scene.import(name, ""));
        assert!(line.contains(name) || line.contains("block "), "{name}: {line}");
    }
    let mut wrong = blocks;
    wrong[3].header.gas_used += 1;
    write_blocks(&scene.path("wrong.rlp"), &wrong);
    let data = scene.path("data");
    std::fs::remove_dir_all(&data).unwrap();
    let line = fails_saying(&mut scene.import("wrong.rlp", ""), &["block 4 (", "gas"]);
    assert!(line.contains(&wrong[3].header.hash_slow().to_string()), "{line}");
    assert_eq!(scene.head("data").0, 3);
    // The figures are still written, and right.
    let json = format!("--json {}", scene.at("report.json"));
    fails(&mut scene.import("wrong.rlp", &json));
    let report = scene.json("report.json");
    assert_eq!((&report["blocks"], &report["known_blocks"]), (&0.into(), &3.into()));
    assert_eq!(report["tip"]["number"], 3);
    succeeds(&mut scene.import("chain.rlp", ""));
    assert_eq!(scene.head("data").0, 6);
}

#[test]
fn damaged_real_files_are_found() {
    let Some(mainnet) = mainnet() else { return };
    let files = mainnet_blocks(&mainnet);
    let scene = TestFolder::new();
    let era1 = std::fs::read(&files[0]).unwrap();
    let mut flipped = era1.clone();
    flipped[700_000] ^= 1;
    let import = |file: &str| {
        retrie(["import", "--to", "600", "--datadir", &scene.at("data"), &scene.at(file)])
    };
    for (name, bytes) in [("short.era1", &era1[..700_000]), ("flip.era1", &flipped)] {
        scene.write(name, bytes);
        fails_saying(&mut import(name), &[name]);
    }
    scene.write("good.era1", &era1);
    succeeds(&mut import("good.era1"));
    // The file's first block is not the next one.
    let rlp = gunzip(&files[2]);
    scene.write("later.rlp", &rlp);
    let mut command = retrie(["import", "--datadir", &scene.at("data"), &scene.at("later.rlp")]);
    fails_saying(&mut command, &["block 16384 (", "unknown parent", "600"]);
    assert_eq!(scene.head("data").0, 600);
}

#[test]
fn foreign_datadirs_are_refused() {
    let (scene, _) = chain();
    succeeds(&mut scene.import("chain.rlp", "--to 3"));
    let data = scene.at("data");
    fails_saying(
        &mut scene.import("chain.rlp", "--state-backend raw"),
        &[&data, "--state-backend mpt"],
    );
    fails_saying(
        &mut scene.import("chain.rlp", "--state-root shadow"),
        &[&data, "--state-root header"],
    );
    fails_saying(&mut scene.import("chain.rlp", "--referee mpt"), &["--referee"]);
    let mut other =
        retrie(["import", "--datadir", &data, "--chain", "sepolia", &scene.at("chain.rlp")]);
    fails_saying(&mut other, &[&data, "--chain"]);
    fails_saying(retrie(["init", "--datadir", &data]).args(["--chain", "mainnet"]), &[&data]);
    // Another file in the place of the database.
    let (other, _) = chain();
    std::fs::create_dir_all(other.path("data/db")).unwrap();
    other.write("data/db/mdbx.dat", vec![7; 65536]);
    fails_saying(&mut other.import("chain.rlp", ""), &["mdbx.dat", "not a retrie database"]);
    other.write("file", "");
    let file = other.at("file");
    let mut command = retrie(["init", "--datadir", &file]);
    fails_saying(&mut command, &[&file]);
    succeeds(&mut scene.import("chain.rlp", ""));
    assert_eq!(scene.head("data").0, 6);
}

/// A second command without the flags was once refused, or used the defaults instead of the
/// datadir's settings.
#[test]
fn a_datadir_settles_its_backend_and_its_retention() {
    for (backend, flags) in
        [("raw", ""), ("lvmt", "--lvmt.insecure-dev"), ("mpt-archive", "--hash blake2b")]
    {
        let (scene, _) = chain();
        let made = format!("--to 2 --state-backend {backend} --state-root shadow {flags}");
        succeeds(&mut scene.import("chain.rlp", &format!("{made} --retention 2")));
        // Without flags all settings stay.
        succeeds(&mut scene.import("chain.rlp", "--to 4"));
        let mut init = retrie(["init", "--datadir", &scene.at("data")]);
        assert!(succeeds(&mut init).contains(&format!("backend {backend}, at block #4")));
        succeeds(&mut scene.import("chain.rlp", &format!("--to 6 --state-backend {backend}")));
        succeeds(&mut scene.import("chain.rlp", "--retention 2"));
        assert_eq!(scene.head("data").0, 6);
        // A contradicting flag is refused; the error names both values.
        fails_saying(
            &mut scene.import("chain.rlp", "--state-backend duptree"),
            &[&scene.at("data"), &format!("--state-backend {backend}"), "duptree"],
        );
        fails_saying(
            &mut scene.import("chain.rlp", "--retention 9"),
            &[&scene.at("data"), "2 blocks can be reverted, not 9", "--retention 2"],
        );
        let unwind =
            |to: &str| retrie(["stage", "unwind", "--datadir", &scene.at("data"), "--to", to]);
        fails_saying(&mut unwind("3"), &["block 3", "block 4"]);
        succeeds(&mut unwind("4"));
    }
    // A setting that was never named can still be named. After that it is fixed for all commands.
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 140);
    let (chain, data) = (scene.at("genesis.json"), scene.at("data"));
    succeeds(&mut retrie(["init", "--chain", &chain, "--datadir", &data]));
    succeeds(&mut scene.import("chain.rlp", "--retention 138"));
    let mut unwind = retrie(["stage", "unwind", "--datadir", &data, "--to", "2"]);
    succeeds(&mut unwind);
    fails_saying(&mut scene.import("chain.rlp", "--retention 128"), &["138", "128"]);
}

#[test]
fn second_process_on_a_datadir_is_told_who_holds_it() {
    let (scene, _) = chain();
    succeeds(&mut scene.import("chain.rlp", "--to 2"));
    let holder = DatabaseEnv::open(scene.path("data"), &OpenOptions::default()).unwrap();
    let pid = format!("process {}", std::process::id());
    fails_saying(&mut scene.import("chain.rlp", ""), &[&scene.at("data"), &pid]);
    assert_eq!(scene.head("data").0, 2, "reading is possible beside a writer");
    drop(holder);
    succeeds(&mut scene.import("chain.rlp", ""));
}

#[test]
fn full_database_keeps_what_is_committed_and_goes_on_when_larger() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Byzantium, 120);
    let last = blocks.len() as u64;
    let json = format!("--db.max-size 500KB --json {}", scene.at("report.json"));
    let line = fails_saying(&mut scene.import("chain.rlp", &json), &["size limit", "block"]);
    assert!(line.contains("nothing committed is lost"), "{line}");
    let (head, _) = scene.head("data");
    assert!(head < last, "{head}");
    let report = scene.json("report.json");
    assert_eq!(report["tip"]["number"], head, "the figures tell only what is durable");
    assert_eq!(report["blocks"], head);
    succeeds(&mut scene.import("chain.rlp", ""));
    assert_eq!(scene.head("data"), (last, blocks[last as usize - 1].header.state_root.to_string()));
}

/// A full disk, simulated by a limit on the file size.
#[test]
fn full_disk_keeps_what_is_committed_and_goes_on_with_more_room() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Byzantium, 120);
    let last = blocks.len() as u64;
    let limited = |kib: u64| {
        let import = scene.import("chain.rlp", "--db.max-size 4MB");
        let mut command = Command::new("bash");
        let script = format!("ulimit -f {kib}; exec \"$0\" \"$@\"");
        command.args(["-c", &script]).arg(import.get_program()).args(import.get_args());
        command
    };
    // First too little to begin, then enough for some blocks.
    fails_saying(&mut limited(8), &["no space left"]);
    let mut failed = 0;
    for kib in [600, 1100, 1600] {
        let mut command = limited(kib);
        let output = command.output().unwrap();
        if output.status.success() {
            continue;
        }
        failed += 1;
        fails_saying(&mut command, &["no space left", "nothing committed is lost"]);
        assert!(scene.head("data").0 < last);
    }
    assert!(failed > 0, "the limits are too high to be met");
    succeeds(&mut scene.import("chain.rlp", ""));
    assert_eq!(scene.head("data"), (last, blocks[last as usize - 1].header.state_root.to_string()));
}

/// A small disk of its own, if the process may mount one. The commit fails on the writer thread;
/// the blocks after it only get the consequence.
#[test]
#[cfg(target_os = "linux")]
fn a_disk_without_room_is_called_full_whoever_notices_first() {
    let Some(mainnet) = mainnet() else { return };
    let namespace = ["--user", "--map-root-user", "--mount"];
    let may = Command::new("unshare").args(namespace).arg("true").output();
    if !may.is_ok_and(|tried| tried.status.success()) {
        println!("skipped: this process may not mount anything");
        return;
    }
    let blocks = mainnet_blocks(&mainnet).remove(0);
    let scene = TestFolder::new();
    let data = scene.at("data");
    std::fs::create_dir(&data).unwrap();
    for kib in [2500, 3000, 3001, 3500, 4500, 6000] {
        let script = format!("mount -t tmpfs -o size={kib}k tmpfs {data} && exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(namespace).args(["sh", "-c", &script]).arg(program());
        command.args(["import", "--datadir", &data, "--db.max-size", "64MB"]).arg(&blocks);
        fails_saying(&mut command, &["no space left", &data, "nothing committed is lost"]);
    }
}

/// `head` closes the pipe like this after its last line.
#[test]
fn who_only_prints_ends_quietly_on_a_closed_pipe() {
    let (scene, _) = chain();
    succeeds(&mut scene.import("chain.rlp", ""));
    let data = scene.at("data");
    for line in [
        "config --default",
        "dump-genesis",
        &format!("db stats --datadir {data}"),
        &format!("db stats --datadir {data} --json -"),
        &format!("db verify --datadir {data}"),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = retrie(words(line)).stdout(writer).output().unwrap();
        // The exit code that a shell shows after SIGPIPE.
        assert_eq!(output.status.code(), Some(141), "{line}: {output:?}");
        // With JSON on stdout, lines for people go to stderr.
        let stderr = String::from_utf8(output.stderr).unwrap();
        let is_quiet =
            if line.ends_with('-') { !stderr.contains("error") } else { stderr.is_empty() };
        assert!(is_quiet, "{line}: {stderr}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let (scene, _) = chain();
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let line = fails_saying(scene.import("chain.rlp", "").stdout(closed()), &["writing to stdout"]);
    assert!(line.contains("pipe"), "{line}");
    assert_eq!(scene.head("data").0, 6);
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let stats = ["db", "stats", "--datadir", &scene.at("data")];
    fails_saying(retrie(stats).stdout(full()), &["writing to stdout"]);
    // With stderr closed too, the exit code still reports the error.
    let status = scene.import("nowhere.rlp", "").stderr(closed()).status().unwrap();
    assert_eq!(status.code(), Some(1));
    let nowhere = scene.at("no/folder/x");
    for command in [
        &mut scene.import("chain.rlp", &format!("--json {nowhere}")),
        &mut retrie(["export", "--datadir", &scene.at("data"), &nowhere]),
    ] {
        fails_saying(command, &[&nowhere]);
    }
    let mut beyond =
        retrie(["export", "--to", "99", "--datadir", &scene.at("data"), &scene.at("x")]);
    fails_saying(&mut beyond, &["99", "6"]);
    assert!(!scene.path("x").exists());
}
