//! How many proofs are built at once.

use crate::{RpcError, RpcResult};
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many proofs are being built.
#[derive(Debug, Default)]
pub(crate) struct Permits(AtomicUsize);

/// One of them.
#[derive(Debug)]
pub(crate) struct Permit<'a>(&'a AtomicUsize);

impl Permits {
    /// Leave to build a proof, unless `most` are being built.
    pub(crate) fn acquire(&self, most: usize) -> RpcResult<Permit<'_>> {
        let add = |now| (now < most.max(1)).then_some(now + 1);
        let added = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        match added {
            Ok(_) => Ok(Permit(&self.0)),
            Err(_) => Err(RpcError::Rejected(format!(
                "{most} proofs are being built; try again, or raise --rpc.proof-permits"
            ))),
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
