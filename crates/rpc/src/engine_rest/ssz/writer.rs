//! Writes containers and lists.

use super::OFFSET;
use alloy_primitives::Bytes;

/// Parts from this length on are shared, shorter ones are copied.
const SHARED_FROM: usize = 4 << 10;

/// An encoded value, in pieces.
#[derive(Debug, Default)]
pub(crate) struct SszBuffer {
    pieces: Vec<Bytes>,
    /// The last piece, which grows.
    last: Vec<u8>,
    size: usize,
}

impl SszBuffer {
    /// Its number of bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Its bytes, in order.
    pub(crate) fn into_pieces(mut self) -> Vec<Bytes> {
        self.end_piece();
        self.pieces
    }

    pub(crate) fn put(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.last.extend_from_slice(bytes);
        self.size += bytes.len();
    }

    /// Appends bytes, which are not copied if they are many.
    pub(crate) fn put_shared(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED_FROM {
            return self.put(bytes);
        }
        self.end_piece();
        self.size += bytes.len();
        self.pieces.push(bytes);
    }

    fn append(&mut self, other: Self) {
        for piece in other.into_pieces() {
            self.put_shared(piece);
        }
    }

    fn end_piece(&mut self) {
        if !self.last.is_empty() {
            self.pieces.push(std::mem::take(&mut self.last).into());
        }
    }
}

/// Writes a container, field by field.
#[derive(Debug, Default)]
pub(crate) struct ContainerWriter {
    fixed: SszBuffer,
    /// Where in the last piece of the fixed part an offset stands, and where in the variable part it
    /// leads.
    offsets: Vec<(usize, usize)>,
    variable: SszBuffer,
}

impl ContainerWriter {
    /// The next field, of fixed size.
    pub(crate) fn put(&mut self, field: impl AsRef<[u8]>) {
        self.fixed.put(field);
    }

    /// The next field, of fixed size: not copied if it is long and no offset stands before it.
    pub(crate) fn put_shared(&mut self, field: Bytes) {
        match self.offsets.is_empty() {
            true => self.fixed.put_shared(field),
            // Offsets are filled in at the end, in the last piece.
            false => self.fixed.put(field),
        }
    }

    /// The next field, a `uint64`.
    pub(crate) fn put_u64(&mut self, field: u64) {
        self.put(field.to_le_bytes());
    }

    /// The next field, of variable size.
    pub(crate) fn put_variable(&mut self, field: SszBuffer) {
        self.put_offset();
        self.variable.append(field);
    }

    /// The next field, a list of bytes.
    pub(crate) fn put_bytes(&mut self, field: Bytes) {
        self.put_offset();
        self.variable.put_shared(field);
    }

    fn put_offset(&mut self) {
        self.offsets.push((self.fixed.last.len(), self.variable.size()));
        self.put([0_u8; OFFSET]);
    }

    pub(crate) fn finish(self) -> SszBuffer {
        let Self { fixed: mut whole, offsets, variable } = self;
        let start = whole.size();
        for (at, offset) in offsets {
            // An answer of 4 GiB is refused for its size.
            let offset = u32::try_from(start + offset).unwrap_or(u32::MAX);
            if let Some(place) = whole.last.get_mut(at..at + OFFSET) {
                place.copy_from_slice(&offset.to_le_bytes());
            }
        }
        whole.append(variable);
        whole
    }
}

/// A list of items of variable size, which is encoded as a container of them.
pub(crate) fn list_of(items: impl IntoIterator<Item = SszBuffer>) -> SszBuffer {
    let mut list = ContainerWriter::default();
    for item in items {
        list.put_variable(item);
    }
    list.finish()
}
