//! The answer to a query: data and errors in JSON, and the status of HTTP.
//!
//! Errors have the form of Besu, which the public cases expect: `Exception while fetching data
//! (/PATH) : TEXT`, and in `extensions` a `classification`, a code and a text. `Invalid params` is
//! the text of every wrong argument; ours adds the `reason`.

use super::document::DocumentError;
use crate::RpcError;
use async_graphql::{Name, PathSegment, Pos, Response, ServerError, Value};
use http::StatusCode;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// Most errors of an answer.
const MAX_ERRORS: usize = 100;
/// The text of a wrong argument.
const INVALID_PARAMS: &str = "Invalid params";

/// An answer, as it is sent.
#[derive(Debug)]
pub(crate) struct GraphqlAnswer {
    /// 200; 400 if there is an error.
    pub(crate) status: StatusCode,
    /// Data, errors, or both.
    pub(crate) json: Box<RawValue>,
}

#[derive(Serialize)]
struct AnswerBody<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<AnswerError>,
    /// `None` if nothing was executed.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Value>,
}

#[derive(Serialize)]
struct AnswerError {
    message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    locations: Vec<Pos>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    path: Vec<PathSegment>,
    extensions: ErrorDetails,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorDetails {
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    classification: &'static str,
    /// What is wrong with an argument.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl GraphqlAnswer {
    /// The answer to an executed query.
    pub(super) fn of(response: Response) -> Self {
        let Response { mut data, errors, .. } = response;
        // The library refuses a query before it executes it, and such errors have no path.
        let is_executed = errors.iter().all(|error| !error.path.is_empty());
        for error in &errors {
            fill_missing(&mut data, &error.path);
        }
        let errors = errors.into_iter().take(MAX_ERRORS).map(AnswerError::new).collect();
        Self::with(errors, is_executed.then_some(&data))
    }

    /// The answer to a query that is not executed.
    pub(super) fn refused(error: DocumentError) -> Self {
        let (classification, message, locations) = match error {
            DocumentError::Syntax { message, locations } => ("InvalidSyntax", message, locations),
            DocumentError::Limit(message) => ("ExecutionAborted", message, Vec::new()),
        };
        Self::error(classification, message, locations)
    }

    /// The answer to a query that is no longer executed.
    pub(super) fn aborted(message: &str) -> Self {
        Self::error("ExecutionAborted", message.into(), Vec::new())
    }

    fn error(classification: &'static str, message: String, locations: Vec<Pos>) -> Self {
        let extensions = ErrorDetails { classification, ..ErrorDetails::default() };
        Self::with(vec![AnswerError { message, locations, path: Vec::new(), extensions }], None)
    }

    fn with(errors: Vec<AnswerError>, data: Option<&Value>) -> Self {
        let status = if errors.is_empty() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
        match to_raw_value(&AnswerBody { errors, data }) {
            Ok(json) => Self { status, json },
            // Fails only for values that JSON does not have, of which there are none.
            Err(_) => Self { status: StatusCode::INTERNAL_SERVER_ERROR, json: Box::default() },
        }
    }
}

impl AnswerError {
    fn new(error: ServerError) -> Self {
        let source = error.source::<RpcError>();
        let (error_code, text, reason) = match source {
            None | Some(RpcError::InvalidParams(_)) => {
                (RpcError::INVALID_PARAMS, INVALID_PARAMS.to_owned(), Some(error.message.clone()))
            }
            Some(known) => (known.code(), known.client_message(), None),
        };
        let ServerError { message, locations, path, .. } = error;
        if path.is_empty() {
            let extensions =
                ErrorDetails { classification: "ValidationError", ..ErrorDetails::default() };
            return Self { message, locations, path, extensions };
        }
        let extensions = ErrorDetails {
            error_code: Some(error_code),
            error_message: Some(text.clone()),
            classification: "DataFetchingException",
            reason,
        };
        let message = format!("Exception while fetching data ({}) : {text}", shown_path(&path));
        Self { message, locations, path, extensions }
    }
}

/// A path as Besu shows it: `/blocks[3]/account`.
fn shown_path(path: &[PathSegment]) -> String {
    path.iter().fold(String::new(), |shown, segment| match segment {
        PathSegment::Field(name) => format!("{shown}/{name}"),
        PathSegment::Index(index) => format!("{shown}[{index}]"),
    })
}

/// Puts a null where the library left out a field that failed. If all fields of an object failed,
/// the object is null already.
fn fill_missing(data: &mut Value, path: &[PathSegment]) {
    let Some((first, rest)) = path.split_first() else { return };
    match (data, first) {
        (Value::Object(fields), PathSegment::Field(name)) => match fields.get_mut(name.as_str()) {
            Some(inner) => fill_missing(inner, rest),
            None => drop(fields.insert(Name::new(name), Value::Null)),
        },
        (Value::List(items), PathSegment::Index(index)) => {
            if let Some(inner) = items.get_mut(*index) {
                fill_missing(inner, rest);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn path(path: &[&str]) -> Vec<PathSegment> {
        let segment = |text: &&str| match text.parse() {
            Ok(index) => PathSegment::Index(index),
            Err(_) => PathSegment::Field((*text).into()),
        };
        path.iter().map(segment).collect()
    }

    #[test]
    fn a_failed_field_is_null() {
        let mut data =
            Value::from_json(json!({ "a": [{ "b": 1 }, { "c": 2 }], "n": null })).unwrap();
        for failed in [&["a", "1", "b"][..], &["x"], &["n", "deep"], &["a", "7", "b"]] {
            fill_missing(&mut data, &path(failed));
        }
        let filled = json!({ "a": [{ "b": 1 }, { "c": 2, "b": null }], "n": null, "x": null });
        assert_eq!(data.into_json().unwrap(), filled);
    }

    #[test]
    fn errors_have_the_form_of_besu() {
        let wrong = |error: RpcError| {
            let error = async_graphql::Error::new_with_source(error);
            let error = error.into_server_error(Pos { line: 1, column: 2 });
            let error = error.with_path(path(&["blocks", "3", "account"]));
            serde_json::to_value(AnswerError::new(error)).unwrap()
        };
        assert_eq!(
            wrong(RpcError::InvalidParams("from 3 is after to 2".into())),
            json!({
                "message": "Exception while fetching data (/blocks[3]/account) : Invalid params",
                "locations": [{ "line": 1, "column": 2 }],
                "path": ["blocks", 3, "account"],
                "extensions": {
                    "errorCode": -32602,
                    "errorMessage": "Invalid params",
                    "classification": "DataFetchingException",
                    "reason": "from 3 is after to 2",
                },
            })
        );
        let gone = wrong(RpcError::HeaderNotFound);
        assert_eq!(gone["extensions"]["errorMessage"], "header not found");
        assert_eq!(gone["extensions"]["errorCode"], -32000);
    }
}
