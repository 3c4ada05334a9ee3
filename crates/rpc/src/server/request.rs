//! What a message asks: a request, a notification, or nothing that is either.
//!
//! Ids are any JSON but lists and objects, and are given back as they came, as geth does: numbers with
//! fractions, beyond 64 bits or below zero are no reason to leave a client without its answer.

use jsonrpsee::types::{ErrorObject, Id, error::ErrorCode};
use serde::{Deserialize, Deserializer, Serialize, de::IgnoredAny};
use serde_json::value::{RawValue, to_raw_value};
use std::borrow::Cow;

/// Longest name of a method, in bytes: it is repeated by the error that says that there is none.
const MAX_METHOD_NAME: usize = 2048;

/// What a message is.
#[derive(Debug)]
pub(super) enum Message<'a> {
    /// A request, which gets an answer.
    Call { id: RequestId<'a>, method: Cow<'a, str>, params: Option<&'a RawValue> },
    /// A request without an id, which gets none.
    Notification,
    /// Nothing that can be answered but by this error.
    Invalid { id: RequestId<'a>, error: ErrorObject<'static> },
}

/// The fields of a request, each as it came.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
}

/// A field that is there, even if it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

impl<'a> Message<'a> {
    /// What `text` is.
    pub(super) fn new(text: &'a str) -> Self {
        let refused = |id, code: ErrorCode| Self::Invalid { id, error: code.into() };
        // A list of these fields would be taken for them too.
        let fields = match text.starts_with('{') {
            true => serde_json::from_str::<Fields<'_>>(text).ok(),
            false => None,
        };
        let Some(Fields { jsonrpc, id, method, params }) = fields else {
            let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok();
            let code = if is_json { ErrorCode::InvalidRequest } else { ErrorCode::ParseError };
            return refused(RequestId::NULL, code);
        };
        let is_ours = jsonrpc.is_some_and(|version| version.get() == "\"2.0\"");
        let method: Option<Cow<'_, str>> = method
            .and_then(|name| serde_json::from_str::<Text<'_>>(name.get()).ok())
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

/// A string that is borrowed where it can be.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The id of a request.
#[derive(Clone, Debug)]
pub(super) struct RequestId<'a> {
    /// The id as the library has it; null if it has no place for it.
    pub(super) known: Id<'a>,
    /// The id as it came, where that is another one.
    pub(super) odd: Option<&'a RawValue>,
}

impl<'a> RequestId<'a> {
    /// The id of answers to what has none.
    pub(super) const NULL: Self = Self { known: Id::Null, odd: None };

    /// The id as it came; `None` if none can be like it.
    pub(super) fn new(id: &'a RawValue) -> Option<Self> {
        match id.get().as_bytes().first() {
            Some(b'{' | b'[') => None,
            _ => Some(match serde_json::from_str(id.get()) {
                Ok(known) => Self { known, odd: None },
                Err(_) => Self { known: Id::Null, odd: Some(id) },
            }),
        }
    }

    /// Puts the id as it came into an answer that was made with the one that is known.
    pub(super) fn put_into(&self, answer: Box<RawValue>) -> Box<RawValue> {
        let Some(id) = self.odd else { return answer };
        let renamed = serde_json::from_str::<Answer<'_>>(answer.get())
            .and_then(|fields| to_raw_value(&Answer { id, ..fields }));
        renamed.unwrap_or(answer)
    }
}

/// The fields of an answer.
#[derive(Deserialize, Serialize)]
struct Answer<'a> {
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
