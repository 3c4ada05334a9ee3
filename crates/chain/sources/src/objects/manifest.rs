//! `SHA256SUMS`: the checksums of the objects beside it, as `sha256sum` writes and checks them.
//!
//! One line per object: 64 hexadecimal digits, a space, a space or `*`, the name. Names in
//! subfolders are skipped, as they are not beside the list. For a plain web server the list is also
//! the listing of the folder.

use std::{collections::BTreeMap, fmt::Write};

use alloy_primitives::{B256, hex};

use super::error::ObjectError;

/// Name of the list.
pub(crate) const MANIFEST: &str = "SHA256SUMS";

/// Size limit of a list, in bytes.
pub(super) const MAX_BYTES: u64 = 64 << 20;

/// A parsed list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChecksumManifest(BTreeMap<String, B256>);

impl ChecksumManifest {
    pub(super) fn parse(text: &[u8]) -> Result<Self, ObjectError> {
        let mut sums = BTreeMap::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let (name, sum) = entry(line).ok_or(ObjectError::NotAManifest { line: index + 1 })?;
            if !name.contains('/') {
                sums.insert(name.to_owned(), sum);
            }
        }
        Ok(Self(sums))
    }

    pub(super) fn get(&self, name: &str) -> Option<B256> {
        self.0.get(name).copied()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Adds the sums of objects that were written. Returns whether that changes the list.
    pub(super) fn extend(&mut self, sums: &BTreeMap<String, B256>) -> bool {
        let before = self.clone();
        self.0.extend(sums.iter().map(|(name, sum)| (name.clone(), *sum)));
        *self != before
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = String::new();
        for (name, sum) in &self.0 {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}  {name}", hex::encode(sum));
        }
        text.into_bytes()
    }
}

fn entry(line: &[u8]) -> Option<(&str, B256)> {
    let (sum, name) = (line.get(..64)?, line.get(66..)?);
    if line[64] != b' ' || !matches!(line[65], b' ' | b'*') {
        return None;
    }
    let mut bytes = B256::ZERO;
    hex::decode_to_slice(sum, bytes.as_mut_slice()).ok()?;
    let name = str::from_utf8(name).ok()?;
    let name = name.strip_prefix("./").unwrap_or(name);
    if name.is_empty() { None } else { Some((name, bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_alike() {
        let sum = B256::repeat_byte(0xab);
        let hex = hex::encode(sum);
        let text = format!("{hex}  1.json.gz\n{hex} *./with space\r\n\n{hex}  below/2.json.gz\n");
        let list = ChecksumManifest::parse(text.as_bytes()).unwrap();
        assert_eq!(list.names().collect::<Vec<_>>(), ["1.json.gz", "with space"]);
        assert_eq!(list.get("1.json.gz"), Some(sum));
        assert_eq!(list.get("2.json.gz"), None);
        assert_eq!(ChecksumManifest::parse(&list.encode()).unwrap(), list);
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_line() {
        let hex = "ab".repeat(32);
        for bad in ["<html>", "ab  name", &format!("{hex} name"), &format!("{hex}  "), &hex] {
            let text = format!("{hex}  name\n{bad}\n");
            let error = ChecksumManifest::parse(text.as_bytes()).unwrap_err();
            assert!(matches!(error, ObjectError::NotAManifest { line: 2 }), "{bad}: {error}");
        }
    }
}
