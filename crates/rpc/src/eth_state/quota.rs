//! Quotas on the filters and the subscriptions of all clients.

use crate::{RpcError, RpcResult};
use alloy_rpc_types_eth::Filter;
use parking_lot::Mutex;
use std::sync::Arc;

/// Most bytes of all filters, or of all subscriptions.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of one filter besides its addresses and topics.
const OVERHEAD: usize = 512;

/// Limits the number and the total size of all filters, or of all subscriptions.
#[derive(Debug)]
pub(crate) struct ClientQuota {
    /// Name in errors.
    name: &'static str,
    most: usize,
    kept: Mutex<QuotaUsage>,
}

#[derive(Debug, Default)]
struct QuotaUsage {
    count: usize,
    bytes: usize,
}

/// A place in the quota; returned on drop.
#[derive(Debug)]
pub(crate) struct QuotaPermit {
    of: Arc<ClientQuota>,
    bytes: usize,
}

impl ClientQuota {
    pub(crate) fn new(name: &'static str, most: usize) -> Arc<Self> {
        Arc::new(Self { name, most, kept: Mutex::default() })
    }

    /// Takes a place for one more entry, with this filter if any.
    pub(crate) fn admit(self: &Arc<Self>, filter: Option<&Filter>) -> RpcResult<QuotaPermit> {
        self.admit_bytes(filter.map_or(0, size))
    }

    /// Takes a place for one more entry, whose filter has `bytes`.
    pub(crate) fn admit_bytes(self: &Arc<Self>, bytes: usize) -> RpcResult<QuotaPermit> {
        let bytes = OVERHEAD + bytes;
        let mut kept = self.kept.lock();
        if kept.count >= self.most || kept.bytes + bytes > MAX_BYTES {
            return Err(RpcError::Rejected(format!(
                "the clients of this node have too many {} ({}); try again later",
                self.name, kept.count
            )));
        }
        kept.count += 1;
        kept.bytes += bytes;
        Ok(QuotaPermit { of: self.clone(), bytes })
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut kept = self.of.kept.lock();
        kept.count -= 1;
        kept.bytes -= self.bytes;
    }
}

/// Approximate bytes of a filter in memory; hash sets are about half empty.
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
        let interests = ClientQuota::new("filters", 2);
        let first = interests.admit(None).unwrap();
        let _second = interests.admit(None).unwrap();
        let refused = interests.admit(None).unwrap_err().to_string();
        assert!(refused.contains("too many filters (2)"), "{refused}");
        drop(first);
        interests.admit(None).unwrap();

        let addresses = (0..1000u64).map(|n| Address::from_word(B256::from(U256::from(n))));
        let large = Filter::new().address(addresses.collect::<Vec<_>>());
        let interests = ClientQuota::new("filters", usize::MAX);
        let mut kept = Vec::new();
        while let Ok(one) = interests.admit(Some(&large)) {
            kept.push(one);
        }
        assert!((1000..MAX_BYTES / 40_000 + 1).contains(&kept.len()), "{}", kept.len());
        drop(kept);
        assert_eq!(interests.kept.lock().bytes, 0);
    }
}
