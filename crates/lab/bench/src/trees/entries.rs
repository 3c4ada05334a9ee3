//! Entries in arrays (section IV.B): keys in order, and values in the order of insertion.

/// The position of a value in the value array.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueSpan {
    start: u32,
    len: u32,
}

impl ValueSpan {
    /// Appends a value to the array.
    pub(super) fn append(values: &mut Vec<u8>, value: &[u8]) -> Self {
        let start = values.len() as u32;
        values.extend_from_slice(value);
        Self { start, len: value.len() as u32 }
    }

    /// The value in the array.
    pub(super) fn of(self, values: &[u8]) -> &[u8] {
        &values[self.start as usize..][..self.len as usize]
    }
}

/// The entries of a chunk, or of a B+tree leaf.
#[derive(Clone, Debug, Default)]
pub(super) struct EntryArrays {
    pub(super) keys: Vec<u32>,
    pub(super) spans: Vec<ValueSpan>,
    /// The values. Replaced values stay until the entries are cut.
    pub(super) values: Vec<u8>,
}

impl EntryArrays {
    pub(super) const fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn first(&self) -> u32 {
        self.keys.first().copied().unwrap_or_default()
    }

    pub(super) fn position(&self, key: u32) -> Result<usize, usize> {
        self.keys.binary_search(&key)
    }

    pub(super) fn value(&self, at: usize) -> &[u8] {
        self.spans[at].of(&self.values)
    }

    pub(super) fn get(&self, key: u32) -> Option<&[u8]> {
        self.position(key).ok().map(|at| self.value(at))
    }

    /// Inserts or replaces an entry. Returns its position, and whether it is new.
    pub(super) fn insert(&mut self, key: u32, value: &[u8]) -> (usize, bool) {
        let span = ValueSpan::append(&mut self.values, value);
        match self.position(key) {
            Ok(at) => {
                self.spans[at] = span;
                (at, false)
            }
            Err(at) => {
                self.keys.insert(at, key);
                self.spans.insert(at, span);
                (at, true)
            }
        }
    }

    /// Empty arrays with room for `entries` entries and `bytes` bytes of values.
    fn with_room(entries: usize, bytes: usize) -> Self {
        Self {
            keys: Vec::with_capacity(entries),
            spans: Vec::with_capacity(entries),
            values: Vec::with_capacity(bytes),
        }
    }

    /// Cuts the entries of consecutive arrays into arrays of these lengths, with room for `most`
    /// entries each.
    pub(super) fn cut(runs: &[&Self], lengths: &[usize], most: usize) -> Vec<Self> {
        let mut places = runs.iter().flat_map(|run| (0..run.len()).map(move |at| (*run, at)));
        let bytes: usize = runs.iter().map(|run| run.values.len()).sum();
        let mean = bytes.div_ceil(runs.iter().map(|run| run.len()).sum::<usize>().max(1));
        let new = |length: &usize| {
            let mut new = Self::with_room(most + 1, (most + 1) * mean);
            for (run, at) in places.by_ref().take(*length) {
                new.keys.push(run.keys[at]);
                new.spans.push(ValueSpan::append(&mut new.values, run.value(at)));
            }
            new
        };
        lengths.iter().map(new).collect()
    }

    /// Serialises the entries: their number, the length of the values, and the arrays.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        write(&self.keys, &self.spans, &self.values, out);
    }

    /// Decodes the bytes of [`write`]; `None` if they are malformed.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (count, len) = (u32::from_le_bytes(*count) as usize, u32::from_le_bytes(*len) as usize);
        let (keys, rest) = rest.split_at_checked(count.checked_mul(4)?)?;
        let (spans, values) = rest.split_at_checked(count.checked_mul(8)?)?;
        if values.len() != len || count == 0 {
            return None;
        }
        let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let keys: Vec<u32> = keys.as_chunks().0.iter().map(number).collect();
        let spans = spans.as_chunks::<8>().0.iter().map(|span| {
            let [start, len] =
                [0, 4].map(|at| number(&[span[at], span[at + 1], span[at + 2], span[at + 3]]));
            ValueSpan { start, len }
        });
        let spans: Vec<ValueSpan> = spans.collect();
        let is_within =
            |span: &ValueSpan| u64::from(span.start) + u64::from(span.len) <= len as u64;
        let is_sound = keys.is_sorted_by(|one, next| one < next) && spans.iter().all(is_within);
        is_sound.then(|| Self { keys, spans, values: values.to_vec() })
    }
}

/// Serialises arrays: the number of keys, the length of the values, and the arrays.
pub(super) fn write(keys: &[u32], spans: &[ValueSpan], values: &[u8], out: &mut Vec<u8>) {
    out.reserve(8 + 12 * keys.len() + values.len());
    out.extend_from_slice(&(keys.len() as u32).to_le_bytes());
    out.extend_from_slice(&(values.len() as u32).to_le_bytes());
    keys.iter().for_each(|key| out.extend_from_slice(&key.to_le_bytes()));
    for ValueSpan { start, len } in spans {
        out.extend_from_slice(&start.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
    }
    out.extend_from_slice(values);
}
