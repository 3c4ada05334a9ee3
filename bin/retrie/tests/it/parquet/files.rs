//! Existing files: kept, refused, overwritten; and exports that were stopped.

use super::{export, files, number, rows};
use crate::common::{TestFolder, fails_saying, retrie, succeeds};
use retrie_db::{DatabaseEnv, OpenOptions};
use retrie_export::{BlockExport, ChainSource, ExportError, ExportTable};
use retrie_pipeline::testkit::TestRules;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

fn scene() -> TestFolder {
    let (scene, _) = TestFolder::with_chain(TestRules::Cancun, 24);
    succeeds(&mut scene.import("chain.rlp", ""));
    scene
}

fn numbers(out: &Path) -> Vec<u64> {
    rows(out, "blocks").iter().map(|row| number(row, "block_number").unwrap()).collect()
}

fn partial(out: &Path) -> usize {
    let names = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().ends_with(".partial")).count()
}

#[test]
fn stopped_export_leaves_whole_files_and_goes_on() {
    let scene = scene();
    let out = scene.path("out");
    let db = DatabaseEnv::open(scene.path("data"), &OpenOptions::read_only()).unwrap();
    let read = Arc::new(db.begin_read().unwrap());
    let spec = read.spec().unwrap();
    let backend = Arc::new(retrie_storage_mpt::Mpt::default());
    let mut source = ChainSource::new(read, spec, backend, None, None).unwrap();
    let (tables, stop) = ([ExportTable::Blocks, ExportTable::BalanceDiffs], AtomicBool::new(false));
    let one = BlockExport { out: &out, tables: &tables, chunk_size: 10, overwrite: false };
    let stopped = one.run(&mut source, &stop, &mut |exported| {
        stop.store(exported.blocks == 14, Ordering::Relaxed);
    });
    let Err(ExportError::Stopped { number, files }) = stopped else { panic!("{stopped:?}") };
    assert_eq!((number, files), (14, 2));
    assert_eq!((numbers(&out), partial(&out)), ((0..10).collect(), 0));
    drop((source, db));

    // A killed export leaves an unfinished file under a temporary name.
    std::fs::write(out.join(".network_7331__blocks__00000010_to_00000019.parquet.partial"), "PAR1")
        .unwrap();
    let command = || export(&scene, "--tables balance_diffs,blocks --chunk-size 10");
    let printed = succeeds(&mut command());
    assert!(printed.contains("4 files written, 2 were there"), "{printed}");
    assert_eq!((numbers(&out), partial(&out)), ((0..25).collect(), 0));
    let printed = succeeds(&mut command());
    assert!(printed.contains("0 files written, 6 were there"), "{printed}");
    // Other tables of the same chunks.
    let printed = succeeds(&mut export(&scene, "--chunk-size 10"));
    assert!(printed.contains("18 files written, 6 were there"), "{printed}");
}

#[test]
fn damaged_files_are_errors_and_are_overwritten_if_asked() {
    let scene = scene();
    let out = scene.path("out");
    let more = "--tables blocks --chunk-size 10";
    succeeds(&mut export(&scene, more));
    let file = files(&out, "blocks").swap_remove(1);
    let name = file.file_name().unwrap().to_str().unwrap();
    let whole = std::fs::read(&file).unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (damaged, says) in [
        (whole[..whole.len() - 9].to_vec(), "footer"),
        (Vec::new(), "footer"),
        (flipped(0), "checksum"),
        (flipped(whole.len() / 3), "checksum"),
        (flipped(whole.len() - 1), "footer"),
    ] {
        std::fs::write(&file, &damaged).unwrap();
        fails_saying(&mut export(&scene, more), &[name, "is not whole", says, "--overwrite"]);
        assert_eq!(std::fs::read(&file).unwrap(), damaged, "what is there stays");
        let printed = succeeds(&mut export(&scene, &format!("{more} --overwrite")));
        assert!(printed.contains("3 files written, 0 were there"), "{printed}");
        assert_eq!(std::fs::read(&file).unwrap(), whole, "the same rows give the same bytes");
    }
}

#[test]
fn files_of_other_blocks_are_not_taken_for_these() {
    let scene = scene();
    succeeds(&mut export(&scene, "--tables blocks --chunk-size 10"));
    // The same genesis, another branch.
    let (other, _) = TestFolder::with_chain(TestRules::Cancun, 1);
    let mut chain = crate::common::test_chain(TestRules::Cancun);
    let genesis = chain.genesis();
    let tip = *chain.branch(genesis, 24, 12, 1).last().unwrap();
    retrie_pipeline::testkit::write_blocks(&other.path("chain.rlp"), &chain.path(genesis, tip));
    succeeds(&mut other.import("chain.rlp", ""));
    let mut command = retrie(["export", "--format", "parquet", "--datadir", &other.at("data")]);
    command.args(["--chunk-size", "10", "--tables", "blocks", &scene.at("out")]);
    fails_saying(&mut command, &["00000000_to_00000009", "another branch", "--overwrite"]);
    // Files of another chunk size have the same blocks.
    let overlap = &["00000000_to_00000009", "blocks 0 to 6", "twice", "--chunk-size"];
    fails_saying(&mut export(&scene, "--tables blocks --chunk-size 7"), overlap);
    succeeds(&mut export(&scene, "--tables logs --chunk-size 7"));
}

#[test]
fn last_file_grows_with_the_chain() {
    let (scene, _) = TestFolder::with_chain(TestRules::Byzantium, 24);
    let out = scene.path("out");
    for (to, count) in [(13, 2), (17, 2), (24, 3)] {
        succeeds(&mut scene.import("chain.rlp", &format!("--to {to}")));
        succeeds(&mut export(&scene, "--chunk-size 10 --tables blocks,nonce_diffs"));
        assert_eq!(numbers(&out), (0..=to).collect::<Vec<_>>());
        for table in ["blocks", "nonce_diffs"] {
            assert_eq!(files(&out, table).len(), count, "{to}");
        }
    }
    // A part of it lies within the files that are there.
    let overlap = &["00000010_to_00000019", "blocks 12 to 15", "twice"];
    let part = "--chunk-size 10 --tables blocks --from 12 --to 15";
    fails_saying(&mut export(&scene, part), overlap);
}

#[test]
fn what_cannot_be_exported_is_refused() {
    let scene = scene();
    for (more, says) in [
        ("--from 7 --to 6", ["blocks 7 to 6", "0 to 24"]),
        ("--to 25", ["blocks 0 to 25", "0 to 24"]),
        ("--tables results", ["name the reports", ""]),
        ("--tables results,logs", ["export them apart", ""]),
    ] {
        fails_saying(&mut export(&scene, more), &says);
        assert!(!scene.path("out").join("anything").exists());
    }
    let unknown = export(&scene, "--tables blocks,traces").output().unwrap();
    let stderr = String::from_utf8(unknown.stderr).unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("`traces`") && stderr.contains("storage_diffs"), "{stderr}");
    let none = export(&scene, "--chunk-size 0").output().unwrap();
    assert_eq!(none.status.code(), Some(2));
    let mut rlp = retrie(["export", "--datadir", &scene.at("data"), "--overwrite", "a.rlp"]);
    fails_saying(&mut rlp, &["--overwrite is a flag of --format parquet"]);

    // Genesis alone: no transaction, and every account is new.
    succeeds(&mut export(&scene, "--to 0"));
    let out = scene.path("out");
    assert_eq!(numbers(&out), [0]);
    assert!(rows(&out, "transactions").is_empty() && rows(&out, "logs").is_empty());
    assert!(rows(&out, "balance_diffs").len() > 8);
    assert!(rows(&out, "storage_diffs").len() >= 3);

    // States below are pruned.
    let (pruned, _) = TestFolder::with_chain(TestRules::Byzantium, 20);
    for to in [10, 15, 20] {
        let flags = format!("--retention 3 --to {to} --prune.state-history.distance 5");
        succeeds(&mut pruned.import("chain.rlp", &flags));
    }
    fails_saying(&mut export(&pruned, "--from 3"), &["block 3", "not kept", "--from", "_diffs"]);
    succeeds(&mut export(&pruned, "--from 17"));
    assert_eq!(numbers(&pruned.path("out")), [17, 18, 19, 20]);
}
