//! Metrics of a state sync: the state that a new node fetches from peers.

use parking_lot::Mutex;
use prometheus::{Gauge, IntGauge, IntGaugeVec, Opts, Registry};
use std::{sync::Arc, time::Duration};

/// A phase of a state sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSyncPhase {
    /// No block is known yet whose state is wanted.
    Waiting,
    /// Peers are asked for the state.
    Fetching,
    /// All is there, is checked again, and sorted.
    Sorting,
    /// The state is loaded into the datadir.
    Loading,
}

impl StateSyncPhase {
    /// All phases, in their order.
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Fetching, Self::Sorting, Self::Loading];

    /// Its name in answers and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Fetching => "fetching",
            Self::Sorting => "sorting",
            Self::Loading => "loading",
        }
    }
}

/// How far a state sync is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSyncFigures {
    /// What it does now.
    pub phase: StateSyncPhase,
    /// Number of the block whose state is fetched.
    pub pivot: u64,
    /// Accounts and slots in the accepted answers of this phase.
    pub entries: u64,
    /// Contract codes among them.
    pub codes: u64,
    /// Bytes of these answers.
    pub bytes: u64,
    /// Estimated share of the state that is fetched, by the shape of the tree; 1 is all of it.
    pub share: f64,
    /// Estimated time until all is fetched; `None` if it is too early to say.
    pub remaining: Option<Duration>,
}

/// Metrics of a state sync. Clones share their values.
#[derive(Clone, Debug)]
pub struct StateSyncMetrics {
    phase: IntGaugeVec,
    pivot: IntGauge,
    entries: IntGauge,
    codes: IntGauge,
    bytes: IntGauge,
    share: Gauge,
    last: Arc<Mutex<Option<StateSyncFigures>>>,
}

impl StateSyncMetrics {
    /// The metrics, in `registry`.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let phase = IntGaugeVec::new(
            Opts::new("retrie_state_sync_phase", "1 for what the state sync does now"),
            &["phase"],
        )?;
        registry.register(Box::new(phase.clone()))?;
        let share = Gauge::new(
            "retrie_state_sync_share",
            "Estimated share of the state that is fetched; 1 is all of it",
        )?;
        registry.register(Box::new(share.clone()))?;
        Ok(Self {
            phase,
            pivot: gauge("retrie_state_sync_pivot", "Block whose state is fetched")?,
            entries: gauge("retrie_state_sync_entries", "Accounts and slots fetched, or sorted")?,
            codes: gauge("retrie_state_sync_codes", "Contract codes fetched")?,
            bytes: gauge("retrie_state_sync_bytes", "Bytes of answers fetched, or sorted")?,
            share,
            last: Arc::default(),
        })
    }

    /// Shows how far the sync is.
    pub fn show(&self, figures: StateSyncFigures) {
        for phase in StateSyncPhase::ALL {
            let is_now = i64::from(phase == figures.phase);
            self.phase.with_label_values(&[phase.name()]).set(is_now);
        }
        self.pivot.set(figures.pivot as i64);
        self.entries.set(figures.entries as i64);
        self.codes.set(figures.codes as i64);
        self.bytes.set(figures.bytes as i64);
        self.share.set(figures.share);
        *self.last.lock() = Some(figures);
    }

    /// How far the sync is; `None` if this node does none.
    pub fn figures(&self) -> Option<StateSyncFigures> {
        *self.last.lock()
    }
}
