//! The listing of a mirror: names of era1 or ere files, and possibly their SHA-256.
//!
//! Mirrors list their files in one or both of these, neither of which has a version:
//!
//! * `checksums.txt` or `checksums_sha256.txt`, one line per file: `HASH NAME` as `sha256sum`
//!   writes it, or only the hashes in the order of the epochs, as `geth export-history` writes
//!   them;
//! * any HTML page with the file names in its text.

use std::collections::{BTreeMap, btree_map::Entry};

use alloy_primitives::B256;

use crate::era_name::{EraFileName, EraFormat};

/// A parsed checksum file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChecksumFile {
    /// Hashes with file names, of era files or not.
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

/// Every name of this format and `chain` in a text, by epoch. Of an ere file in several profiles it is
/// the one that leaves out least. If an epoch has two other names, they are the error.
pub(super) fn names_in(
    text: &str,
    format: EraFormat,
    chain: &str,
) -> Result<BTreeMap<u64, EraFileName>, Box<(EraFileName, EraFileName)>> {
    let mut names = BTreeMap::new();
    let no_name = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '.' && c != '_';
    for name in text.split(no_name).filter_map(EraFileName::parse) {
        if name.chain != chain || name.format != format {
            continue;
        }
        match names.entry(name.epoch) {
            Entry::Vacant(place) => {
                place.insert(name);
            }
            Entry::Occupied(place) if place.get().digest != name.digest => {
                return Err(Box::new((place.get().clone(), name)));
            }
            Entry::Occupied(mut place) => {
                if name.profile < place.get().profile {
                    place.insert(name);
                }
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::hex;

    const NAME: &str = "mainnet-00000-5ec1ffb8.era1";

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
        let era1 = |text: &str, chain| names_in(text, EraFormat::Era1, chain);
        let names = era1(&page, "mainnet").unwrap();
        assert_eq!(names.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert!(era1(&page, "holesky").unwrap().is_empty());
        let two = format!("{NAME} mainnet-00000-00000000.era1");
        assert_eq!(era1(&two, "mainnet").unwrap_err().0.to_string(), NAME);
        assert!(names_in(&page, EraFormat::Ere, "mainnet").unwrap().is_empty());
    }

    #[test]
    fn of_several_profiles_the_one_that_leaves_out_least_is_taken() {
        let name = |profile: &str| format!("mainnet-00007-00000001{profile}.ere");
        for (profiles, best) in [
            (["-noproofs", "", "-noreceipts"], ""),
            (["-noproofs-noreceipts", "-noreceipts", "-noproofs"], "-noproofs"),
            (["-noproofs-noreceipts", "-noreceipts", "-else"], "-noreceipts"),
        ] {
            let names =
                names_in(&profiles.map(name).join("\n"), EraFormat::Ere, "mainnet").unwrap();
            assert_eq!(names[&7].to_string(), name(best));
        }
        let two = [name(""), name("-noproofs").replace("01", "02")].join(" ");
        assert!(names_in(&two, EraFormat::Ere, "mainnet").is_err());
    }
}
