//! The entries of a DNS tree of nodes (EIP-1459), as text.
//!
//! ```text
//!  enrtree-root:v1 e=<label> l=<label> seq=<number> sig=<base64, 65 bytes>
//!  enrtree-branch:<label>,<label>,..
//!  enrtree://<base32 of the public key, 33 bytes>@<domain>
//!  enr:<base64 of a node record>
//!
//!  label = base32 of the first 16 bytes of the keccak256 of the entry's text; the entry is found
//!          under <label>.<domain>
//! ```

use super::super::record::{self, Enr};
use alloy_primitives::{B256, keccak256};
use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use secp256k1::{
    Message, PublicKey, SECP256K1,
    ecdsa::{RecoverableSignature, RecoveryId},
};
use std::{fmt, str::FromStr};

/// Maximum bytes of an entry's text. DNS packets without extensions have 512.
const MAX_ENTRY_BYTES: usize = 4096;
/// Maximum bytes of a domain name, so that a label and a dot fit before it.
const MAX_DOMAIN_BYTES: usize = 200;
/// Bytes of a hash in a label: at least enough to resist forged entries, at most a whole hash.
const LABEL_BYTES: std::ops::RangeInclusive<usize> = 12..=32;

/// The URL of a tree of nodes: `enrtree://KEY@DOMAIN`. The key must sign the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TreeUrl {
    pub(super) key: PublicKey,
    pub(super) domain: String,
}

/// Why a text is no URL of a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeUrlError {
    /// It has another scheme.
    #[error("`{0}` does not begin with `enrtree://`")]
    Scheme(String),
    /// The key is invalid, or there is no `@`.
    #[error("`{0}` has no public key of secp256k1 (33 bytes in base32) before an `@`")]
    Key(String),
    /// The rest is no domain name.
    #[error("`{0}` has no domain name of at most 200 letters, digits, dots and hyphens")]
    Domain(String),
}

impl FromStr for TreeUrl {
    type Err = TreeUrlError;

    fn from_str(url: &str) -> Result<Self, TreeUrlError> {
        let shown = || url.chars().take(300).collect::<String>();
        let rest = url.strip_prefix("enrtree://").ok_or_else(|| TreeUrlError::Scheme(shown()))?;
        let (key, domain) = rest.split_once('@').ok_or_else(|| TreeUrlError::Key(shown()))?;
        let key = BASE32_NOPAD.decode(key.as_bytes()).ok();
        let key = key.filter(|key| key.len() == 33);
        let key = key.and_then(|key| PublicKey::from_slice(&key).ok());
        let key = key.ok_or_else(|| TreeUrlError::Key(shown()))?;
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let domain = domain.trim_end_matches('.');
        if domain.is_empty() || domain.len() > MAX_DOMAIN_BYTES || !domain.bytes().all(letter) {
            return Err(TreeUrlError::Domain(shown()));
        }
        Ok(Self { key, domain: domain.to_ascii_lowercase() })
    }
}

impl fmt::Display for TreeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "enrtree://{}@{}", BASE32_NOPAD.encode(&self.key.serialize()), self.domain)
    }
}

/// The front of an entry's hash, as its label has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryLabel(Vec<u8>);

impl EntryLabel {
    fn parse(text: &str) -> Result<Self, EntryError> {
        // DNS names are not case sensitive.
        let bytes = BASE32_NOPAD.decode(text.to_ascii_uppercase().as_bytes());
        let bytes = bytes.map_err(|_| EntryError::Label)?;
        if LABEL_BYTES.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(EntryError::Label) }
    }

    /// Whether this is the label of the entry with this text.
    pub(super) fn matches(&self, text: &str) -> bool {
        keccak256(text).starts_with(&self.0)
    }
}

impl fmt::Display for EntryLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE32_NOPAD.encode(&self.0))
    }
}

/// The root of a tree. Parsing checks the signature of the tree's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeRootEntry {
    /// Label of the subtree of node records.
    pub(super) records: EntryLabel,
    /// Label of the subtree of links to other trees.
    pub(super) links: EntryLabel,
    /// Sequence number: it grows with each version of the tree.
    pub(super) seq: u64,
}

/// Any entry except the root.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DnsEntry {
    Branch(Vec<EntryLabel>),
    Link(TreeUrl),
    Record(Box<Enr>),
}

/// Why a text is no valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EntryError {
    #[error("an entry has {0} bytes; at most 4096 are allowed")]
    Length(usize),
    #[error("the root is not `enrtree-root:v1 e=.. l=.. seq=.. sig=..`")]
    Root,
    #[error("the root is not signed by the key of the tree")]
    Signature,
    #[error("a label is not base32 of 12 to 32 bytes")]
    Label,
    #[error("a link does not name a tree")]
    Link,
    #[error("a record does not decode, or is not signed by its key")]
    Record,
    #[error("an entry of an unknown kind")]
    Unknown,
}

impl TreeRootEntry {
    pub(super) fn parse(text: &str, key: &PublicKey) -> Result<Self, EntryError> {
        check_length(text)?;
        let (signed, signature) = text.rsplit_once(" sig=").ok_or(EntryError::Root)?;
        let fields: Vec<_> = signed.split(' ').collect();
        let [version, records, links, seq] = fields[..] else { return Err(EntryError::Root) };
        if version != "enrtree-root:v1" {
            return Err(EntryError::Root);
        }
        let field = |text: &str, name| text.strip_prefix(name).map(str::to_owned);
        let records = field(records, "e=").ok_or(EntryError::Root)?;
        let links = field(links, "l=").ok_or(EntryError::Root)?;
        let seq = field(seq, "seq=").and_then(|seq| seq.parse().ok()).ok_or(EntryError::Root)?;
        if !is_signed(keccak256(signed), signature, key) {
            return Err(EntryError::Signature);
        }
        Ok(Self { records: EntryLabel::parse(&records)?, links: EntryLabel::parse(&links)?, seq })
    }
}

fn is_signed(hash: B256, signature: &str, key: &PublicKey) -> bool {
    let Ok(bytes) = BASE64URL_NOPAD.decode(signature.as_bytes()) else { return false };
    let Ok(bytes) = <[u8; 65]>::try_from(bytes) else { return false };
    let recovery = RecoveryId::try_from(i32::from(bytes[64]));
    let signer = recovery
        .and_then(|recovery| RecoverableSignature::from_compact(&bytes[..64], recovery))
        .and_then(|signature| SECP256K1.recover_ecdsa(Message::from_digest(hash.0), &signature));
    signer.is_ok_and(|signer| signer == *key)
}

fn check_length(text: &str) -> Result<(), EntryError> {
    if text.len() > MAX_ENTRY_BYTES { Err(EntryError::Length(text.len())) } else { Ok(()) }
}

impl DnsEntry {
    pub(super) fn parse(text: &str) -> Result<Self, EntryError> {
        check_length(text)?;
        if let Some(labels) = text.strip_prefix("enrtree-branch:") {
            if labels.is_empty() {
                return Ok(Self::Branch(Vec::new()));
            }
            return labels
                .split(',')
                .map(EntryLabel::parse)
                .collect::<Result<_, _>>()
                .map(Self::Branch);
        }
        if text.starts_with("enrtree://") {
            return text.parse().map(Self::Link).map_err(|_| EntryError::Link);
        }
        if text.starts_with("enr:") {
            let record = record::from_text(text).ok_or(EntryError::Record)?;
            return Ok(Self::Record(Box::new(record)));
        }
        Err(EntryError::Unknown)
    }
}

/// Builds trees, for tests.
#[cfg(test)]
pub(super) mod tree_builder {
    use super::{super::super::key::NodeKey, *};
    use std::collections::BTreeMap;

    pub(crate) fn label(text: &str) -> String {
        BASE32_NOPAD.encode(&keccak256(text)[..16])
    }

    pub(crate) fn root(key: &NodeKey, records: &str, links: &str, seq: u64) -> String {
        let signed = format!("enrtree-root:v1 e={records} l={links} seq={seq}");
        let message = Message::from_digest(keccak256(&signed).0);
        let (recovery, compact) =
            SECP256K1.sign_ecdsa_recoverable(message, key.secret()).serialize_compact();
        let mut bytes = compact.to_vec();
        bytes.push(i32::from(recovery) as u8);
        format!("{signed} sig={}", BASE64URL_NOPAD.encode(&bytes))
    }

    pub(crate) fn url(key: &NodeKey, domain: &str) -> TreeUrl {
        TreeUrl { key: key.secret().public_key(SECP256K1), domain: domain.into() }
    }

    /// Puts leaves under branches of `width` children. Returns the label of the topmost entry.
    pub(crate) fn grow(
        zone: &mut BTreeMap<String, String>,
        domain: &str,
        leaves: Vec<String>,
        width: usize,
    ) -> String {
        let mut put = |text: String| {
            let label = label(&text);
            zone.insert(format!("{}.{domain}", label.to_lowercase()), text);
            label
        };
        let mut level: Vec<String> = leaves.into_iter().map(&mut put).collect();
        loop {
            let branches = level.chunks(width).map(|labels| labels.join(","));
            let mut next: Vec<String> =
                branches.map(|labels| put(format!("enrtree-branch:{labels}"))).collect();
            if next.is_empty() {
                next.push(put("enrtree-branch:".into()));
            }
            level = next;
            if level.len() == 1 {
                return level.remove(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::key::NodeKey, *};

    /// The tree in the example of EIP-1459.
    #[test]
    fn the_entries_of_the_eip_are_read() {
        let link: TreeUrl =
            "enrtree://AM5FCQLWIZX2QFPNJAP7VUERCCRNGRHWZG3YYHIUV7BVDQ5FDPRT2@morenodes.example.org"
                .parse()
                .unwrap();
        assert_eq!(link.domain, "morenodes.example.org");
        let branch = "enrtree-branch:2XS2367YHAXJFGLZHVAWLQD4ZY,H4FHT4B454P6UXFD7JCYQ5PWDY,\
                      MHTDO6TMUBRIA2XWG5LUDACK24";
        let DnsEntry::Branch(labels) = DnsEntry::parse(branch).unwrap() else { panic!("a branch") };
        assert_eq!(labels.len(), 3);
        assert_eq!(labels[1].to_string(), "H4FHT4B454P6UXFD7JCYQ5PWDY");
        assert_eq!(DnsEntry::parse(&link.to_string()), Ok(DnsEntry::Link(link)));
        let record = "enr:-HW4QOFzoVLaFJnNhbgMoDXPnOvcdVuj7pDpqRvh6BRDO68aVi5ZcjB3vzQRZH2IcLBGHzo8\
                      uUN3snqmgTiE56CH3AMBgmlkgnY0iXNlY3AyNTZrMaECC2_24YYkYHEgdzxlSNKQEnHhuNAbNlMl\
                      WJxrJxbAFvA";
        assert!(matches!(DnsEntry::parse(record), Ok(DnsEntry::Record(_))));
        assert!(labels[0].matches(record));
    }

    #[test]
    fn a_root_is_taken_from_its_key_alone() {
        let (key, other) = (NodeKey::random(), NodeKey::random());
        let label = tree_builder::label("x");
        let text = tree_builder::root(&key, &label, &label, 3);
        let public = key.secret().public_key(SECP256K1);
        assert_eq!(TreeRootEntry::parse(&text, &public).unwrap().seq, 3);
        let wrong = tree_builder::root(&other, &label, &label, 3);
        assert_eq!(TreeRootEntry::parse(&wrong, &public), Err(EntryError::Signature));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 2;
            let changed = String::from_utf8(bytes).unwrap();
            assert!(TreeRootEntry::parse(&changed, &public).is_err(), "{changed}");
            assert!(TreeRootEntry::parse(&text[..at], &public).is_err());
        }
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        for (text, error) in [
            ("", EntryError::Unknown),
            ("enrtree-root:v1", EntryError::Unknown),
            ("enrtree-branch:A", EntryError::Label),
            ("enrtree-branch:2XS2367YHAXJFGLZHVAWLQD4ZY,", EntryError::Label),
            ("enrtree-branch:é", EntryError::Label),
            ("enrtree://x@y", EntryError::Link),
            ("enr:-HW4", EntryError::Record),
            ("enr:", EntryError::Record),
        ] {
            assert_eq!(DnsEntry::parse(text), Err(error), "{text}");
        }
        let long = format!("enrtree-branch:{}", "A".repeat(5000));
        assert!(matches!(DnsEntry::parse(&long), Err(EntryError::Length(_))));
        for url in ["http://x", "enrtree://x", "enrtree://AAAA@x"] {
            assert!(url.parse::<TreeUrl>().is_err());
        }
        let key = tree_builder::url(&NodeKey::random(), "x").to_string();
        assert!(key.parse::<TreeUrl>().is_ok());
        for domain in ["", "a b", &"a".repeat(201)] {
            let url = format!("{}{domain}", key.trim_end_matches('x'));
            assert!(matches!(url.parse::<TreeUrl>(), Err(TreeUrlError::Domain(_))), "{url}");
        }
    }
}
