//! A server with enough of S3 (and of GCS's XML) for reading, paged listing and writing. It
//! misbehaves as the test wants.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use alloy_primitives::hex;
use retrie_sources::{
    BlockingClient, HttpOptions, SourceLocation, StoreEnvironment, StoreRegistry,
    testkit::{HttpServer, RecordedRequest, ScriptedReply},
};
use sha2::{Digest, Sha256};

/// Keys per page of a listing.
const PAGE: usize = 2;
pub(super) const BUCKET: &str = "real-blocks";
pub(super) const KEY: &str = "AKIDTEST";

/// The content of the bucket, and how the server fails.
#[derive(Default)]
pub(super) struct MockBucket {
    pub(super) objects: BTreeMap<String, Vec<u8>>,
    /// Lengths in listings that differ from the real ones.
    pub(super) listed: BTreeMap<String, usize>,
    /// Answers by key, and how many times each is given.
    pub(super) faults: BTreeMap<String, (BucketFault, usize)>,
    /// Whether the server ignores ranges and conditions.
    pub(super) plain: bool,
    /// Content that is written just before a conditional write.
    pub(super) intruder: Option<(String, Vec<u8>)>,
}

#[derive(Clone, Copy)]
pub(super) enum BucketFault {
    /// The connection breaks at this byte of the object, or at once if the read starts behind it.
    CutAt(usize),
    /// An answer with this status and code.
    Status(u16, &'static str),
}

/// A running server.
pub(super) struct MockS3Server {
    pub(super) http: HttpServer,
    bucket: Arc<Mutex<MockBucket>>,
}

impl MockS3Server {
    pub(super) fn start(objects: impl IntoIterator<Item = (impl ToString, Vec<u8>)>) -> Self {
        let objects = objects.into_iter().map(|(key, bytes)| (key.to_string(), bytes)).collect();
        let bucket = Arc::new(Mutex::new(MockBucket { objects, ..MockBucket::default() }));
        let shared = bucket.clone();
        let http = HttpServer::start(move |request| answer(&mut shared.lock().unwrap(), request));
        Self { http: http.unwrap(), bucket }
    }

    pub(super) fn bucket(&self) -> MutexGuard<'_, MockBucket> {
        self.bucket.lock().unwrap()
    }

    pub(super) fn fail(&self, key: &str, fault: BucketFault, times: usize) {
        self.bucket().faults.insert(key.to_owned(), (fault, times));
    }

    /// With credentials for S3, none for GCS, and this server as the endpoint of both.
    pub(super) fn stores(&self) -> StoreRegistry {
        let url = self.http.url();
        let keys = [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", "secret")];
        let ends = [("AWS_ENDPOINT_URL", &*url), ("STORAGE_EMULATOR_HOST", &*url)];
        stores(keys.into_iter().chain(ends))
    }

    pub(super) fn s3(&self, key: &str) -> SourceLocation {
        self.stores().locate(format!("s3://{BUCKET}/{key}")).unwrap()
    }

    pub(super) fn gs(&self, key: &str) -> SourceLocation {
        self.stores().locate(format!("gs://{BUCKET}/{key}")).unwrap()
    }

    pub(super) fn web(&self, key: &str) -> SourceLocation {
        self.stores().locate(format!("{}/{BUCKET}/{key}", self.http.url())).unwrap()
    }

    /// Requests for an object.
    pub(super) fn requests(&self, key: &str) -> Vec<RecordedRequest> {
        let path = format!("/{BUCKET}/{key}");
        self.http.requests().into_iter().filter(|request| request.path == path).collect()
    }
}

pub(super) fn stores<'a>(vars: impl IntoIterator<Item = (&'a str, &'a str)>) -> StoreRegistry {
    let options = HttpOptions {
        timeout: Duration::from_secs(10),
        retries: 2,
        backoff: Duration::from_millis(1),
        ..HttpOptions::default()
    };
    StoreRegistry::new(
        vars.into_iter().collect::<StoreEnvironment>(),
        BlockingClient::new(options, Arc::default()),
    )
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// `SHA256SUMS` of objects by name.
pub(super) fn sums<'a>(objects: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    objects
        .into_iter()
        .fold(String::new(), |mut text, (name, bytes)| {
            writeln!(text, "{}  {name}", sha256(bytes)).unwrap();
            text
        })
        .into_bytes()
}

fn tag(bytes: &[u8]) -> String {
    format!("\"{}\"", &sha256(bytes)[..32])
}

fn error(status: u16, code: &str) -> ScriptedReply {
    let page = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    ScriptedReply::new(status, page).with("x-amz-bucket-region", "eu-west-1")
}

fn answer(bucket: &mut MockBucket, request: &RecordedRequest) -> ScriptedReply {
    let signature = request.headers.get("authorization");
    if signature.is_some_and(|signature| !signature.contains(&format!("Credential={KEY}/"))) {
        return error(403, "InvalidAccessKeyId");
    }
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let path = decoded(path);
    let Some(key) = path.strip_prefix(&format!("/{BUCKET}")) else {
        return error(404, "NoSuchBucket");
    };
    let key = key.trim_start_matches('/').to_owned();
    if key.is_empty() && query.contains("list-type=2") {
        return list(bucket, query);
    }
    match request.method.as_str() {
        "PUT" => put(bucket, request, key),
        _ => get(bucket, request, &key),
    }
}

/// Removes percent-encoding, which GCS's client uses a lot.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let byte = u8::from_str_radix(&part[..2], 16).unwrap();
        format!("{text}{}{}", char::from(byte), &part[2..])
    })
}

fn get(bucket: &mut MockBucket, request: &RecordedRequest, key: &str) -> ScriptedReply {
    let fault = bucket.faults.get_mut(key).filter(|(_, times)| *times > 0).map(|(fault, times)| {
        *times -= 1;
        *fault
    });
    if let Some(BucketFault::Status(status, code)) = fault {
        return error(status, code);
    }
    let Some(bytes) = bucket.objects.get(key) else { return error(404, "NoSuchKey") };
    let condition = request.headers.get("if-match");
    if !bucket.plain && condition.is_some_and(|condition| *condition != tag(bytes)) {
        return error(412, "PreconditionFailed");
    }
    let reply = match bucket.plain {
        true => ScriptedReply::new(200, bytes.as_slice()),
        false => ScriptedReply::file(request, bytes).with("etag", tag(bytes)),
    };
    let start = bytes.len() - reply.body.len();
    let reply = reply.with("last-modified", "Thu, 01 Oct 2026 10:00:00 GMT");
    match fault {
        Some(BucketFault::CutAt(at)) => reply.cut(at.saturating_sub(start)),
        _ => reply,
    }
}

fn put(bucket: &mut MockBucket, request: &RecordedRequest, key: String) -> ScriptedReply {
    let (matches, absent) = (request.headers.get("if-match"), request.headers.get("if-none-match"));
    if matches.is_some() || absent.is_some() {
        bucket.objects.extend(bucket.intruder.take());
    }
    let old = bucket.objects.get(&key).map(|bytes| tag(bytes));
    if matches.is_some_and(|wanted| Some(wanted) != old.as_ref())
        || absent.is_some() && old.is_some()
    {
        return error(412, "PreconditionFailed");
    }
    let reply = ScriptedReply::new(200, "").with("etag", tag(&request.body));
    bucket.objects.insert(key, request.body.clone());
    reply
}

/// ListObjectsV2.
fn list(bucket: &MockBucket, query: &str) -> ScriptedReply {
    let of = |name: &str| {
        let value = query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        decoded(value.unwrap_or_default())
    };
    let (prefix, after) = (of("prefix"), of("continuation-token"));
    let below = bucket.objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult>");
    let mut last = None;
    for (index, (key, bytes)) in below.enumerate() {
        if index == PAGE {
            let token: &String = last.unwrap();
            write!(xml, "<NextContinuationToken>{token}</NextContinuationToken>").unwrap();
            break;
        }
        last = Some(key);
        if let Some((folder, _)) = key[prefix.len()..].split_once('/') {
            let folder = format!("{prefix}{folder}/");
            write!(xml, "<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>").unwrap();
            continue;
        }
        let size = bucket.listed.get(key).copied().unwrap_or(bytes.len());
        let tag = tag(bytes);
        write!(
            xml,
            "<Contents><Key>{key}</Key><LastModified>2026-10-01T10:00:00.000Z</LastModified>\
             <ETag>{tag}</ETag><Size>{size}</Size></Contents>"
        )
        .unwrap();
    }
    xml.push_str("</ListBucketResult>");
    ScriptedReply::new(200, xml).with("content-type", "application/xml")
}
