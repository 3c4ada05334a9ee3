//! Names of era1 and ere files.

use std::fmt;

use alloy_primitives::hex;

/// A format of archives of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EraFormat {
    /// Blocks before the merge, with receipts ([`era1`](crate::era1)).
    Era1,
    /// Blocks of any time, with or without receipts and proofs ([`ere`](crate::ere)).
    Ere,
}

impl EraFormat {
    /// The extension of its files, which is also its name.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Era1 => "era1",
            Self::Ere => "ere",
        }
    }
}

impl fmt::Display for EraFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.extension())
    }
}

/// The components that an ere file leaves out. A file with the default profile has them all.
///
/// Profiles are ordered by what is left: the smaller one leaves out less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EreProfile {
    /// It has no receipts.
    pub no_receipts: bool,
    /// It has no proofs of its headers.
    pub no_proofs: bool,
}

impl EreProfile {
    const NO_PROOFS: &str = "-noproofs";
    const NO_RECEIPTS: &str = "-noreceipts";

    /// Splits a file name without its extension into what comes before the profile, and the profile.
    fn split(name: &str) -> (&str, Self) {
        // Postfixes are in the order of the alphabet.
        let (name, no_receipts) = split_end(name, Self::NO_RECEIPTS);
        let (name, no_proofs) = split_end(name, Self::NO_PROOFS);
        (name, Self { no_receipts, no_proofs })
    }
}

fn split_end<'a>(name: &'a str, end: &str) -> (&'a str, bool) {
    name.strip_suffix(end).map_or((name, false), |before| (before, true))
}

impl fmt::Display for EreProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.no_proofs { Self::NO_PROOFS } else { "" })?;
        f.write_str(if self.no_receipts { Self::NO_RECEIPTS } else { "" })
    }
}

/// The name of an era1 or ere file: `mainnet-00000-5ec1ffb8.era1`,
/// `mainnet-02000-4bb7de2e-noproofs.ere`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EraFileName {
    /// Its format.
    pub format: EraFormat,
    /// Name of the chain.
    pub chain: String,
    /// Number of the file; its first block is 8192 times this.
    pub epoch: u64,
    /// First bytes of the accumulator root (era1), or of the hash of the last block (ere).
    pub digest: [u8; 4],
    /// What an ere file leaves out; the default for era1.
    pub profile: EreProfile,
}

impl fmt::Display for EraFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { format, chain, epoch, digest, profile } = self;
        write!(f, "{chain}-{epoch:05}-{}{profile}.{format}", hex::encode(digest))
    }
}

impl EraFileName {
    /// Reads a name; `None` if it is not one, or has a profile that is not known.
    pub fn parse(name: &str) -> Option<Self> {
        let (format, (name, profile)) = match name.strip_suffix(".era1") {
            Some(name) => (EraFormat::Era1, (name, EreProfile::default())),
            None => (EraFormat::Ere, EreProfile::split(name.strip_suffix(".ere")?)),
        };
        let mut parts = name.rsplitn(3, '-');
        let (digest, epoch, chain) = (parts.next()?, parts.next()?, parts.next()?);
        let digits = epoch.len() >= 5 && epoch.bytes().all(|b| b.is_ascii_digit());
        let lower = digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !digits || !lower || chain.is_empty() {
            return None;
        }
        let mut bytes = [0; 4];
        hex::decode_to_slice(digest, &mut bytes).ok()?;
        let epoch = epoch.parse().ok()?;
        Some(Self { format, chain: chain.to_owned(), epoch, digest: bytes, profile })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        let names = [
            ("mainnet-00000-5ec1ffb8.era1", EraFormat::Era1, false, false),
            ("mainnet-00000-5ec1ffb8.ere", EraFormat::Ere, false, false),
            ("mainnet-00000-5ec1ffb8-noproofs.ere", EraFormat::Ere, false, true),
            ("mainnet-00000-5ec1ffb8-noreceipts.ere", EraFormat::Ere, true, false),
            ("mainnet-00000-5ec1ffb8-noproofs-noreceipts.ere", EraFormat::Ere, true, true),
        ];
        for (text, format, no_receipts, no_proofs) in names {
            let name = EraFileName::parse(text).unwrap();
            assert_eq!((name.epoch, name.digest), (0, [0x5e, 0xc1, 0xff, 0xb8]));
            assert_eq!(name.format, format);
            assert_eq!(name.profile, EreProfile { no_receipts, no_proofs });
            assert_eq!(name.to_string(), text);
        }
        let long = EraFileName::parse("my-own-chain-123456-00000000.ere").unwrap();
        assert_eq!((&*long.chain, long.epoch), ("my-own-chain", 123_456));
        for bad in [
            "mainnet-0000-5ec1ffb8.era1",
            "mainnet-00000-5ec1ffb.era1",
            "mainnet-00000-5EC1FFB8.era1",
            "mainnet-00000-5ec1ffb8.era",
            "mainnet-00000-5ec1ffb8-noproofs.era1",
            "mainnet-00000-5ec1ffb8-noreceipts-noproofs.ere",
            "mainnet-00000-5ec1ffb8-nobodies.ere",
            "-00000-5ec1ffb8.era1",
            "mainnet-0000x-5ec1ffb8.era1",
            "mainnet.era1",
            ".ere",
            "",
        ] {
            assert_eq!(EraFileName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn profiles_are_ordered_by_what_they_keep() {
        let profile = |no_receipts, no_proofs| EreProfile { no_receipts, no_proofs };
        let order = [(false, false), (false, true), (true, false), (true, true)];
        assert!(order.map(|(receipts, proofs)| profile(receipts, proofs)).is_sorted());
    }
}
