//! The content type of an HTTP request (RFC 9110, section 8.3.1). Only the media type matters, but
//! parameters must be well-formed: a name, and a token or a quoted string.

use http::HeaderValue;

/// Media types that are accepted as JSON, as in geth.
const ACCEPTED: [&str; 3] = ["application/json", "application/json-rpc", "application/jsonrequest"];

/// Whether a request with this content type is accepted as JSON.
pub(super) fn is_json(value: Option<&HeaderValue>) -> bool {
    is_one_of(&ACCEPTED, value)
}

/// Whether a request has plain bytes.
pub(super) fn is_bytes(value: Option<&HeaderValue>) -> bool {
    is_one_of(&["application/octet-stream"], value)
}

fn is_one_of(media_types: &[&str], value: Option<&HeaderValue>) -> bool {
    let Some(text) = value.and_then(|value| value.to_str().ok()) else { return false };
    let (kind, parameters) = match text.find(';') {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let kind = kind.trim_matches(BLANK);
    media_types.iter().any(|accepted| kind.eq_ignore_ascii_case(accepted))
        && are_parameters(parameters)
}

const BLANK: [char; 2] = [' ', '\t'];

/// Whether this is a list of parameters, each after a semicolon; a trailing semicolon is allowed.
fn are_parameters(mut rest: &str) -> bool {
    loop {
        rest = rest.trim_start_matches(BLANK);
        if rest.is_empty() {
            return true;
        }
        let Some(next) = rest.strip_prefix(';') else { return false };
        let next = next.trim_start_matches(BLANK);
        if next.is_empty() {
            return true;
        }
        match parameter(next) {
            Some(after) => rest = after,
            None => return false,
        }
    }
}

/// The rest after a leading parameter.
fn parameter(text: &str) -> Option<&str> {
    let value = token(text)?.strip_prefix('=')?;
    match value.strip_prefix('"') {
        Some(quoted) => quoted_string(quoted),
        None => token(value),
    }
}

/// The rest after a leading token.
fn token(text: &str) -> Option<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let rest = text.trim_start_matches(is_part);
    (rest.len() < text.len()).then_some(rest)
}

/// The rest after a quoted string whose opening quote was read.
fn quoted_string(text: &str) -> Option<&str> {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return text.get(at + 1..),
            '\\' => drop(chars.next()?),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepted and rejected by geth 1.17.8, i.e. by Go's `mime.ParseMediaType`.
    #[test]
    fn content_types_are_those_that_geth_takes() {
        let taken = |text: &str| is_json(Some(&HeaderValue::from_str(text).unwrap()));
        for good in [
            "application/json",
            "Application/JSON",
            "application/json-rpc",
            "application/jsonrequest",
            "application/json;charset=utf-8",
            "application/json; charset=utf-8",
            "application/json; charset=\"utf-8\"",
            "application/json ; charset=\"ut\\\"f;8\" ; q=1",
            "application/json;",
            "application/json; ",
            "application/json; charset=latin1;",
        ] {
            assert!(taken(good), "{good}");
        }
        for bad in [
            "",
            "text/plain",
            "application/jsonp",
            "application/json charset=utf-8",
            "application/json; charset",
            "application/json; charset=",
            "application/json; =utf-8",
            "application/json; charset=\"utf-8",
            "application/json;; charset=utf-8",
            "application/json, text/plain",
            "text/plain; application/json",
        ] {
            assert!(!taken(bad), "{bad}");
        }
        assert!(!is_json(None));
    }
}
