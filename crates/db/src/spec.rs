//! The chain of a datadir, kept in it, so that nobody has to name it again.
//!
//! It is the note `chain`: the name of a network that this program knows, or else the whole genesis
//! file, as [`ChainSpec::to_genesis_json`] writes it. The identity says which genesis block a datadir
//! has, and never changes; the forks after it may, with a new version of this program or another
//! file for the same genesis block.

use crate::{
    ChainRead, Db, DbError, Metadata, ReadTxn, Result, StateRootMode, raw::RawRead,
    tables::ChainTable,
};
use alloy_primitives::B256;
use retrie_chainspec::{ChainSpec, KNOWN_CHAINS, parse_chain};
use std::sync::Arc;

const NOTE: &str = "chain";

impl Db {
    /// Keeps a chain, for [`ReadTxn::spec`]; the one that was kept before is forgotten. Give it with
    /// the genesis block of its file, also where headers carry another backend's roots.
    pub fn keep_spec(&self, spec: &ChainSpec) -> Result<()> {
        let Some(note) = note_of(spec) else { return Ok(()) };
        if self.begin_read()?.note(NOTE)?.is_some_and(|kept| kept[..] == *note.as_bytes()) {
            return Ok(());
        }
        let mut txn = self.begin_write()?;
        txn.put_note(NOTE, note.as_bytes())?;
        txn.commit()
    }
}

impl ReadTxn {
    /// The chain of this datadir.
    ///
    /// # Errors
    /// [`DbError::UnknownChain`] if it was made before datadirs kept their chain, and is of none of
    /// the known networks.
    pub fn spec(&self) -> Result<Arc<ChainSpec>> {
        let metadata = self.identity()?;
        let spec = match self.kept_spec()? {
            Some(spec) => spec,
            None => known(&metadata).ok_or_else(|| DbError::UnknownChain {
                path: self.inner().context.path.clone(),
                id: metadata.chain_id,
                genesis: metadata.genesis,
            })?,
        };
        let genesis = genesis_of(&metadata);
        if metadata.chain_id != spec.chain_id()
            || genesis.is_some_and(|genesis| genesis != spec.genesis_hash())
        {
            return Err(damaged("the chain is another one than the identity says"));
        }
        Ok(spec)
    }

    /// Fails if this is not the chain of the datadir.
    ///
    /// # Errors
    /// [`DbError::ChainMismatch`].
    pub fn check_spec(&self, given: &ChainSpec) -> Result<()> {
        let metadata = self.identity()?;
        let found = match genesis_of(&metadata) {
            None => self.kept_spec()?.map(|spec| spec.genesis_hash()),
            genesis => genesis,
        };
        if metadata.chain_id == given.chain_id()
            && found.is_none_or(|genesis| genesis == given.genesis_hash())
        {
            return Ok(());
        }
        Err(DbError::ChainMismatch {
            path: self.inner().context.path.clone(),
            found_id: metadata.chain_id,
            found_genesis: found.unwrap_or(metadata.genesis),
            expected_id: given.chain_id(),
            expected_genesis: given.genesis_hash(),
        })
    }

    fn identity(&self) -> Result<Metadata> {
        let path = || self.inner().context.path.clone();
        self.metadata()?.ok_or_else(|| DbError::NotInitialised { path: path() })
    }

    fn kept_spec(&self) -> Result<Option<Arc<ChainSpec>>> {
        let Some(note) = self.note(NOTE)? else { return Ok(None) };
        let text = std::str::from_utf8(&note).map_err(|_| damaged("the chain is no text"))?;
        let spec = if text.starts_with('{') {
            ChainSpec::from_genesis_json(text).map(Arc::new)
        } else if KNOWN_CHAINS.contains(&text) {
            parse_chain(text)
        } else {
            return Err(damaged("the chain is neither a known network nor a genesis file"));
        };
        spec.map(Some).map_err(|error| damaged(&error.to_string()))
    }
}

fn damaged(what: &str) -> DbError {
    let key = [b"note/", NOTE.as_bytes()].concat();
    DbError::corrupt(ChainTable::Metadata.name(), &key, what)
}

/// A chain that no genesis file can tell, as those of test suites, is not kept.
fn note_of(spec: &ChainSpec) -> Option<String> {
    let known = KNOWN_CHAINS.contains(&spec.name()).then(|| parse_chain(spec.name()));
    if let Some(Ok(known)) = known
        && (known.chain_id(), known.genesis_hash()) == (spec.chain_id(), spec.genesis_hash())
    {
        return Some(spec.name().to_owned());
    }
    spec.to_genesis_json().ok()
}

/// Hash of the genesis block as its file gives it; unknown where headers carry the roots of another
/// backend, since the identity has the hash with such a root then.
fn genesis_of(metadata: &Metadata) -> Option<B256> {
    (metadata.state_root != StateRootMode::Native).then_some(metadata.genesis)
}

/// The known network that a datadir must be of.
fn known(metadata: &Metadata) -> Option<Arc<ChainSpec>> {
    let genesis = genesis_of(metadata);
    KNOWN_CHAINS.into_iter().filter_map(|name| parse_chain(name).ok()).find(|spec| {
        spec.chain_id() == metadata.chain_id
            && genesis.is_none_or(|genesis| genesis == spec.genesis_hash())
    })
}
