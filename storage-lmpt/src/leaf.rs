//! The content of leaves: a tag, then the value. Layer rows contain the same bytes.

/// Tag of a tombstone; no bytes follow.
const TOMBSTONE: u8 = 0;
/// Tag of a value.
const VALUE: u8 = 1;

/// The leaf of a value; without a value a tombstone.
#[cfg(feature = "std")]
pub(crate) fn encode(value: Option<&alloy_primitives::Bytes>) -> alloy_primitives::Bytes {
    let mut leaf = Vec::with_capacity(1 + value.map_or(0, |value| value.len()));
    match value {
        None => leaf.push(TOMBSTONE),
        Some(value) => {
            leaf.push(VALUE);
            leaf.extend_from_slice(value);
        }
    }
    leaf.into()
}

/// The value of a leaf; `Some(None)` for a tombstone, `None` for malformed bytes.
pub(crate) fn decode(leaf: &[u8]) -> Option<Option<&[u8]>> {
    match leaf {
        [TOMBSTONE] => Some(None),
        [VALUE, value @ ..] => Some(Some(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_read_back_and_a_tombstone_has_no_value() {
        for value in [None, Some(&b""[..]), Some(b"value")] {
            let bytes = value.map(alloy_primitives::Bytes::copy_from_slice);
            assert_eq!(decode(&encode(bytes.as_ref())), Some(value));
        }
        for wrong in [&b""[..], &[0, 0], &[2], &[0xff, 1]] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
