//! Writes a trace file, block by block.

use super::format::{
    ACCOUNT_KEY, BLOCK_RECORD, ChecksumWriter, END, END_RECORD, FOOTER_BYTES, MAGIC, SLOT_KEY,
    VERSION, put_value, put_varint,
};
use crate::state::real::{KeyTouch, TraceFigures};
use retrie_state::StateKey;
use std::{
    collections::HashMap,
    io::{self, Write},
};

/// Compression level of zstd.
const LEVEL: i32 = 9;

/// Writes a trace. It keeps the keys so far in memory, about 100 bytes each, and no values.
pub(super) struct TraceEncoder<W: Write> {
    output: zstd::Encoder<'static, ChecksumWriter<W>>,
    /// The number of each key in the key table.
    ids: HashMap<StateKey, u32>,
    /// Whether a block has touched the key, by number.
    is_touched: Vec<bool>,
    /// Keys since the last block, encoded, and their number.
    new_keys: (Vec<u8>, u64),
    /// The touches of a block, encoded.
    touches: Vec<u8>,
    figures: TraceFigures,
}

impl<W: Write> TraceEncoder<W> {
    /// Starts a trace. `source` says where its blocks are from.
    pub(super) fn new(output: W, source: &str) -> io::Result<Self> {
        let mut output = ChecksumWriter::new(output);
        output.write_all(MAGIC)?;
        output.write_all(&VERSION.to_le_bytes())?;
        let mut output = zstd::Encoder::new(output, LEVEL)?;
        let mut name = Vec::new();
        put_value(&mut name, Some(source.as_bytes()));
        output.write_all(&name)?;
        Ok(Self {
            output,
            ids: HashMap::new(),
            is_touched: Vec::new(),
            new_keys: Default::default(),
            touches: Vec::new(),
            figures: TraceFigures::default(),
        })
    }

    /// The number of a key. A key that is new has the value `first` before the first block, and its
    /// account, if that is new too, is absent.
    pub(super) fn add_key(&mut self, key: StateKey, first: Option<&[u8]>) -> u32 {
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        match key {
            StateKey::Account(address) => {
                self.new_keys.0.push(ACCOUNT_KEY);
                self.new_keys.0.extend_from_slice(address.as_slice());
            }
            StateKey::Slot(address, slot) => {
                let account = self.add_key(StateKey::Account(address), None);
                self.new_keys.0.push(SLOT_KEY);
                put_varint(&mut self.new_keys.0, account.into());
                self.new_keys.0.extend_from_slice(slot.as_slice());
            }
        }
        put_value(&mut self.new_keys.0, first);
        self.new_keys.1 += 1;
        let id = self.is_touched.len() as u32;
        self.is_touched.push(false);
        self.ids.insert(key, id);
        id
    }

    /// Adds a block, whose number is above those before. A block without touches is left out.
    pub(super) fn push(&mut self, number: u64, touches: &[KeyTouch]) -> io::Result<()> {
        if touches.is_empty() {
            return Ok(());
        }
        self.touches.clear();
        for KeyTouch { key, before, after } in touches {
            let [before, after] = [before, after].map(|side| side.as_ref().map(|value| &value[..]));
            let id = self.add_key(*key, before);
            if !std::mem::replace(&mut self.is_touched[id as usize], true) {
                self.figures.keys += 1;
            }
            let is_written = before != after;
            put_varint(&mut self.touches, u64::from(id) << 1 | u64::from(is_written));
            if is_written {
                put_value(&mut self.touches, after);
                self.figures.writes += 1;
                self.figures.deletes += u64::from(after.is_none());
            }
        }
        self.figures.blocks += 1;
        self.figures.reads += touches.len() as u64;
        let mut head = vec![BLOCK_RECORD];
        put_varint(&mut head, number);
        put_varint(&mut head, self.new_keys.1);
        self.output.write_all(&head)?;
        self.output.write_all(&self.new_keys.0)?;
        self.new_keys.0.clear();
        self.new_keys.1 = 0;
        head.clear();
        put_varint(&mut head, touches.len() as u64);
        self.output.write_all(&head)?;
        self.output.write_all(&self.touches)
    }

    /// The size of the trace so far.
    pub(super) const fn figures(&self) -> TraceFigures {
        self.figures
    }

    /// Ends the trace, and returns the output with all bytes.
    pub(super) fn finish(mut self) -> io::Result<W> {
        let TraceFigures { blocks, reads, writes, deletes, keys } = self.figures;
        let mut end = vec![END_RECORD];
        for count in [blocks, reads, writes, deletes, keys] {
            put_varint(&mut end, count);
        }
        self.output.write_all(&end)?;
        let mut output = self.output.finish()?;
        let len = output.bytes + FOOTER_BYTES;
        output.write_all(&len.to_le_bytes())?;
        let crc = output.crc.clone().finalize();
        output.inner.write_all(&crc.to_le_bytes())?;
        output.inner.write_all(END)?;
        Ok(output.inner)
    }
}
