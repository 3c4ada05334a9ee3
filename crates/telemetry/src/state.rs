//! Figures of state stores, read when Prometheus scrapes.

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

/// What a state store has done since it was opened, and its sizes.
#[derive(Clone, Debug, Default)]
pub struct StateFigures {
    /// Reads and writes at the node interface, table by table.
    pub tables: Vec<TableFigures>,
    /// Seconds in reads of single rows, on all threads together.
    pub read_seconds: f64,
    /// Seconds that blocks waited for background jobs.
    pub job_wait_seconds: f64,
    /// Bytes appended to the journal.
    pub journal_bytes: u64,
    /// Bytes of undo rows written.
    pub undo_bytes: u64,
    /// Rows folded from the journal into the tables.
    pub folded_rows: u64,
    /// Memory of committed rows that are not folded yet, in bytes.
    pub pending_bytes: u64,
    /// Bytes of live pages.
    pub disk_bytes: u64,
    /// Bytes of the state files of the durable tip.
    pub file_bytes: u64,
    /// Bytes of state files that only blocks below the tip need. These blocks can be reverted to.
    pub retained_file_bytes: u64,
    /// Oldest block that can be reverted to.
    pub first_retained: Option<u64>,
}

/// Reads and writes of one table.
#[derive(Clone, Debug, Default)]
pub struct TableFigures {
    /// Name of the table.
    pub table: &'static str,
    /// Rows read.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Rows written or deleted.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// Returns the figures of a store; `None` once it is closed.
pub(crate) type FigureReader = Box<dyn Fn() -> Option<StateFigures> + Send + Sync>;

/// The watched stores.
#[derive(Default)]
pub(crate) struct StoreWatchList(Mutex<Vec<WatchedStore>>);

struct WatchedStore {
    /// `state`, or `referee`.
    store: &'static str,
    backend: String,
    read: FigureReader,
}

impl fmt::Debug for StoreWatchList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("States").finish_non_exhaustive()
    }
}

type TableFigureFn = fn(&TableFigures) -> u64;
type StoreFigureFn = fn(&StateFigures) -> Option<f64>;

/// Name, help, and the figure of a table.
const TABLE_COUNTERS: [(&str, &str, TableFigureFn); 4] = [
    ("retrie_state_reads_total", "Rows read at the node interface", |table| table.reads),
    ("retrie_state_read_bytes_total", "Bytes of rows read", |table| table.read_bytes),
    ("retrie_state_writes_total", "Rows written or deleted", |table| table.writes),
    ("retrie_state_write_bytes_total", "Bytes of rows written", |table| table.write_bytes),
];

/// Name, help, counter or gauge, and the figure of a store.
const STORE_METRICS: [(&str, &str, MetricType, StoreFigureFn); 10] = [
    (
        "retrie_state_read_seconds_total",
        "Seconds in reads of single rows, all threads together (one in 13 is timed)",
        MetricType::COUNTER,
        |state| Some(state.read_seconds),
    ),
    (
        "retrie_state_job_wait_seconds_total",
        "Seconds that blocks waited for work in the background",
        MetricType::COUNTER,
        |state| Some(state.job_wait_seconds),
    ),
    (
        "retrie_state_journal_bytes_total",
        "Bytes appended to the state journal",
        MetricType::COUNTER,
        |state| Some(state.journal_bytes as f64),
    ),
    ("retrie_state_undo_bytes_total", "Bytes of undo rows written", MetricType::COUNTER, |state| {
        Some(state.undo_bytes as f64)
    }),
    (
        "retrie_state_folded_rows_total",
        "Rows folded from the journal into the tables",
        MetricType::COUNTER,
        |state| Some(state.folded_rows as f64),
    ),
    (
        "retrie_state_pending_bytes",
        "Memory of committed rows that are not folded yet",
        MetricType::GAUGE,
        |state| Some(state.pending_bytes as f64),
    ),
    ("retrie_state_disk_bytes", "Bytes of live pages of the state", MetricType::GAUGE, |state| {
        Some(state.disk_bytes as f64)
    }),
    (
        "retrie_state_file_bytes",
        "Bytes of the state files of the durable tip",
        MetricType::GAUGE,
        |state| Some(state.file_bytes as f64),
    ),
    (
        "retrie_state_retained_file_bytes",
        "Bytes of state files that only blocks below the durable tip need, which can be reverted to",
        MetricType::GAUGE,
        |state| Some(state.retained_file_bytes as f64),
    ),
    (
        "retrie_state_first_retained_number",
        "Oldest block that can be reverted to",
        MetricType::GAUGE,
        |state| state.first_retained.map(|number| number as f64),
    ),
];

impl StoreWatchList {
    /// Watches a store. It replaces an earlier one with the same name.
    pub(crate) fn watch(&self, store: &'static str, backend: String, read: FigureReader) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|watched| watched.store != store);
        watched.push(WatchedStore { store, backend, read });
    }

    fn figures(&self) -> Vec<(Vec<LabelPair>, StateFigures)> {
        let watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let labels =
            |of: &WatchedStore| vec![label("backend", &of.backend), label("store", of.store)];
        watched.iter().filter_map(|of| Some((labels(of), (of.read)()?))).collect()
    }

    /// The metrics of all stores, in the form in which a registry gathers them.
    pub(crate) fn gather(&self) -> Vec<MetricFamily> {
        let states = self.figures();
        let of_tables = TABLE_COUNTERS.iter().map(|(name, help, figure)| {
            let metrics = states.iter().flat_map(|(labels, state)| {
                state.tables.iter().map(|table| {
                    let mut labels = labels.clone();
                    labels.push(label("table", table.table));
                    metric(labels, MetricType::COUNTER, figure(table) as f64)
                })
            });
            family(name, help, MetricType::COUNTER, metrics.collect())
        });
        let of_stores = STORE_METRICS.iter().map(|(name, help, kind, figure)| {
            let metrics = states
                .iter()
                .filter_map(|(labels, state)| Some(metric(labels.clone(), *kind, figure(state)?)));
            family(name, help, *kind, metrics.collect())
        });
        of_tables.chain(of_stores).filter(|family| !family.get_metric().is_empty()).collect()
    }
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut label = LabelPair::default();
    label.set_name(name.into());
    label.set_value(value.into());
    label
}

fn metric(labels: Vec<LabelPair>, kind: MetricType, value: f64) -> Metric {
    let mut metric = Metric::default();
    metric.set_label(labels);
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.into());
    family.set_help(help.into());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metrics;
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    #[test]
    fn stores_are_read_when_asked_and_go_when_closed() {
        let metrics = Metrics::new().unwrap();
        let open = Arc::new(AtomicBool::new(true));
        let is_open = open.clone();
        let table = |table, reads| TableFigures { table, reads, ..Default::default() };
        metrics.watch_state("state", "lvmt", move || {
            is_open.load(Ordering::Relaxed).then(|| StateFigures {
                tables: vec![table("LvmtKeys", 7), table("LvmtAmts", 2)],
                read_seconds: 1.5,
                pending_bytes: 9,
                file_bytes: 11,
                retained_file_bytes: 12,
                ..Default::default()
            })
        });
        metrics.watch_state("referee", "mpt", || {
            Some(StateFigures { first_retained: Some(3), ..Default::default() })
        });
        let text = || String::from_utf8(metrics.encode().unwrap()).unwrap();
        for line in [
            "# TYPE retrie_state_reads_total counter",
            r#"retrie_state_reads_total{backend="lvmt",store="state",table="LvmtKeys"} 7"#,
            r#"retrie_state_reads_total{backend="lvmt",store="state",table="LvmtAmts"} 2"#,
            r#"retrie_state_read_seconds_total{backend="lvmt",store="state"} 1.5"#,
            "# TYPE retrie_state_pending_bytes gauge",
            r#"retrie_state_pending_bytes{backend="lvmt",store="state"} 9"#,
            r#"retrie_state_file_bytes{backend="lvmt",store="state"} 11"#,
            r#"retrie_state_retained_file_bytes{backend="lvmt",store="state"} 12"#,
            r#"retrie_state_first_retained_number{backend="mpt",store="referee"} 3"#,
        ] {
            assert!(text().lines().any(|found| found == line), "{line} is not in {}", text());
        }
        open.store(false, Ordering::Relaxed);
        assert!(!text().contains("lvmt") && text().contains("referee"));
    }
}
