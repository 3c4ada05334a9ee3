//! The JSON building blocks of a bundle. Members are parsed one by one, so that an error can name
//! the member, and more strictly than by serde's defaults (no duplicate keys, quantities in `0x`
//! hex).

use std::{collections::BTreeMap, fmt, marker::PhantomData, path::Path};

use alloy_primitives::{B256, U256};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{PreAccount, PreState};
use crate::error::{SourceError, SourceErrorKind, SourcePlace};

/// The top level of a bundle, with unparsed values.
#[derive(Debug)]
pub(super) struct BundleMembers<'a> {
    file: &'a Path,
    values: BTreeMap<String, &'a RawValue>,
}

impl<'a> BundleMembers<'a> {
    pub(super) fn parse(file: &'a Path, json: &'a [u8]) -> Result<Self, SourceError> {
        let UniqueMap(values) = serde_json::from_slice(json)
            .map_err(|e| SourceError::new(file, SourcePlace::File, SourceErrorKind::Json(e)))?;
        Ok(Self { file, values })
    }

    pub(super) fn has_all(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.values.contains_key(*name))
    }

    /// A required member.
    pub(super) fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, SourceError> {
        let raw =
            self.values.get(name).ok_or_else(|| self.fail(name, SourceErrorKind::MissingMember))?;
        serde_json::from_str(raw.get()).map_err(|e| self.fail(name, SourceErrorKind::Json(e)))
    }

    /// A member that may be missing or null.
    pub(super) fn optional<T: DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<T>, SourceError> {
        if self.values.contains_key(name) { self.get(name) } else { Ok(None) }
    }

    /// A map of accounts.
    pub(super) fn state(&self, name: &str) -> Result<Option<PreState>, SourceError> {
        let raw: Option<UniqueMap<_, Option<RawAccount>>> = self.optional(name)?;
        Ok(raw.map(|UniqueMap(accounts)| {
            accounts
                .into_iter()
                .map(|(address, account)| (address, account.map(PreAccount::from)))
                .collect()
        }))
    }

    pub(super) fn fail(&self, member: impl Into<String>, kind: SourceErrorKind) -> SourceError {
        SourceError::new(self.file, SourcePlace::Member(member.into()), kind)
    }
}

/// A JSON object in which no key may occur twice (also not in two spellings).
#[derive(Debug)]
pub(super) struct UniqueMap<K, V>(pub(super) BTreeMap<K, V>);

impl<K, V> Default for UniqueMap<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, K, V> Deserialize<'de> for UniqueMap<K, V>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UniqueMapVisitor<K, V>(PhantomData<(K, V)>);

        impl<'de, K, V> Visitor<'de> for UniqueMapVisitor<K, V>
        where
            K: Deserialize<'de> + Ord,
            V: Deserialize<'de>,
        {
            type Value = UniqueMap<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut out = BTreeMap::new();
                while let Some((key, value)) = map.next_entry()? {
                    if out.insert(key, value).is_some() {
                        return Err(A::Error::custom("the same key occurs twice"));
                    }
                }
                Ok(UniqueMap(out))
            }
        }

        deserializer.deserialize_map(UniqueMapVisitor(PhantomData))
    }
}

/// A number of up to 256 bits as `0x` and hexadecimal digits.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HexQuantity(U256);

impl<'de> Deserialize<'de> for HexQuantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.strip_prefix("0x").unwrap_or_default();
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(D::Error::custom(format_args!(
                "`{text}` is not a number in 0x hexadecimal"
            )));
        }
        U256::from_str_radix(digits, 16)
            .map(Self)
            .map_err(|_| D::Error::custom(format_args!("`{text}` does not fit in 256 bits")))
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawAccount {
    nonce: u64,
    balance: HexQuantity,
    code_hash: Option<B256>,
    storage_root: Option<B256>,
    #[serde(default)]
    storage: UniqueMap<HexQuantity, HexQuantity>,
}

impl From<RawAccount> for PreAccount {
    fn from(raw: RawAccount) -> Self {
        Self {
            nonce: raw.nonce,
            balance: raw.balance.0,
            code_hash: raw.code_hash.unwrap_or(alloy_primitives::KECCAK256_EMPTY),
            storage_root: raw.storage_root,
            storage: raw
                .storage
                .0
                .into_iter()
                .map(|(slot, value)| (slot.0.into(), value.0))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slot_in_two_spellings_is_refused() {
        let json = r#"{"nonce": 0, "balance": "0x0", "storage": {"0x1": "0x2", "0x01": "0x3"}}"#;
        let error = serde_json::from_str::<RawAccount>(json).unwrap_err();
        assert!(error.to_string().contains("twice"), "{error}");
    }

    #[test]
    fn quantities_must_be_hexadecimal_and_fit() {
        for bad in ["\"\"", "\"0x\"", "\"12\"", "\"0x1_0\"", "\"0x-1\"", "12", "null"] {
            assert!(serde_json::from_str::<HexQuantity>(bad).is_err(), "{bad}");
        }
        let too_long = format!("\"0x1{}\"", "0".repeat(64));
        assert!(serde_json::from_str::<HexQuantity>(&too_long).is_err());
        let padded = format!("\"0x{}1f\"", "0".repeat(62));
        assert_eq!(
            serde_json::from_str::<HexQuantity>(&padded).unwrap(),
            HexQuantity(U256::from(31))
        );
    }

    #[test]
    fn account_without_code_hash_has_the_empty_code() {
        let raw: RawAccount = serde_json::from_str(r#"{"nonce": 1, "balance": "0x0"}"#).unwrap();
        assert_eq!(PreAccount::from(raw).code_hash, alloy_primitives::keccak256([]));
    }
}
