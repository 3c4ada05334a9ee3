//! Identity of a datadir: written once, and whatever contradicts it is refused.
//!
//! It is one JSON object in table `Metadata` under the key `identity`, e.g.
//!
//! ```json
//! {"schema":2,"chain_id":1,"genesis":"0xd4e5..","backend":"mpt","backend_version":1,
//!  "hash":"keccak256","params":"0x0000..","state_root":"header"}
//! ```
//!
//! JSON, since it is read once per start and people look at it. An unknown field is an error: it
//! would be something this program ought to know before it touches the datadir.

use crate::{ChainRead, Db, DbError, Result, WriteTxn, checksum, raw::RawRead, tables::ChainTable};
use alloy_primitives::B256;
use retrie_state::Identity;
use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, str::FromStr};

/// Version of the tables' layout, see [`tables`](crate::tables).
pub const SCHEMA_VERSION: u64 = 2;

const KEY: &[u8] = b"identity";

/// What a datadir holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
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
    /// How the backend's rows are laid out, if it has a choice of that.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub layout: String,
    /// What state roots in headers mean.
    pub state_root: StateRootMode,
}

/// What the state root in a header means to this datadir (`--state-root`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateRootMode {
    /// It is the backend's own root and must equal it, on an existing network.
    Header,
    /// It belongs to another backend; ours is kept beside it.
    Shadow,
    /// The chain is our own: headers carry the backend's root.
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

impl Metadata {
    /// Metadata of a datadir made by this program.
    pub fn new(
        chain_id: u64,
        genesis: B256,
        backend: &Identity,
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
            state_root,
        }
    }

    /// Whether a datadir with this metadata serves `expected`; the error names the first
    /// difference and the way out.
    fn check(&self, expected: &Self, path: PathBuf) -> Result<()> {
        let found = self;
        if (found.chain_id, found.genesis) != (expected.chain_id, expected.genesis) {
            return Err(DbError::ChainMismatch {
                path,
                found_id: found.chain_id,
                found_genesis: found.genesis,
                expected_id: expected.chain_id,
                expected_genesis: expected.genesis,
            });
        }
        if found.backend != expected.backend {
            return Err(DbError::BackendMismatch {
                path,
                found: found.backend.clone(),
                expected: expected.backend.clone(),
            });
        }
        if found.backend_version != expected.backend_version {
            return Err(DbError::BackendFormat {
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
        for (what, found_value, expected_value) in [
            ("hash function", found.hash.clone(), expected.hash.clone()),
            ("parameters", found.params.to_string(), expected.params.to_string()),
            ("layout", found.layout.clone(), expected.layout.clone()),
        ] {
            if found_value != expected_value {
                return Err(DbError::BackendParameters {
                    path,
                    backend: found.backend.clone(),
                    what,
                    found: found_value,
                    expected: expected_value,
                });
            }
        }
        if found.state_root != expected.state_root {
            return Err(DbError::StateRootMismatch {
                path,
                found: found.state_root.to_string(),
                expected: expected.state_root.to_string(),
            });
        }
        Ok(())
    }
}

impl Db {
    /// Stamps a fresh datadir with `expected`, or checks it if it is stamped.
    pub fn init_metadata(&self, expected: &Metadata) -> Result<()> {
        let mut txn = self.begin_write()?;
        match txn.metadata()? {
            Some(found) => found.check(expected, self.datadir().to_owned()),
            None => {
                txn.put_metadata(expected)?;
                if let Some(what) = &self.inner.unfinished {
                    txn.set_unfinished(Some(what))?;
                }
                txn.commit()
            }
        }
    }

    /// Fails unless this datadir holds what `expected` says; returns its metadata.
    pub fn check_metadata(&self, expected: &Metadata) -> Result<Metadata> {
        let found = self.metadata()?;
        found.check(expected, self.datadir().to_owned())?;
        Ok(found)
    }

    /// What this datadir holds. Fails if it is not initialised, or laid out by another version.
    pub fn metadata(&self) -> Result<Metadata> {
        let path = || self.datadir().to_owned();
        self.begin_read()?.metadata()?.ok_or_else(|| DbError::NotInitialised { path: path() })
    }
}

impl WriteTxn {
    /// Writes the metadata, whatever was there; for migrations and [`Db::init_metadata`].
    pub fn put_metadata(&mut self, metadata: &Metadata) -> Result<()> {
        let table = self.chain(ChainTable::Metadata);
        let json = serde_json::to_vec(metadata)
            .map_err(|e| DbError::corrupt(table.name, KEY, format!("it does not encode ({e})")))?;
        self.raw_put(table, KEY, &json)
    }
}

/// Reads the metadata; another layout of the tables is refused before the rest is looked at.
pub(crate) fn read<R: RawRead + ?Sized>(read: &R) -> Result<Option<Metadata>> {
    #[derive(Deserialize)]
    struct Schema {
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
        DbError::corrupt(table.name, KEY, format!("the identity does not decode ({e})"))
    };
    let Schema { schema } = match serde_json::from_slice(&json) {
        Ok(schema) => schema,
        Err(e) => return checked.and_then(|()| Err(wrong(e))),
    };
    if schema == SCHEMA_VERSION {
        checked?;
    } else {
        return Err(DbError::Schema {
            path: read.inner().context.path.clone(),
            found: schema,
            supported: SCHEMA_VERSION,
            advice: if schema > SCHEMA_VERSION {
                "use a newer version of this program"
            } else {
                "import again into a fresh datadir, or use the version that made it"
            },
        });
    }
    serde_json::from_slice(&json).map(Some).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenOptions;
    use retrie_state::HashId;

    fn mpt() -> Identity {
        Identity::plain("mpt", 3, HashId::Keccak256)
    }

    fn expected() -> Metadata {
        Metadata::new(1, B256::repeat_byte(7), &mpt(), StateRootMode::Header)
    }

    #[test]
    fn identity_row_is_this_json() {
        let zeros = "00".repeat(32);
        let json = format!(
            "{{\"schema\":2,\"chain_id\":1,\"genesis\":\"0x{}\",\"backend\":\"mpt\",\
             \"backend_version\":3,\"hash\":\"keccak256\",\"params\":\"0x{zeros}\",\
             \"state_root\":\"header\"}}",
            "07".repeat(32)
        );
        assert_eq!(serde_json::to_string(&expected()).unwrap(), json);
        assert_eq!(serde_json::from_str::<Metadata>(&json).unwrap(), expected());
        // Backends with a choice of layouts stamp theirs.
        let layout = Metadata { layout: "blocked".into(), ..expected() };
        let json = json.replace(",\"state_root", ",\"layout\":\"blocked\",\"state_root");
        assert_eq!(serde_json::to_string(&layout).unwrap(), json);
        assert_eq!(serde_json::from_str::<Metadata>(&json).unwrap(), layout);
    }

    #[test]
    fn another_schema_is_refused_even_if_the_rest_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::create(dir.path(), &OpenOptions::default()).unwrap();
        for (schema, advice) in [(3, "newer version"), (1, "import again")] {
            let mut txn = db.begin_write().unwrap();
            let table = txn.chain(ChainTable::Metadata);
            let json = format!("{{\"schema\":{schema},\"something\":\"else\"}}");
            txn.raw_put(table, KEY, json.as_bytes()).unwrap();
            txn.commit().unwrap();
            let refused = db.check_metadata(&expected()).unwrap_err();
            assert!(matches!(refused, DbError::Schema { supported: 2, .. }), "{refused:?}");
            assert!(refused.to_string().contains(advice), "{refused}");
        }
    }

    #[test]
    fn layout_without_checksums_is_refused_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::create(dir.path(), &OpenOptions::default()).unwrap();
        let mut txn = db.begin_write().unwrap();
        let table = txn.chain(ChainTable::Metadata);
        let json = serde_json::to_string(&expected()).unwrap().replace(":2,", ":1,");
        txn.put_stored(table, KEY, json.as_bytes());
        txn.commit().unwrap();
        let refused = db.metadata().unwrap_err();
        assert!(matches!(refused, DbError::Schema { found: 1, .. }), "{refused:?}");
        assert!(refused.to_string().contains("import again"), "{refused}");
    }

    #[test]
    fn unknown_fields_and_damage_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::create(dir.path(), &OpenOptions::default()).unwrap();
        let mut json = serde_json::to_value(expected()).unwrap();
        json["encryption"] = "aes".into();
        for row in [json.to_string(), "{\"schema\":2".to_owned(), String::new()] {
            let mut txn = db.begin_write().unwrap();
            let table = txn.chain(ChainTable::Metadata);
            txn.raw_put(table, KEY, row.as_bytes()).unwrap();
            txn.commit().unwrap();
            assert!(matches!(db.metadata(), Err(DbError::Corrupt { .. })), "{row}");
        }
    }
}
