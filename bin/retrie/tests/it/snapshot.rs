//! Snapshots: exported by one datadir, and started from by nodes of any backend.

use crate::common::{TestFolder, fails_saying, retrie, signal, small_flags, succeeds, words};
use retrie_chainspec::primitives::Block;
use retrie_pipeline::testkit::{TestChain, TestRules};
use retrie_sources::testkit::{HttpServer, ScriptedReply};
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The block of `BLOCKS` whose state is exported.
const AT: u64 = 20;
const BLOCKS: u64 = 24;

/// A chain up to block `AT` + 2 on this backend in `data`, and a snapshot of block `AT` in `to`.
fn exported(backend: &str, more: &str) -> (TestFolder, Vec<Block>, String) {
    exported_of(TestFolder::with_chain(TestRules::Prague, BLOCKS), backend, more)
}

fn exported_of(
    (scene, blocks): (TestFolder, Vec<Block>),
    backend: &str,
    more: &str,
) -> (TestFolder, Vec<Block>, String) {
    let flags = format!("--state-backend {backend} --to {} {more}", AT + 2);
    succeeds(&mut scene.import("chain.rlp", &flags));
    let hash = blocks[AT as usize - 1].header.hash_slow().to_string();
    let said = succeeds(&mut export(&scene, &format!("--block {AT}"), "to"));
    assert!(said.contains(&format!("the state after block {AT}")), "{said}");
    assert!(said.contains(&format!("--checkpoint {hash}")), "{said}");
    (scene, blocks, hash)
}

fn export(scene: &TestFolder, more: &str, to: &str) -> Command {
    let mut command = retrie(["snapshot", "export", "--datadir", &scene.at("data")]);
    command.args(words(more)).arg(scene.at(to));
    command
}

fn node(scene: &TestFolder, data: &str, more: &str) -> Command {
    let line = format!(
        "node --datadir {} --chain {} --http --http.port 0 --authrpc.port 0 --ipcdisable \
         --disable-discovery --nat none --addr 127.0.0.1 --port 0 {more}",
        scene.at(data),
        scene.at("genesis.json"),
    );
    retrie(words(&line))
}

/// Runs a new node until it has started; returns its log up to there.
fn starts(mut command: Command) -> String {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut seen = String::new();
    while !seen.contains("HTTP server started") {
        assert!(log.read_line(&mut seen).unwrap() > 0, "the node has ended:\n{seen}");
    }
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    signal(&child, "TERM");
    assert!(child.wait().unwrap().success(), "{seen}");
    seen
}

/// The datadir is sound, and executes the blocks above.
fn check(scene: &TestFolder, data: &str, blocks: &[Block], backend: &str) {
    assert_eq!(scene.head(data).0, AT, "{backend}");
    assert!(!scene.path(data).join("sync").exists(), "{backend}: nothing of it is left");
    let on = |line: &str| {
        let mut command = retrie(words(line));
        command.args(["--chain", &scene.at("genesis.json"), "--datadir", &scene.at(data)]);
        command
    };
    let printed = succeeds(&mut on("db verify"));
    assert!(printed.contains("nothing is wrong"), "{backend}: {printed}");
    let mut import = on(&format!("import {} --json {}", scene.at("chain.rlp"), scene.at("r.json")));
    succeeds(import.args(words(&format!("--from {} {backend}", AT + 1))));
    let head = &blocks[BLOCKS as usize - 1].header;
    assert_eq!(scene.json("r.json")["tip"]["stateRoot"], head.state_root.to_string());
}

#[test]
fn a_node_of_any_backend_starts_from_a_snapshot_of_either_form_of_keys() {
    for (origin, keys) in [("mpt", "plain"), ("prefix", "hashed"), ("mpt", "hashed")] {
        let (scene, blocks, hash) = exported(origin, &format!("--state.keys {keys}"));
        for (n, backend) in retrie_backends::names().into_iter().enumerate() {
            // The last origin differs from the second one only below.
            if (origin, keys) == ("mpt", "hashed") && n % 3 > 0 {
                continue;
            }
            let backend = &format!("--state-backend {backend} {}", small_flags(backend).join(" "));
            let from = scene.at("to");
            let flags = format!("{backend} --checkpoint {hash} --sync.from {from}");
            let data = format!("new-{n}");
            let log = starts(node(&scene, &data, &flags));
            assert!(log.contains("begun in"), "{log}");
            check(&scene, &data, &blocks, backend);
        }
    }
}

#[test]
fn a_snapshot_of_bavl_is_for_bavl_and_needs_its_root() {
    let (scene, blocks, hash) = exported("bavl", "");
    let root = scene.json("to/snapshot.json")["root"].as_str().unwrap().to_owned();
    let from = format!("--checkpoint {hash} --sync.from {}", scene.at("to"));
    let refused = |more: &str, what: &[&str]| {
        fails_saying(&mut node(&scene, "new", &format!("{from} {more}")), what);
    };
    refused("--state-backend bavl", &["--sync.trusted-root"]);
    refused("--state-backend lvmt", &["bavl alone", "lvmt"]);
    let wrong = format!("--state-backend bavl --sync.trusted-root {hash}");
    refused(&wrong, &["lacks chunk"]);
    let flags = format!("{from} --state-backend bavl --sync.trusted-root {root}");
    starts(node(&scene, "new", &flags));
    check(&scene, "new", &blocks, "--state-backend bavl");
}

#[test]
fn a_node_starts_after_the_switch_to_the_binary_tree_from_its_chunks() {
    let small = |name| (retrie_backends::find(name).unwrap().small)();
    // Blocks come every 12 seconds: block 10 is the first with the root of the binary tree.
    let chain = TestChain::switching(TestRules::Prague, small("mpt"), small("pbt"), 120);
    let made = TestFolder::with_blocks_of(chain, BLOCKS);
    let (scene, blocks, hash) = exported_of(made, "pbt", "--referee mpt");
    let from = format!("--checkpoint {hash} --sync.from {}", scene.at("to"));
    // The header proves the chunks, without another root.
    starts(node(&scene, "new", &format!("{from} --state-backend pbt")));
    check(&scene, "new", &blocks, "--state-backend pbt");
    let both = "--state-backend pbt --referee mpt";
    starts(node(&scene, "both", &format!("{from} {both}")));
    check(&scene, "both", &blocks, both);
    let flags = format!("{from} --state-backend mpt");
    fails_saying(&mut node(&scene, "mpt", &flags), &["mpt"]);
}

#[test]
fn states_that_cannot_be_exported_are_refused() {
    let (scene, blocks) = TestFolder::with_chain(TestRules::Prague, BLOCKS);
    succeeds(&mut scene.import("chain.rlp", "--state-backend lvmt"));
    fails_saying(&mut export(&scene, "", "to"), &["lvmt"]);
    let (scene, _, hash) = exported("mpt", "--retention 4");
    fails_saying(&mut export(&scene, "--block 23", "to"), &["block 23"]);
    fails_saying(&mut export(&scene, "--block 3", "to"), &["3"]);
    let unknown = export(&scene, "--block x", "to").output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("neither"), "{unknown:?}");
    fails_saying(&mut export(&scene, "", "to"), &["block 20", &hash, "--force"]);
    let data = scene.at("data");
    let over_http = ["snapshot", "export", "--datadir", &data, "--force", "http://127.0.0.1:1/x"];
    fails_saying(&mut retrie(over_http), &["over http"]);
    let said = succeeds(&mut export(&scene, &format!("--block {hash}"), "to"));
    assert!(said.contains("already"), "{said}");
    succeeds(&mut export(&scene, "--force", "to"));
    let head = blocks[AT as usize + 1].header.hash_slow().to_string();
    assert_eq!(scene.json("to/snapshot.json")["blockHash"], head);
}

/// A web server with a folder. In objects of the kind that it lies about, a byte is flipped.
fn web(folder: PathBuf, lies: Option<&'static str>) -> HttpServer {
    let server = HttpServer::start(move |request| {
        let name = request.path.trim_start_matches('/');
        let Ok(mut content) = std::fs::read(folder.join(name)) else {
            return ScriptedReply::new(404, "");
        };
        if lies.is_some_and(|kind| Path::new(name).starts_with(kind)) {
            let last = content.len() - 3;
            content[last] ^= 1;
        }
        ScriptedReply::file(request, &content)
    });
    server.unwrap()
}

#[test]
fn a_lying_web_server_is_found_out_and_another_one_has_the_rest() {
    let (scene, blocks, hash) = exported("mpt", "");
    let (honest, liar) = (web(scene.path("to"), None), web(scene.path("to"), Some("chunks")));
    let flags = |from: &str| format!("--state-backend lvmt --checkpoint {hash} --sync.from {from}");
    let line = node(&scene, "new", &flags(&liar.url()));
    fails_saying(&mut { line }, &["/chunks/00000000 at bytes", "0x"]);
    let both = format!("{},{}", liar.url(), honest.url());
    let log = starts(node(&scene, "new", &flags(&both)));
    assert!(log.contains("begun in"), "{log}");
    check(&scene, "new", &blocks, "--state-backend lvmt");

    // A web server without a manifest is asked by JSON-RPC.
    let other = web(scene.path("none"), None);
    let flags = format!("--checkpoint {hash} --sync.from {} --sync.patience 2s", other.url());
    fails_saying(&mut node(&scene, "other", &flags), &["no peer gives the header"]);
    assert!(other.requests().iter().any(|request| request.method == "POST"));
    // What a snapshot has is said before anything is trusted.
    let line = format!("--sync.from {}", honest.url());
    fails_saying(&mut node(&scene, "other", &line), &["--checkpoint", &hash]);
    let line = format!("--checkpoint 0x{} --sync.from {}", "05".repeat(32), honest.url());
    fails_saying(&mut node(&scene, "other", &line), &[&format!("block {AT} ({hash})")]);
    assert!(!scene.path("other").join("db").exists());
}

#[test]
fn the_last_blocks_of_a_snapshot_come_with_their_receipts() {
    let (scene, blocks, hash) = exported("mpt", "");
    let zero = export(&scene, "--blocks 0", "more").output().unwrap();
    assert!(String::from_utf8_lossy(&zero.stderr).contains("neither"), "{zero:?}");
    // Block 16 begins an object.
    let said = succeeds(&mut export(&scene, &format!("--block {AT} --blocks 8"), "more"));
    assert!(said.contains("the blocks 13 to 20 with receipts"), "{said}");
    let exported_from = |data: &str, from: u64| {
        let file = scene.at(&format!("{data}-{from}.rlp"));
        let from = format!("export --datadir {} --from {from} --to {AT} {file}", scene.at(data));
        succeeds(&mut retrie(words(&from)));
        std::fs::read(file).unwrap()
    };
    let started = |data: &str, sources: &[&HttpServer]| {
        let urls: Vec<_> = sources.iter().map(|server| server.url()).collect();
        let flags =
            format!("--state-backend lvmt --checkpoint {hash} --sync.from {}", urls.join(","));
        starts(node(&scene, data, &flags))
    };
    let (honest, liar) = (web(scene.path("more"), None), web(scene.path("more"), Some("blocks")));
    let log = started("new", &[&liar, &honest]);
    assert!(log.contains("left out") && log.contains("/blocks/00000001"), "{log}");
    assert!(log.contains("fetched the blocks 13 to 20 with receipts"), "{log}");
    check(&scene, "new", &blocks, "--state-backend lvmt");
    assert!(exported_from("new", 13) == exported_from("data", 13));
    let before = format!("export --datadir {} --from 12 --to {AT} x.rlp", scene.at("new"));
    fails_saying(&mut retrie(words(&before)), &["12"]);

    // Without an honest mirror it does without the blocks.
    let log = started("without", &[&liar]);
    assert!(log.contains("no mirror has the blocks 16 to 20"), "{log}");
    check(&scene, "without", &blocks, "--state-backend lvmt");

    // All that there are, and a snapshot with other blocks is another one.
    fails_saying(&mut export(&scene, &format!("--block {AT} --blocks all"), "more"), &["--force"]);
    let said = succeeds(&mut export(&scene, &format!("--block {AT} --blocks all --force"), "more"));
    assert!(said.contains("the blocks 1 to 20"), "{said}");
    started("all", &[&honest]);
    check(&scene, "all", &blocks, "--state-backend lvmt");
    assert!(exported_from("all", 1) == exported_from("data", 1));
    succeeds(&mut export(&scene, &format!("--block {AT} --blocks 2 --force"), "more"));
    assert!(!scene.path("more/blocks/00000000").exists());
}
