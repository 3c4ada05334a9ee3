//! [`SnapshotManifest`]: what a snapshot is of, and how many objects it has.

use super::SnapshotError;
use alloy_primitives::B256;
use retrie_sources::ObjectFolder;
use retrie_state::KeyForm;
use serde::{Deserialize, Serialize};

/// Name of the object. It is written last.
pub(super) const MANIFEST: &str = "snapshot.json";
const FORMAT: &str = "retrie-snapshot";
const VERSION: u32 = 1;
const MAX_BYTES: u64 = 64 << 10;
/// Most objects of an index: half a thousand million answers.
const MAX_INDEX_OBJECTS: u32 = 2048;

/// The manifest of a snapshot. A reader does not trust it: it says what to ask for, and what is read
/// is checked against a hash from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotManifest {
    format: String,
    version: u32,
    /// Id of the chain (EIP-155).
    pub chain_id: u64,
    /// Hash of the genesis block.
    pub genesis_hash: B256,
    /// Number of the block whose state it is.
    pub block_number: u64,
    /// Hash of that block.
    pub block_hash: B256,
    /// The state root in its header.
    pub state_root: B256,
    /// The root that the chunks hang from.
    pub root: B256,
    /// Name of the backend that it was exported from.
    pub backend: String,
    /// Format of chunks and ids: that of [`StateChunks`](retrie_state::StateChunks), or `ranges`.
    pub chunks: String,
    /// Form of the keys: `plain` or `hashed`.
    pub keys: String,
    /// Number of headers: the block's and its ancestors'.
    pub headers: u64,
    /// Number of answers: chunks, splits and codes.
    pub answers: u64,
    /// Number of contract codes.
    pub codes: u64,
    /// Number of accounts and slots.
    pub entries: u64,
    /// Bytes of all answers.
    pub bytes: u64,
    /// Number of objects with answers.
    pub objects: u32,
    /// Number of objects of the index.
    pub index_objects: u32,
    /// Number of the first block that it has with its receipts; those up to its own follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_block: Option<u64>,
}

/// The content of a manifest that is known before the export.
#[derive(Clone, Debug)]
pub struct SnapshotSubject {
    /// Id of the chain.
    pub chain_id: u64,
    /// Hash of the genesis block.
    pub genesis_hash: B256,
    /// Number of the block.
    pub block_number: u64,
    /// Hash of the block.
    pub block_hash: B256,
    /// The state root in its header.
    pub state_root: B256,
}

/// Value of [`SnapshotManifest::chunks`] for ranges of Ethereum's tries.
pub(super) const RANGES: &str = "ranges";

impl SnapshotManifest {
    pub(super) fn new(subject: &SnapshotSubject, root: B256, backend: &str, chunks: &str) -> Self {
        let keys = if chunks == RANGES { KeyForm::Hashed } else { KeyForm::Plain };
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            chain_id: subject.chain_id,
            genesis_hash: subject.genesis_hash,
            block_number: subject.block_number,
            block_hash: subject.block_hash,
            state_root: subject.state_root,
            root,
            backend: backend.to_owned(),
            chunks: chunks.to_owned(),
            keys: keys.name().to_owned(),
            headers: 0,
            answers: 0,
            codes: 0,
            entries: 0,
            bytes: 0,
            objects: 0,
            index_objects: 0,
            first_block: None,
        }
    }

    /// The manifest in this folder; `None` if there is none.
    ///
    /// # Errors
    /// [`SnapshotError::Manifest`] if it is none that this program reads;
    /// [`SnapshotError::Source`] if it cannot be read.
    pub fn read(folder: &ObjectFolder) -> Result<Option<Self>, SnapshotError> {
        let Some(content) = folder.read(MANIFEST, MAX_BYTES)? else { return Ok(None) };
        let parsed = Self::parse(&content);
        let failed = |reason| SnapshotError::Manifest { file: folder.name_of(MANIFEST), reason };
        parsed.map(Some).map_err(failed)
    }

    /// Parses a manifest.
    pub(super) fn parse(json: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!("its format is `{}`, not `{FORMAT}`", shown(&manifest.format)));
        }
        if manifest.version != VERSION {
            let version = manifest.version;
            return Err(format!("its version is {version}; this program reads {VERSION}"));
        }
        if manifest.index_objects > MAX_INDEX_OBJECTS {
            let count = manifest.index_objects;
            return Err(format!("its index has {count} objects, {MAX_INDEX_OBJECTS} are read"));
        }
        match (manifest.key_form(), manifest.is_of_ranges()) {
            (Some(KeyForm::Hashed), true) | (Some(KeyForm::Plain), false) => Ok(manifest),
            _ => {
                let (chunks, keys) = (shown(&manifest.chunks), shown(&manifest.keys));
                Err(format!("chunks `{chunks}` with keys `{keys}`"))
            }
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        let mut json = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        json.push(b'\n');
        Ok(json)
    }

    /// The form of its keys, if it is a known one.
    pub fn key_form(&self) -> Option<KeyForm> {
        KeyForm::from_name(&self.keys)
    }

    /// Whether its chunks are ranges of Ethereum's tries.
    pub fn is_of_ranges(&self) -> bool {
        self.chunks == RANGES
    }

    /// Whether it is of the same state in the same form, with the same blocks.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let state = |one: &Self| (one.block_hash, one.root, one.chunks.clone(), one.genesis_hash);
        state(self) == state(other) && self.first_block == other.first_block
    }
}

/// The beginning of a text from elsewhere.
fn shown(text: &str) -> String {
    text.chars().take(40).filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use serde_json::Value;

    pub(in super::super) fn example() -> SnapshotManifest {
        let subject = SnapshotSubject {
            chain_id: 1,
            genesis_hash: B256::repeat_byte(1),
            block_number: 7,
            block_hash: B256::repeat_byte(2),
            state_root: B256::repeat_byte(3),
        };
        SnapshotManifest::new(&subject, B256::repeat_byte(3), "mpt", "mpt")
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_wrong_ones_are_refused() {
        let manifest = example();
        let json = manifest.encode().unwrap();
        assert_eq!(SnapshotManifest::parse(&json).unwrap(), manifest);
        let with = |name: &str, value: Value| {
            let mut fields: Value = serde_json::from_slice(&json).unwrap();
            fields[name] = value;
            SnapshotManifest::parse(fields.to_string().as_bytes())
        };
        with("later", 5.into()).unwrap();
        for (name, value) in [
            ("format", Value::from("tar")),
            ("version", 2.into()),
            ("indexObjects", 2049.into()),
            ("objects", (1u64 << 40).into()),
            ("answers", (-1).into()),
            ("blockHash", "0x12".into()),
            ("keys", "hashed".into()),
            ("keys", "\u{1b}[31m".into()),
            ("chunks", RANGES.into()),
            ("chunks", Value::Null),
            ("firstBlock", (-1).into()),
        ] {
            let error = with(name, value.clone()).unwrap_err();
            assert!(!error.contains('\u{1b}'), "{name} {value}: {error}");
        }
        for bad in [&b""[..], b"{}", b"[]", b"<html>", b"\xff\xfe"] {
            SnapshotManifest::parse(bad).unwrap_err();
        }
    }

    #[test]
    fn mutations_of_a_manifest_are_refused_or_read_without_a_panic() {
        let json = example().encode().unwrap();
        let mut random = StdRng::seed_from_u64(2);
        let mut accepted = 0;
        for _ in 0..20_000 {
            let mut mutated = json.clone();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..mutated.len());
                match random.random_range(0..4) {
                    0 => mutated[at] ^= 1 << random.random_range(0..8),
                    1 => mutated[at] = *b"0-9e.\"{}[]:,\\\xff".get(at % 16).unwrap_or(&0),
                    2 => drop(mutated.remove(at)),
                    _ => mutated.insert(at, random.random()),
                }
            }
            if let Ok(manifest) = SnapshotManifest::parse(&mutated) {
                accepted += 1;
                assert!(manifest.index_objects <= MAX_INDEX_OBJECTS);
                let again = SnapshotManifest::parse(&manifest.encode().unwrap());
                assert_eq!(again.unwrap(), manifest);
            }
        }
        assert!(accepted > 100, "most values are only shown: {accepted}");
    }
}
