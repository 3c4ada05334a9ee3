//! What clients want to hear of, all of them together: filters, and subscriptions.

use crate::{RpcError, RpcResult};
use alloy_rpc_types_eth::Filter;
use parking_lot::Mutex;
use std::sync::Arc;

/// Most bytes of all filters, or of all subscriptions.
const MAX_BYTES: usize = 64 << 20;
/// What one costs besides its addresses and topics.
const OVERHEAD: usize = 512;

/// Interests of one kind, which together may not become too many.
#[derive(Debug)]
pub(crate) struct Interests {
    /// What they are, for errors.
    name: &'static str,
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    count: usize,
    bytes: usize,
}

/// One of them; forgotten when dropped.
#[derive(Debug)]
pub(crate) struct Interest {
    of: Arc<Interests>,
    bytes: usize,
}

impl Interests {
    pub(crate) fn new(name: &'static str, most: usize) -> Arc<Self> {
        Arc::new(Self { name, most, kept: Mutex::default() })
    }

    /// Leave for one more, which has this filter if any.
    pub(crate) fn admit(self: &Arc<Self>, filter: Option<&Filter>) -> RpcResult<Interest> {
        self.admit_bytes(filter.map_or(0, size))
    }

    /// Leave for one more, whose filter takes `bytes`.
    pub(crate) fn admit_bytes(self: &Arc<Self>, bytes: usize) -> RpcResult<Interest> {
        let bytes = OVERHEAD + bytes;
        let mut kept = self.kept.lock();
        if kept.count >= self.most || kept.bytes + bytes > MAX_BYTES {
            return Err(RpcError::Rejected(format!(
                "clients of this node have as many {} as it keeps ({}); try again later",
                self.name, kept.count
            )));
        }
        kept.count += 1;
        kept.bytes += bytes;
        Ok(Interest { of: self.clone(), bytes })
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        let mut kept = self.of.kept.lock();
        kept.count -= 1;
        kept.bytes -= self.bytes;
    }
}

/// Bytes of a filter in memory, about: hash sets are half empty.
fn size(filter: &Filter) -> usize {
    let topics: usize = filter.topics.iter().map(|topic| topic.len()).sum();
    filter.address.len() * 40 + topics * 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Address, B256, U256};

    #[test]
    fn their_number_and_their_bytes_are_bounded() {
        let interests = Interests::new("filters", 2);
        let first = interests.admit(None).unwrap();
        let _second = interests.admit(None).unwrap();
        let refused = interests.admit(None).unwrap_err().to_string();
        assert!(refused.contains("as many filters as it keeps (2)"), "{refused}");
        drop(first);
        interests.admit(None).unwrap();

        let addresses = (0..1000u64).map(|n| Address::from_word(B256::from(U256::from(n))));
        let large = Filter::new().address(addresses.collect::<Vec<_>>());
        let interests = Interests::new("filters", usize::MAX);
        let mut kept = Vec::new();
        while let Ok(one) = interests.admit(Some(&large)) {
            kept.push(one);
        }
        assert!((1000..MAX_BYTES / 40_000 + 1).contains(&kept.len()), "{}", kept.len());
        drop(kept);
        assert_eq!(interests.kept.lock().bytes, 0);
    }
}
