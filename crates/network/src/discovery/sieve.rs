//! Who becomes a candidate.

use super::{
    enode::Enode,
    forks::Forks,
    net,
    record::{self, Record},
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

/// Nodes that are remembered as offered or refused.
const MAX_RECENT: usize = 4096;

/// Lets nodes of our chain through to the manager, each once in a while.
#[derive(Debug)]
pub(super) struct Sieve {
    pub(super) own: PeerId,
    pub(super) forks: Arc<Forks>,
    pub(super) again: Duration,
    pub(super) recent: Mutex<HashMap<PeerId, Instant>>,
    pub(super) candidates: mpsc::Sender<Candidate>,
    /// To version 5, if it is on.
    pub(super) records: Option<mpsc::Sender<Record>>,
    pub(super) want: watch::Receiver<bool>,
}

impl Sieve {
    /// Whether a node has not been looked at lately; now it has.
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

    /// Tells version 5 of a record.
    pub(super) fn share(&self, record: &Record) {
        if let Some(records) = &self.records {
            let _ = records.try_send(record.clone());
        }
    }

    /// Offers the node of a record, if it is of our chain and takes connections. `at` is where it has
    /// answered: the address counts more than what the record says.
    pub(super) fn offer(&self, record: &Record, at: Option<&Enode>, source: CandidateSource) {
        let Some(fork_id) = record::fork_id(record) else { return };
        if !*self.want.borrow() || self.forks.validate(fork_id).is_err() {
            return;
        }
        let said = record::enode(record);
        let node = match (at, said) {
            (Some(at), Some(said)) => Enode { tcp: said.tcp, ..*at },
            // A node that does not know its address yet says its ports.
            (Some(at), None) => Enode { tcp: record.tcp4().unwrap_or(at.tcp), ..*at },
            (None, Some(said)) if net::is_address(said.ip) => said,
            (None, _) => return,
        };
        // With `at` the node has passed `is_new` before it was asked.
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
            // It may be offered again as soon as there is room.
            self.recent.lock().remove(&node.id);
        }
    }
}
