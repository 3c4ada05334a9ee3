//! `retrie pbt`: the files of EIP-8347 from a datadir of one backend to a datadir of another.

use crate::common::{TestFolder, fails_saying, mainnet, mainnet_blocks, retrie, succeeds, words};
use alloy_primitives::B256;
use retrie_chainspec::primitives::Block;
use retrie_db::{ChainRead, DatabaseEnv, OpenOptions};
use retrie_pipeline::testkit::TestRules;
use std::process::Command;

/// The block of `BLOCKS` whose state is exported.
const AT: u64 = 16;
const BLOCKS: u64 = 24;

/// A chain on `backend` in `data` up to block `AT` + 2.
fn chain(backend: &str) -> (TestFolder, Vec<Block>) {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Prague, BLOCKS);
    let flags = format!("--state-backend {backend} --to {}", AT + 2);
    succeeds(&mut scene.import("chain.rlp", &flags));
    (scene, blocks)
}

fn export(scene: &TestFolder, more: &str, folder: &str) -> Command {
    let mut command = retrie(["pbt", "export", "--datadir", &scene.at("data")]);
    command.args(words(more)).arg(scene.at(folder));
    command
}

/// `retrie pbt check` or `import` of the files in a folder.
fn files(scene: &TestFolder, name: &str, more: &str, folder: &str) -> Command {
    let mut command = retrie(["pbt", name]);
    command.args(words(more));
    command
        .args(["preimages.bin", "snapshot.bin"].map(|file| format!("{}/{file}", scene.at(folder))));
    command
}

/// The flags that name the header of the files' block.
fn header(scene: &TestFolder, folder: &str, blocks: &[Block]) -> String {
    let hash = blocks[AT as usize - 1].header.hash_slow();
    format!("--header {}/headers.rlp --header-hash {hash}", scene.at(folder))
}

/// The words behind these ones in a text.
fn word_after<'a>(text: &'a str, before: &str) -> &'a str {
    let rest = text.split_once(before).unwrap_or_else(|| panic!("{before} in {text}")).1;
    rest.split([' ', '\n', ';']).next().unwrap()
}

#[test]
fn files_of_one_backend_start_datadirs_of_others_in_every_layout() {
    let (scene, blocks) = chain("mpt");
    let head = blocks[BLOCKS as usize - 1].header.state_root.to_string();
    let targets =
        [("tagged", "pbt --referee mpt"), ("counts", "mpt"), ("rlp", "pbt"), ("rlp", "lvmt")];
    for (n, (layout, backend)) in targets.into_iter().enumerate() {
        let folder = format!("files-{n}");
        let said =
            succeeds(&mut export(&scene, &format!("--block {AT} --layout {layout}"), &folder));
        let root = word_after(&said, "root ").to_owned();
        let snapshot = said.split_once("snapshot.bin: ").expect("a line for each file").1;
        let digest = word_after(snapshot, "keccak-256 ").to_owned();
        assert!(said.contains(&format!("the state after block {AT} ")), "{said}");
        let header = header(&scene, &folder, &blocks);
        let about =
            format!("--layout {layout} {header} --pbt-root {root} --snapshot-digest {digest}");
        let said = succeeds(&mut files(&scene, "check", &about, &folder));
        assert!(said.contains("the files are right"), "{said}");
        assert!(said.contains(&format!("block {AT}")) && said.contains(&root), "{said}");

        let data = format!("new-{n}");
        let flags = format!(
            "{about} --chain {} --datadir {} --state-backend {backend}",
            scene.at("genesis.json"),
            scene.at(&data)
        );
        let said = succeeds(&mut files(&scene, "import", &flags, &folder));
        assert!(said.contains(&format!("begins at block {AT}")), "{said}");
        assert_eq!(scene.head(&data).0, AT);
        fails_saying(&mut files(&scene, "import", &flags, &folder), &["already holds a chain"]);
        if backend.starts_with("pbt") {
            assert_eq!(scene.head(&data).1, root, "{backend}");
        }
        let on = |line: &str| {
            let mut command = retrie(words(line));
            command.args(["--chain", &scene.at("genesis.json"), "--datadir", &scene.at(&data)]);
            command
        };
        let said = succeeds(&mut on("db verify"));
        assert!(said.contains("nothing is wrong"), "{backend}: {said}");
        let more = format!(
            "import {} --from {} --state-backend {backend} --json {}",
            scene.at("chain.rlp"),
            AT + 1,
            scene.at("report.json")
        );
        succeeds(&mut on(&more));
        assert_eq!(scene.json("report.json")["tip"]["stateRoot"], head);
    }
}

#[test]
fn every_backend_exports_the_same_files() {
    let mut first: Option<Vec<Vec<u8>>> = None;
    for backend in ["mpt", "pbt", "raw"] {
        let (scene, _) = chain(backend);
        succeeds(&mut export(&scene, &format!("--block {AT}"), "files"));
        let files = ["preimages.bin", "snapshot.bin", "headers.rlp"];
        let files = files.map(|file| std::fs::read(scene.path("files").join(file)).unwrap());
        match &first {
            Some(first) => assert_eq!(first[..], files, "{backend}"),
            None => first = Some(files.to_vec()),
        }
    }
}

#[test]
fn wrong_files_are_refused_and_leave_nothing_behind() {
    let (scene, blocks) = chain("mpt");
    succeeds(&mut export(&scene, &format!("--block {AT}"), "files"));
    succeeds(&mut export(&scene, &format!("--block {}", AT - 1), "older"));
    let header = header(&scene, "files", &blocks);
    let refused = |more: &str, folder: &str, what: &[&str]| {
        fails_saying(&mut files(&scene, "check", more, folder), what);
        if more.contains("--state-root") {
            return;
        }
        let new = format!("--chain {} --datadir {}", scene.at("genesis.json"), scene.at("new"));
        let flags = format!("{more} {new} --state-backend pbt");
        fails_saying(&mut files(&scene, "import", &flags, folder), what);
        assert!(!scene.path("new").join("db").exists(), "{more}");
    };
    let root = blocks[AT as usize - 1].header.state_root.to_string();
    refused(&header, "older", &["state root", &root, "--header"]);
    refused(&format!("{header} --layout rlp"), "files", &["--layout"]);
    refused(&format!("{header} --layout counts"), "files", &["snapshot"]);
    let lie = format!("0x{}", "05".repeat(32));
    refused(&format!("{header} --pbt-root {lie}"), "files", &["--pbt-root", &lie]);
    refused(
        &format!("{header} --snapshot-digest {lie}"),
        "files",
        &["snapshot", &lie, "get the file"],
    );
    refused(&format!("{header} --preimage-digest {lie}"), "files", &["preimage file", &lie]);
    refused(&format!("--state-root {lie}"), "files", &["state root", &lie, "--state-root"]);
    refused(&format!("{header} --scratch /nowhere/at/all"), "none", &["opening", "none"]);

    // Each file, cut, longer, and with a byte changed.
    let damaged = |name: &str, change: &dyn Fn(&mut Vec<u8>), what: &[&str]| {
        std::fs::create_dir_all(scene.path("damaged")).unwrap();
        for file in ["preimages.bin", "snapshot.bin"] {
            let mut bytes = std::fs::read(scene.path("files").join(file)).unwrap();
            if file == name {
                change(&mut bytes);
            }
            std::fs::write(scene.path("damaged").join(file), bytes).unwrap();
        }
        refused(&header, "damaged", what);
    };
    for (file, name) in [("preimages.bin", "preimage file"), ("snapshot.bin", "snapshot")] {
        damaged(file, &|bytes| bytes.truncate(bytes.len() - 1), &[name, "ends within"]);
        damaged(file, &|bytes| bytes[40] ^= 1, &[]);
    }
    damaged("snapshot.bin", &|bytes| bytes.push(0), &["bytes follow the end", "snapshot"]);
    damaged("preimages.bin", &|bytes| bytes.clear(), &["the preimages lack"]);

    // The state of genesis needs no header file.
    let new = format!("--chain {} --datadir {}", scene.at("genesis.json"), scene.at("new"));
    fails_saying(&mut files(&scene, "import", &new, "files"), &["state root"]);
    let without = files(&scene, "check", "", "files").output().unwrap();
    assert_eq!(without.status.code(), Some(2));
}

#[test]
fn states_that_cannot_be_exported_are_refused() {
    let (scene, _) = chain("mpt --state.keys hashed --state.preimages=true");
    fails_saying(&mut export(&scene, "", "files"), &["hashes of keys", "--keys plain"]);
    assert!(!scene.path("files").exists());
    let (scene, _) = chain("mpt --retention 4");
    fails_saying(&mut export(&scene, "--block 3", "files"), &["block 3", "--retention"]);
    fails_saying(&mut export(&scene, "--block 23", "files"), &["block 23 is not there"]);
    succeeds(&mut export(&scene, "", "files"));
    scene.write("taken", "");
    fails_saying(&mut export(&scene, "", "taken"), &["creating the folder"]);
}

#[test]
fn tree_joins_a_datadir_that_has_another_store() {
    let (scene, blocks) = chain("mpt");
    let refused = ["--referee.join", "without the referee"];
    fails_saying(&mut scene.import("chain.rlp", "--referee pbt"), &refused);
    let flags = format!("--referee pbt --referee.join --json {}", scene.at("report.json"));
    succeeds(&mut scene.import("chain.rlp", &flags));
    let head = blocks[BLOCKS as usize - 1].header.state_root.to_string();
    assert_eq!(scene.json("report.json")["tip"]["stateRoot"], head);
    let (whole, _) = TestFolder::with_chain(TestRules::Prague, BLOCKS);
    succeeds(&mut whole.import("chain.rlp", "--state-backend mpt --referee pbt"));
    for folder in [&scene, &whole] {
        let said = succeeds(&mut retrie(["db", "verify", "--datadir", &folder.at("data")]));
        assert!(said.contains("nothing is wrong"), "{said}");
    }
    assert_eq!(tree_root(&scene, "data"), tree_root(&whole, "data"));
}

/// The referee's root at the head of a datadir.
fn tree_root(scene: &TestFolder, data: &str) -> B256 {
    let db = DatabaseEnv::open(scene.path(data), &OpenOptions::read_only()).unwrap();
    let read = db.begin_read().unwrap();
    let tip = read.tip().unwrap().unwrap();
    read.root(&tip.hash, "pbt").unwrap().expect("the referee's root of the head is kept")
}

/// Replay to a block equals conversion at it (EIP-8347), on mainnet's first blocks.
#[test]
fn conversion_of_real_blocks_gives_the_tree_of_their_replay() {
    let Some(mainnet) = mainnet() else { return };
    let blocks = mainnet_blocks(&mainnet)[0].display().to_string();
    let scene = TestFolder::new();
    let import = |data: &str, flags: &str| {
        let mut command = retrie(["import", "--chain", "mainnet", "--datadir", &scene.at(data)]);
        succeeds(command.args(words(flags)).arg(&blocks));
    };
    import("replayed", "--referee pbt --to 1200");
    import("joined", "--to 700");
    import("joined", "--referee pbt --referee.join --to 1200");
    let replayed = tree_root(&scene, "replayed");
    assert_eq!(tree_root(&scene, "joined"), replayed);
    // The state has empty accounts, which only one layout can express.
    let mut export = retrie(["pbt", "export", "--layout", "rlp", "--datadir", &scene.at("joined")]);
    export.arg(scene.at("files"));
    assert_eq!(word_after(&succeeds(&mut export), "root "), replayed.to_string());
}
