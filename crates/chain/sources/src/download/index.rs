//! The listing of a mirror: names of era1 files, and possibly their SHA-256.
//!
//! Mirrors list their files in one or both of these, neither of which has a version:
//!
//! * `checksums.txt` or `checksums_sha256.txt`, one line per file: `HASH NAME` as `sha256sum`
//!   writes it, or only the hashes in the order of the epochs, as `geth export-history` writes
//!   them;
//! * any HTML page with the file names in its text.

use std::{collections::BTreeMap, fmt};

use alloy_primitives::{B256, hex};

/// The name of an era1 file, `mainnet-00000-5ec1ffb8.era1`: chain, epoch, and the first four bytes
/// of the accumulator root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Era1Name {
    /// Name of the chain.
    pub chain: String,
    /// Number of the file; its first block is 8192 times this.
    pub epoch: u64,
    /// First bytes of the accumulator root.
    pub root: [u8; 4],
}

impl fmt::Display for Era1Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chain, epoch, root } = self;
        write!(f, "{chain}-{epoch:05}-{}.era1", hex::encode(root))
    }
}

impl Era1Name {
    /// Reads a name; `None` if it is not one.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(".era1")?.rsplitn(3, '-');
        let (root, epoch, chain) = (parts.next()?, parts.next()?, parts.next()?);
        let digits = epoch.len() >= 5 && epoch.bytes().all(|b| b.is_ascii_digit());
        let lower = root.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !digits || !lower || chain.is_empty() {
            return None;
        }
        let mut bytes = [0; 4];
        hex::decode_to_slice(root, &mut bytes).ok()?;
        Some(Self { chain: chain.to_owned(), epoch: epoch.parse().ok()?, root: bytes })
    }
}

/// A parsed checksum file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChecksumFile {
    /// Hashes with file names, era1 or not.
    pub(super) named: Vec<(String, B256)>,
    /// Hashes without names, in order.
    pub(super) bare: Vec<B256>,
}

impl ChecksumFile {
    /// Parses a checksum file; `None` if a line is malformed (in an error page, for example).
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut this = Self::default();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let hash = words.next()?.parse().ok()?;
            match (words.next(), words.next()) {
                (None, _) => this.bare.push(hash),
                (Some(name), None) => {
                    let name = name.trim_start_matches('*');
                    let name = name.rsplit('/').next().unwrap_or(name);
                    this.named.push((name.to_owned(), hash));
                }
                _ => return None,
            }
        }
        Some(this)
    }
}

/// Every era1 name of `chain` in a text, by epoch. If an epoch has two names, they are the error.
pub(super) fn names_in(
    text: &str,
    chain: &str,
) -> Result<BTreeMap<u64, Era1Name>, Box<(Era1Name, Era1Name)>> {
    let mut names = BTreeMap::new();
    let no_name = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '.' && c != '_';
    for name in text.split(no_name).filter_map(Era1Name::parse) {
        if name.chain != chain {
            continue;
        }
        if let Some(other) = names.insert(name.epoch, name.clone())
            && other != name
        {
            return Err(Box::new((other, name)));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "mainnet-00000-5ec1ffb8.era1";

    #[test]
    fn names_are_read_and_written_alike() {
        let name = Era1Name::parse(NAME).unwrap();
        assert_eq!((name.epoch, name.root), (0, [0x5e, 0xc1, 0xff, 0xb8]));
        assert_eq!(name.to_string(), NAME);
        for bad in [
            "mainnet-0000-5ec1ffb8.era1",
            "mainnet-00000-5ec1ffb.era1",
            "mainnet-00000-5EC1FFB8.era1",
            "mainnet-00000-5ec1ffb8.era",
            "-00000-5ec1ffb8.era1",
            "mainnet-0000x-5ec1ffb8.era1",
            "mainnet.era1",
            ".era1",
            "",
        ] {
            assert_eq!(Era1Name::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn both_kinds_of_checksum_files_are_read() {
        let hash = B256::repeat_byte(0xab);
        let plain = hex::encode(hash);
        let named =
            ChecksumFile::parse(&format!("{plain}  {NAME}\n{plain} *./{NAME}\r\n\n")).unwrap();
        assert_eq!(named.named, vec![(NAME.to_owned(), hash); 2]);
        let bare = ChecksumFile::parse(&format!("{plain}\n0x{plain}\n")).unwrap();
        assert_eq!(bare.bare, [hash; 2]);
        for bad in ["<html>", "ab  file", &format!("{plain} a b")] {
            assert_eq!(ChecksumFile::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_are_found_in_any_page() {
        let page = format!(
            "<a href=\"/era1/{NAME}\">{NAME}</a> <td>sepolia-00000-643a00f7.era1</td>\n\
             <a href='mainnet-00001-a5364e9a.era1?x=1'>mainnet-00001-a5364..&gt;</a>"
        );
        let names = names_in(&page, "mainnet").unwrap();
        assert_eq!(names.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert!(names_in(&page, "holesky").unwrap().is_empty());
        let two = format!("{NAME} mainnet-00000-00000000.era1");
        assert_eq!(names_in(&two, "mainnet").unwrap_err().0.to_string(), NAME);
    }
}
