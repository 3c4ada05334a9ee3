//! Statistics of the process's memory, in the form of Go's runtime.

use crate::{RpcContext, args::register_quick};
use jsonrpsee::RpcModule;
use retrie_engine::HeapStats;
use serde_json::{Value, json};

/// Length of the pause history in geth's response.
const PAUSES: usize = 256;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_quick(module, "debug_memStats", |rpc, _| Ok(mem_stats(rpc.node.heap().as_ref())));
    register_quick(module, "debug_gcStats", |_, _| Ok(gc_stats()));
}

/// Maps allocator statistics to Go's `MemStats`. Fields of Go's garbage collector are zero, as
/// there is none; fields that the allocator does not count are null.
fn mem_stats(heap: Option<&HeapStats>) -> Value {
    let of = |value: fn(&HeapStats) -> u64| heap.map(value);
    let held = of(|heap| heap.mapped + heap.retained);
    let by_size = heap.into_iter().flat_map(|heap| &heap.classes).map(|class| {
        json!({ "Size": class.size, "Mallocs": class.allocations, "Frees": class.deallocations })
    });
    json!({
        "Alloc": of(|heap| heap.allocated),
        "TotalAlloc": of(|heap| heap.total),
        "Sys": of(|heap| heap.mapped + heap.retained + heap.metadata).or_else(virtual_size),
        "Lookups": 0,
        "Mallocs": of(|heap| heap.allocations),
        "Frees": of(|heap| heap.deallocations),
        "HeapAlloc": of(|heap| heap.allocated),
        "HeapSys": held,
        "HeapIdle": of(|heap| (heap.mapped + heap.retained).saturating_sub(heap.active)),
        "HeapInuse": of(|heap| heap.active),
        "HeapReleased": of(|heap| heap.retained),
        "HeapObjects": of(|heap| heap.allocations.saturating_sub(heap.deallocations)),
        "StackInuse": null,
        "StackSys": null,
        "MSpanInuse": 0,
        "MSpanSys": 0,
        "MCacheInuse": 0,
        "MCacheSys": 0,
        "BuckHashSys": 0,
        "GCSys": 0,
        "OtherSys": of(|heap| heap.metadata),
        "NextGC": 0,
        "LastGC": 0,
        "PauseTotalNs": 0,
        "PauseNs": vec![0; PAUSES],
        "PauseEnd": vec![0; PAUSES],
        "NumGC": 0,
        "NumForcedGC": 0,
        "GCCPUFraction": 0,
        "EnableGC": false,
        "DebugGC": false,
        "BySize": by_size.collect::<Vec<_>>(),
    })
}

/// What geth returns before its first garbage collection.
fn gc_stats() -> Value {
    json!({
        "LastGC": "1970-01-01T00:00:00Z",
        "NumGC": 0,
        "PauseTotal": 0,
        "Pause": [],
        "PauseEnd": [],
        "PauseQuantiles": null,
    })
}

/// Virtual memory size of the process in bytes (Linux only).
fn virtual_size() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_engine::SizeClass;

    #[test]
    fn what_the_allocator_counts_stands_where_geth_has_it() {
        let heap = HeapStats {
            allocated: 10,
            active: 16,
            mapped: 20,
            retained: 5,
            metadata: 3,
            total: 100,
            allocations: 9,
            deallocations: 7,
            classes: vec![SizeClass { size: 8, allocations: 9, deallocations: 7 }],
        };
        let stats = mem_stats(Some(&heap));
        let expected = [
            ("Alloc", 10),
            ("TotalAlloc", 100),
            ("Sys", 28),
            ("Mallocs", 9),
            ("Frees", 7),
            ("HeapSys", 25),
            ("HeapIdle", 9),
            ("HeapInuse", 16),
            ("HeapReleased", 5),
            ("HeapObjects", 2),
            ("OtherSys", 3),
        ];
        for (field, value) in expected {
            assert_eq!(stats[field], json!(value), "{field}");
        }
        assert_eq!(stats["BySize"], json!([{ "Size": 8, "Mallocs": 9, "Frees": 7 }]));
        assert_eq!(stats["PauseNs"].as_array().unwrap().len(), 256);
    }

    #[test]
    fn without_a_counting_allocator_little_is_known() {
        let stats = mem_stats(None);
        assert_eq!(stats["HeapAlloc"], Value::Null);
        assert!(!cfg!(target_os = "linux") || stats["Sys"].as_u64().unwrap() > 1 << 20);
    }
}
