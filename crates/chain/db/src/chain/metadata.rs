//! Identity of a datadir. It is written once, and openings that contradict it fail.
//!
//! It is one JSON object in table `Metadata` under the key `identity`, e.g.
//!
//! ```json
//! {"schema":3,"chain_id":1,"genesis":"0xd4e5..","backend":"mpt","backend_version":1,
//!  "hash":"keccak256","params":"0x0000..","state_root":"header"}
//! ```
//!
//! It is JSON, since it is read once per start and people look at it. An unknown field is an error,
//! as it may change the meaning of the datadir.

use crate::{
    ChainRead, CorruptRow, DatabaseEnv, MetadataError, Result, WriteTxn, checksum, raw::RawRead,
    tables::ChainTable,
};
use alloy_primitives::B256;
use retrie_state::{BackendIdentity, KeyForm};
use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, str::FromStr};

/// Version of the tables' layout, see [`tables`](crate::tables).
pub const SCHEMA_VERSION: u64 = 3;

const KEY: &[u8] = b"identity";

/// The chain, backend and formats of a datadir.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatadirMetadata {
    /// Layout of the tables.
    pub schema: u64,
    /// Chain id (EIP-155).
    pub chain_id: u64,
    /// Hash of the genesis block.
    pub genesis: B256,
    /// Name of the state backend.
    pub backend: String,
    /// Version of the backend's persisted format.
    pub backend_version: u32,
    /// Name of the hash function under the backend's root.
    pub hash: String,
    /// Digest of the backend's parameters.
    pub params: B256,
    /// How the backend's rows are laid out, if it has several layouts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub layout: String,
    /// The form of the keys that the backend gets.
    #[serde(default, skip_serializing_if = "StoredKeyForm::is_plain")]
    pub keys: StoredKeyForm,
    /// What state roots in headers mean.
    pub state_root: StateRootMode,
}

/// A [`KeyForm`] as a datadir stores it, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredKeyForm {
    /// Addresses and slots.
    #[default]
    Plain,
    /// Their hashes.
    Hashed,
}

impl StoredKeyForm {
    const fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }
}

impl From<KeyForm> for StoredKeyForm {
    fn from(form: KeyForm) -> Self {
        match form {
            KeyForm::Plain => Self::Plain,
            KeyForm::Hashed => Self::Hashed,
        }
    }
}

impl From<StoredKeyForm> for KeyForm {
    fn from(form: StoredKeyForm) -> Self {
        match form {
            StoredKeyForm::Plain => Self::Plain,
            StoredKeyForm::Hashed => Self::Hashed,
        }
    }
}

/// The meaning of the state root in headers for this datadir (`--state-root`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateRootMode {
    /// An existing network with the same kind of root: the backend's root must equal the header's.
    Header,
    /// The header's root belongs to another backend; this backend's root is stored beside it.
    Shadow,
    /// A new chain of this program: headers carry the backend's root.
    Native,
}

impl StateRootMode {
    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Shadow => "shadow",
            Self::Native => "native",
        }
    }
}

impl fmt::Display for StateRootMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for StateRootMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::Header, Self::Shadow, Self::Native]
            .into_iter()
            .find(|mode| mode.name() == name)
            .ok_or_else(|| format!("`{name}` is none of header, shadow, native"))
    }
}

impl DatadirMetadata {
    /// Metadata of a datadir that this program creates.
    pub fn new(
        chain_id: u64,
        genesis: B256,
        backend: &BackendIdentity,
        keys: KeyForm,
        state_root: StateRootMode,
    ) -> Self {
        Self {
            schema: SCHEMA_VERSION,
            chain_id,
            genesis,
            backend: backend.name.to_owned(),
            backend_version: backend.version,
            hash: backend.hash.name().to_owned(),
            params: backend.params,
            layout: backend.layout.to_owned(),
            keys: keys.into(),
            state_root,
        }
    }

    /// Fails if this metadata differs from `expected`; the error names the first difference and
    /// what to do.
    fn check(&self, expected: &Self, path: PathBuf) -> Result<(), MetadataError> {
        let found = self;
        if (found.chain_id, found.genesis) != (expected.chain_id, expected.genesis) {
            return Err(MetadataError::ChainMismatch {
                path,
                found_id: found.chain_id,
                found_genesis: found.genesis,
                expected_id: expected.chain_id,
                expected_genesis: expected.genesis,
            });
        }
        if found.backend != expected.backend {
            return Err(MetadataError::BackendMismatch {
                path,
                found: found.backend.clone(),
                expected: expected.backend.clone(),
            });
        }
        if found.backend_version != expected.backend_version {
            return Err(MetadataError::BackendFormat {
                path,
                backend: found.backend.clone(),
                found: found.backend_version,
                expected: expected.backend_version,
                advice: if found.backend_version > expected.backend_version {
                    "use a newer version of this program"
                } else {
                    "import again into a fresh datadir, or use the version that made it"
                },
            });
        }
        let name = |keys| KeyForm::from(keys).name().to_owned();
        for (what, found_value, expected_value) in [
            ("hash function", found.hash.clone(), expected.hash.clone()),
            ("parameters", found.params.to_string(), expected.params.to_string()),
            ("layout", found.layout.clone(), expected.layout.clone()),
            ("form of keys", name(found.keys), name(expected.keys)),
        ] {
            if found_value != expected_value {
                return Err(MetadataError::BackendParameters {
                    path,
                    backend: found.backend.clone(),
                    what,
                    found: found_value,
                    expected: expected_value,
                });
            }
        }
        if found.state_root != expected.state_root {
            return Err(MetadataError::StateRootMismatch {
                path,
                found: found.state_root.to_string(),
                expected: expected.state_root.to_string(),
            });
        }
        Ok(())
    }
}

impl DatabaseEnv {
    /// Writes `expected` into a new datadir, or compares it with the metadata of an existing one.
    pub fn init_metadata(&self, expected: &DatadirMetadata) -> Result<()> {
        let mut txn = self.begin_write()?;
        match txn.metadata()? {
            Some(found) => Ok(found.check(expected, self.datadir().to_owned())?),
            None => {
                txn.put_metadata(expected)?;
                if let Some(what) = &self.inner.unfinished {
                    txn.set_unfinished(Some(what))?;
                }
                Ok(txn.commit()?)
            }
        }
    }

    /// Fails unless the metadata of this datadir equals `expected`; returns it.
    pub fn check_metadata(&self, expected: &DatadirMetadata) -> Result<DatadirMetadata> {
        let found = self.metadata()?;
        found.check(expected, self.datadir().to_owned())?;
        Ok(found)
    }

    /// The metadata of this datadir. Fails if it is not initialised, or has the table layout of
    /// another version.
    pub fn metadata(&self) -> Result<DatadirMetadata> {
        let path = || self.datadir().to_owned();
        let found = self.begin_read()?.metadata()?;
        Ok(found.ok_or_else(|| MetadataError::NotInitialised { path: path() })?)
    }
}

impl WriteTxn {
    /// Writes the metadata, and replaces any old one; for migrations and
    /// [`DatabaseEnv::init_metadata`].
    pub fn put_metadata(&mut self, metadata: &DatadirMetadata) -> Result<()> {
        let table = self.chain(ChainTable::Metadata);
        let json = serde_json::to_vec(metadata)
            .map_err(|e| CorruptRow::new(table.name, KEY, format!("it does not encode ({e})")))?;
        self.raw_put(table, KEY, &json)
    }
}

/// Reads the metadata; another table layout is refused before the other fields are decoded.
pub(crate) fn read<R: RawRead + ?Sized>(read: &R) -> Result<Option<DatadirMetadata>> {
    #[derive(Deserialize)]
    struct SchemaField {
        schema: u64,
    }
    let table = read.chain(ChainTable::Metadata);
    let Some(row) = read.stored(table, KEY)? else { return Ok(None) };
    // Rows of layout 1 had no checksum.
    let (json, checked) = match checksum::open(table, KEY, row.clone()) {
        Ok(json) => (json, Ok(())),
        Err(mismatch) => (row, Err(mismatch)),
    };
    let wrong = |e: serde_json::Error| {
        CorruptRow::new(table.name, KEY, format!("the identity does not decode ({e})"))
    };
    let SchemaField { schema } = match serde_json::from_slice(&json) {
        Ok(schema) => schema,
        Err(e) => return Err(checked.err().unwrap_or_else(|| wrong(e)).into()),
    };
    if schema == SCHEMA_VERSION {
        checked?;
    } else {
        return Err(MetadataError::Schema {
            path: read.inner().context.path.clone(),
            found: schema,
            supported: SCHEMA_VERSION,
            advice: if schema > SCHEMA_VERSION {
                "use a newer version of this program"
            } else {
                "import again into a fresh datadir, or use the version that made it"
            },
        }
        .into());
    }
    Ok(Some(serde_json::from_slice(&json).map_err(wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DbError, OpenOptions};
    use retrie_state::HashId;

    fn mpt() -> BackendIdentity {
        BackendIdentity::plain("mpt", 3, HashId::Keccak256)
    }

    fn expected() -> DatadirMetadata {
        DatadirMetadata::new(1, B256::repeat_byte(7), &mpt(), KeyForm::Plain, StateRootMode::Header)
    }

    #[test]
    fn identity_row_is_this_json() {
        let zeros = "00".repeat(32);
        let json = format!(
            "{{\"schema\":3,\"chain_id\":1,\"genesis\":\"0x{}\",\"backend\":\"mpt\",\
             \"backend_version\":3,\"hash\":\"keccak256\",\"params\":\"0x{zeros}\",\
             \"state_root\":\"header\"}}",
            "07".repeat(32)
        );
        assert_eq!(serde_json::to_string(&expected()).unwrap(), json);
        assert_eq!(serde_json::from_str::<DatadirMetadata>(&json).unwrap(), expected());
        // Backends with several layouts store theirs.
        let layout = DatadirMetadata { layout: "blocked".into(), ..expected() };
        let json = json.replace(",\"state_root", ",\"layout\":\"blocked\",\"state_root");
        assert_eq!(serde_json::to_string(&layout).unwrap(), json);
        assert_eq!(serde_json::from_str::<DatadirMetadata>(&json).unwrap(), layout);
        // Datadirs with hashed keys say so.
        let hashed = DatadirMetadata { keys: StoredKeyForm::Hashed, ..layout };
        let json = json.replace(",\"state_root", ",\"keys\":\"hashed\",\"state_root");
        assert_eq!(serde_json::to_string(&hashed).unwrap(), json);
        assert_eq!(serde_json::from_str::<DatadirMetadata>(&json).unwrap(), hashed);
    }

    #[test]
    fn another_schema_is_refused_even_if_the_rest_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
        for (schema, advice) in [(4, "newer version"), (2, "import again"), (1, "import again")] {
            let mut txn = db.begin_write().unwrap();
            let table = txn.chain(ChainTable::Metadata);
            let json = format!("{{\"schema\":{schema},\"something\":\"else\"}}");
            txn.raw_put(table, KEY, json.as_bytes()).unwrap();
            txn.commit().unwrap();
            let refused = db.check_metadata(&expected()).unwrap_err();
            assert!(
                matches!(
                    refused,
                    DbError::Metadata(MetadataError::Schema { supported: SCHEMA_VERSION, .. })
                ),
                "{refused:?}"
            );
            assert!(refused.to_string().contains(advice), "{refused}");
        }
    }

    #[test]
    fn layout_without_checksums_is_refused_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
        let mut txn = db.begin_write().unwrap();
        let table = txn.chain(ChainTable::Metadata);
        let json = serde_json::to_string(&expected()).unwrap().replace(":3,", ":1,");
        txn.put_stored(table, KEY, json.as_bytes());
        txn.commit().unwrap();
        let refused = db.metadata().unwrap_err();
        assert!(
            matches!(refused, DbError::Metadata(MetadataError::Schema { found: 1, .. })),
            "{refused:?}"
        );
        assert!(refused.to_string().contains("import again"), "{refused}");
    }

    #[test]
    fn unknown_fields_and_damage_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
        let mut json = serde_json::to_value(expected()).unwrap();
        json["encryption"] = "aes".into();
        for row in [json.to_string(), "{\"schema\":3".to_owned(), String::new()] {
            let mut txn = db.begin_write().unwrap();
            let table = txn.chain(ChainTable::Metadata);
            txn.raw_put(table, KEY, row.as_bytes()).unwrap();
            txn.commit().unwrap();
            assert!(matches!(db.metadata(), Err(DbError::Corrupt(_))), "{row}");
        }
    }
}
