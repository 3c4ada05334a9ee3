//! The block parameter of a request: number, tag, hash, or an EIP-1898 object.

use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::B256;
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, Visitor},
};
use std::fmt;

/// A block by number or tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockNumberParam(pub(crate) BlockNumberOrTag);

/// A block by number, tag, hash, or EIP-1898 object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockIdParam(pub(super) BlockId);

/// A block, whose number may also be a JSON number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(super) enum LenientBlockParam {
    Number(u64),
    Id(BlockIdParam),
}

impl LenientBlockParam {
    pub(super) fn id(self) -> BlockId {
        match self {
            Self::Number(number) => number.into(),
            Self::Id(BlockIdParam(id)) => id,
        }
    }
}

fn number_or_tag<E: de::Error>(text: &str) -> Result<BlockNumberOrTag, E> {
    Ok(match text {
        "latest" => BlockNumberOrTag::Latest,
        "pending" => BlockNumberOrTag::Pending,
        "earliest" => BlockNumberOrTag::Earliest,
        "safe" => BlockNumberOrTag::Safe,
        "finalized" => BlockNumberOrTag::Finalized,
        text => {
            let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
            // `from_str_radix` accepts a sign; JSON-RPC does not.
            let digits = digits.filter(|digits| digits.bytes().all(|one| one.is_ascii_hexdigit()));
            let none = || {
                let wrong = de::Unexpected::Str(text);
                E::invalid_value(wrong, &"a tag, or a number of a block in hexadecimal with 0x")
            };
            let digits = digits.filter(|digits| !digits.is_empty()).ok_or_else(none)?;
            match u64::from_str_radix(digits, 16) {
                Ok(number) if i64::try_from(number).is_ok() => BlockNumberOrTag::Number(number),
                _ => return Err(E::custom(format!("block number {text} is larger than 2^63 - 1"))),
            }
        }
    })
}

impl<'de> Deserialize<'de> for BlockNumberParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;

        impl Visitor<'_> for NumberVisitor {
            type Value = BlockNumberParam;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a tag, or a number of a block in hexadecimal with 0x")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<BlockNumberParam, E> {
                number_or_tag(text).map(BlockNumberParam)
            }
        }
        deserializer.deserialize_any(NumberVisitor)
    }
}

impl<'de> Deserialize<'de> for BlockIdParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BlockIdVisitor;

        impl<'de> Visitor<'de> for BlockIdVisitor {
            type Value = BlockIdParam;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a tag, a number or a hash of a block, or an object that has one of them",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<BlockIdParam, E> {
                // No block number has 64 digits.
                if text.len() == 2 + 2 * B256::len_bytes() {
                    let hash: B256 = text.parse().map_err(|_| {
                        E::invalid_value(de::Unexpected::Str(text), &"a hash of 0x and 32 bytes")
                    })?;
                    return Ok(BlockIdParam(hash.into()));
                }
                Ok(BlockIdParam(BlockId::Number(number_or_tag(text)?)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<BlockIdParam, A::Error> {
                let mut number: Option<BlockNumberParam> = None;
                let mut hash: Option<B256> = None;
                let mut require_canonical: Option<bool> = None;
                while let Some(name) = fields.next_key::<String>()? {
                    match name.as_str() {
                        "blockNumber" => number = fields.next_value()?,
                        "blockHash" => hash = fields.next_value()?,
                        "requireCanonical" => require_canonical = fields.next_value()?,
                        _ => drop(fields.next_value::<IgnoredAny>()?),
                    }
                }
                match (number, hash) {
                    (Some(BlockNumberParam(number)), None) => Ok(BlockIdParam(number.into())),
                    (None, Some(hash)) => Ok(BlockIdParam((hash, require_canonical).into())),
                    (Some(_), Some(_)) => Err(de::Error::custom(
                        "cannot specify both blockHash and blockNumber, choose one or the other",
                    )),
                    (None, None) => {
                        Err(de::Error::custom("must specify either blockHash or blockNumber"))
                    }
                }
            }
        }
        deserializer.deserialize_any(BlockIdVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn name(value: Value) -> Result<BlockId, String> {
        let text = value.to_string();
        serde_json::from_str(&text)
            .map(|BlockIdParam(id)| id)
            .map_err(|error| super::super::reason(&error))
    }

    #[test]
    fn blocks_are_named_by_number_tag_and_hash() {
        let hash = B256::repeat_byte(0xab);
        for (value, id) in [
            (json!("latest"), BlockId::latest()),
            (json!("pending"), BlockId::pending()),
            (json!("0x0"), BlockId::number(0)),
            (json!("0x007"), BlockId::number(7)),
            (json!("0XfF"), BlockId::number(255)),
            (json!("0x7fffffffffffffff"), BlockId::number(i64::MAX as u64)),
            (json!(hash), BlockId::from(hash)),
            (json!({ "blockNumber": "0x5" }), BlockId::number(5)),
            (json!({ "blockNumber": "safe", "blockHash": null }), BlockId::safe()),
            (json!({ "blockHash": hash, "more": [{}] }), BlockId::from(hash)),
            (json!({ "blockHash": hash, "requireCanonical": true }), (hash, Some(true)).into()),
            (json!({ "requireCanonical": true, "blockNumber": "0x5" }), BlockId::number(5)),
        ] {
            assert_eq!(name(value.clone()), Ok(id), "{value}");
        }
    }

    #[test]
    fn a_lenient_parameter_may_be_a_json_number() {
        for (text, id) in [("16", BlockId::number(16)), ("\"0x10\"", BlockId::number(16))] {
            let block: LenientBlockParam = serde_json::from_str(text).unwrap();
            assert_eq!(block.id(), id);
        }
        for text in ["-1", "1.5", "\"16\"", "[]", "true"] {
            assert!(serde_json::from_str::<LenientBlockParam>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_names_no_block_is_told_so() {
        let hash = B256::repeat_byte(0xab);
        for (value, words) in [
            (json!("newest"), "invalid value: string \"newest\", expected a tag, or a number"),
            (json!("LATEST"), "expected a tag"),
            (json!("5"), "expected a tag"),
            (json!("0x"), "expected a tag"),
            (json!("0x+5"), "expected a tag"),
            (json!(5), "invalid type: integer `5`, expected a tag, a number or a hash"),
            (json!([]), "expected a tag, a number or a hash"),
            (json!("0x8000000000000000"), "is larger than 2^63 - 1"),
            (json!("0xffffffffffffffff"), "is larger than 2^63 - 1"),
            (json!("0x1ffffffffffffffff"), "is larger than 2^63 - 1"),
            (json!({}), "must specify either"),
            (json!({ "blockNumber": "0x1", "blockHash": hash }), "cannot specify both"),
            (json!({ "blockHash": hash, "requireCanonical": "yes" }), "expected a boolean"),
            (json!(format!("0x{}", "zz".repeat(32))), "expected a hash of 0x and 32 bytes"),
        ] {
            let error = name(value.clone()).unwrap_err();
            assert!(error.contains(words) && !error.contains("column"), "{value}: {error}");
        }
    }
}
