//! The filter between found nodes and candidates.

use super::{
    enode::Enode,
    forks::ForkTracker,
    net,
    record::{self, Enr},
};
use crate::{
    eth::PeerId,
    handle::{Candidate, CandidateSource},
};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};

/// Maximum number of nodes that are remembered as offered or refused.
const MAX_RECENT: usize = 4096;

/// Passes nodes of this chain on as candidates, each at most once in a period.
#[derive(Debug)]
pub(super) struct CandidateFilter {
    pub(super) own: PeerId,
    pub(super) forks: Arc<ForkTracker>,
    pub(super) again: Duration,
    pub(super) recent: Mutex<HashMap<PeerId, Instant>>,
    pub(super) candidates: mpsc::Sender<Candidate>,
    /// To version 5, if it is on.
    pub(super) records: Option<mpsc::Sender<Enr>>,
    pub(super) want: watch::Receiver<bool>,
}

impl CandidateFilter {
    /// Whether a node was not considered recently. Marks it as considered.
    pub(super) fn is_new(&self, id: PeerId) -> bool {
        let now = Instant::now();
        let mut recent = self.recent.lock();
        let old = |at: &Instant| now.saturating_duration_since(*at) >= self.again;
        if id == self.own || recent.get(&id).is_some_and(|at| !old(at)) {
            return false;
        }
        if recent.len() >= MAX_RECENT {
            recent.retain(|_, at| !old(at));
        }
        if recent.len() < MAX_RECENT {
            recent.insert(id, now);
        }
        true
    }

    /// Passes a record to version 5.
    pub(super) fn share(&self, record: &Enr) {
        if let Some(records) = &self.records {
            let _ = records.try_send(record.clone());
        }
    }

    /// Offers the node of a record as a candidate, if it is on this chain and accepts connections.
    /// `at` is the address from which it has answered, which overrides the one in the record.
    pub(super) fn offer(&self, record: &Enr, at: Option<&Enode>, source: CandidateSource) {
        let Some(fork_id) = record::fork_id(record) else { return };
        if !*self.want.borrow() || self.forks.validate(fork_id).is_err() {
            return;
        }
        let said = record::enode(record);
        let node = match (at, said) {
            (Some(at), Some(said)) => Enode { tcp: said.tcp, ..*at },
            // A node that does not know its address yet still has ports in its record.
            (Some(at), None) => Enode { tcp: record.tcp4().unwrap_or(at.tcp), ..*at },
            (None, Some(said)) if net::is_address(said.ip) => said,
            (None, _) => return,
        };
        // With `at`, the caller has called `is_new` before it asked the node.
        if node.tcp == 0 || node.id == self.own || (at.is_none() && !self.is_new(node.id)) {
            return;
        }
        let candidate = Candidate {
            id: node.id,
            ip: node.ip,
            tcp_port: node.tcp,
            udp_port: node.udp,
            fork_id: Some(fork_id),
            source,
        };
        if self.candidates.try_send(candidate).is_err() {
            // The queue is full: the node may be offered again as soon as there is room.
            self.recent.lock().remove(&node.id);
        }
    }
}
