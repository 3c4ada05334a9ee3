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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenOptions;

    fn faults(db: &DatabaseEnv) -> Vec<CorruptRow> {
        let mut faults = Vec::new();
        let read = db.begin_read().unwrap();
        read.check_chain(&mut |_| {}, &mut |fault| faults.push(fault)).unwrap();
        faults
    }

    #[test]
    fn preimages_are_stored_once_and_have_their_hashes() {
        let dir = tempfile::tempdir().unwrap();
        let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
        let (address, slot) = (Address::repeat_byte(3), B256::with_last_byte(7));
        let preimages: Vec<_> = KeyPreimage::of(&StateKey::Slot(address, slot))
            .chain([KeyPreimage::Slot(B256::ZERO)])
            .map(|preimage| (preimage.hash(), preimage))
            .collect();
        for new in [3, 0] {
            let mut txn = db.begin_write().unwrap();
            assert_eq!(txn.insert_preimages(preimages.clone()).unwrap(), new);
            txn.commit().unwrap();
        }
        let read = db.begin_read().unwrap();
        let found = |hash: B256| read.preimage(&hash).unwrap();
        assert_eq!(found(keccak256(address)), Some(KeyPreimage::Account(address)));
        assert_eq!(found(keccak256(slot)), Some(KeyPreimage::Slot(slot)));
        assert_eq!(found(slot), None);
        let mut sorted = preimages;
        sorted.sort_unstable();
        assert_eq!(read.preimages_from(&B256::ZERO, 9).unwrap(), sorted);
        assert_eq!(read.preimages_from(&sorted[1].0, 1).unwrap(), sorted[1..2]);
        assert!(faults(&db).is_empty());

        // Rows that have a checksum and are wrong.
        for (row, what) in
            [(&[1; 20][..], "another hash"), (&[1; 32], "another hash"), (&[1; 21], "neither")]
        {
            let mut txn = db.begin_write().unwrap();
            let table = txn.chain(ChainTable::Preimages);
            txn.raw_put(table, keccak256(slot).as_slice(), row).unwrap();
            txn.commit().unwrap();
            let found = faults(&db);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].to_string().contains(what), "{}", found[0]);
            let read = db.begin_read().unwrap().preimage(&keccak256(slot));
            assert!(matches!(read, Err(ReadError::Corrupt(_))), "{read:?}");
        }
    }

    #[test]
    fn a_datadir_remembers_that_it_keeps_preimages() {
        let dir = tempfile::tempdir().unwrap();
        let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
        for keeps in [false, true, true, false] {
            db.store_keeping_of_preimages(keeps).unwrap();
            assert_eq!(db.begin_read().unwrap().keeps_preimages().unwrap(), keeps);
        }
    }
}
