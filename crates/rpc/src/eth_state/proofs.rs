//! Limits how many proofs are built at once.

use crate::{RpcError, RpcResult};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of proofs that are being built.
#[derive(Debug, Default)]
pub(crate) struct ProofPermits(AtomicUsize);

/// Permission to build one proof; returned on drop.
#[derive(Debug)]
pub(crate) struct BuildPermit<'a>(&'a AtomicUsize);

impl ProofPermits {
    /// Takes a permit, unless `most` proofs are being built.
    pub(crate) fn acquire(&self, most: usize) -> RpcResult<BuildPermit<'_>> {
        let add = |now| (now < most.max(1)).then_some(now + 1);
        let added = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        match added {
            Ok(_) => Ok(BuildPermit(&self.0)),
            Err(_) => Err(RpcError::Rejected(format!(
                "{most} proofs are being built; try again, or raise --rpc.proof-permits"
            ))),
        }
    }
}

impl Drop for BuildPermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
