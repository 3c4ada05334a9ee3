//! Preimages of hashed keys: addresses and slots by their keccak-256, in table `Preimages`.
//!
//! A datadir keeps those of the keys that its blocks write if it has the note `preimages`, which is
//! empty. A row is never removed: it is true whatever the chain does.

use super::read::ChainRead;
use crate::{
    CorruptRow, DatabaseEnv, ReadError, ReadTxn, Result, WriteTxn,
    raw::{RawRead, RowRange},
    tables::ChainTable,
};
use alloy_primitives::{Address, B256, keccak256};
use retrie_state::{ScanDirection, StateKey};

const NOTE: &str = "preimages";

/// What a hashed key is the keccak-256 of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyPreimage {
    /// An address.
    Account(Address),
    /// A slot.
    Slot(B256),
}

impl KeyPreimage {
    /// From the 20 bytes of an address, or the 32 of a slot; `None` for other lengths.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        match bytes.len() {
            20 => Some(Self::Account(Address::from_slice(bytes))),
            32 => Some(Self::Slot(B256::from_slice(bytes))),
            _ => None,
        }
    }

    /// The preimages that the hashed form of `key` has: the address, and for a slot the slot.
    pub fn of(key: &StateKey) -> impl Iterator<Item = Self> {
        let slot = match key {
            StateKey::Account(_) => None,
            StateKey::Slot(_, slot) => Some(Self::Slot(*slot)),
        };
        [Self::Account(*key.address())].into_iter().chain(slot)
    }

    /// Its keccak-256.
    pub fn hash(&self) -> B256 {
        keccak256(self)
    }

    /// The address; `None` for a slot.
    pub const fn address(&self) -> Option<Address> {
        match self {
            Self::Account(address) => Some(*address),
            Self::Slot(_) => None,
        }
    }

    /// The slot; `None` for an address.
    pub const fn slot(&self) -> Option<B256> {
        match self {
            Self::Account(_) => None,
            Self::Slot(slot) => Some(*slot),
        }
    }
}

/// Its 20 or 32 bytes.
impl AsRef<[u8]> for KeyPreimage {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Account(address) => address.as_slice(),
            Self::Slot(slot) => slot.as_slice(),
        }
    }
}

/// The stored preimage of `hash`.
pub(super) fn read<R: RawRead + ?Sized>(
    read: &R,
    hash: &B256,
) -> Result<Option<KeyPreimage>, ReadError> {
    let table = read.chain(ChainTable::Preimages);
    let Some(row) = read.raw_get(table, hash.as_slice())? else { return Ok(None) };
    Ok(Some(decode(hash.as_slice(), &row)?))
}

/// Stored preimages in the order of their hashes.
pub(super) fn page<R: RawRead + ?Sized>(
    read: &R,
    start: &B256,
    limit: usize,
) -> Result<Vec<(B256, KeyPreimage)>, ReadError> {
    let table = read.chain(ChainTable::Preimages);
    let range =
        RowRange { start: start.as_slice(), end: None, direction: ScanDirection::Forward, limit };
    let rows = read.raw_scan(table, range)?;
    rows.iter().map(|(key, row)| Ok((B256::from_slice(key), decode(key, row)?))).collect()
}

/// The preimage in a row; it must have the hash that the row is stored under.
pub(super) fn decode(key: &[u8], row: &[u8]) -> Result<KeyPreimage, CorruptRow> {
    let bad = |what| CorruptRow::new(ChainTable::Preimages.name(), key, what);
    let neither = || bad("it is neither an address nor a slot");
    let preimage = KeyPreimage::from_slice(row).ok_or_else(neither)?;
    if preimage.hash()[..] != *key {
        return Err(bad("it has another hash"));
    }
    Ok(preimage)
}

impl WriteTxn {
    /// Stores preimages under their hashes, unless they are stored already; returns how many were
    /// not. Rows are written fastest in the order of the hashes.
    pub fn insert_preimages(
        &mut self,
        preimages: impl IntoIterator<Item = (B256, KeyPreimage)>,
    ) -> Result<u64> {
        let table = self.chain(ChainTable::Preimages);
        let mut new = 0;
        for (hash, preimage) in preimages {
            if self.raw_get(table, hash.as_slice())?.is_none() {
                self.raw_put(table, hash.as_slice(), preimage.as_ref())?;
                new += 1;
            }
        }
        Ok(new)
    }
}

impl DatabaseEnv {
    /// Stores whether the datadir keeps preimages, for [`ReadTxn::keeps_preimages`].
    pub fn store_keeping_of_preimages(&self, keeps: bool) -> Result<()> {
        if self.begin_read()?.keeps_preimages()? == keeps {
            return Ok(());
        }
        let mut txn = self.begin_write()?;
        match keeps {
            true => txn.put_note(NOTE, &[])?,
            false => drop(txn.delete_note(NOTE)?),
        }
        Ok(txn.commit()?)
    }
}

impl ReadTxn {
    /// Whether the datadir keeps the preimages of the keys that its blocks write.
    pub fn keeps_preimages(&self) -> Result<bool, ReadError> {
        Ok(self.note(NOTE)?.is_some())
    }
}
