//! [`StatePatch`]: changes of a state by the user of a dev chain, and their encoding.

use alloy_primitives::{Address, B256, Bytes, keccak256};
use retrie_db::{ChainRead, CorruptRow, ReadError, tables::ChainTable};
use retrie_state::{
    BackendKey, DeltaBuilder, StateChange, StateDelta, StateKey, StateValue,
    wire::{WireError, WireReader, put_varint},
};
use std::sync::Arc;

/// Changes of the state that no transaction makes: the user of a dev chain makes them.
///
/// The next block begins with them and cannot be executed again without them. So they are stored
/// with that block ([`encode`](Self::encode)), or in a note while there is no next block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatePatch {
    /// The changed keys, and the new codes of contracts.
    pub delta: Arc<StateDelta>,
}

/// Length in bytes of the shortest change: the key of an account, absent before and after.
const SHORTEST_CHANGE: usize = 21 + 2;

impl StatePatch {
    /// The changes at the beginning of a stored block; `None` if there are none.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] if the row is damaged; if the database fails.
    pub fn stored(read: &impl ChainRead, block: &B256) -> Result<Option<Self>, ReadError> {
        if !read.has_patches()? {
            return Ok(None);
        }
        let Some(row) = read.patch(block)? else { return Ok(None) };
        let damaged = |error: WireError| {
            let (table, key) = (ChainTable::DevPatches.name().to_owned(), block.to_string());
            CorruptRow { table, key, what: format!("it does not decode: {error}") }
        };
        Ok(Some(Self::decode(&row).map_err(damaged)?))
    }

    /// These changes and the changes `later`, which were made on top of them, as one patch.
    #[must_use]
    pub fn then(&self, later: &Self) -> Self {
        Self { delta: Arc::new(self.delta.then(&later.delta)) }
    }

    /// The new codes of contracts, with their hashes.
    pub fn codes(&self) -> impl Iterator<Item = (B256, Bytes)> {
        self.delta.codes().iter().map(|(hash, code)| (*hash, code.clone()))
    }

    /// Whether the account at `address`, or one of its slots, is changed.
    pub fn touches(&self, address: &Address) -> bool {
        self.delta.change(&StateKey::Account(*address)).is_some()
            || !self.delta.slots_of(address).is_empty()
    }

    /// The encoding (`docs/formats/chain.md`): wiped accounts, changes, codes; the length of each
    /// list comes before it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.delta.wiped().len() as u64);
        for address in self.delta.wiped() {
            out.extend_from_slice(address.as_slice());
        }
        put_varint(&mut out, self.delta.len() as u64);
        for StateChange { key, previous, next } in self.delta.changes() {
            out.extend_from_slice(&key.encode());
            put_value(&mut out, previous.as_ref());
            put_value(&mut out, next.as_ref());
        }
        put_varint(&mut out, self.delta.codes().len() as u64);
        for code in self.delta.codes().values() {
            put_varint(&mut out, code.len() as u64);
            out.extend_from_slice(code);
        }
        out
    }

    /// Reads the bytes of [`encode`](Self::encode).
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not a patch.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = WireReader::new(bytes);
        let mut delta = DeltaBuilder::new();
        for _ in 0..reader.count(Address::len_bytes())? {
            delta.wipe(Address::from(*reader.array::<20>()?));
        }
        for _ in 0..reader.count(SHORTEST_CHANGE)? {
            let key = BackendKey::read(&mut reader).and_then(|key| key.plain());
            let key = key.ok_or(WireError::UnexpectedEnd)?;
            delta.change(key, value(&mut reader)?, value(&mut reader)?);
        }
        for _ in 0..reader.count(1)? {
            let len = reader.count(1)?;
            let code = Bytes::copy_from_slice(reader.take(len)?);
            delta.add_code(keccak256(&code), code);
        }
        reader.finish()?;
        Ok(Self { delta: Arc::new(delta.build()) })
    }
}

/// A value after its length plus one; 0 is an absent value.
fn put_value(out: &mut Vec<u8>, value: Option<&StateValue>) {
    put_varint(out, value.map_or(0, |value| value.len() as u64 + 1));
    out.extend_from_slice(value.map_or(&[], |value| value));
}

fn value(reader: &mut WireReader<'_>) -> Result<Option<StateValue>, WireError> {
    let Some(len) = reader.varint()?.checked_sub(1) else { return Ok(None) };
    let len = usize::try_from(len).map_err(|_| WireError::UnexpectedEnd)?;
    Ok(Some(Bytes::copy_from_slice(reader.take(len)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{bytes, hex};

    fn patch() -> StatePatch {
        let account = Address::repeat_byte(0xbb);
        let mut delta = DeltaBuilder::new();
        delta.wipe(account);
        delta.change(StateKey::Account(account), None, Some(bytes!("0100aa")));
        let slot = StateKey::Slot(account, B256::with_last_byte(3));
        delta.change(slot, Some(bytes!("07")), None);
        let code = bytes!("5f5ffd");
        delta.add_code(keccak256(&code), code);
        StatePatch { delta: Arc::new(delta.build()) }
    }

    #[test]
    fn its_bytes_are_these_and_no_others() {
        let address = "bb".repeat(20);
        let slot = format!("{}03", "00".repeat(31));
        let expected =
            format!("01{address}0200{address}00040100aa01{address}{slot}02070001035f5ffd");
        let encoded = patch().encode();
        assert_eq!(hex::encode(&encoded), expected);
        assert_eq!(StatePatch::decode(&encoded).unwrap(), patch());
        for end in 0..encoded.len() {
            assert!(StatePatch::decode(&encoded[..end]).is_err(), "{end} bytes of it");
        }
        assert!(StatePatch::decode(&[&encoded[..], &[0]].concat()).is_err());
        assert_eq!(StatePatch::decode(&[0, 0, 0]).unwrap(), StatePatch::default());
    }

    #[test]
    fn it_touches_the_accounts_whose_slots_it_changes() {
        let owner = Address::repeat_byte(1);
        let mut delta = DeltaBuilder::new();
        delta.change(StateKey::Slot(owner, B256::ZERO), None, Some(bytes!("01")));
        let patch = StatePatch { delta: Arc::new(delta.build()) };
        assert!(patch.touches(&owner) && !patch.touches(&Address::ZERO));
    }
}
