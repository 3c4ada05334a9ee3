//! Parses a message: a request, a notification, or neither.
//!
//! An id is any JSON value except lists and objects, and is returned unchanged, as in geth. So
//! clients may use fractions, negative numbers, and numbers beyond 64 bits.

use jsonrpsee::types::{ErrorObject, Id, error::ErrorCode};
use serde::{Deserialize, Deserializer, Serialize, de::IgnoredAny};
use serde_json::value::{RawValue, to_raw_value};
use std::borrow::Cow;

/// Longest method name in bytes: the error for an unknown method repeats it.
const MAX_METHOD_NAME: usize = 2048;

/// A parsed message.
#[derive(Debug)]
pub(super) enum IncomingMessage<'a> {
    /// A request, which gets a response.
    Call { id: RequestId<'a>, method: Cow<'a, str>, params: Option<&'a RawValue> },
    /// A request without an id, which gets no response.
    Notification,
    /// An invalid message, which gets this error.
    Invalid { id: RequestId<'a>, error: ErrorObject<'static> },
}

/// The raw fields of a request.
#[derive(Deserialize)]
struct RequestFields<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
}

/// Deserializes a field that is present, even if it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

impl<'a> IncomingMessage<'a> {
    /// Parses `text`.
    pub(super) fn new(text: &'a str) -> Self {
        let refused = |id, code: ErrorCode| Self::Invalid { id, error: code.into() };
        // serde would also accept a list of these fields.
        let fields = match text.starts_with('{') {
            true => serde_json::from_str::<RequestFields<'_>>(text).ok(),
            false => None,
        };
        let Some(RequestFields { jsonrpc, id, method, params }) = fields else {
            let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok();
            let code = if is_json { ErrorCode::InvalidRequest } else { ErrorCode::ParseError };
            return refused(RequestId::NULL, code);
        };
        let is_ours = jsonrpc.is_some_and(|version| version.get() == "\"2.0\"");
        let method: Option<Cow<'_, str>> = method
            .and_then(|name| serde_json::from_str::<BorrowedText<'_>>(name.get()).ok())
            .map(|name| name.0);
        let method = method.filter(|name| is_ours && !name.is_empty());
        match (method, id.map(RequestId::new)) {
            (Some(method), Some(Some(id))) if method.len() > MAX_METHOD_NAME => {
                let message = format!("method name too long: {} > {MAX_METHOD_NAME}", method.len());
                let code = ErrorCode::InvalidRequest.code();
                Self::Invalid { id, error: ErrorObject::owned(code, message, None::<()>) }
            }
            (Some(method), Some(Some(id))) => Self::Call { id, method, params },
            (Some(_), None) => Self::Notification,
            (_, id) => refused(id.flatten().unwrap_or(RequestId::NULL), ErrorCode::InvalidRequest),
        }
    }
}

/// A string, borrowed where possible.
#[derive(Deserialize)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

/// The id of a request.
#[derive(Clone, Debug)]
pub(super) struct RequestId<'a> {
    /// The id as jsonrpsee represents it; null if it cannot.
    pub(super) known: Id<'a>,
    /// The raw id, if jsonrpsee cannot represent it.
    pub(super) raw: Option<&'a RawValue>,
}

impl<'a> RequestId<'a> {
    /// The id of responses to messages without a valid id.
    pub(super) const NULL: Self = Self { known: Id::Null, raw: None };

    /// Parses an id; `None` for lists and objects.
    pub(super) fn new(id: &'a RawValue) -> Option<Self> {
        match id.get().as_bytes().first() {
            Some(b'{' | b'[') => None,
            _ => Some(match serde_json::from_str(id.get()) {
                Ok(known) => Self { known, raw: None },
                Err(_) => Self { known: Id::Null, raw: Some(id) },
            }),
        }
    }

    /// Puts the raw id into a response that was made with the known id.
    pub(super) fn put_into(&self, answer: Box<RawValue>) -> Box<RawValue> {
        let Some(id) = self.raw else { return answer };
        let renamed = serde_json::from_str::<ResponseFields<'_>>(answer.get())
            .and_then(|fields| to_raw_value(&ResponseFields { id, ..fields }));
        renamed.unwrap_or(answer)
    }
}

/// The raw fields of a response.
#[derive(Deserialize, Serialize)]
struct ResponseFields<'a> {
    #[serde(borrow)]
    jsonrpc: &'a RawValue,
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    result: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    error: Option<&'a RawValue>,
}
