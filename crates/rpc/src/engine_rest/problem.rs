//! Errors: an HTTP status, and a problem document of two members (RFC 7807).

use super::ssz::SszError;
use http::StatusCode;
use retrie_engine::EngineApiError;
use serde::Serialize;

/// The media type of a problem document.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RestProblem {
    pub(crate) status: StatusCode,
    /// The last part of the document's `type`.
    name: &'static str,
    detail: Option<String>,
    /// The HTTP method that the endpoint has, if it has another one.
    pub(crate) allowed: Option<&'static str>,
}

impl RestProblem {
    const fn new(status: StatusCode, name: &'static str) -> Self {
        Self { status, name, detail: None, allowed: None }
    }

    fn because(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    pub(crate) fn invalid_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid-request").because(detail)
    }

    /// The body was not there in time.
    pub(crate) fn timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid-request")
            .because("the request was not received in time")
    }

    pub(crate) fn unsupported_fork(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "unsupported-fork").because(detail)
    }

    pub(crate) fn unknown_endpoint() -> Self {
        Self::new(StatusCode::NOT_FOUND, "method-not-found")
    }

    /// The path is known, with another HTTP method.
    pub(crate) fn wrong_method(allowed: &'static str) -> Self {
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-found");
        let problem = problem.because(format!("this endpoint answers {allowed}"));
        Self { allowed: Some(allowed), ..problem }
    }

    pub(crate) fn media_type() -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type")
            .because("the content type must be application/octet-stream")
    }

    /// A body of more than `most` bytes.
    pub(crate) fn too_large(most: u32) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request-too-large")
            .because(format!("the body may have {most} bytes"))
    }

    /// An answer of more than `most` bytes.
    pub(crate) fn long_answer(bytes: usize, most: u32) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request-too-large").because(format!(
            "the answer has {bytes} bytes, more than the {most} of --rpc.max-response-size: \
             ask for less"
        ))
    }

    /// There is no room for the request or its answer now.
    pub(crate) fn busy() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "internal").because("the server is busy")
    }

    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal").because(detail)
    }

    /// The document.
    pub(crate) fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct ProblemDocument<'a> {
            r#type: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            detail: Option<&'a str>,
        }
        let document = ProblemDocument {
            r#type: format!("/engine-api/errors/{}", self.name),
            detail: self.detail.as_deref(),
        };
        serde_json::to_string(&document).unwrap_or_default()
    }
}

impl From<SszError> for RestProblem {
    fn from(error: SszError) -> Self {
        tracing::debug!(%error, "a body of the Engine API is no SSZ");
        // The specification wants no detail here.
        Self::new(StatusCode::BAD_REQUEST, "ssz-decode-error")
    }
}

impl From<EngineApiError> for RestProblem {
    fn from(error: EngineApiError) -> Self {
        let (status, name) = match error.code() {
            -38001 => (StatusCode::NOT_FOUND, "unknown-payload"),
            -38002 => (StatusCode::CONFLICT, "invalid-forkchoice"),
            -38003 => (StatusCode::UNPROCESSABLE_ENTITY, "invalid-attributes"),
            -38004 => (StatusCode::PAYLOAD_TOO_LARGE, "request-too-large"),
            -38005 => (StatusCode::BAD_REQUEST, "unsupported-fork"),
            -38006 => (StatusCode::CONFLICT, "reorg-too-deep"),
            -32602 => (StatusCode::UNPROCESSABLE_ENTITY, "invalid-body"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        Self::new(status, name).because(error.to_string())
    }
}
