//! `retrie download` and `retrie bundle make`, run as a user runs them.

use crate::common;

use common::{TestFolder, fails_saying, gunzip, mainnet, retrie, signal, succeeds, words};
use retrie_sources::{
    Bundle,
    testkit::{HttpServer, ScriptedReply},
};
use serde_json::{Value, json};
use std::{
    process::Stdio,
    time::{Duration, Instant},
};

const NAMES: [&str; 2] = ["mainnet-00000-5ec1ffb8.era1", "mainnet-00001-a5364e9a.era1"];

/// A mirror of the first two era1 files. With `sent` it sends only that many bytes of a response
/// and hangs.
fn mirror(sent: Option<usize>) -> Option<HttpServer> {
    let chain = mainnet()?.join("chain");
    let files = NAMES.map(|name| std::fs::read(chain.join(name)).unwrap());
    let server = HttpServer::start(move |request| {
        let name = request.path.trim_start_matches('/');
        match NAMES.iter().position(|known| *known == name) {
            Some(at) => match sent {
                Some(sent) => ScriptedReply::file(request, &files[at]).cut(sent).hanging(),
                None => ScriptedReply::file(request, &files[at]),
            },
            None if name.is_empty() => ScriptedReply::new(200, NAMES.join("<br>")),
            None => ScriptedReply::new(404, ""),
        }
    });
    Some(server.unwrap())
}

#[test]
fn downloaded_files_can_be_imported() {
    let Some(server) = mirror(None) else { return };
    let scene = TestFolder::new();
    let line = format!("download era1 --from 0 --to 1 --mirror {} {}", server.url(), scene.at("e"));
    let out = succeeds(&mut retrie(words(&line)));
    assert!(out.contains("blocks 8192 to 16383") && out.contains("2 files fetched"), "{out}");
    let out = succeeds(&mut retrie(words(&line)));
    assert!(out.contains("0 files fetched, 2 were there"), "{out}");
    let mut import = retrie(["import", "--to", "50", "--datadir", &scene.at("data")]);
    succeeds(import.arg(scene.at("e")));
    assert_eq!(scene.head("data").0, 50);
}

#[test]
fn interrupted_download_goes_on() {
    let (Some(slow), Some(server)) = (mirror(Some(1_000_000)), mirror(None)) else { return };
    let scene = TestFolder::new();
    let line = |server: &HttpServer| {
        format!(
            "download era1 --timeout 1 --from 0 --to 0 --mirror {} {}",
            server.url(),
            scene.at("e")
        )
    };
    let mut command = retrie(words(&line(&slow)));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let part = scene.path("e").join(format!("{}.part", NAMES[0]));
    let begin = Instant::now();
    while part.metadata().map_or(0, |meta| meta.len()) < 1_000_000 {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing comes");
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("bytes are kept") && !stderr.contains("panicked"), "{stderr}");
    assert!(part.exists() && !scene.path("e").join(NAMES[0]).exists());
    succeeds(&mut retrie(words(&line(&server))));
    let asked = server.requests();
    let last = asked.last().unwrap();
    assert!(last.headers.contains_key("range"), "{last:?}");
    assert!(!part.exists());
}

#[test]
fn wrong_arguments_and_servers_are_one_line() {
    let scene = TestFolder::new();
    let folder = scene.at("out");
    let nowhere = "http://127.0.0.1:9";
    for (line, what) in [
        (format!("download era1 --from 3 --to 2 {folder}"), "after --to 2"),
        (format!("download era1 --chain holesky --from 0 --to 0 {folder}"), "--mirror"),
        (
            format!("download era1 --retries 0 --mirror {nowhere} --from 0 --to 0 {folder}"),
            "cannot connect",
        ),
        (format!("download era1 --mirror nonsense --from 0 --to 0 {folder}"), "nonsense"),
        (format!("bundle make --rpc {nowhere} --from 3 --to 2 {folder}"), "after --to 2"),
        (
            format!("bundle make --retries 0 --rpc {nowhere}/key --from 1 --to 1 {folder}"),
            "cannot connect",
        ),
        (format!("bundle make --rpc nonsense --from 1 --to 1 {folder}"), "not a usable"),
    ] {
        let said = fails_saying(&mut retrie(words(&line)), &[what]);
        assert!(!said.contains("/key"), "{said}");
    }
    assert!(!scene.path("out").exists(), "nothing is created for nothing");
}

/// A mainnet node that has the header of one block and nothing else.
fn node_with(header: Value) -> HttpServer {
    HttpServer::start(move |request| {
        let call: Value = serde_json::from_slice(&request.body).unwrap();
        let result = match call["method"].as_str().unwrap() {
            "eth_chainId" => json!("0x1"),
            "eth_getBlockByNumber" if call["params"][0] == header["number"] => header.clone(),
            _ => Value::Null,
        };
        let reply = json!({"jsonrpc": "2.0", "id": call["id"], "result": result});
        ScriptedReply::new(200, reply.to_string())
    })
    .unwrap()
}

#[test]
fn bundles_that_are_there_are_checked() {
    let Some(mainnet) = mainnet() else { return };
    let source = mainnet.join("prestate/19923400.json.gz");
    let bundle = Bundle::load(&source).unwrap();
    let mut header = json!(bundle.block.header);
    header["hash"] = json!(bundle.hash);
    header["transactions"] = json!([]);
    let server = node_with(header);
    let scene = TestFolder::new();
    let make = |from: u64| {
        retrie(words(&format!(
            "bundle make --rpc {} --from {from} --to {from} {}",
            server.url(),
            scene.at("out")
        )))
    };
    std::fs::create_dir(scene.path("out")).unwrap();
    let target = scene.path("out").join("19923400.json.gz");
    std::fs::copy(&source, &target).unwrap();
    let out = succeeds(&mut make(19923400));
    assert!(out.contains("was there, replays") && out.contains("0 bundles made"), "{out}");
    // A bundle of another block is not replaced.
    std::fs::copy(&source, scene.path("out").join("19923401.json.gz")).unwrap();
    fails_saying(&mut make(19923401), &["block 19923401", "no such block"]);
    // A damaged bundle stays until a good one replaces it.
    let damaged = common::gzip(&gunzip(&source)[..5000]);
    std::fs::write(&target, &damaged).unwrap();
    fails_saying(&mut make(19923400), &["block 19923400", &server.url()]);
    assert_eq!(std::fs::read(&target).unwrap(), damaged);
    let mut names: Vec<_> = std::fs::read_dir(scene.path("out")).unwrap().collect();
    assert_eq!(names.drain(..).count(), 2, "no temporary file is left");
    fails_saying(
        &mut retrie(words(&format!(
            "bundle make --chain sepolia --rpc {} --from 1 --to 1 {}",
            server.url(),
            scene.at("out")
        ))),
        &["eth_chainId", "chain id 1", "11155111", &server.url()],
    );
}
