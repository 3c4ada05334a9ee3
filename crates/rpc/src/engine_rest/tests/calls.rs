//! Requests and calls, errors and their documents.

use super::super::{
    RestCall, RestProblem,
    call::{BlobRevision, FORK_NAMES},
    capabilities,
};
use alloy_primitives::b64;
use alloy_rpc_types_engine::PayloadId;
use http::{HeaderMap, HeaderValue, Method};
use retrie_engine::{ApiFork, EngineApiError};
use serde_json::{Value, json};

fn call(method: &str, uri: &str, fork: Option<&'static str>) -> Result<RestCall, RestProblem> {
    let mut headers = HeaderMap::new();
    if let Some(fork) = fork {
        headers.insert("eth-execution-version", HeaderValue::from_static(fork));
    }
    RestCall::new(&method.parse::<Method>().unwrap(), &uri.parse().unwrap(), &headers)
}

/// Status and type of the problem, and its detail.
fn problem(outcome: Result<RestCall, RestProblem>) -> (u16, String, Value) {
    let problem = outcome.unwrap_err();
    let document: Value = serde_json::from_str(&problem.to_json()).unwrap();
    let kind = document["type"].as_str().unwrap();
    let name = kind.strip_prefix("/engine-api/errors/").unwrap();
    (problem.status.as_u16(), name.into(), document["detail"].clone())
}

#[test]
fn every_endpoint_is_found_with_its_fork() {
    let id = PayloadId(b64!("0102030405060708"));
    for (name, fork) in FORK_NAMES {
        for (method, path, expected) in [
            ("POST", "payloads", RestCall::NewPayload(fork)),
            ("GET", "payloads/0x0102030405060708", RestCall::GetPayload(fork, id)),
            ("POST", "forkchoice", RestCall::Forkchoice(fork)),
            ("POST", "bodies/hash", RestCall::BodiesByHash(fork)),
            (
                "GET",
                "bodies?count=32&from=18446744073709551615",
                RestCall::BodiesByRange { fork, from: u64::MAX, count: 32 },
            ),
        ] {
            let path = format!("/engine/v1/{path}");
            assert_eq!(call(method, &path, Some(name)), Ok(expected));
            assert!(expected.name().starts_with(method));
            let (status, name, _) = problem(call(method, &path, None));
            assert_eq!((status, &*name), (400, "unsupported-fork"), "{path}");
        }
    }
    for (method, path, expected) in [
        ("POST", "blobs/v1", RestCall::Blobs(BlobRevision::V1)),
        ("POST", "blobs/v2", RestCall::Blobs(BlobRevision::V2)),
        ("POST", "blobs/v3", RestCall::Blobs(BlobRevision::V3)),
        ("POST", "blobs/v4", RestCall::Blobs(BlobRevision::V4)),
        ("GET", "capabilities", RestCall::Capabilities),
        ("GET", "identity", RestCall::Identity),
    ] {
        // These have no fork, and ignore the header.
        for fork in [None, Some("paris"), Some("tokyo")] {
            assert_eq!(call(method, &format!("/engine/v1/{path}"), fork), Ok(expected));
        }
        let named = expected.name();
        assert_eq!(named, format!("{method} /engine/v1/{path}"));
    }
}

#[test]
fn what_is_no_call_is_a_problem() {
    let fork = Some("cancun");
    for unknown in [
        "/engine/v1",
        "/engine/v1/",
        "/engine/v2/payloads",
        "/engine/v1/payloads/",
        "/engine/v1/payloads/0x01/02",
        "/engine/v1/blobs",
        "/engine/v1/blobs/v5",
        "/engine/v1/bodies/",
        "/engine/v1//payloads",
    ] {
        assert!(RestCall::is_path(unknown));
        let (status, name, _) = problem(call("POST", unknown, fork));
        let expected = match unknown {
            // An id is missing.
            "/engine/v1/payloads/" => (405, "method-not-found"),
            _ => (404, "method-not-found"),
        };
        assert_eq!((status, &*name), expected, "{unknown}");
    }
    for (method, path, allowed) in [
        ("GET", "payloads", "POST"),
        ("POST", "payloads/0x0102030405060708", "GET"),
        ("PUT", "forkchoice", "POST"),
        ("POST", "bodies", "GET"),
        ("GET", "blobs/v2", "POST"),
        ("HEAD", "capabilities", "GET"),
    ] {
        let outcome = call(method, &format!("/engine/v1/{path}"), fork);
        assert_eq!(outcome.clone().unwrap_err().allowed, Some(allowed));
        assert_eq!(problem(outcome).0, 405, "{method} {path}");
    }
    for malformed in [
        "payloads/0x01020304050607",
        "payloads/0x010203040506070809",
        "payloads/0x010203040506070g",
        "payloads/latest",
        "bodies",
        "bodies?from=1",
        "bodies?count=1",
        "bodies?from=&count=1",
        "bodies?from=-1&count=1",
        "bodies?from=+1&count=1",
        "bodies?from=0x1&count=1",
        "bodies?from=18446744073709551616&count=1",
        "bodies?xfrom=1&count=1",
    ] {
        let (status, name, _) = problem(call("GET", &format!("/engine/v1/{malformed}"), fork));
        assert_eq!((status, &*name), (400, "invalid-request"), "{malformed}");
    }
    for unknown in ["tokyo", "Cancun", "cancun, prague", "bpo1", "frontier", ""] {
        let (status, name, _) = problem(call("POST", "/engine/v1/payloads", Some(unknown)));
        assert_eq!((status, &*name), (400, "unsupported-fork"), "{unknown}");
    }
}

#[test]
fn errors_of_the_api_have_their_status() {
    let errors = [
        (EngineApiError::UnknownPayload, 404, "unknown-payload"),
        (EngineApiError::InvalidAttributes("a".into()), 422, "invalid-attributes"),
        (EngineApiError::TooLarge { len: 33, max: 32 }, 413, "request-too-large"),
        (EngineApiError::UnsupportedFork("a"), 400, "unsupported-fork"),
        (EngineApiError::InvalidParams("a".into()), 422, "invalid-body"),
        (retrie_engine::EngineError::ZeroHead.into(), 409, "invalid-forkchoice"),
        (retrie_engine::EngineError::Stopped.into(), 500, "internal"),
    ];
    for (error, status, name) in errors {
        let text = error.to_string();
        let found = problem(Err(error.into()));
        assert_eq!(found, (status, name.into(), text.into()));
    }
}

#[test]
fn a_problem_without_a_detail_has_one_member() {
    let bytes = alloy_primitives::Bytes::from_static(b"no ssz");
    let error = super::super::containers::decode_hashes(bytes).unwrap_err();
    let problem = RestProblem::from(error);
    assert_eq!(problem.to_json(), r#"{"type":"/engine-api/errors/ssz-decode-error"}"#);
}

#[test]
fn capabilities_are_those_of_the_specification() {
    let capabilities: Value = serde_json::from_str(&capabilities()).unwrap();
    let expected = json!({
        "supported_forks": ["paris", "shanghai", "cancun", "prague", "osaka", "amsterdam"],
        "fork_scoped_endpoints": ["payloads", "forkchoice", "bodies"],
        "independently_versioned": { "blobs": ["v1", "v2", "v3", "v4"] },
        "unscoped_endpoints": ["capabilities", "identity"],
        "limits": {
            "bodies.max_count": 32,
            "blobs.max_versioned_hashes": 128,
            "payload.max_bytes": 67108864,
        },
    });
    assert_eq!(capabilities, expected);
    assert_eq!(FORK_NAMES.map(|(_, fork)| fork), ApiFork::ALL);
}
