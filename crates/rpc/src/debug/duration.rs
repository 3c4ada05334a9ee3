//! Durations in Go's notation: `5s`, `1m30s`, `100ms`.

use crate::{RpcError, RpcResult};
use std::time::Duration;

/// Parses a duration.
///
/// # Errors
/// [`RpcError::Rejected`] if the text is no duration.
pub(super) fn parse(text: &str) -> RpcResult<Duration> {
    let invalid = || RpcError::Rejected(format!("invalid duration {text:?}"));
    let mut total = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(invalid()),
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| invalid())?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = after;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        assert_eq!(parse("5s").unwrap(), Duration::from_secs(5));
        assert_eq!(parse("1m30s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse("100ms").unwrap(), Duration::from_millis(100));
        assert_eq!(parse("1.5h").unwrap(), Duration::from_secs(5400));
        for wrong in ["", "5", "s", "5x", "-1s", "1..2s", "1e400s", "99999999999999999999h"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
