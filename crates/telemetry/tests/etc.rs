//! The metrics that `etc/` queries must exist in the client.

use retrie_telemetry::{
    Metrics,
    state::{StateFigures, TableFigures},
    state_sync::{StateSyncFigures, StateSyncPhase},
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

/// All names of metrics in a text: words that begin with `retrie_` or `process_`.
fn names(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("retrie_") || word.starts_with("process_"))
        .collect()
}

fn etc() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../etc")
}

#[test]
fn dashboard_and_alerts_name_only_metrics_that_exist() {
    let metrics = Metrics::new().unwrap();
    metrics.watch_state("state", "mpt", || {
        let tables = vec![TableFigures { table: "Trie", ..Default::default() }];
        Some(StateFigures { tables, first_retained: Some(0), ..Default::default() })
    });
    let labels = ["mpt", "state"];
    metrics.bench_operations.with_label_values(&labels).inc();
    metrics.bench_commit_seconds.with_label_values(&labels).observe(1.0);
    metrics.bench_disk_bytes.with_label_values(&labels).set(1);
    let http = metrics.rpc.server("http", []);
    http.answered("eth_chainId", Duration::ZERO, true);
    drop(http.connected());
    let peer = metrics.proofs.peer("10.0.0.1:8545");
    peer.answered(Duration::ZERO);
    peer.failed("failed");
    metrics.state_sync.show(StateSyncFigures {
        phase: StateSyncPhase::Fetching,
        pivot: 1,
        entries: 1,
        codes: 1,
        bytes: 1,
        share: 0.5,
        remaining: None,
    });
    metrics.traffic.show_peers(1, 1);
    metrics.traffic.show_connections(&[("messages_in", 1)]);
    metrics.traffic.show_blocks(&[("headers", 1)]);
    metrics.traffic.show_transactions(&[("sent", 1)], 0);
    let encoded = String::from_utf8(metrics.encode().unwrap()).unwrap();
    let known = names(&encoded);
    for file in ["prometheus/rules.yml", "grafana/retrie.json"] {
        let text = std::fs::read_to_string(etc().join(file)).unwrap();
        let asked = names(&text);
        assert!(asked.len() > 5, "{file} asks for {asked:?}");
        let unknown: Vec<_> = asked.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} asks for {unknown:?}");
    }
}
