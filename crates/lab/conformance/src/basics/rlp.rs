//! RLP: encoding of values, and rejection of non-canonical encodings.

use crate::format::{TestVerdict, parse};
use alloy_primitives::{Bytes, U512};
use alloy_rlp::{Decodable, Encodable, Header, PayloadView};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

#[derive(Debug, Deserialize)]
struct RlpTest {
    r#in: Value,
    out: String,
}

/// An RLP item.
#[derive(Debug, PartialEq, Eq)]
enum RlpValue {
    Bytes(Bytes),
    List(Vec<Self>),
}

impl Encodable for RlpValue {
    fn encode(&self, out: &mut dyn alloy_rlp::BufMut) {
        match self {
            Self::Bytes(bytes) => bytes.encode(out),
            Self::List(items) => items.encode(out),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.length(),
            Self::List(items) => items.length(),
        }
    }
}

impl Decodable for RlpValue {
    fn decode(buf: &mut &[u8]) -> alloy_rlp::Result<Self> {
        match Header::decode_raw(buf)? {
            PayloadView::String(bytes) => Ok(Self::Bytes(Bytes::copy_from_slice(bytes))),
            PayloadView::List(items) => {
                let item = |mut rlp: &[u8]| {
                    let item = Self::decode(&mut rlp)?;
                    if rlp.is_empty() { Ok(item) } else { Err(alloy_rlp::Error::UnexpectedLength) }
                };
                items.into_iter().map(item).collect::<Result<_, _>>().map(Self::List)
            }
        }
    }
}

/// Strings are bytes; strings with `#` are decimal numbers.
fn item(value: &Value) -> Result<RlpValue, String> {
    let number = |n: U512| RlpValue::Bytes(n.to_be_bytes_trimmed_vec().into());
    Ok(match value {
        Value::String(text) => match text.strip_prefix('#') {
            Some(digits) => number(digits.parse().map_err(|_| format!("{text} is no number"))?),
            None => RlpValue::Bytes(Bytes::copy_from_slice(text.as_bytes())),
        },
        Value::Number(n) => number(U512::from(n.as_u64().ok_or_else(|| format!("{n} is odd"))?)),
        Value::Array(items) => RlpValue::List(items.iter().map(item).collect::<Result<_, _>>()?),
        _ => return Err(format!("{value} has no RLP")),
    })
}

pub(super) fn run(json: &RawValue) -> TestVerdict {
    let test: RlpTest = parse(json)?;
    let rlp: Bytes = test.out.parse().map_err(|error| format!("out: {error}"))?;
    let decoded: Result<RlpValue, _> = alloy_rlp::decode_exact(&rlp);
    match (&test.r#in, decoded) {
        (Value::String(word), Err(_)) if word == "INVALID" => Ok(()),
        (Value::String(word), Ok(item)) if word == "INVALID" => Err(format!("decodes to {item:?}")),
        (Value::String(word), Ok(_)) if word == "VALID" => Ok(()),
        (_, Err(error)) => Err(format!("does not decode: {error}")),
        (value, Ok(decoded)) => {
            let expected = item(value)?;
            let encoded = alloy_rlp::encode(&expected);
            if encoded != *rlp {
                return Err(format!("encodes to {}", Bytes::from(encoded)));
            }
            if decoded != expected { Err(format!("decodes to {decoded:?}")) } else { Ok(()) }
        }
    }
}
