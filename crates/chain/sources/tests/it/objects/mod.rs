//! Blocks and bundles in object stores and on web servers: they yield the same content as a folder,
//! and a misbehaving store causes an error that names the object.

mod server;

use std::{collections::BTreeMap, time::Instant};

use alloy_primitives::{Address, U256};
use retrie_chainspec::{parse_chain, primitives::Block};
use retrie_sources::{
    BlockFileKind, BundleFolder, BundleKind, EraFormat, EraMirror, ObjectError, PrestateBundle,
    SourceError, SourceErrorKind, SourceKind, SourceLocation, bundle::encode_prestate, detect,
    list_bundles, open, verify_era1,
};
use server::{BUCKET, BucketFault, MockS3Server, sha256, stores, sums};

use crate::common::{Era1File, chain, encode_all, gzip};

/// Blocks in the three formats, in this order.
fn block_files() -> (Vec<Block>, Vec<(String, Vec<u8>)>) {
    let blocks = chain(0, 60, u64::MAX);
    let files = [
        ("blocks/z.era1", Era1File::of(&blocks[..20], U256::ZERO)),
        ("blocks/b.rlp", encode_all(&blocks[20..40])),
        ("blocks/a.rlp.gz", gzip(&encode_all(&blocks[40..]))),
    ];
    (blocks, files.map(|(key, bytes)| (key.to_owned(), bytes)).into())
}

fn bundle_json(number: u64) -> Vec<u8> {
    let block = chain(number, 1, u64::MAX).remove(0);
    let state = PrestateBundle {
        senders: vec![Address::ZERO; block.body.transactions.len()],
        uncle_hashes: block.body.ommers.iter().map(|ommer| ommer.hash_slow()).collect(),
        block_hashes: BTreeMap::new(),
        pre: BTreeMap::new(),
        codes: BTreeMap::new(),
    };
    encode_prestate(&block, "test", &state)
}

fn read_all(source: &SourceLocation) -> Result<Vec<Block>, SourceError> {
    open(source)?.map(|block| block.map(|block| block.block)).collect()
}

/// The fault of an object. Asserts that the message is one line and names the object.
fn fault<'a>(error: &'a SourceError, key: &str) -> &'a ObjectError {
    let line = error.to_string();
    assert!(line.starts_with(&format!("s3://{BUCKET}/{key}")), "{line}");
    assert!(!line.contains('\n'), "{line}");
    match &*error.kind {
        SourceErrorKind::Object(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn stores_and_servers_give_what_a_folder_gives() {
    let (blocks, files) = block_files();
    let named = || files.iter().map(|(key, bytes)| (&key["blocks/".len()..], bytes.as_slice()));
    let server = MockS3Server::start(files.clone());
    for key in ["blocks/README.md", "blocks/.hidden.rlp", "blocks/below/x.rlp", "blocksbeside.rlp"]
    {
        server.bucket().objects.insert(key.to_owned(), b"no block".to_vec());
    }
    let folders = |slash: &str| {
        let key = format!("blocks{slash}");
        [server.s3(&key), server.gs(&key), server.web(&key)]
    };
    // Without a list, a web server's folder cannot be listed, but a store's can.
    assert_eq!(detect(&folders("/")[0]).unwrap(), SourceKind::BlockFolder);
    let error = detect(&folders("/")[2]).unwrap_err();
    assert!(matches!(*error.kind, SourceErrorKind::Object(ObjectError::NoList)), "{error}");
    server.bucket().objects.insert("blocks/SHA256SUMS".to_owned(), sums(named()));
    for folder in folders("/").into_iter().chain(folders("")) {
        assert_eq!(detect(&folder).unwrap(), SourceKind::BlockFolder, "{}", folder.display());
        let source = open(&folder).unwrap();
        let of = |file: &retrie_sources::BlockFile| (file.first_block, file.kind, file.block_count);
        let found: Vec<_> = source.files().iter().map(of).collect();
        let (era1, rlp) = (BlockFileKind::Era1, BlockFileKind::Rlp);
        assert_eq!(found, [(0, era1, Some(20)), (20, rlp, None), (40, rlp, None)]);
        assert_eq!(source.files()[1].bytes, files[1].1.len() as u64);
        assert_eq!(read_all(&folder).unwrap(), blocks);
    }
    // A listing of seven keys, two a page.
    let tokens = server.http.requests();
    let pages = tokens.iter().filter(|request| request.path.contains("continuation-token"));
    assert!(pages.count() > 3);
    for (place, (key, _)) in
        [MockS3Server::s3, MockS3Server::gs, MockS3Server::web].into_iter().zip(&files)
    {
        let file = place(&server, key);
        let known = files.iter().position(|(other, _)| other == key).unwrap() * 20;
        assert_eq!(read_all(&file).unwrap(), blocks[known..known + 20], "{key}");
    }
    assert_eq!(verify_era1(server.s3("blocks/z.era1")).unwrap().block_count, 20);
}

#[test]
fn bundles_are_listed_and_loaded_by_number() {
    let json: Vec<_> = [7, 12, 30].map(bundle_json).into();
    let server = MockS3Server::start([
        ("b/12.json.gz", gzip(&json[1])),
        ("b/7.json", json[0].clone()),
        ("b/named.json.gz", gzip(&json[2])),
        ("b/notes.txt", b"x".to_vec()),
    ]);
    for folder in [server.s3("b"), server.gs("b/")] {
        assert_eq!(detect(&folder).unwrap(), SourceKind::BundleFolder);
        let bundles = list_bundles(&folder).unwrap();
        assert_eq!(bundles.iter().map(|bundle| bundle.number).collect::<Vec<_>>(), [7, 12, 30]);
        for bundle in &bundles {
            let loaded = bundle.load().unwrap();
            assert_eq!(loaded.number, bundle.number);
            assert_eq!(loaded.file, bundle.path.name());
            assert!(matches!(loaded.kind, BundleKind::Prestate(_)));
        }
    }
    let one = list_bundles(server.web("b/7.json")).unwrap();
    assert_eq!(one[0].load().unwrap().number, 7);
    // Objects in the list must exist.
    let list = sums([("12.json.gz", &gzip(&json[1])[..]), ("99.json.gz", b"lost")]);
    server.bucket().objects.insert("b/SHA256SUMS".to_owned(), list);
    let bundles = list_bundles(server.s3("b/")).unwrap();
    let lost = bundles.iter().find(|bundle| bundle.number == 99).unwrap().load().unwrap_err();
    assert!(matches!(fault(&lost, "b/99.json.gz"), ObjectError::NotFound), "{lost}");
}

#[test]
fn cut_connections_are_resumed_where_they_broke() {
    let (blocks, files) = block_files();
    let server = MockS3Server::start(files.clone());
    for ((key, bytes), from) in files.iter().zip([0, 20, 40]) {
        // More breaks in all than retries in a row: there is progress between them.
        for cut in [1, bytes.len() / 3, bytes.len() - 1] {
            server.fail(key, BucketFault::CutAt(cut), 1);
            assert_eq!(read_all(&server.s3(key)).unwrap(), blocks[from..from + 20], "{key} {cut}");
        }
    }
    let asked = server.requests("blocks/b.rlp");
    let resumed = asked.iter().find(|request| request.headers.contains_key("range")).unwrap();
    assert!(resumed.headers["range"].starts_with("bytes="), "{resumed:?}");
    assert!(resumed.headers["if-match"].starts_with('"'), "{resumed:?}");
    // Server errors are retried, too.
    server.fail("blocks/b.rlp", BucketFault::Status(503, "SlowDown"), 2);
    assert_eq!(read_all(&server.s3("blocks/b.rlp")).unwrap(), blocks[20..40]);
}

#[test]
fn connections_that_are_always_cut_end_with_the_object_and_the_byte() {
    let json = bundle_json(7);
    let server = MockS3Server::start([("7.json", json)]);
    server.fail("7.json", BucketFault::CutAt(500), usize::MAX);
    let error = list_bundles(server.s3("7.json")).unwrap_err();
    let ObjectError::Broken { offset, .. } = fault(&error, "7.json") else { panic!("{error}") };
    assert_eq!(*offset, 500);
    assert!(error.to_string().contains("at byte 500 of the object"), "{error}");
    assert!(error.to_string().contains("3 times in a row"), "{error}");
    assert_eq!(server.requests("7.json").len(), 3);
}

#[test]
fn an_object_that_is_replaced_while_it_is_read_is_noticed() {
    let (_, files) = block_files();
    let (key, bytes) = &files[1];
    let server = MockS3Server::start(files.clone());
    let mut source = open(server.s3(key)).unwrap();
    server.fail(key, BucketFault::CutAt(bytes.len() - 20), 1);
    assert!(source.next().unwrap().is_ok());
    server.bucket().objects.insert(key.clone(), vec![0xc0; bytes.len()]);
    let error = source.find_map(Result::err).unwrap();
    let ObjectError::Replaced { offset } = fault(&error, key) else { panic!("{error}") };
    assert_eq!(*offset, bytes.len() as u64 - 20);
}

#[test]
fn objects_shorter_than_their_listing_are_truncated() {
    let json = gzip(&bundle_json(7));
    let len = json.len();
    let server = MockS3Server::start([("b/7.json.gz", json)]);
    server.bucket().listed.insert("b/7.json.gz".to_owned(), len + 10);
    let bundles = list_bundles(server.s3("b/")).unwrap();
    let error = bundles[0].load().unwrap_err();
    let ObjectError::Truncated { expected, got } = fault(&error, "b/7.json.gz") else {
        panic!("{error}")
    };
    assert_eq!((*expected, *got), (len as u64 + 10, len as u64));
    // Retried, as listings may be stale.
    assert_eq!(server.requests("b/7.json.gz").len(), 3);
}

#[test]
fn wrong_checksums_name_the_object() {
    let (_, files) = block_files();
    let bundle = gzip(&bundle_json(7));
    let server = MockS3Server::start(files.clone());
    server.bucket().objects.insert("blocks/7.json.gz".to_owned(), bundle.clone());
    let listed = files.iter().map(|(key, bytes)| (&key["blocks/".len()..], bytes.as_slice()));
    let list = sums(listed.chain([("7.json.gz", bundle.as_slice())]));
    server.bucket().objects.insert("blocks/SHA256SUMS".to_owned(), list);
    let names = files.iter().map(|(key, _)| key.as_str()).chain(["blocks/7.json.gz"]);
    for key in names {
        let sound = server.bucket().objects[key].clone();
        let mut other = sound.clone();
        // In the middle, where decoders fail before the sum is known.
        other[sound.len() / 2] ^= 0x40;
        server.bucket().objects.insert(key.to_owned(), other.clone());
        let place = server.s3(key);
        let error = match key.ends_with("json.gz") {
            true => list_bundles(&place).map(|_| ()).unwrap_err(),
            false => read_all(&place).map(|_| ()).unwrap_err(),
        };
        let ObjectError::Checksum { expected, got } = fault(&error, key) else { panic!("{error}") };
        assert_eq!(format!("{expected:x}"), sha256(&sound));
        assert_eq!(format!("{got:x}"), sha256(&other));
        server.bucket().objects.insert(key.to_owned(), sound);
    }
    // A malformed list does not switch the checks off.
    server.bucket().objects.insert("blocks/SHA256SUMS".to_owned(), b"<html>".to_vec());
    let error = read_all(&server.s3("blocks/b.rlp")).unwrap_err();
    assert!(error.to_string().contains("line 1 is not"), "{error}");
}

#[test]
fn refusals_say_what_is_wrong_with_the_object() {
    let (_, files) = block_files();
    let server = MockS3Server::start(files);
    let key = "blocks/b.rlp";
    let fails = |place: &SourceLocation| read_all(place).unwrap_err();
    server.fail(key, BucketFault::Status(403, "AccessDenied"), usize::MAX);
    let error = fails(&server.s3(key));
    let ObjectError::Denied { status: 403, code } = fault(&error, key) else { panic!("{error}") };
    assert_eq!(code.as_deref(), Some("AccessDenied"));
    assert_eq!(server.requests(key).len(), 1, "asked again");
    server.fail(key, BucketFault::Status(301, "PermanentRedirect"), 1);
    let error = fails(&server.s3(key));
    let ObjectError::Region { region } = fault(&error, key) else { panic!("{error}") };
    assert_eq!(region.as_deref(), Some("eu-west-1"));
    let error = fails(&server.s3("blocks/none.rlp"));
    assert!(matches!(fault(&error, "blocks/none.rlp"), ObjectError::NotFound), "{error}");
    let error = fails(&server.s3("blocks/none/"));
    assert!(matches!(*error.kind, SourceErrorKind::NoBlocks), "{error}");
    let none = server.stores().locate("s3://no-bucket/x/").unwrap();
    let error = fails(&none);
    assert!(matches!(*error.kind, SourceErrorKind::Object(ObjectError::NoBucket)), "{error}");
    let url = server.http.url();
    let wrong = stores([
        ("AWS_ACCESS_KEY_ID", "AKIDOTHER"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_ENDPOINT_URL", &url),
    ]);
    let error = fails(&wrong.locate(format!("s3://{BUCKET}/{key}")).unwrap());
    let ObjectError::Denied { code, .. } = fault(&error, key) else { panic!("{error}") };
    assert_eq!(code.as_deref(), Some("InvalidAccessKeyId"));
}

#[test]
fn without_credentials_the_variables_are_named_at_once() {
    let (blocks, files) = block_files();
    let server = MockS3Server::start(files);
    let (url, key) = (server.http.url(), "blocks/b.rlp");
    let place = format!("s3://{BUCKET}/{key}");
    let start = Instant::now();
    for (name, value) in [
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_ACCESS_KEY_ID", "half"),
        ("AWS_PROFILE", "none"),
        // The machine's credential service, which this server is not.
        ("AWS_METADATA_ENDPOINT", &url),
    ] {
        let stores = stores([("AWS_ENDPOINT_URL", &*url), (name, value)]);
        let error = match stores.locate(&place) {
            Ok(place) => read_all(&place).unwrap_err(),
            Err(error) => error,
        };
        let missing = fault(&error, key);
        assert!(matches!(missing, ObjectError::NoCredentials { .. }), "{error}");
        assert!(error.to_string().contains("set AWS_ACCESS_KEY_ID and"), "{error}");
    }
    assert!(start.elapsed().as_secs() < 10);
    assert!(server.requests(key).is_empty());
    let public = stores([("AWS_ENDPOINT_URL", &*url), ("AWS_SKIP_SIGNATURE", "true")]);
    assert_eq!(read_all(&public.locate(&place).unwrap()).unwrap(), blocks[20..40]);
    assert!(server.requests(key).iter().all(|asked| !asked.headers.contains_key("authorization")));
}

#[test]
fn web_servers_that_know_no_ranges_serve_files_that_are_read_from_their_end() {
    let (blocks, files) = block_files();
    let server = MockS3Server::start(files);
    server.bucket().plain = true;
    assert_eq!(read_all(&server.web("blocks/z.era1")).unwrap(), blocks[..20]);
    server.fail("blocks/b.rlp", BucketFault::CutAt(300), 1);
    assert_eq!(read_all(&server.web("blocks/b.rlp")).unwrap(), blocks[20..40]);
}

#[test]
fn bundles_are_written_with_their_checksums_though_others_write_too() {
    let server = MockS3Server::start([("b/5.json.gz", gzip(&bundle_json(5)))]);
    let list = |server: &MockS3Server| {
        String::from_utf8(server.bucket().objects["b/SHA256SUMS"].clone()).unwrap()
    };
    let mut folder = BundleFolder::open(server.s3("b")).unwrap();
    assert!(folder.has(5) && !folder.has(7));
    folder.write(7, &bundle_json(7)).unwrap();
    folder.add_existing(5).unwrap();
    // Another machine is faster.
    let other = b"ab".repeat(32);
    let other = [&other[..], b"  9.json.gz\n"].concat();
    server.bucket().intruder = Some(("b/SHA256SUMS".to_owned(), other));
    folder.finish().unwrap();
    let written = list(&server);
    let names: Vec<_> = written.lines().map(|line| &line[66..]).collect();
    assert_eq!(names, ["5.json.gz", "7.json.gz", "9.json.gz"]);
    let seven = sha256(&server.bucket().objects["b/7.json.gz"]);
    assert!(written.contains(&format!("{seven}  7.json.gz\n")), "{written}");
    let loaded = list_bundles(server.s3("b/7.json.gz")).unwrap()[0].load().unwrap();
    assert_eq!(loaded.number, 7);
    // If nothing is new, nothing is written.
    let mut folder = BundleFolder::open(server.s3("b/")).unwrap();
    folder.add_existing(7).unwrap();
    let before = server.http.requests().len();
    folder.finish().unwrap();
    assert_eq!(server.http.requests().len(), before);
    let error = BundleFolder::open(server.web("b/")).unwrap_err();
    assert!(matches!(*error.kind, SourceErrorKind::Object(ObjectError::ReadOnly)), "{error}");
}

#[test]
fn era1_files_are_downloaded_from_a_store() {
    let (name, bytes) = crate::download::short_file(crate::download::EPOCH);
    let key = format!("era1/{name}");
    let server = MockS3Server::start([(key.clone(), bytes.clone())]);
    let SourceLocation::Object(folder) = server.s3("era1") else { panic!() };
    let spec = || parse_chain("mainnet").unwrap();
    let mirror = || EraMirror::open_store(EraFormat::Era1, spec(), &folder).unwrap();
    let target = tempfile::tempdir().unwrap();
    let download = || mirror().download(crate::download::EPOCH, target.path(), None, &mut |_| ());
    server.fail(&key, BucketFault::CutAt(bytes.len() / 2), 1);
    let file = download().unwrap();
    assert_eq!(std::fs::read(&file.path).unwrap(), bytes);
    assert!(!file.has_checksum && !file.existed);
    std::fs::remove_file(&file.path).unwrap();
    // An earlier run was interrupted.
    std::fs::write(target.path().join(format!("{name}.part")), &bytes[..100]).unwrap();
    let list = sums([(name.as_str(), bytes.as_slice())]);
    server.bucket().objects.insert("era1/SHA256SUMS".to_owned(), list);
    assert!(download().unwrap().has_checksum);
    assert_eq!(std::fs::read(&file.path).unwrap(), bytes);
    assert_eq!(server.requests(&key).last().unwrap().headers["range"], "bytes=100-");
    std::fs::remove_file(&file.path).unwrap();
    let list = sums([(name.as_str(), &b"other"[..])]);
    server.bucket().objects.insert("era1/SHA256SUMS".to_owned(), list);
    let error = download().unwrap_err().to_string();
    assert!(error.starts_with(&format!("s3://{BUCKET}/{key} to ")), "{error}");
    assert!(error.contains("its SHA-256 is"), "{error}");
}
