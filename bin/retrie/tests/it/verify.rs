//! `db verify` and `stage unwind` as people use them, and on a damaged file.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};
use mdbx::{Environment, Geometry, Mode};
use retrie_db::{DatabaseEnv, OpenOptions};
use retrie_pipeline::{state_folder, testkit::TestRules};
use std::{
    io::{Read, Seek, SeekFrom, Write},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

fn command(scene: &TestFolder, line: &str) -> Command {
    let mut command = retrie(words(line));
    command.args(["--chain", &scene.at("genesis.json"), "--datadir", &scene.at("data")]);
    command
}

#[test]
fn verify_tells_what_it_checked_and_where_the_damage_is() {
    let (scene, _) = TestFolder::with_chain(TestRules::Prague, 6);
    fails_saying(&mut command(&scene, "db verify"), &["there is no database"]);
    succeeds(&mut scene.import("chain.rlp", "--state-backend raw --referee mpt"));
    let printed = succeeds(&mut command(&scene, "db verify"));
    for what in ["StateRefereeMptAccountNodes", "7 blocks with", "state of mpt", "nothing is wrong"]
    {
        assert!(printed.contains(what), "{what}: {printed}");
    }
    // The datadir knows its chain; another one is refused.
    let mut verify = retrie(["db", "verify", "--datadir", &scene.at("data")]);
    succeeds(&mut verify);
    fails_saying(verify.args(["--chain", "mainnet"]), &["not chain 1 ", "--chain"]);

    // A changed value outside of any trie: only its checksum shows it.
    let db = DatabaseEnv::open(scene.path("data"), &OpenOptions::default()).unwrap();
    let mut txn = db.begin_write().unwrap();
    txn.put_note("finalised", b"block 5").unwrap();
    txn.commit().unwrap();
    drop(db);
    // The file is sparse and long; used pages are at its start.
    let mut bytes = vec![0; allocated(&scene) as usize];
    let file = scene.path("data").join("db/mdbx.dat");
    std::fs::File::open(&file).unwrap().read_exact(&mut bytes).unwrap();
    let notes: Vec<_> = bytes.windows(7).enumerate().filter(|(_, at)| *at == b"block 5").collect();
    assert!(!notes.is_empty());
    for (at, _) in notes {
        flip(&file, at as u64 + 6, b'5' ^ b'6');
    }
    let json = scene.at("verify.json");
    let mut verify = command(&scene, "db verify");
    fails_saying(verify.args(["--json", &json]), &["1 findings", "import again"]);
    let finding = scene.json("verify.json")["findings"][0].as_str().unwrap().to_owned();
    assert!(finding.contains("table Metadata, key 0x6e6f74652f66696e616c69736564"), "{finding}");
}

/// A failure of the check itself differs from damage, and leaves nothing behind.
#[test]
fn a_check_that_cannot_be_done_says_nothing_of_the_datadir() {
    let (scene, _) = TestFolder::with_chain(TestRules::Prague, 6);
    succeeds(&mut scene.import("chain.rlp", ""));
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = entries(&scene.path("data"));
    let file = scene.write("file", "no folder");
    for scratch in [scene.at("nowhere"), file] {
        let mut verify = command(&scene, "db verify");
        let output = verify.args(["--scratch", &scratch]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        let says = stderr.contains("could not be done") && stderr.contains(&scratch);
        assert!(says && stderr.contains("--scratch") && !stderr.contains("findings"), "{stderr}");
    }
    let scratch = scene.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let mut verify = command(&scene, "db verify");
    let printed = succeeds(verify.args(["--scratch", &scene.at("scratch")]));
    assert!(printed.contains("nothing is wrong"), "{printed}");
    assert!(entries(&scratch).is_empty());
    // An unused file in the state folder does no harm.
    std::fs::write(state_folder(&scene.path("data"), false).join("left-over"), [0; 7]).unwrap();
    let printed = succeeds(&mut command(&scene, "db verify"));
    let says = printed.contains("1 unused, 7 bytes");
    assert!(says && printed.contains("nothing is wrong"), "{printed}");
    assert_eq!(entries(&scene.path("data")), before);
}

/// Bytes of the database file that were ever used.
fn allocated(scene: &TestFolder) -> u64 {
    let db = DatabaseEnv::open(scene.path("data"), &OpenOptions::read_only()).unwrap();
    let stats = db.stats().unwrap();
    stats.allocated_pages * stats.page_size
}

#[test]
fn unwind_goes_back_within_the_window_and_says_how_far() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Cancun, 12);
    succeeds(&mut scene.import("chain.rlp", "--retention 6"));
    fails_saying(
        &mut command(&scene, "stage unwind --to 3"),
        &["block 3", "starts at block 6", "--retention"],
    );
    fails_saying(&mut command(&scene, "stage unwind --to 13"), &["block 13", "above"]);
    fails_saying(&mut command(&scene, "stage unwind"), &["--to NUMBER"]);
    let printed = succeeds(&mut command(&scene, "stage unwind --to 10"));
    assert!(printed.contains("2 blocks removed"), "{printed}");
    let in_words = |line: &str| {
        let (options, target) = line.split_once(": ").unwrap();
        let mut unwind = command(&scene, options);
        succeeds(unwind.args(words(target)))
    };
    in_words("stage unwind: to-block 9");
    in_words("stage unwind: num-blocks 1");
    assert_eq!(scene.head("data"), (8, blocks[7].header.state_root.to_string()));
    succeeds(&mut command(&scene, "db verify"));
    succeeds(&mut scene.import("chain.rlp", "--retention 6"));
    assert_eq!(scene.head("data").0, 12);
}

/// Damages bytes of the file, not of rows: pages may then lead anywhere.
#[test]
fn damaged_pages_are_found_or_free_and_never_end_in_a_crash() {
    let (scene, _) = TestFolder::with_chain(TestRules::Prague, 40);
    succeeds(&mut scene.import("chain.rlp", ""));
    let mut init = command(&scene, "init");
    succeeds(&mut init);
    let allocated = allocated(&scene);
    let folder = scene.path("data").join("db");
    let file = folder.join("mdbx.dat");
    let whole = contents(&folder);
    let mut state = 7_u64;
    let (mut found, mut free) = (0, 0);
    for n in 0..50 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (state >> 16) % allocated;
        let xor = [0xff, 1, 0x80, 0x10][n % 4];
        flip(&file, at, xor);
        let mut child = command(&scene, "db verify --quiet")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(120), "byte {at} ^ {xor}: it hangs");
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("panicked"), "byte {at} ^ {xor}: {stderr}");
        match output.status.code() {
            Some(0) => {
                free += 1;
                assert!(contents(&folder) == whole, "byte {at} ^ {xor} is missed");
            }
            Some(1) => found += 1,
            _ => panic!("byte {at} ^ {xor}: {:?} {stderr}", output.status),
        }
        flip(&file, at, xor);
    }
    assert!(found >= 10, "{found} found, {free} free");
    succeeds(&mut command(&scene, "db verify"));
}

fn flip(file: &Path, at: u64, xor: u8) {
    let mut file = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ xor]).unwrap();
}

/// All rows of all tables.
fn contents(folder: &Path) -> Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let mut builder = Environment::builder();
    builder
        .set_max_dbs(64)
        .set_geometry(Geometry { size: Some(0..=8 << 40), ..Geometry::default() })
        .set_flags(Mode::ReadOnly.into());
    let env = builder.open(folder).unwrap();
    let tx = env.begin_ro_unsync().unwrap();
    let main = tx.open_db(None).unwrap();
    let mut names = Vec::new();
    let mut cursor = tx.cursor(main).unwrap();
    let mut next = cursor.first::<Vec<u8>, Vec<u8>>().unwrap();
    while let Some((name, _)) = next {
        names.push(name);
        next = cursor.next().unwrap();
    }
    let mut rows = Vec::new();
    for name in names {
        let table = tx.open_db_no_cache(Some(std::str::from_utf8(&name).unwrap())).unwrap();
        let mut cursor = tx.cursor(table).unwrap();
        let mut next = cursor.first::<Vec<u8>, Vec<u8>>().unwrap();
        while let Some((key, value)) = next {
            rows.push((name.clone(), key, value));
            next = cursor.next().unwrap();
        }
    }
    rows
}
