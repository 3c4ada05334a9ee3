//! Downloads from servers that work, and from servers that do not: a file under its final name is
//! always complete and checked.

use crate::common;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use alloy_primitives::{B256, U256, hex};
use common::{Era1File, EreDraft, chain, mainnet_data};
use retrie_chainspec::parse_chain;
use retrie_sources::{
    BlockingClient, DownloadError, DownloadProgress, DownloadedFile, EraFormat, EraMirror,
    HttpOptions,
    era1::accumulator_root,
    testkit::{HttpServer, RecordedRequest, ScriptedReply},
};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// Far beyond the merge, so that it cannot be mistaken for a real epoch. Its first block is
/// 81,920,000.
pub(crate) const EPOCH: u64 = 10_000;

/// A short file, which is valid only as the last one of a mirror.
pub(crate) fn short_file(epoch: u64) -> (String, Vec<u8>) {
    named(epoch, 40)
}

fn named(epoch: u64, blocks: u64) -> (String, Vec<u8>) {
    let blocks = chain(epoch * 8192, blocks, u64::MAX);
    let mut file = Era1File::new(U256::from(5));
    for block in &blocks {
        file.block(block, &common::receipts(block.header.number));
    }
    let root = accumulator_root(&file.records).unwrap();
    (format!("mainnet-{epoch:05}-{}.era1", hex::encode(&root[..4])), file.finish())
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// A server of files by path; paths it does not have are 404.
fn serve(files: impl IntoIterator<Item = (impl ToString, Vec<u8>)>) -> HttpServer {
    let files: BTreeMap<_, _> =
        files.into_iter().map(|(name, bytes)| (format!("/{}", name.to_string()), bytes)).collect();
    HttpServer::start(move |request| match files.get(&request.path) {
        Some(bytes) => ScriptedReply::file(request, bytes).with("etag", "\"one\""),
        None => ScriptedReply::new(404, "nothing here"),
    })
    .unwrap()
}

/// A server of one listed file, which `answer` serves.
fn serve_one(
    name: &str,
    sum: &str,
    answer: impl Fn(&RecordedRequest) -> ScriptedReply + Send + Sync + 'static,
) -> HttpServer {
    let list = format!("{sum}  {name}\n");
    HttpServer::start(move |request| match request.path.as_str() {
        "/checksums.txt" => ScriptedReply::new(200, list.as_str()),
        _ => answer(request),
    })
    .unwrap()
}

fn http() -> BlockingClient {
    http_with(Arc::default())
}

fn http_with(stop: Arc<AtomicBool>) -> BlockingClient {
    let options = HttpOptions {
        timeout: Duration::from_secs(10),
        retries: 2,
        backoff: Duration::from_millis(1),
        ..HttpOptions::default()
    };
    BlockingClient::new(options, stop)
}

fn open(server: &HttpServer, http: BlockingClient) -> Result<EraMirror, DownloadError> {
    EraMirror::open(EraFormat::Era1, parse_chain("mainnet").unwrap(), Some(&server.url()), http)
}

/// A folder and its contents.
struct DownloadFolder(TempDir);

impl DownloadFolder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: impl AsRef<Path>, bytes: &[u8]) {
        std::fs::write(self.path().join(name), bytes).unwrap();
    }

    fn read(&self, name: impl AsRef<Path>) -> Vec<u8> {
        std::fs::read(self.path().join(name)).unwrap()
    }

    fn names(&self) -> Vec<PathBuf> {
        let mut names: Vec<_> = std::fs::read_dir(self.path())
            .unwrap()
            .map(|entry| PathBuf::from(entry.unwrap().file_name()))
            .collect();
        names.sort();
        names
    }

    fn fetch(&self, server: &HttpServer, epoch: u64) -> Result<DownloadedFile, DownloadError> {
        open(server, http())?.download(epoch, self.path(), None, &mut |_| {})
    }
}

fn gets(server: &HttpServer, name: &str) -> Vec<RecordedRequest> {
    let path = format!("/{name}");
    server.requests().into_iter().filter(|request| request.path == path).collect()
}

fn part(name: &str) -> String {
    format!("{name}.part")
}

fn fails(outcome: Result<DownloadedFile, DownloadError>, what: &[&str]) {
    let line = outcome.unwrap_err().to_string();
    assert!(!line.contains('\n'), "{line}");
    for part in what {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
}

#[test]
fn every_kind_of_index_leads_to_the_file() {
    let (name, bytes) = short_file(EPOCH);
    let sum = sha256(&bytes);
    let page = format!("<html><a href=\"{name}\">{name}</a></html>");
    let other = "00".repeat(32);
    for (index, text, has_checksum) in [
        ("checksums.txt", format!("{sum}  {name}\n{other}  notes.txt\n"), true),
        ("checksums_sha256.txt", format!("{sum} *{name}\n"), true),
        ("", page.clone(), false),
    ] {
        let server = serve([(index, text.into_bytes()), (name.as_str(), bytes.clone())]);
        let folder = DownloadFolder::new();
        let file = folder.fetch(&server, EPOCH).unwrap();
        assert_eq!((file.has_checksum, file.existed), (has_checksum, false), "{index}");
        assert_eq!(file.summary.first_block, EPOCH * 8192);
        assert_eq!(folder.names(), [PathBuf::from(&name)]);
        assert_eq!(folder.read(&name), bytes);
    }
    // Hashes without names: in the order of the files on the page.
    let files = [("", page.into_bytes()), ("checksums.txt", format!("0x{sum}\n").into_bytes())];
    let files = files.into_iter().chain([(name.as_str(), bytes)]);
    let file = DownloadFolder::new().fetch(&serve(files), EPOCH).unwrap();
    assert!(file.has_checksum);
}

#[test]
fn file_that_is_there_is_checked_and_not_fetched() {
    let (name, bytes) = short_file(EPOCH);
    let server = serve([(name.as_str(), bytes.clone()), ("", name.clone().into_bytes())]);
    let folder = DownloadFolder::new();
    folder.write(&name, &bytes);
    assert!(folder.fetch(&server, EPOCH).unwrap().existed);
    assert!(gets(&server, &name).is_empty());
    // A damaged file is replaced, but only by an intact one.
    let mut damaged = bytes.clone();
    damaged[3000] ^= 1;
    folder.write(&name, &damaged);
    let broken = serve([("", name.clone().into_bytes())]);
    fails(folder.fetch(&broken, EPOCH), &[&broken.url(), &name, "404"]);
    assert_eq!(folder.read(&name), damaged);
    assert!(!folder.fetch(&server, EPOCH).unwrap().existed);
    assert_eq!(folder.read(&name), bytes);
    assert_eq!(folder.names(), [PathBuf::from(&name)]);
}

#[test]
fn partial_file_is_continued() {
    let (name, bytes) = short_file(EPOCH);
    let server = serve([(name.as_str(), bytes.clone()), ("", name.clone().into_bytes())]);
    for there in [1, 7, 8, 1000, bytes.len() - 1, bytes.len()] {
        let folder = DownloadFolder::new();
        folder.write(part(&name), &bytes[..there]);
        let before = gets(&server, &name).len();
        assert!(!folder.fetch(&server, EPOCH).unwrap().existed);
        assert_eq!(folder.read(&name), bytes);
        assert_eq!(folder.names(), [PathBuf::from(&name)]);
        let requests = gets(&server, &name).split_off(before);
        assert_eq!(requests.len(), 1, "{there}");
        assert_eq!(requests[0].headers["range"], format!("bytes={there}-"));
    }
}

#[test]
fn server_without_ranges_sends_the_whole_file_again() {
    let (name, bytes) = short_file(EPOCH);
    let content = bytes.clone();
    let server =
        serve_one(&name, &sha256(&bytes), move |_| ScriptedReply::new(200, content.clone()));
    let folder = DownloadFolder::new();
    folder.write(part(&name), &bytes[..777]);
    folder.fetch(&server, EPOCH).unwrap();
    assert_eq!(folder.read(&name), bytes);
}

#[test]
fn broken_connections_are_resumed() {
    let (name, bytes) = short_file(EPOCH);
    let content = bytes.clone();
    // More breaks than retries, but with progress in between.
    let server = serve_one(&name, &sha256(&bytes), move |request| {
        ScriptedReply::file(request, &content).with("etag", "\"v1\"").cut(content.len() / 6)
    });
    let folder = DownloadFolder::new();
    folder.fetch(&server, EPOCH).unwrap();
    assert_eq!(folder.read(&name), bytes);
    let requests = gets(&server, &name);
    assert!(requests.len() > 4, "{}", requests.len());
    assert!(requests[1..].iter().all(|r| r.headers["if-range"] == "\"v1\""));
}

#[test]
fn part_of_something_else_is_fetched_afresh() {
    let (name, bytes) = short_file(EPOCH);
    let server = serve([(name.as_str(), bytes.clone()), ("", name.clone().into_bytes())]);
    let longer = [&bytes[..], b"tail"].concat();
    for garbage in [vec![0x65; 900], vec![7; bytes.len()], longer] {
        let folder = DownloadFolder::new();
        folder.write(part(&name), &garbage);
        folder.fetch(&server, EPOCH).unwrap();
        assert_eq!(folder.read(&name), bytes);
        assert_eq!(folder.names(), [PathBuf::from(&name)]);
    }
}

#[test]
fn wrong_range_is_not_appended() {
    let (name, bytes) = short_file(EPOCH);
    let content = bytes.clone();
    let server = serve_one(&name, &sha256(&bytes), move |request| {
        match request.headers.contains_key("range") {
            true => {
                ScriptedReply::new(206, &content[5..]).with("content-range", "bytes 5-9/999999")
            }
            false => ScriptedReply::new(200, content.clone()),
        }
    });
    let folder = DownloadFolder::new();
    folder.write(part(&name), &bytes[..100]);
    folder.fetch(&server, EPOCH).unwrap();
    assert_eq!(folder.read(&name), bytes);
}

#[test]
fn error_pages_are_not_era1_files() {
    let (name, bytes) = short_file(EPOCH);
    let page = "<html>please log in</html>";
    for (content_type, what) in [("text/html; charset=utf-8", "text/html"), ("x/y", "other data")] {
        let server = serve_one(&name, &sha256(&bytes), move |_| {
            ScriptedReply::new(200, page).with("content-type", content_type)
        });
        let folder = DownloadFolder::new();
        fails(folder.fetch(&server, EPOCH), &[&server.url(), &name, what, "instead of an era1"]);
        assert!(folder.names().is_empty());
        // A captive portal does not destroy what an earlier run has fetched.
        if content_type.starts_with("text") {
            folder.write(part(&name), &bytes[..500]);
            folder.fetch(&server, EPOCH).unwrap_err();
            assert_eq!(folder.read(part(&name)), &bytes[..500]);
        }
    }
}

#[test]
fn lies_about_content_leave_nothing() {
    let (name, bytes) = short_file(EPOCH);
    let sum = sha256(&bytes);
    let (other_name, other) = named(EPOCH, 39);
    let mut flipped = bytes.clone();
    flipped[2000] ^= 0x10;
    let wrong_name = format!("mainnet-{EPOCH:05}-00000000.era1");
    let wrong_epoch = name.replace("10000", "10001");
    for (listed, sum, content, what) in [
        (&name, "11".repeat(32), &bytes, "SHA-256"),
        (&name, sum.clone(), &flipped, "SHA-256"),
        (&name, sha256(&flipped), &flipped, "damaged"),
        (&name, sha256(&other), &other, "accumulator root begins with"),
        (&wrong_name, sum.clone(), &bytes, "accumulator root begins with"),
        (&wrong_epoch, sum, &bytes, "its first block is 81920000"),
    ] {
        let content = content.clone();
        let server = serve_one(listed, &sum, move |request| ScriptedReply::file(request, &content));
        let epoch = if listed == &wrong_epoch { EPOCH + 1 } else { EPOCH };
        let folder = DownloadFolder::new();
        fails(folder.fetch(&server, epoch), &[&server.url(), listed, what, "kept"]);
        assert!(folder.names().is_empty(), "{what}");
        // Resumed or not.
        folder.write(part(listed), &bytes[..50]);
        fails(folder.fetch(&server, epoch), &[what]);
        assert!(folder.names().is_empty(), "{what}");
    }
    assert_ne!(name, other_name);
    // Only the last file of a mirror may be short.
    let (next_name, next) = short_file(EPOCH + 1);
    let list = format!("{name} {next_name}").into_bytes();
    let server = serve([("", list), (name.as_str(), bytes), (next_name.as_str(), next)]);
    let folder = DownloadFolder::new();
    fails(folder.fetch(&server, EPOCH), &["40 blocks, not 8192"]);
    folder.fetch(&server, EPOCH + 1).unwrap();
}

#[test]
fn truncated_file_stays_partial() {
    let (name, bytes) = short_file(EPOCH);
    let content = bytes.clone();
    let server = serve_one(&name, &sha256(&bytes), move |_| {
        ScriptedReply::new(200, content.clone()).cut(content.len() - 9)
    });
    let folder = DownloadFolder::new();
    fails(folder.fetch(&server, EPOCH), &[&server.url(), &name, "3 times in a row"]);
    assert_eq!(folder.names(), [PathBuf::from(part(&name))]);
    // A shorter file that claims to be complete is detected by its missing blocks.
    let content = bytes[..bytes.len() - 9].to_vec();
    let server = serve([("", name.clone().into_bytes()), (name.as_str(), content)]);
    fails(DownloadFolder::new().fetch(&server, EPOCH), &["damaged", "truncated"]);
}

#[test]
fn hanging_server_times_out() {
    let (name, bytes) = short_file(EPOCH);
    let content = bytes.clone();
    let server = serve_one(&name, &sha256(&bytes), move |_| {
        ScriptedReply::new(200, content.clone()).cut(1234).hanging()
    });
    let options = HttpOptions {
        timeout: Duration::from_millis(200),
        retries: 1,
        backoff: Duration::from_millis(1),
        ..HttpOptions::default()
    };
    let folder = DownloadFolder::new();
    let mirror = open(&server, BlockingClient::new(options, Arc::default())).unwrap();
    let outcome = mirror.download(EPOCH, folder.path(), None, &mut |_| {});
    fails(outcome, &[&server.url(), &name, "no answer within 0.2 s"]);
    assert_eq!(folder.read(part(&name)), &bytes[..1234]);
}

#[test]
fn redirects_and_pauses_are_followed() {
    let (name, bytes) = short_file(EPOCH);
    let target = serve([(name.as_str(), bytes.clone())]);
    let location = format!("{}/{name}", target.url());
    let asked = AtomicU32::new(0);
    let server =
        serve_one(&name, &sha256(&bytes), move |_| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => ScriptedReply::new(429, "").with("retry-after", 0),
            1 => ScriptedReply::new(503, ""),
            _ => ScriptedReply::new(302, "").with("location", &location),
        });
    let folder = DownloadFolder::new();
    folder.fetch(&server, EPOCH).unwrap();
    assert_eq!(folder.read(&name), bytes);
}

#[test]
fn stopping_keeps_the_part() {
    let (name, bytes) = short_file(EPOCH);
    let content = bytes.clone();
    let server = serve_one(&name, &sha256(&bytes), move |request| {
        // Only stopping prevents the next round.
        ScriptedReply::file(request, &content).cut(600)
    });
    let stop = Arc::new(AtomicBool::new(false));
    let folder = DownloadFolder::new();
    let mirror = open(&server, http_with(stop.clone())).unwrap();
    let outcome = mirror.download(EPOCH, folder.path(), None, &mut |transfer| {
        assert!(matches!(transfer, DownloadProgress::Fetching { .. }));
        stop.store(true, Ordering::Relaxed);
    });
    fails(outcome, &["stopped", "600 bytes are kept"]);
    assert_eq!(folder.read(part(&name)), &bytes[..600]);
}

#[test]
fn part_of_a_running_download_is_left_alone() {
    let (name, bytes) = short_file(EPOCH);
    let server = serve([("", name.clone().into_bytes()), (name.as_str(), bytes.clone())]);
    let folder = DownloadFolder::new();
    folder.write(part(&name), &bytes[..10]);
    let other = std::fs::File::open(folder.path().join(part(&name))).unwrap();
    other.lock().unwrap();
    fails(folder.fetch(&server, EPOCH), &["another process is downloading"]);
    assert_eq!(folder.read(part(&name)), &bytes[..10]);
}

#[test]
fn indexes_that_do_not_help_say_so() {
    let (name, bytes) = short_file(EPOCH);
    let open_line = |server: &HttpServer| open(server, http()).unwrap_err().to_string();
    let server = serve([("", b"<html>nothing</html>".to_vec())]);
    let line = open_line(&server);
    assert!(line.contains("checksums.txt") && line.contains("chain mainnet"), "{line}");
    let line = open_line(&serve([("other", Vec::new())]));
    assert!(line.contains("checksums.txt"), "{line}");
    let two = format!("{name} mainnet-{EPOCH:05}-00000000.era1");
    let line = open_line(&serve([("", two.into_bytes())]));
    assert!(line.contains("two files of one epoch") && line.contains(&name), "{line}");
    let server = serve([("", name.clone().into_bytes()), (name.as_str(), bytes)]);
    fails(DownloadFolder::new().fetch(&server, 3), &["no file of epoch 3", "10000 to 10000"]);
    let missing = DownloadFolder::new().path().join("missing");
    let mirror = open(&server, http()).unwrap();
    fails(mirror.download(EPOCH, &missing, None, &mut |_| {}), &["missing", "cannot open"]);
    let unreachable = EraMirror::open(
        EraFormat::Era1,
        parse_chain("mainnet").unwrap(),
        Some("http://127.0.0.1:9/era1/"),
        http(),
    );
    let line = unreachable.unwrap_err().to_string();
    assert!(line.contains("http://127.0.0.1:9/era1/") && line.contains("cannot connect"), "{line}");
    for format in [EraFormat::Era1, EraFormat::Ere] {
        let holesky = parse_chain("holesky").unwrap();
        let none = EraMirror::open(format, holesky, None, http()).unwrap_err().to_string();
        assert!(none.contains(&format!("mirror of {format} files")), "{none}");
        assert!(none.contains("holesky"), "{none}");
    }
}

#[test]
fn real_files_are_linked_and_begin_with_genesis() {
    let Some(mainnet) = mainnet_data() else { return };
    let names = ["mainnet-00000-5ec1ffb8.era1", "mainnet-00001-a5364e9a.era1"];
    let [first, second] = names.map(|n| std::fs::read(mainnet.join("chain").join(n)).unwrap());
    let list = names.join("\n").into_bytes();
    let files = [("", list), (names[0], first.clone()), (names[1], second)];
    let server = serve(files.clone());
    let folder = DownloadFolder::new();
    let mirror = open(&server, http()).unwrap();
    let zero = mirror.download(0, folder.path(), None, &mut |_| {}).unwrap();
    let last = zero.summary.last_hash;
    let one = mirror.download(1, folder.path(), Some(last), &mut |_| {}).unwrap();
    assert_eq!((zero.summary.block_count, one.summary.first_block), (8192, 8192));
    let unlinked = mirror.download(1, folder.path(), Some(B256::ZERO), &mut |_| {});
    fails(unlinked, &[names[1], "of another chain"]);
    // The same bytes under another chain's name.
    let sepolia = [("", names[0].replace("mainnet", "sepolia")), ("x", String::new())];
    let renamed = names[0].replace("mainnet", "sepolia");
    let files = sepolia.map(|(name, text)| (name.to_owned(), text.into_bytes()));
    let server = serve(files.into_iter().chain([(renamed, first)]));
    let spec = parse_chain("sepolia").unwrap();
    let mirror = EraMirror::open(EraFormat::Era1, spec, Some(&server.url()), http()).unwrap();
    let outcome = mirror.download(0, DownloadFolder::new().path(), None, &mut |_| {});
    fails(outcome, &["not the genesis of sepolia"]);
}

#[test]
fn ere_files_are_fetched_by_name_and_profile() {
    let blocks = chain(EPOCH * 8192, 40, EPOCH * 8192 + 20);
    let digest = hex::encode(&blocks[39].header.hash_slow()[..4]);
    let name = format!("mainnet-{EPOCH:05}-{digest}");
    let draft = EreDraft::of(&blocks);
    let whole = draft.bytes();
    let bare = draft.without(EreDraft::RECEIPTS).without(EreDraft::PROOFS).bytes();
    let bare_name = format!("{name}-noproofs-noreceipts.ere");
    let whole_name = format!("{name}.ere");
    let open = |server: &HttpServer| {
        let spec = parse_chain("mainnet").unwrap();
        EraMirror::open(EraFormat::Ere, spec, Some(&server.url()), http()).unwrap()
    };
    let fetch = |server: &HttpServer, folder: &DownloadFolder| {
        open(server).download(EPOCH, folder.path(), None, &mut |_| {})
    };
    let list = format!("{bare_name} {whole_name}").into_bytes();
    let files = [("", list), (&*whole_name, whole.clone()), (&*bare_name, bare.clone())];
    let folder = DownloadFolder::new();
    let file = fetch(&serve(files), &folder).unwrap();
    assert_eq!(folder.names(), [PathBuf::from(&whole_name)]);
    assert!(file.summary.has_receipts && file.summary.has_proofs && !file.has_checksum);
    // Names that promise what is not there, and the hash of another block.
    for (listed, content, what) in [
        (&*whole_name, &bare, "no receipts"),
        (&*format!("{name}-noreceipts.ere"), &bare, "no proofs"),
        (&*format!("mainnet-{EPOCH:05}-00000000.ere"), &whole, "last block's hash begins with"),
    ] {
        let files = [("", listed.as_bytes().to_vec()), (listed, content.clone())];
        let folder = DownloadFolder::new();
        fails(fetch(&serve(files), &folder), &[listed, what, "nothing was kept"]);
        assert!(folder.names().is_empty());
    }
    // A file that leaves out what its name says.
    let files = [("", bare_name.as_bytes().to_vec()), (&*bare_name, bare)];
    let file = fetch(&serve(files), &DownloadFolder::new()).unwrap();
    assert!(!file.summary.has_receipts && !file.summary.has_proofs);
    // Damage.
    let mut damaged = whole;
    damaged[500] ^= 1;
    let files = [("", whole_name.as_bytes().to_vec()), (&*whole_name, damaged)];
    fails(fetch(&serve(files), &DownloadFolder::new()), &["damaged, nothing was kept"]);
}
