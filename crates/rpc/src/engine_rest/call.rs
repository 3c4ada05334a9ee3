//! Which call a request makes: from its method, its path, its query, and its header for the fork.

use super::problem::RestProblem;
use alloy_primitives::B64;
use alloy_rpc_types_engine::PayloadId;
use http::{HeaderMap, Method, Uri};
use retrie_engine::ApiFork;

/// All paths of the API begin so.
const BASE: &str = "/engine/v1/";
/// The header that names the fork.
pub(crate) const FORK_HEADER: &str = "eth-execution-version";
/// Forks by their names in that header. A fork of blob parameters alone has its base's.
pub(crate) const FORK_NAMES: [(&str, ApiFork); 6] = [
    ("paris", ApiFork::Paris),
    ("shanghai", ApiFork::Shanghai),
    ("cancun", ApiFork::Cancun),
    ("prague", ApiFork::Prague),
    ("osaka", ApiFork::Osaka),
    ("amsterdam", ApiFork::Amsterdam),
];

/// Most bodies of one request.
pub(crate) const MAX_BODIES: usize = 32;
/// Most versioned hashes of one request.
pub(crate) const MAX_HASHES: usize = 128;
/// Most bytes of a payload's request.
pub(crate) const MAX_PAYLOAD: usize = 64 << 20;
/// More than the bytes of the longest forkchoice update.
const MAX_FORKCHOICE: usize = 4 << 10;

/// A request that is understood but for its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestCall {
    NewPayload(ApiFork),
    GetPayload(ApiFork, PayloadId),
    Forkchoice(ApiFork),
    BodiesByHash(ApiFork),
    BodiesByRange { fork: ApiFork, from: u64, count: u64 },
    Blobs(BlobRevision),
    Capabilities,
    Identity,
}

/// A version of `getBlobs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlobRevision {
    V1,
    V2,
    V3,
    V4,
}

impl RestCall {
    /// Names of all calls, for metrics.
    pub(crate) const NAMES: [&'static str; 11] = [
        "POST /engine/v1/payloads",
        "GET /engine/v1/payloads/{id}",
        "POST /engine/v1/forkchoice",
        "POST /engine/v1/bodies/hash",
        "GET /engine/v1/bodies",
        "POST /engine/v1/blobs/v1",
        "POST /engine/v1/blobs/v2",
        "POST /engine/v1/blobs/v3",
        "POST /engine/v1/blobs/v4",
        "GET /engine/v1/capabilities",
        "GET /engine/v1/identity",
    ];

    /// Whether a path is one of this API, known or not.
    pub(crate) fn is_path(path: &str) -> bool {
        path.starts_with("/engine/")
    }

    /// The call that a request makes.
    ///
    /// # Errors
    /// If there is no such endpoint, or a part of the request is missing or malformed.
    pub(crate) fn new(
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Self, RestProblem> {
        let path = uri.path().strip_prefix(BASE).ok_or_else(RestProblem::unknown_endpoint)?;
        let is = |expected: &'static str| match method.as_str() == expected {
            true => Ok(()),
            false => Err(RestProblem::wrong_method(expected)),
        };
        let revision = |revision| is("POST").map(|()| Self::Blobs(revision));
        match path {
            "payloads" => is("POST").and_then(|()| fork(headers)).map(Self::NewPayload),
            "forkchoice" => is("POST").and_then(|()| fork(headers)).map(Self::Forkchoice),
            "bodies/hash" => is("POST").and_then(|()| fork(headers)).map(Self::BodiesByHash),
            "bodies" => {
                is("GET")?;
                let query = uri.query().unwrap_or_default();
                let (from, count) = (number(query, "from")?, number(query, "count")?);
                Ok(Self::BodiesByRange { fork: fork(headers)?, from, count })
            }
            "blobs/v1" => revision(BlobRevision::V1),
            "blobs/v2" => revision(BlobRevision::V2),
            "blobs/v3" => revision(BlobRevision::V3),
            "blobs/v4" => revision(BlobRevision::V4),
            "capabilities" => is("GET").map(|()| Self::Capabilities),
            "identity" => is("GET").map(|()| Self::Identity),
            _ => {
                let id = path.strip_prefix("payloads/").filter(|id| !id.contains('/'));
                let id = id.ok_or_else(RestProblem::unknown_endpoint)?;
                is("GET")?;
                let id: B64 = id.parse().map_err(|_| {
                    RestProblem::invalid_request("a payload's id is 8 bytes in hexadecimal")
                })?;
                Ok(Self::GetPayload(fork(headers)?, PayloadId(id)))
            }
        }
    }

    /// Its name in metrics.
    pub(crate) const fn name(&self) -> &'static str {
        let [new, get, choice, by_hash, by_range, v1, v2, v3, v4, capabilities, identity] =
            Self::NAMES;
        match self {
            Self::NewPayload(_) => new,
            Self::GetPayload(..) => get,
            Self::Forkchoice(_) => choice,
            Self::BodiesByHash(_) => by_hash,
            Self::BodiesByRange { .. } => by_range,
            Self::Blobs(BlobRevision::V1) => v1,
            Self::Blobs(BlobRevision::V2) => v2,
            Self::Blobs(BlobRevision::V3) => v3,
            Self::Blobs(BlobRevision::V4) => v4,
            Self::Capabilities => capabilities,
            Self::Identity => identity,
        }
    }

    /// Most bytes of its body; `None` if it has none.
    pub(crate) const fn max_body(&self) -> Option<usize> {
        match self {
            Self::NewPayload(_) => Some(MAX_PAYLOAD),
            Self::Forkchoice(_) => Some(MAX_FORKCHOICE),
            // An offset, and the hashes.
            Self::BodiesByHash(_) => Some(4 + 32 * MAX_BODIES),
            // V4 has a bit for each cell too.
            Self::Blobs(_) => Some(4 + 16 + 32 * MAX_HASHES),
            Self::GetPayload(..)
            | Self::BodiesByRange { .. }
            | Self::Capabilities
            | Self::Identity => None,
        }
    }

    /// Whether its answer may change from one call to the next, so that no one may keep it.
    pub(crate) const fn is_never_stored(&self) -> bool {
        matches!(self, Self::GetPayload(..))
    }
}

/// The fork that the header names.
fn fork(headers: &HeaderMap) -> Result<ApiFork, RestProblem> {
    let Some(named) = headers.get(FORK_HEADER) else {
        return Err(RestProblem::unsupported_fork("the header Eth-Execution-Version is missing"));
    };
    let known = FORK_NAMES.iter().find(|(name, _)| named.as_bytes() == name.as_bytes());
    known.map(|(_, fork)| *fork).ok_or_else(|| {
        RestProblem::unsupported_fork("Eth-Execution-Version names no fork from paris to amsterdam")
    })
}

/// A decimal number of a query.
fn number(query: &str, name: &str) -> Result<u64, RestProblem> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let is_number = |value: &&str| value.bytes().all(|byte| byte.is_ascii_digit());
    value.filter(is_number).and_then(|value| value.parse().ok()).ok_or_else(|| {
        RestProblem::invalid_request(format!("the query needs {name}=N, a decimal number"))
    })
}
