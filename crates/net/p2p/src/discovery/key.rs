//! The node key.

use crate::eth::PeerId;
use alloy_primitives::hex;
use rand::RngCore;
use secp256k1::{PublicKey, SECP256K1, SecretKey};
use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// Name of the key file in a datadir; reth uses the same.
pub const KEY_FILE: &str = "discovery-secret";

/// Maximum bytes that are read of the file; a valid one has 64 to 67.
const MAX_FILE_BYTES: u64 = 256;

/// The secret key of the node. Its public key is the node id.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeKey(SecretKey);

/// Why there is no node key.
#[derive(Debug, thiserror::Error)]
pub enum NodeKeyError {
    /// The file exists and cannot be read.
    #[error("cannot read the node key {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file has no valid key.
    #[error(
        "{} is no node key: {error}. Put the old key back, or remove the file: the node then makes \
         a new key and is known under another id",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: KeyParseError,
    },
    /// A new key cannot be written.
    #[error("cannot write the node key {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// Why a text is no secret key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyParseError {
    /// It has another length, in characters.
    #[error("64 hexadecimal digits are needed, not {0} characters")]
    Length(usize),
    /// It has characters that are no hexadecimal digits.
    #[error("64 hexadecimal digits are needed, and there are other characters")]
    Digits,
    /// Zero, or not less than the order of the curve.
    #[error("the number is not a secret key of secp256k1")]
    Range,
}

impl NodeKey {
    /// A new key.
    pub fn random() -> Self {
        loop {
            let mut bytes = [0; 32];
            rand::rng().fill_bytes(&mut bytes);
            // All but one in 2^128 numbers are keys.
            if let Ok(key) = SecretKey::from_byte_array(bytes) {
                return Self(key);
            }
        }
    }

    /// Parses a key of 64 hexadecimal digits, with or without `0x`.
    ///
    /// # Errors
    /// If the text is anything else.
    pub fn from_hex(text: &str) -> Result<Self, KeyParseError> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        if digits.len() != 64 {
            return Err(KeyParseError::Length(digits.chars().count()));
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| KeyParseError::Digits)?;
        SecretKey::from_byte_array(bytes).map(Self).map_err(|_| KeyParseError::Range)
    }

    /// Reads the key of a file. If there is no file, makes a new key and writes it there with mode
    /// 0600.
    ///
    /// # Errors
    /// If the file cannot be read or written, or has no valid key. An existing file is never
    /// replaced.
    pub fn load_or_create(path: &Path) -> Result<Self, NodeKeyError> {
        let read = |error| NodeKeyError::Read { path: path.into(), error };
        let mut text = Vec::new();
        match fs::File::open(path) {
            Ok(file) => file.take(MAX_FILE_BYTES).read_to_end(&mut text).map_err(read)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = Self::random();
                key.write(path)
                    .map_err(|error| NodeKeyError::Write { path: path.into(), error })?;
                return Ok(key);
            }
            Err(error) => return Err(read(error)),
        };
        let key = str::from_utf8(&text).map_err(|_| KeyParseError::Digits);
        key.and_then(|text| Self::from_hex(text.trim_end()))
            .map_err(|error| NodeKeyError::Damaged { path: path.into(), error })
    }

    /// Writes to a second file and renames it, so that a crash leaves no partial key.
    fn write(&self, path: &Path) -> io::Result<()> {
        let aside = path.with_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&aside)?;
        file.write_all(hex::encode(self.0.secret_bytes()).as_bytes())?;
        file.sync_all()?;
        fs::rename(aside, path)
    }

    /// The node id: the public key without its leading byte.
    pub fn id(&self) -> PeerId {
        id_of(&self.0.public_key(SECP256K1))
    }

    /// The secret key.
    pub const fn secret(&self) -> &SecretKey {
        &self.0
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeKey").field(&self.id()).finish()
    }
}

/// The id of a public key.
pub(super) fn id_of(key: &PublicKey) -> PeerId {
    PeerId::from_slice(&key.serialize_uncompressed()[1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outlives_a_restart_and_only_its_owner_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KEY_FILE);
        let key = NodeKey::load_or_create(&path).unwrap();
        assert_eq!(NodeKey::load_or_create(&path).unwrap(), key);
        assert_eq!(fs::read_to_string(&path).unwrap(), hex::encode(key.secret().secret_bytes()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        // With whitespace at the end, as editors leave it.
        fs::write(&path, format!("0x{}\n", hex::encode(key.secret().secret_bytes()))).unwrap();
        assert_eq!(NodeKey::load_or_create(&path).unwrap(), key);
    }

    #[test]
    fn a_damaged_key_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KEY_FILE);
        let order = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141";
        for (text, error) in [
            (String::new(), KeyParseError::Length(0)),
            ("ab".repeat(31), KeyParseError::Length(62)),
            ("ab".repeat(1000), KeyParseError::Length(256)),
            (format!("{}zz", "ab".repeat(31)), KeyParseError::Digits),
            ("00".repeat(32), KeyParseError::Range),
            (order.into(), KeyParseError::Range),
        ] {
            fs::write(&path, &text).unwrap();
            let refused = NodeKey::load_or_create(&path).unwrap_err();
            assert!(matches!(&refused, NodeKeyError::Damaged { error: is, .. } if *is == error));
            assert!(refused.to_string().contains(KEY_FILE), "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(&path, [0xff; 64]).unwrap();
        assert!(matches!(
            NodeKey::load_or_create(&path),
            Err(NodeKeyError::Damaged { error: KeyParseError::Digits, .. })
        ));
        assert!(matches!(NodeKey::load_or_create(dir.path()), Err(NodeKeyError::Read { .. })));
    }

    #[test]
    fn a_key_is_not_in_its_debug_output() {
        let key = NodeKey::from_hex(&"01".repeat(32)).unwrap();
        assert!(!format!("{key:?}").contains(&"01".repeat(32)));
    }
}
