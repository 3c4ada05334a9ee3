//! Heap statistics of jemalloc. A program that runs a node has it as its allocator.

use retrie_engine::{HeapStats, SizeClass};
use tikv_jemalloc_ctl::{epoch, raw, stats};

/// Index of the sum over all arenas in statistics' names (`MALLCTL_ARENAS_ALL`).
const ALL: u32 = 4096;

/// The heap now; `None` if jemalloc was built without statistics.
pub(super) fn stats() -> Option<HeapStats> {
    // jemalloc updates its statistics only when the epoch advances.
    epoch::advance().ok()?;
    let arenas = |what: &str| count(&format!("stats.arenas.{ALL}.{what}"));
    let class = |kind: &str, index: u32| {
        Some(SizeClass {
            size: size(&format!("arenas.{kind}.{index}.size"))?,
            allocations: arenas(&format!("{kind}s.{index}.nmalloc"))?,
            deallocations: arenas(&format!("{kind}s.{index}.ndalloc"))?,
        })
    };
    let classes = |kind: &str, number: u32| -> Option<Vec<SizeClass>> {
        (0..number).map(|index| class(kind, index)).collect()
    };
    let small = classes("bin", number("arenas.nbins")?)?;
    let large = classes("lextent", number("arenas.nlextents")?)?;
    let all = || small.iter().chain(&large);
    Some(HeapStats {
        allocated: stats::allocated::read().ok()? as u64,
        active: stats::active::read().ok()? as u64,
        mapped: stats::mapped::read().ok()? as u64,
        retained: stats::retained::read().ok()? as u64,
        metadata: stats::metadata::read().ok()? as u64,
        total: all().map(|class| class.size.saturating_mul(class.allocations)).sum(),
        allocations: all().map(|class| class.allocations).sum(),
        deallocations: all().map(|class| class.deallocations).sum(),
        classes: small,
    })
}

/// A statistic of type `uint64_t`.
fn count(name: &str) -> Option<u64> {
    read::<u64>(name)
}

/// A statistic of type `size_t`.
fn size(name: &str) -> Option<u64> {
    read::<usize>(name).map(|size| size as u64)
}

/// A statistic of type `unsigned`.
fn number(name: &str) -> Option<u32> {
    read::<u32>(name)
}

fn read<T: Copy>(name: &str) -> Option<T> {
    let name = format!("{name}\0");
    // SAFETY: the name has one zero byte, at its end. The callers ask for integers, for which every
    // bit pattern is valid. jemalloc refuses a length that differs from the statistic's.
    unsafe { raw::read(name.as_bytes()) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

    #[test]
    fn what_is_allocated_is_counted() {
        const BYTES: usize = 64 << 20;
        let before = stats().expect("jemalloc with statistics");
        let held = vec![1u8; BYTES];
        let during = stats().expect("jemalloc with statistics");
        assert_eq!(held.iter().map(|byte| *byte as usize).sum::<usize>(), BYTES);
        assert!(during.allocated >= before.allocated + BYTES as u64 / 2, "{during:?}");
        assert!(during.total >= before.total + BYTES as u64);
        assert!(during.allocations > before.allocations);
        assert!(during.active >= during.allocated && during.mapped >= during.active);
        assert!(during.classes.iter().any(|class| class.size == 8));
        drop(held);
        let after = stats().expect("jemalloc with statistics");
        assert!(after.deallocations > during.deallocations);
        assert!(after.allocated < during.allocated);
    }
}
