//! The chain of a datadir, stored in it, so that commands need not name it again.
//!
//! It is the note `chain`: the name of a known network, or else the whole genesis file, as
//! [`ChainSpec::to_genesis_json`] writes it. The datadir's identity holds its genesis block and
//! never changes. The forks after genesis may change, with a new version of this program or another
//! file for the same genesis block.

use crate::{
    ChainRead, CorruptRow, DatabaseEnv, DatadirMetadata, MetadataError, ReadError, ReadTxn, Result,
    StateRootMode, raw::RawRead, tables::ChainTable,
};
use alloy_primitives::B256;
use retrie_chainspec::{ChainSpec, KNOWN_CHAINS, parse_chain};
use std::sync::Arc;

const NOTE: &str = "chain";

impl DatabaseEnv {
    /// Stores the chain, for [`ReadTxn::spec`], in place of the one stored before. `spec` must have
    /// the genesis block of its file, even if headers carry this backend's own roots.
    pub fn store_spec(&self, spec: &ChainSpec) -> Result<()> {
        let Some(note) = note_of(spec) else { return Ok(()) };
        if self.begin_read()?.note(NOTE)?.is_some_and(|kept| kept[..] == *note.as_bytes()) {
            return Ok(());
        }
        let mut txn = self.begin_write()?;
        txn.put_note(NOTE, note.as_bytes())?;
        Ok(txn.commit()?)
    }
}

impl ReadTxn {
    /// The chain of this datadir.
    ///
    /// # Errors
    /// [`MetadataError::UnknownChain`] if the datadir was created before datadirs stored their
    /// chain, and the chain is not a known network.
    pub fn spec(&self) -> Result<Arc<ChainSpec>> {
        let metadata = self.identity()?;
        let spec = match self.stored_spec()? {
            Some(spec) => spec,
            None => known(&metadata).ok_or_else(|| MetadataError::UnknownChain {
                path: self.inner().context.path.clone(),
                id: metadata.chain_id,
                genesis: metadata.genesis,
            })?,
        };
        let own = self.with_own_genesis(&spec)?;
        let genesis = genesis_of(&metadata).zip(own.as_ref());
        if metadata.chain_id != spec.chain_id()
            || genesis.is_some_and(|(genesis, own)| genesis != own.genesis_hash())
        {
            return Err(damaged("the chain is not the one of the datadir's identity").into());
        }
        Ok(own.unwrap_or(spec))
    }

    /// The chain that was stored last, as its genesis file has it; `None` if none is.
    ///
    /// # Errors
    /// If the note is damaged.
    pub fn genesis_file(&self) -> Result<Option<Arc<ChainSpec>>, ReadError> {
        self.stored_spec()
    }

    /// The chain with the state root of the datadir's block 0, if that is a root of the partitioned
    /// binary tree: a genesis file alone does not tell it. `None` if block 0 is not kept.
    ///
    /// # Errors
    /// If block 0 cannot be read.
    pub fn with_own_genesis(
        &self,
        spec: &Arc<ChainSpec>,
    ) -> Result<Option<Arc<ChainSpec>>, ReadError> {
        if !spec.has_binary_genesis() {
            return Ok(Some(spec.clone()));
        }
        let Some(hash) = self.canonical_hash(0)? else { return Ok(None) };
        let Some(header) = self.header(&hash)? else { return Ok(None) };
        Ok(Some(Arc::new(ChainSpec::clone(spec).with_genesis_state_root(header.state_root))))
    }

    /// Fails if `given` is not the chain of the datadir.
    ///
    /// # Errors
    /// [`MetadataError::ChainMismatch`].
    pub fn check_spec(&self, given: &ChainSpec) -> Result<()> {
        let metadata = self.identity()?;
        let found = match genesis_of(&metadata) {
            None => self.stored_spec()?.map(|spec| spec.genesis_hash()),
            genesis => genesis,
        };
        let own = self.with_own_genesis(&Arc::new(given.clone()))?;
        if metadata.chain_id == given.chain_id()
            && found.zip(own).is_none_or(|(genesis, own)| genesis == own.genesis_hash())
        {
            return Ok(());
        }
        Err(MetadataError::ChainMismatch {
            path: self.inner().context.path.clone(),
            found_id: metadata.chain_id,
            found_genesis: found.unwrap_or(metadata.genesis),
            expected_id: given.chain_id(),
            expected_genesis: given.genesis_hash(),
        }
        .into())
    }

    fn identity(&self) -> Result<DatadirMetadata> {
        let path = || self.inner().context.path.clone();
        Ok(self.metadata()?.ok_or_else(|| MetadataError::NotInitialised { path: path() })?)
    }

    fn stored_spec(&self) -> Result<Option<Arc<ChainSpec>>, ReadError> {
        let Some(note) = self.note(NOTE)? else { return Ok(None) };
        let text = std::str::from_utf8(&note).map_err(|_| damaged("the chain is not text"))?;
        let spec = if text.starts_with('{') {
            ChainSpec::from_genesis_json(text).map(Arc::new)
        } else if KNOWN_CHAINS.contains(&text) {
            parse_chain(text)
        } else {
            return Err(damaged("the chain is neither a known network nor a genesis file").into());
        };
        Ok(Some(spec.map_err(|error| damaged(&error.to_string()))?))
    }
}

fn damaged(what: &str) -> CorruptRow {
    let key = [b"note/", NOTE.as_bytes()].concat();
    CorruptRow::new(ChainTable::Metadata.name(), &key, what)
}

/// The content of the note. `None` for a chain that no genesis file can describe, as in test
/// suites; it is not stored.
fn note_of(spec: &ChainSpec) -> Option<String> {
    let known = KNOWN_CHAINS.contains(&spec.name()).then(|| parse_chain(spec.name()));
    if let Some(Ok(known)) = known
        && (known.chain_id(), known.genesis_hash()) == (spec.chain_id(), spec.genesis_hash())
        && known.binary_tree_time() == spec.binary_tree_time()
        && known.index_tables_block() == spec.index_tables_block()
    {
        return Some(spec.name().to_owned());
    }
    spec.to_genesis_json().ok()
}

/// Hash of the genesis block of the genesis file; unknown if headers carry this backend's own
/// roots, as the identity then has the hash with such a root.
fn genesis_of(metadata: &DatadirMetadata) -> Option<B256> {
    (metadata.state_root != StateRootMode::Native).then_some(metadata.genesis)
}

/// The known network that a datadir belongs to.
fn known(metadata: &DatadirMetadata) -> Option<Arc<ChainSpec>> {
    let genesis = genesis_of(metadata);
    KNOWN_CHAINS.into_iter().filter_map(|name| parse_chain(name).ok()).find(|spec| {
        spec.chain_id() == metadata.chain_id
            && genesis.is_none_or(|genesis| genesis == spec.genesis_hash())
    })
}
