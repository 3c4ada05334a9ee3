//! Hashes typed structured data (EIP-712) for `eth_signTypedData_v4`.
//!
//! Values are parsed from the text of the request. A JSON library's numbers have 53 or 64 bits, but
//! every digit of an integer is signed. As in geth, a struct may contain lists of its own type; it
//! cannot contain itself otherwise, because no value of it would be finite.

use crate::{RpcError, RpcResult, args::reason};
use alloy_primitives::{Address, B256, Bytes, I256, Keccak256, U256, keccak256};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Most types in one message.
const MAX_TYPES: usize = 1024;
/// Deepest nesting of structs and lists.
const MAX_DEPTH: usize = 64;
/// Name of the domain's type.
const DOMAIN: &str = "EIP712Domain";
/// The possible fields of a domain, in the EIP's order.
const DOMAIN_FIELDS: [(&str, &str); 5] = [
    ("name", "string"),
    ("version", "string"),
    ("chainId", "uint256"),
    ("verifyingContract", "address"),
    ("salt", "bytes32"),
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypedData<'a> {
    types: BTreeMap<String, Vec<TypedField>>,
    primary_type: String,
    #[serde(borrow)]
    domain: ObjectMembers<'a>,
    #[serde(borrow)]
    message: &'a RawValue,
}

/// A field of a struct.
#[derive(Debug, Deserialize)]
struct TypedField {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

/// The raw fields of a JSON object.
type ObjectMembers<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// The signing hash of the domain and the message.
///
/// # Errors
/// [`RpcError::InvalidParams`] if the text is no typed data, or a value is not of its type.
pub(crate) fn signing_hash(text: &str) -> RpcResult<B256> {
    let TypedData { types, primary_type, mut domain, message } =
        serde_json::from_str(text).map_err(|error| invalid(reason(&error)))?;
    domain.retain(|_, value| value.get() != "null");
    let types = StructTypes::new(types, &domain)?;
    let mut hasher = Keccak256::new();
    hasher.update([0x19, 0x01]);
    hasher.update(types.hash_struct(DOMAIN, &domain, 0)?);
    if primary_type != DOMAIN {
        hasher.update(types.encode(&primary_type, message, 0)?);
    }
    Ok(hasher.finalize())
}

fn invalid(error: impl fmt::Display) -> RpcError {
    RpcError::InvalidParams(format!("invalid argument 1: invalid typed data: {error}"))
}

fn mismatch(kind: &str, value: &RawValue) -> RpcError {
    let shown: String = value.get().chars().take(80).collect();
    invalid(format_args!("{shown} is not of type {kind}"))
}

/// The struct types of a message.
struct StructTypes {
    fields: BTreeMap<String, Vec<TypedField>>,
    /// Cached type hashes.
    hashes: RefCell<BTreeMap<String, B256>>,
}

impl StructTypes {
    fn new(
        mut fields: BTreeMap<String, Vec<TypedField>>,
        domain: &ObjectMembers<'_>,
    ) -> RpcResult<Self> {
        if fields.len() > MAX_TYPES {
            let message = format_args!("{} types, at most {MAX_TYPES}", fields.len());
            return Err(invalid(message));
        }
        // Some libraries omit the domain's type: then it follows from the domain's fields.
        fields.entry(DOMAIN.into()).or_insert_with(|| {
            let given = DOMAIN_FIELDS.iter().filter(|(name, _)| domain.contains_key(*name));
            given
                .map(|(name, kind)| TypedField { name: (*name).into(), kind: (*kind).into() })
                .collect()
        });
        for (name, field) in fields.iter().flat_map(|(name, of)| of.iter().map(move |f| (name, f)))
        {
            let element = element_of(&field.kind);
            if field.kind == *name {
                return Err(invalid(format_args!("type {name} cannot contain itself")));
            }
            if !fields.contains_key(element) && PrimitiveType::of(element).is_none() {
                let kind = &field.kind;
                return Err(invalid(format_args!("type {kind} of {name} is not defined")));
            }
        }
        Ok(Self { fields, hashes: RefCell::default() })
    }

    /// `encodeType` of the EIP: the struct, then all structs it refers to, sorted by name.
    fn encode_type(&self, name: &str) -> String {
        let (mut found, mut waiting) = (BTreeSet::new(), vec![name]);
        while let Some(next) = waiting.pop() {
            for field in self.fields.get(next).into_iter().flatten() {
                let element = element_of(&field.kind);
                if self.fields.contains_key(element) && found.insert(element) {
                    waiting.push(element);
                }
            }
        }
        found.remove(name);
        let mut text = String::new();
        for name in [name].into_iter().chain(found) {
            let fields = self.fields.get(name).into_iter().flatten();
            let fields: Vec<_> =
                fields.map(|field| format!("{} {}", field.kind, field.name)).collect();
            text.push_str(&format!("{name}({})", fields.join(",")));
        }
        text
    }

    fn type_hash(&self, name: &str) -> B256 {
        if let Some(hash) = self.hashes.borrow().get(name) {
            return *hash;
        }
        let hash = keccak256(self.encode_type(name));
        self.hashes.borrow_mut().insert(name.into(), hash);
        hash
    }

    /// `hashStruct` of the EIP.
    fn hash_struct(
        &self,
        name: &str,
        members: &ObjectMembers<'_>,
        depth: usize,
    ) -> RpcResult<B256> {
        let fields = self.fields.get(name);
        let fields = fields.ok_or_else(|| invalid(format_args!("type {name} is not defined")))?;
        if let Some(extra) =
            members.keys().find(|member| fields.iter().all(|field| field.name != **member))
        {
            return Err(invalid(format_args!("type {name} has no field {extra}")));
        }
        let mut hasher = Keccak256::new();
        hasher.update(self.type_hash(name));
        for TypedField { name: field, kind } in fields {
            let missing = || invalid(format_args!("field {field} of {name} is missing"));
            let value = members.get(field.as_str()).ok_or_else(missing)?;
            hasher.update(self.encode(kind, value, depth + 1)?);
        }
        Ok(hasher.finalize())
    }

    /// `encodeData` of the EIP for one value: 32 bytes.
    fn encode(&self, kind: &str, value: &RawValue, depth: usize) -> RpcResult<B256> {
        if depth > MAX_DEPTH {
            return Err(invalid(format_args!("it is nested more than {MAX_DEPTH} levels deep")));
        }
        if let Some((element, count)) = list_of(kind) {
            let items: Vec<&RawValue> =
                serde_json::from_str(value.get()).map_err(|_| mismatch(kind, value))?;
            if count.is_some_and(|count| count != items.len()) {
                return Err(mismatch(kind, value));
            }
            let mut hasher = Keccak256::new();
            for item in items {
                hasher.update(self.encode(element, item, depth + 1)?);
            }
            return Ok(hasher.finalize());
        }
        if self.fields.contains_key(kind) {
            let members: ObjectMembers<'_> =
                serde_json::from_str(value.get()).map_err(|_| mismatch(kind, value))?;
            return self.hash_struct(kind, &members, depth);
        }
        let encoded = PrimitiveType::of(kind).and_then(|primitive| primitive.encode(value));
        encoded.ok_or_else(|| mismatch(kind, value))
    }
}

/// The item type of a list type, and the length if it is fixed; `None` if it is no list type.
fn list_of(kind: &str) -> Option<(&str, Option<usize>)> {
    let (element, count) = kind.strip_suffix(']')?.rsplit_once('[')?;
    if count.is_empty() {
        return Some((element, None));
    }
    Some((element, Some(count.parse().ok()?)))
}

/// The innermost item type of a list type.
fn element_of(mut kind: &str) -> &str {
    while let Some((element, _)) = list_of(kind) {
        kind = element;
    }
    kind
}

/// A type that is no struct and no list.
#[derive(Clone, Copy)]
enum PrimitiveType {
    Text,
    Bytes,
    Bool,
    Address,
    /// The length in bytes.
    FixedBytes(usize),
    /// The size in bits.
    Unsigned(usize),
    Signed(usize),
}

impl PrimitiveType {
    fn of(kind: &str) -> Option<Self> {
        let bits = |digits: &str| match digits {
            "" => Some(256),
            _ => digits.parse().ok().filter(|bits| bits % 8 == 0 && (8..=256).contains(bits)),
        };
        Some(match kind {
            "string" => Self::Text,
            "bytes" => Self::Bytes,
            "bool" => Self::Bool,
            "address" => Self::Address,
            _ => {
                if let Some(len) = kind.strip_prefix("bytes") {
                    Self::FixedBytes(len.parse().ok().filter(|len| (1..=32).contains(len))?)
                } else if let Some(digits) = kind.strip_prefix("uint") {
                    Self::Unsigned(bits(digits)?)
                } else {
                    Self::Signed(bits(kind.strip_prefix("int")?)?)
                }
            }
        })
    }

    /// The value in 32 bytes; `None` if it is of another type or too large.
    fn encode(self, value: &RawValue) -> Option<B256> {
        let text = || serde_json::from_str::<Cow<'_, str>>(value.get()).ok();
        Some(match self {
            Self::Text => keccak256(text()?.as_bytes()),
            Self::Bytes => keccak256(text()?.parse::<Bytes>().ok()?),
            Self::Bool => {
                B256::with_last_byte(serde_json::from_str::<bool>(value.get()).ok()?.into())
            }
            Self::Address => text()?.parse::<Address>().ok()?.into_word(),
            Self::FixedBytes(len) => {
                let bytes = text()?.parse::<Bytes>().ok().filter(|bytes| bytes.len() == len)?;
                B256::right_padding_from(&bytes)
            }
            Self::Unsigned(bits) => match integer(value)? {
                (true, magnitude) if !magnitude.is_zero() => return None,
                (_, magnitude) if magnitude.bit_len() > bits => return None,
                (_, magnitude) => magnitude.into(),
            },
            Self::Signed(bits) => {
                let (is_negative, magnitude) = integer(value)?;
                // The smallest negative number has one more bit than the greatest number.
                let least = U256::from(1) << (bits - 1);
                if magnitude > least || (magnitude == least && !is_negative) {
                    return None;
                }
                let number = I256::from_raw(magnitude);
                let number = if is_negative { number.wrapping_neg() } else { number };
                number.into_raw().into()
            }
        })
    }
}

/// Parses an integer: a JSON number or a string, decimal or with `0x`. Returns the sign (whether it
/// is negative) and the magnitude, exactly.
fn integer(value: &RawValue) -> Option<(bool, U256)> {
    let is_text = value.get().starts_with('"');
    let text: Cow<'_, str> = match is_text {
        true => serde_json::from_str(value.get()).ok()?,
        false => value.get().into(),
    };
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, &*text),
    };
    if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        return Some((is_negative, U256::from_str_radix(hex, 16).ok()?));
    }
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some((is_negative, U256::from_str_radix(digits, 10).ok()?));
    }
    // `1e18` and `1.0` are integers too, as long as a double represents them exactly.
    const EXACT: f64 = (1_u64 << 53) as f64;
    let number: f64 = digits.parse().ok().filter(|_| !is_text)?;
    (number.fract() == 0.0 && number <= EXACT).then(|| (is_negative, U256::from(number as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::hex;
    use serde_json::json;

    fn raw(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).unwrap()
    }

    fn encoded(kind: &str, text: &str) -> Option<String> {
        PrimitiveType::of(kind).unwrap().encode(&raw(text)).map(hex::encode)
    }

    /// Cause: integers beyond a double or 64 bits were rejected or lost digits.
    #[test]
    fn every_digit_of_an_integer_is_signed() {
        let word = |number: U256| Some(hex::encode(B256::from(number)));
        let large = U256::from(1) << 53;
        for number in [U256::ZERO, large + U256::from(1), U256::from(u64::MAX), U256::MAX] {
            let (decimal, hexadecimal) = (number.to_string(), format!("\"{number:#x}\""));
            for text in [decimal.clone(), format!("\"{decimal}\""), hexadecimal] {
                assert_eq!(encoded("uint256", &text), word(number), "{text}");
            }
        }
        assert_eq!(encoded("uint", "1e3"), word(U256::from(1000)));
        assert_eq!(encoded("uint8", "255"), word(U256::from(255)));
        assert_eq!(encoded("int8", "-128"), word(U256::MAX - U256::from(127)));
        let least = format!("-{}", U256::from(1) << 255);
        assert_eq!(encoded("int256", &least), word(U256::from(1) << 255));
        for (kind, text) in [
            ("uint8", "256"),
            ("uint8", "-1"),
            ("int8", "128"),
            ("int8", "-129"),
            ("uint256", "1.5"),
            ("uint256", "1e300"),
            ("uint256", "\"1e3\""),
            ("uint256", "true"),
            ("uint256", "\"\""),
            ("uint256", &format!("{}0", U256::MAX)),
        ] {
            assert_eq!(encoded(kind, text), None, "{kind} {text}");
        }
        assert!(PrimitiveType::of("uint7").is_none() && PrimitiveType::of("bytes33").is_none());
    }

    #[test]
    fn types_may_contain_lists_of_themselves() {
        let data = |message| {
            json!({
                "types": {
                    "Node": [
                        {"name": "value", "type": "uint256"},
                        {"name": "children", "type": "Node[]"}
                    ]
                },
                "primaryType": "Node",
                "domain": {"chainId": 1},
                "message": message
            })
            .to_string()
        };
        // keccak-256 over the encoding that the EIP defines, word by word.
        let type_hash = keccak256("Node(uint256 value,Node[] children)");
        let node = |value: u8, children: &[B256]| {
            let children = keccak256(children.concat());
            keccak256([type_hash, B256::with_last_byte(value), children].concat())
        };
        let domain = [keccak256("EIP712Domain(uint256 chainId)"), B256::with_last_byte(1)];
        let domain = keccak256(domain.concat());
        let root = node(1, &[node(2, &[]), node(3, &[node(4, &[])])]);
        let expected = keccak256([&[0x19, 0x01], domain.as_slice(), root.as_slice()].concat());
        let leaf = |value| json!({"value": value, "children": []});
        let third = json!({"value": 3, "children": [leaf(4)]});
        let message = json!({"value": 1, "children": [leaf(2), third]});
        assert_eq!(signing_hash(&data(message)).unwrap(), expected);

        let mut deep = leaf(0);
        for value in 0..200 {
            deep = json!({"value": value, "children": [deep]});
        }
        for wrong in [
            json!({"value": 1}),
            json!({"value": 1, "children": null}),
            json!({"value": 1, "children": [null]}),
            json!({"value": 1, "children": [], "other": 1}),
            json!({"value": "one", "children": []}),
            deep,
        ] {
            assert!(signing_hash(&data(wrong.clone())).is_err(), "{wrong}");
        }
        let itself = data(leaf(1)).replace("Node[]", "Node");
        assert!(signing_hash(&itself).unwrap_err().to_string().contains("contain itself"));
        let undefined = data(leaf(1)).replace("Node[]", "Edge[]");
        assert!(signing_hash(&undefined).unwrap_err().to_string().contains("not defined"));
    }

    /// Compared with alloy, where alloy accepts the data.
    #[test]
    fn hashes_are_those_of_another_library() {
        let domain =
            json!({"name": "A \u{e9}", "version": "1", "chainId": 31337, "salt": B256::ZERO});
        let person = |name: &str, wallets: &[Address]| json!({"name": name, "wallets": wallets});
        let wallet = Address::repeat_byte(0xcd);
        let messages = [
            json!({
                "from": person("Cow", &[wallet, Address::ZERO]),
                "to": [person("Bob", &[]), person("", &[wallet])],
                "amount": "115792089237316195423570985008687907853269984665640564039457584007913129639935",
                "delta": -5,
                "grid": [[1, 2], [3, 4], [5, 255]],
                "tag": "0x01020304",
                "data": "0xdeadbeef",
                "isOpen": true
            }),
            json!({
                "from": person("\n", &[]),
                "to": [],
                "amount": 0,
                "delta": "-170141183460469231731687303715884105728",
                "grid": [],
                "tag": "0x00000000",
                "data": "0x",
                "isOpen": false
            }),
        ];
        for (message, with_domain) in messages.iter().flat_map(|one| [(one, false), (one, true)]) {
            let mut data = json!({
                "types": {
                    "Person": [
                        {"name": "name", "type": "string"},
                        {"name": "wallets", "type": "address[]"}
                    ],
                    "Mail": [
                        {"name": "from", "type": "Person"},
                        {"name": "to", "type": "Person[]"},
                        {"name": "amount", "type": "uint256"},
                        {"name": "delta", "type": "int128"},
                        {"name": "grid", "type": "uint8[2][]"},
                        {"name": "tag", "type": "bytes4"},
                        {"name": "data", "type": "bytes"},
                        {"name": "isOpen", "type": "bool"}
                    ]
                },
                "primaryType": "Mail",
                "domain": domain,
                "message": message
            });
            if with_domain {
                let given = DOMAIN_FIELDS.iter().filter(|(name, _)| domain.get(*name).is_some());
                let fields = given.map(|(name, kind)| json!({"name": name, "type": kind}));
                data["types"][DOMAIN] = fields.collect();
            }
            let other: alloy_dyn_abi::TypedData = serde_json::from_value(data.clone()).unwrap();
            let expected = other.eip712_signing_hash().unwrap();
            assert_eq!(signing_hash(&data.to_string()).unwrap(), expected, "{data}");
        }
    }

    #[test]
    fn lists_and_other_values_are_encoded_by_their_types() {
        assert_eq!(list_of("uint8[2][]"), Some(("uint8[2]", None)));
        assert_eq!(list_of("uint8[2]"), Some(("uint8", Some(2))));
        assert_eq!(element_of("Node[2][]"), "Node");
        let types = StructTypes::new(BTreeMap::new(), &ObjectMembers::new()).unwrap();
        let list = |kind, text: &str| types.encode(kind, &raw(text), 0);
        let words = [B256::with_last_byte(1), B256::with_last_byte(2)];
        assert_eq!(list("uint8[2]", "[1,2]").unwrap(), keccak256(words.concat()));
        assert!(list("uint8[2]", "[1]").is_err() && list("uint8[]", "1").is_err());
        assert_eq!(encoded("bool", "true"), Some(hex::encode(B256::with_last_byte(1))));
        assert_eq!(encoded("bool", "1"), None);
        assert_eq!(encoded("bytes4", "\"0x01020304\"").unwrap()[..10], *"0102030400");
        assert_eq!(encoded("bytes4", "\"0x010203\""), None);
        assert_eq!(encoded("bytes", "\"0x0102\""), Some(hex::encode(keccak256([1, 2]))));
        assert_eq!(encoded("string", "\"a\\n\""), Some(hex::encode(keccak256("a\n"))));
        assert_eq!(encoded("string", "12345678901234567890123"), None);
    }
}
