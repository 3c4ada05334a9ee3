//! The scalars of the schema. All are strings in hexadecimal in answers.

use alloy_primitives::{Address, B256, Bytes, U256, hex};
use async_graphql::{InputValueError, InputValueResult, Scalar, ScalarType, Value};

/// An unsigned integer of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LongScalar(pub(super) u64);

/// An unsigned integer of 256 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BigIntScalar(pub(super) U256);

/// 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WordScalar(pub(super) B256);

/// The address of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressScalar(pub(super) Address);

/// Bytes of any number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BytesScalar(pub(super) Bytes);

/// An unsigned integer of 64 bits: a number, or a string, decimal or in hexadecimal with 0x. In
/// answers a string in hexadecimal.
#[Scalar(name = "Long")]
impl ScalarType for LongScalar {
    fn parse(value: Value) -> InputValueResult<Self> {
        match integer(&value) {
            Some(number) => match u64::try_from(number) {
                Ok(number) => Ok(Self(number)),
                Err(_) => Err(InputValueError::custom("it has more than 64 bits")),
            },
            None => Err(InputValueError::expected_type(value)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        integer(value).is_some_and(|number| u64::try_from(number).is_ok())
    }

    fn to_value(&self) -> Value {
        Value::String(format!("{:#x}", self.0))
    }
}

/// An unsigned integer of 256 bits: a number, or a string, decimal or in hexadecimal with 0x. In
/// answers a string in hexadecimal.
#[Scalar(name = "BigInt")]
impl ScalarType for BigIntScalar {
    fn parse(value: Value) -> InputValueResult<Self> {
        match integer(&value) {
            Some(number) => Ok(Self(number)),
            None => Err(InputValueError::expected_type(value)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        integer(value).is_some()
    }

    fn to_value(&self) -> Value {
        Value::String(format!("{:#x}", self.0))
    }
}

/// 32 bytes in hexadecimal with 0x.
#[Scalar(name = "Bytes32")]
impl ScalarType for WordScalar {
    fn parse(value: Value) -> InputValueResult<Self> {
        match bytes(&value).and_then(|bytes| B256::try_from(&*bytes).ok()) {
            Some(word) => Ok(Self(word)),
            None => Err(InputValueError::expected_type(value)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        bytes(value).is_some_and(|bytes| bytes.len() == B256::len_bytes())
    }

    fn to_value(&self) -> Value {
        Value::String(hex::encode_prefixed(self.0))
    }
}

/// 20 bytes in hexadecimal with 0x: the address of an account.
#[Scalar(name = "Address")]
impl ScalarType for AddressScalar {
    fn parse(value: Value) -> InputValueResult<Self> {
        match bytes(&value).and_then(|bytes| Address::try_from(&*bytes).ok()) {
            Some(address) => Ok(Self(address)),
            None => Err(InputValueError::expected_type(value)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        bytes(value).is_some_and(|bytes| bytes.len() == Address::len_bytes())
    }

    fn to_value(&self) -> Value {
        Value::String(hex::encode_prefixed(self.0))
    }
}

/// Bytes in hexadecimal with 0x, two digits each.
#[Scalar(name = "Bytes")]
impl ScalarType for BytesScalar {
    fn parse(value: Value) -> InputValueResult<Self> {
        match bytes(&value) {
            Some(bytes) => Ok(Self(bytes.into())),
            None => Err(InputValueError::expected_type(value)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        bytes(value).is_some()
    }

    fn to_value(&self) -> Value {
        Value::String(hex::encode_prefixed(&self.0))
    }
}

/// A number or a string as an integer; `None` if it is neither, negative or too large.
fn integer(value: &Value) -> Option<U256> {
    match value {
        Value::Number(number) => number.as_u64().map(U256::from),
        Value::String(text) => {
            let (digits, radix) = match text.strip_prefix("0x") {
                Some(digits) => (digits, 16),
                None => (text.as_str(), 10),
            };
            // `from_str_radix` takes signs and underscores.
            let is_number = !digits.is_empty() && digits.bytes().all(|one| one.is_ascii_hexdigit());
            is_number.then(|| U256::from_str_radix(digits, radix).ok())?
        }
        _ => None,
    }
}

/// A string in hexadecimal with 0x as bytes.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => {
            let digits = text.strip_prefix("0x")?;
            // The decoder takes a prefix of its own.
            let is_hex = digits.bytes().all(|one| one.is_ascii_hexdigit());
            is_hex.then(|| hex::decode(digits).ok())?
        }
        _ => None,
    }
}

impl LongScalar {
    /// A length or an index.
    pub(super) const fn of(number: usize) -> Self {
        Self(number as u64)
    }

    /// The number as an index; one that no list has if it does not fit.
    pub(super) fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl BigIntScalar {
    /// A price, a fee or another number of at most 128 bits.
    pub(super) fn of(number: impl Into<u128>) -> Self {
        let number: u128 = number.into();
        Self(U256::from(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(json: serde_json::Value) -> Value {
        Value::from_json(json).unwrap()
    }

    #[test]
    fn integers_are_numbers_decimals_and_hexadecimals() {
        for (json, number) in [
            (json!(8), 8),
            (json!("8"), 8),
            (json!("0x1d"), 29),
            (json!("0x00"), 0),
            (json!("18446744073709551615"), u64::MAX),
        ] {
            let value = value(json);
            assert!(LongScalar::is_valid(&value), "{value}");
            assert_eq!(LongScalar::parse(value).unwrap(), LongScalar(number));
        }
        for json in [
            json!(-1),
            json!(1.5),
            json!(""),
            json!("0x"),
            json!("1d"),
            json!("+1"),
            json!("1_0"),
            json!("0x-1"),
            json!("18446744073709551616"),
            json!([1]),
            json!(null),
            json!(true),
        ] {
            let value = value(json);
            assert!(!LongScalar::is_valid(&value), "{value}");
            assert!(LongScalar::parse(value).is_err());
        }
        let large = value(json!("0x10000000000000000"));
        assert_eq!(
            BigIntScalar::parse(large).unwrap().to_value(),
            value(json!("0x10000000000000000"))
        );
    }

    #[test]
    fn bytes_have_a_prefix_and_their_length() {
        let word = value(json!(B256::repeat_byte(0xab)));
        assert!(WordScalar::is_valid(&word) && BytesScalar::is_valid(&word));
        assert_eq!(WordScalar::parse(word.clone()).unwrap().to_value(), word);
        assert!(!AddressScalar::is_valid(&word) && AddressScalar::parse(word).is_err());
        // Not the mixed case of checksums.
        let address = AddressScalar(Address::repeat_byte(0xab));
        assert_eq!(address.to_value(), value(json!(format!("0x{}", "ab".repeat(20)))));
        for json in ["0x1", "abcd", "0xzz", "0x0xab", ""].map(|text| json!(text)) {
            assert!(!BytesScalar::is_valid(&value(json)));
        }
        assert_eq!(BytesScalar::parse(value(json!("0x"))).unwrap().0, Bytes::new());
    }
}
