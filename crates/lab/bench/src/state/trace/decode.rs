//! Reads a trace file: its checksum first, then its records, each of which is checked, so that no
//! file brings a store into a state that a chain cannot have.

use super::{
    error::{TraceFault, TraceFileError},
    format::{
        ACCOUNT_KEY, BLOCK_RECORD, END, END_RECORD, FOOTER_BYTES, HEADER_BYTES, MAGIC,
        MAX_SOURCE_BYTES, SLOT_KEY, VERSION,
    },
    recorded::{RecordedBlock, RecordedTrace, ValueRef},
};
use crate::state::real::TraceFigures;
use alloy_primitives::{Address, B256, Bytes};
use retrie_pipeline::replay::{StatePadding, settle_code};
use retrie_state::{Account, StateKey, StateValue, decode_slot};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::Path,
};

impl RecordedTrace {
    /// Reads a trace file whole. Its state gets this padding.
    ///
    /// # Errors
    /// If it cannot be read, or is no whole and undamaged trace of this version.
    pub fn read(file: &Path, padding: StatePadding) -> Result<Self, TraceFileError> {
        let read = || {
            let mut input = File::open(file).map_err(TraceFault::Io)?;
            decode(&mut input, padding)
        };
        read().map_err(|fault| TraceFileError { file: file.into(), fault })
    }
}

/// Reads the bytes of a trace file.
pub(super) fn decode(
    input: &mut (impl Read + Seek),
    padding: StatePadding,
) -> Result<RecordedTrace, TraceFault> {
    let payload = verify(input)?;
    input.seek(SeekFrom::Start(HEADER_BYTES)).map_err(TraceFault::Io)?;
    let output = zstd::Decoder::new(input.take(payload)).map_err(TraceFault::Io)?;
    let mut records = RecordReader { input: BufReader::with_capacity(1 << 16, output) };
    let mut trace = TraceAssembler::default();
    let mut read = || -> Result<String, RecordFault> {
        let source = records.source()?;
        while trace.block(&mut records)? {}
        records.end()?;
        trace.check_keys()?;
        Ok(source)
    };
    let source = read().map_err(|fault| match fault {
        RecordFault::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            TraceFault::Io(error)
        }
        RecordFault::Io(_) => trace.fault("the records end early"),
        RecordFault::Content(what) => trace.fault(what),
    })?;
    Ok(trace.finish(source, padding))
}

/// Checks header, length and checksum. Returns the length of the compressed payload.
fn verify(input: &mut (impl Read + Seek)) -> Result<u64, TraceFault> {
    let len = input.seek(SeekFrom::End(0)).map_err(TraceFault::Io)?;
    input.seek(SeekFrom::Start(0)).map_err(TraceFault::Io)?;
    let mut head = Vec::new();
    input.take(HEADER_BYTES).read_to_end(&mut head).map_err(TraceFault::Io)?;
    let magic = &head[..head.len().min(MAGIC.len())];
    if !MAGIC.starts_with(magic) {
        return Err(TraceFault::NotATrace);
    }
    let Some(version) = head.get(MAGIC.len()..).and_then(|rest| rest.try_into().ok()) else {
        return Err(TraceFault::Truncated);
    };
    let found = u32::from_le_bytes(version);
    if found != VERSION {
        return Err(TraceFault::Version { found });
    }
    let Some(payload) = len.checked_sub(HEADER_BYTES + FOOTER_BYTES) else {
        return Err(TraceFault::Truncated);
    };
    let mut foot = [0; FOOTER_BYTES as usize];
    input.seek(SeekFrom::Start(len - FOOTER_BYTES)).map_err(TraceFault::Io)?;
    input.read_exact(&mut foot).map_err(TraceFault::Io)?;
    let (length, rest) = foot.split_at(8);
    let (crc, end) = rest.split_at(4);
    if end != END || length != len.to_le_bytes() {
        return Err(TraceFault::Truncated);
    }
    input.seek(SeekFrom::Start(0)).map_err(TraceFault::Io)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut whole = input.take(len - 8);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match whole.read(&mut buffer).map_err(TraceFault::Io)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    if hasher.finalize().to_le_bytes() != crc {
        return Err(TraceFault::Checksum);
    }
    Ok(payload)
}

/// Why a record cannot be read.
enum RecordFault {
    Io(io::Error),
    Content(&'static str),
}

impl From<io::Error> for RecordFault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

const fn wrong<T>(what: &'static str) -> Result<T, RecordFault> {
    Err(RecordFault::Content(what))
}

/// Reads the decompressed payload.
struct RecordReader<R> {
    input: R,
}

impl<R: Read> RecordReader<R> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordFault> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, RecordFault> {
        Ok(self.array::<1>()?[0])
    }

    fn varint(&mut self) -> Result<u64, RecordFault> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        wrong("a number is not in its shortest form, or above 64 bits")
    }

    /// At most 255 bytes; empty for an absent value.
    fn value(&mut self) -> Result<Vec<u8>, RecordFault> {
        let Ok(len) = u8::try_from(self.varint()?) else { return wrong("a value is too long") };
        let mut value = vec![0; len.into()];
        self.input.read_exact(&mut value)?;
        Ok(value)
    }

    fn source(&mut self) -> Result<String, RecordFault> {
        let len = self.varint()?;
        if len > MAX_SOURCE_BYTES {
            return wrong("the name of its source is too long");
        }
        let mut name = vec![0; len as usize];
        self.input.read_exact(&mut name)?;
        String::from_utf8(name).or_else(|_| wrong("the name of its source is not UTF-8"))
    }

    /// Nothing follows the last record.
    fn end(&mut self) -> Result<(), RecordFault> {
        match self.input.read(&mut [0])? {
            0 => Ok(()),
            _ => wrong("something follows its end"),
        }
    }
}

/// The trace so far, and what is needed to check the next block.
#[derive(Default)]
struct TraceAssembler {
    keys: Vec<StateKey>,
    first: Vec<ValueRef>,
    order: Vec<u32>,
    blocks: Vec<RecordedBlock>,
    touches: Vec<u32>,
    writes: Vec<ValueRef>,
    values: Vec<u8>,
    codes: BTreeMap<B256, Bytes>,
    figures: TraceFigures,
    states: Vec<KeyState>,
}

/// What a key is after the blocks so far.
#[derive(Clone, Copy, Default)]
struct KeyState {
    /// The number of its account; its own, if it is one.
    account: u32,
    has_value: bool,
    is_touched: bool,
    /// Of an account: whether a block has removed it.
    was_removed: bool,
    /// Of an account: how many slots have a value.
    slots: u32,
}

impl TraceAssembler {
    const fn fault(&self, what: &'static str) -> TraceFault {
        TraceFault::Content { blocks: self.blocks.len(), what }
    }

    /// Reads the next record; `false` if it was the last one.
    fn block(&mut self, records: &mut RecordReader<impl Read>) -> Result<bool, RecordFault> {
        match records.byte()? {
            BLOCK_RECORD => {}
            END_RECORD => return self.end(records).map(|()| false),
            _ => return wrong("a record is of no known kind"),
        }
        let number = records.varint()?;
        if self.blocks.last().is_some_and(|last| last.number >= number) {
            return wrong("the numbers of its blocks do not rise");
        }
        for _ in 0..records.varint()? {
            self.key(records)?;
        }
        let touches = self.touches.len();
        for _ in 0..records.varint()? {
            self.touch(records)?;
        }
        if self.touches.len() == touches {
            return wrong("a block touches no key");
        }
        self.check_accounts(touches)?;
        self.blocks.push(RecordedBlock { number, end: self.touches.len() });
        Ok(true)
    }

    /// Reads a key of the key table.
    fn key(&mut self, records: &mut RecordReader<impl Read>) -> Result<(), RecordFault> {
        let id = self.keys.len() as u32;
        if id > u32::MAX >> 1 {
            return wrong("it has too many keys");
        }
        let mut state = KeyState { account: id, ..KeyState::default() };
        let key = match records.byte()? {
            ACCOUNT_KEY => StateKey::Account(Address::from(records.array()?)),
            SLOT_KEY => {
                let account = records.varint()?;
                let of = usize::try_from(account).ok().and_then(|of| self.keys.get(of));
                let Some(StateKey::Account(address)) = of else {
                    return wrong("a slot names no account before it");
                };
                state.account = account as u32;
                StateKey::Slot(*address, B256::from(records.array()?))
            }
            _ => return wrong("a key is of no known kind"),
        };
        let first = self.value(&key, records.value()?)?;
        state.has_value = first.is_some();
        if let (StateKey::Slot(..), true) = (key, state.has_value) {
            let account = &mut self.states[state.account as usize];
            let had_value = self.first[state.account as usize].is_some();
            if !had_value || account.was_removed {
                return wrong(
                    "a slot has a value before the first block, and its account has none",
                );
            }
            account.slots += 1;
        }
        self.keys.push(key);
        self.first.push(first);
        self.states.push(state);
        Ok(())
    }

    /// Keeps a value of this key.
    fn value(&mut self, key: &StateKey, value: Vec<u8>) -> Result<ValueRef, RecordFault> {
        if value.is_empty() {
            return Ok(ValueRef::default());
        }
        let mut value = StateValue::from(value);
        match key {
            StateKey::Account(_) if Account::decode(&value).is_some() => {
                settle_code(&mut value, &mut self.codes);
            }
            StateKey::Slot(..) if decode_slot(&value).is_some() => {}
            StateKey::Account(_) => return wrong("a value is no account"),
            StateKey::Slot(..) => return wrong("a value is no slot"),
        }
        let start = self.values.len();
        self.values.extend_from_slice(&value);
        Ok(ValueRef::new(start, value.len()))
    }

    /// Reads a touch, and applies its write.
    fn touch(&mut self, records: &mut RecordReader<impl Read>) -> Result<(), RecordFault> {
        let touch = records.varint()?;
        let id = usize::try_from(touch >> 1).unwrap_or(usize::MAX);
        let Some(key) = self.keys.get(id).copied() else {
            return wrong("a block touches a key that is not in the table");
        };
        self.touches.push(touch as u32);
        let state = &mut self.states[id];
        self.figures.reads += 1;
        self.figures.keys += u64::from(!std::mem::replace(&mut state.is_touched, true));
        if touch & 1 == 0 {
            return Ok(());
        }
        let next = self.value(&key, records.value()?)?;
        self.writes.push(next);
        self.figures.writes += 1;
        self.figures.deletes += u64::from(!next.is_some());
        let state = &mut self.states[id];
        let had_value = std::mem::replace(&mut state.has_value, next.is_some());
        match key {
            StateKey::Account(_) => state.was_removed |= had_value && !next.is_some(),
            StateKey::Slot(..) => {
                let account = state.account as usize;
                let slots = &mut self.states[account].slots;
                *slots = *slots + u32::from(next.is_some()) - u32::from(had_value);
            }
        }
        Ok(())
    }

    /// After a block whose touches begin there: no slot has a value without its account.
    fn check_accounts(&self, touches: usize) -> Result<(), RecordFault> {
        for touch in self.touches[touches..].iter().filter(|touch| **touch & 1 == 1) {
            let account = self.states[(touch >> 1) as usize].account as usize;
            let KeyState { has_value, slots, .. } = self.states[account];
            if !has_value && slots > 0 {
                return wrong("a block leaves slots of an account that does not exist");
            }
        }
        Ok(())
    }

    /// Reads the counts after the last block.
    fn end(&mut self, records: &mut RecordReader<impl Read>) -> Result<(), RecordFault> {
        self.figures.blocks = self.blocks.len() as u64;
        let TraceFigures { blocks, reads, writes, deletes, keys } = self.figures;
        for count in [blocks, reads, writes, deletes, keys] {
            if records.varint()? != count {
                return wrong("its counts are not those of its blocks");
            }
        }
        Ok(())
    }

    /// Puts the keys in order: each is there once.
    fn check_keys(&mut self) -> Result<(), RecordFault> {
        self.order = (0..self.keys.len() as u32).collect();
        let keys = &self.keys;
        self.order.sort_unstable_by_key(|id| keys[*id as usize]);
        let key = |id: &u32| keys[*id as usize];
        if self.order.windows(2).any(|two| key(&two[0]) == key(&two[1])) {
            return wrong("a key is in the table twice");
        }
        Ok(())
    }

    fn finish(self, source: String, padding: StatePadding) -> RecordedTrace {
        let Self { keys, first, order, blocks, touches, writes, values, codes, figures, .. } = self;
        let values = Bytes::from(values);
        RecordedTrace {
            source,
            padding,
            keys,
            first,
            order,
            blocks,
            touches,
            writes,
            values,
            codes,
            figures,
        }
    }
}
