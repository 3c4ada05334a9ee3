//! Reads state dumps, one account at a time.

use std::{fmt, path::Path};

use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use alloy_trie::root::storage_root_unhashed;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};

use crate::{
    check::same_hash,
    error::{SourceError, SourceErrorKind, SourcePlace},
    input::SourceInput,
};

/// Longest line accepted, in bytes: an account of more than 50 million slots.
const MAX_LINE_BYTES: u64 = 8 << 30;

/// An account of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpedAccount {
    /// Its address.
    pub address: Address,
    /// Its nonce.
    pub nonce: u64,
    /// Its balance in wei.
    pub balance: U256,
    /// Its code, empty if it has none.
    pub code: Bytes,
    /// Its non-zero slots, in the order of the file.
    pub storage: Vec<(B256, U256)>,
}

/// Reader of a state dump, plain or gzipped. Yields accounts in the order of the file. It
/// ends after an error, which names the line.
#[derive(Debug)]
pub struct StateDump {
    input: SourceInput,
    root: B256,
    /// Lines read so far.
    line: u64,
    text: Vec<u8>,
    ended: bool,
}

impl StateDump {
    /// Opens a dump and reads its first line.
    ///
    /// # Errors
    /// If the file cannot be read, or does not begin with a state root.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        let input = SourceInput::open(&path.into())?;
        let mut dump = Self { input, root: B256::ZERO, line: 0, text: Vec::new(), ended: false };
        let first = dump.next_line().and_then(|line| match line {
            Some(DumpLine { root: Some(root), accounts: None, address: None, key: None, .. }) => {
                Ok(root)
            }
            Some(DumpLine { accounts: Some(_), .. }) => Err(SourceErrorKind::Format(
                "this is a dump in one piece: dump line by line, geth dump --iterative",
            )),
            _ => Err(SourceErrorKind::Format(
                "a state dump begins with the line {\"root\": \"0x..\"}, the state root of its block",
            )),
        });
        dump.root = first.map_err(|kind| dump.failed(kind))?;
        Ok(dump)
    }

    /// The state root in the first line.
    pub const fn root(&self) -> B256 {
        self.root
    }

    fn failed(&self, kind: SourceErrorKind) -> SourceError {
        SourceError::new(self.input.path(), SourcePlace::Line(self.line), kind)
    }

    /// The next non-blank line.
    fn next_line(&mut self) -> Result<Option<DumpLine>, SourceErrorKind> {
        loop {
            self.text.clear();
            self.line += 1;
            if !self.input.read_line(MAX_LINE_BYTES, &mut self.text, "a line of the dump")? {
                return Ok(None);
            }
            if !self.text.trim_ascii().is_empty() {
                let line = serde_json::from_slice(&self.text);
                return line.map(Some).map_err(SourceErrorKind::line_json);
            }
        }
    }

    fn next_account(&mut self) -> Result<Option<DumpedAccount>, SourceErrorKind> {
        self.next_line()?.map(DumpLine::account).transpose()
    }
}

impl Iterator for StateDump {
    type Item = Result<DumpedAccount, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let account = self.next_account();
        self.ended = !matches!(account, Ok(Some(_)));
        account.map_err(|kind| self.failed(kind)).transpose()
    }
}

impl std::iter::FusedIterator for StateDump {}

/// A line: the first one, or an account.
#[derive(Deserialize)]
struct DumpLine {
    root: Option<B256>,
    accounts: Option<IgnoredAny>,
    address: Option<Address>,
    /// keccak-256 of the address.
    key: Option<String>,
    balance: Option<DumpQuantity>,
    nonce: Option<DumpQuantity>,
    #[serde(rename = "codeHash")]
    code_hash: Option<B256>,
    code: Option<Bytes>,
    storage: Option<DumpStorage>,
    #[serde(rename = "storageByHash")]
    storage_by_hash: Option<IgnoredAny>,
}

impl DumpLine {
    fn account(self) -> Result<DumpedAccount, SourceErrorKind> {
        let Some(address) = self.address else {
            return Err(match self.key {
                Some(key) => SourceErrorKind::NoAddress { key },
                None => SourceErrorKind::Format("an account without `address`"),
            });
        };
        if self.storage_by_hash.is_some() {
            let what =
                "slots of which only the hashes are known: dump a state whose preimages are kept";
            return Err(SourceErrorKind::Format(what));
        }
        let balance =
            self.balance.ok_or(SourceErrorKind::Format("an account without `balance`"))?;
        let nonce = u64::try_from(self.nonce.map_or(U256::ZERO, |nonce| nonce.0))
            .map_err(|_| SourceErrorKind::Format("a `nonce` beyond 64 bits"))?;
        let code = self.code.unwrap_or_default();
        if let Some(expected) = self.code_hash {
            if code.is_empty() && expected != KECCAK256_EMPTY {
                let what = "an account whose code was left out: dump without --nocode";
                return Err(SourceErrorKind::Format(what));
            }
            same_hash("codeHash of the code", expected, keccak256(&code))?;
        }
        let storage = self.storage.unwrap_or_default().0;
        if let Some(expected) = self.root {
            let got = storage_root_unhashed(storage.iter().copied());
            if got != expected {
                return Err(SourceErrorKind::DumpedStorage { address, expected, got });
            }
        }
        Ok(DumpedAccount { address, nonce, balance: balance.0, code, storage })
    }
}

/// A JSON number, a decimal string, or `0x` hex.
struct DumpQuantity(U256);

impl<'de> Deserialize<'de> for DumpQuantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor;

        impl Visitor<'_> for QuantityVisitor {
            type Value = DumpQuantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of at most 256 bits, beyond 64 bits as a string")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<DumpQuantity, E> {
                Ok(DumpQuantity(U256::from(number)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<DumpQuantity, E> {
                let (digits, radix) =
                    text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
                number(digits, radix)
                    .map(DumpQuantity)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(QuantityVisitor)
    }
}

/// Non-zero slots.
#[derive(Default)]
struct DumpStorage(Vec<(B256, U256)>);

impl<'de> Deserialize<'de> for DumpStorage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StorageVisitor;

        impl<'de> Visitor<'de> for StorageVisitor {
            type Value = DumpStorage;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of slots and values in hex")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DumpStorage, A::Error> {
                let mut slots = Vec::new();
                while let Some((HexWord(slot), HexWord(value))) = map.next_entry()? {
                    if !value.is_zero() {
                        slots.push((slot.into(), value));
                    }
                }
                Ok(DumpStorage(slots))
            }
        }

        deserializer.deserialize_map(StorageVisitor)
    }
}

/// At most 32 bytes in hex, with or without `0x`.
struct HexWord(U256);

impl<'de> Deserialize<'de> for HexWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordVisitor;

        impl Visitor<'_> for WordVisitor {
            type Value = HexWord;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("at most 32 bytes in hex")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<HexWord, E> {
                number(text.strip_prefix("0x").unwrap_or(text), 16)
                    .map(HexWord)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(WordVisitor)
    }
}

fn number(digits: &str, radix: u64) -> Option<U256> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| U256::from_str_radix(digits, radix).ok()).flatten()
}
