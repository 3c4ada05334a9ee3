//! Tokens of consensus clients: JSON web tokens, signed with HMAC-SHA256 under a shared secret
//! (execution-apis, `engine/authentication.md`; RFC 7519, RFC 7515).

use alloy_rpc_types_engine::JwtSecret;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, header};
use serde::Deserialize;
use sha2::Sha256;
use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

/// Most seconds between the clocks of both sides.
const MAX_DRIFT: u64 = 60;

/// Why a request is not authorized; the text is sent to the client.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum TokenError {
    #[error("missing token: send the header Authorization: Bearer TOKEN")]
    Missing,
    #[error("malformed token")]
    Malformed,
    #[error("the token is not signed with HS256")]
    Algorithm,
    #[error("the token's signature is wrong: check that both sides have the same secret")]
    Signature,
    #[error("stale token: it was issued at {iat}, it is {now}; check the clocks")]
    Stale { iat: NumericDate, now: u64 },
}

#[derive(Deserialize)]
struct TokenHeader {
    alg: String,
}

#[derive(Deserialize)]
struct TokenClaims {
    iat: NumericDate,
    exp: Option<NumericDate>,
}

/// Seconds since 1970, possibly with a fraction (RFC 7519, section 2).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(super) struct NumericDate(f64);

impl fmt::Display for NumericDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A token under `secret`, issued at `issued_at` (seconds since 1970). A consensus client sends it
/// after `Authorization: Bearer `.
pub fn sign_token(secret: &JwtSecret, issued_at: u64) -> String {
    let header = BASE64.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
    let claims = BASE64.encode(format!(r#"{{"iat":{issued_at}}}"#));
    let message = format!("{header}.{claims}");
    let signature = BASE64.encode(mac(secret, &message).finalize().into_bytes());
    format!("{message}.{signature}")
}

/// Checks that the request has a token under `secret` that was issued within the last minute.
pub(super) fn check(secret: &JwtSecret, headers: &HeaderMap) -> Result<(), TokenError> {
    let header = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (scheme, token) =
        header.and_then(|header| header.split_once(' ')).ok_or(TokenError::Missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(TokenError::Missing);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    check_token(secret, token.trim(), now)
}

fn check_token(secret: &JwtSecret, token: &str, now: u64) -> Result<(), TokenError> {
    let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
    let (header, claims) = message.split_once('.').ok_or(TokenError::Malformed)?;
    let header: TokenHeader = part(header)?;
    if header.alg != "HS256" {
        return Err(TokenError::Algorithm);
    }
    let signature = BASE64.decode(signature).map_err(|_| TokenError::Malformed)?;
    mac(secret, message).verify_slice(&signature).map_err(|_| TokenError::Signature)?;
    let TokenClaims { iat, exp } = part(claims)?;
    let seconds = now as f64;
    let is_stale = (iat.0 - seconds).abs() > MAX_DRIFT as f64;
    if is_stale || exp.is_some_and(|exp| exp.0 < seconds) {
        return Err(TokenError::Stale { iat, now });
    }
    Ok(())
}

fn part<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, TokenError> {
    let json = BASE64.decode(part).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&json).map_err(|_| TokenError::Malformed)
}

fn mac(secret: &JwtSecret, message: &str) -> Hmac<Sha256> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(message.as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by Python's `hmac` under 32 bytes of 0x11.
    const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpYXQiOjE3MDAwMDAwMDB9.Hb09lNHg9IiC1UttHzXRW1voUqjM97m4oEuKWkSux5g";
    const ISSUED: u64 = 1_700_000_000;

    fn secret() -> JwtSecret {
        JwtSecret::from_hex("11".repeat(32)).unwrap()
    }

    #[test]
    fn tokens_are_those_of_other_implementations() {
        assert_eq!(sign_token(&secret(), ISSUED), TOKEN);
        assert_eq!(check_token(&secret(), TOKEN, ISSUED + 60), Ok(()));
        let stale = TokenError::Stale { iat: NumericDate(ISSUED as f64), now: ISSUED + 61 };
        assert_eq!(check_token(&secret(), TOKEN, ISSUED + 61), Err(stale));
    }

    /// Cause: times were parsed as integers only; geth accepts fractions and exponents too.
    #[test]
    fn times_may_have_fractions() {
        let check = |claims: &str, now| {
            let message =
                format!("{}.{}", BASE64.encode(r#"{"alg":"HS256"}"#), BASE64.encode(claims));
            let signature = mac(&secret(), &message).finalize().into_bytes();
            check_token(&secret(), &format!("{message}.{}", BASE64.encode(signature)), now)
        };
        for good in [
            r#"{"iat":1700000000.75}"#,
            r#"{"iat":1.7e9}"#,
            r#"{"iat":1700000000.25,"exp":1700000000.5}"#,
            r#"{"iat":1700000000,"exp":null}"#,
        ] {
            assert_eq!(check(good, ISSUED), Ok(()), "{good}");
        }
        let is_stale = |claims, now| matches!(check(claims, now), Err(TokenError::Stale { .. }));
        assert!(is_stale(r#"{"iat":1700000000.75}"#, ISSUED + 61));
        assert!(!is_stale(r#"{"iat":1700000000.75}"#, ISSUED + 60));
        assert!(is_stale(r#"{"iat":1700000000,"exp":1700000000.5}"#, ISSUED + 1));
        assert!(is_stale(r#"{"iat":-1.5}"#, ISSUED));
        assert!(is_stale(r#"{"iat":1e300}"#, ISSUED));
        for bad in [r#"{"iat":"soon"}"#, r#"{"iat":null}"#, r#"{"iat":1e999}"#, "{}"] {
            assert_eq!(check(bad, ISSUED), Err(TokenError::Malformed), "{bad}");
        }
    }

    #[test]
    fn every_changed_character_is_noticed() {
        for at in 0..TOKEN.len() - 1 {
            let mut changed = TOKEN.as_bytes().to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(check_token(&secret(), &changed, ISSUED).is_err(), "{changed}");
        }
        // A header that requests no signature.
        let none =
            format!("{}.{}.", BASE64.encode(r#"{"alg":"none"}"#), BASE64.encode(r#"{"iat":1}"#));
        assert_eq!(check_token(&secret(), &none, 1), Err(TokenError::Algorithm));
    }
}
