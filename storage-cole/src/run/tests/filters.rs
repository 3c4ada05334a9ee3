//! Filters that are larger than the memory for them.

use super::{
    super::filter::{self, BLOCK, FilterBuilder},
    *,
};
use alloy_primitives::B256;

#[test]
fn a_filter_built_in_parts_stays_in_its_memory_and_has_the_same_bytes() {
    const KEYS: u64 = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let blocks = |memory| {
        let mut filter = FilterBuilder::new(dir.path(), "filter", KEYS, memory).unwrap();
        let mut rng = StdRng::seed_from_u64(3);
        for _ in 0..KEYS {
            filter.add(&B256::from(rng.random::<[u8; 32]>())).unwrap();
        }
        assert!(filter.memory() <= memory, "{} bytes", filter.memory());
        let (mut blocks, mut parts) = (Vec::<[u8; BLOCK]>::new(), 0);
        filter
            .finish(|part| {
                assert!(blocks.len().is_multiple_of(filter::BLOCKS), "a part ends within a page");
                blocks.extend_from_slice(part);
                parts += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a file stays");
        (blocks, parts)
    };
    let (whole, parts) = blocks(filter::MEMORY);
    assert_eq!((whole.len() as u64, parts), (filter::blocks(KEYS), 1));
    // The filter has 122 KiB.
    for (memory, expected) in [(128 << 10, 2), (32 << 10, 8), (16 << 10, 16)] {
        let (in_parts, parts) = blocks(memory);
        assert_eq!(parts, expected);
        assert!(in_parts == whole, "{memory} bytes of memory give another filter");
    }
}
