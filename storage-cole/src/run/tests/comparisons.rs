//! Searches with other indexes.

use super::{
    super::{ComparedRun, PageSearch, PagesRead},
    lookups::targets,
    *,
};

#[test]
fn every_search_finds_the_same_versions() {
    for keys in [KeyPattern::Random, KeyPattern::Near, KeyPattern::One] {
        let dir = tempfile::tempdir().unwrap();
        let pairs = pairs(keys, 8_000, 5);
        let rows = pairs.iter().map(|((key, block), value)| {
            (key.clone(), *block, value.as_ref().map(|value| value.clone().into()))
        });
        let params = ColeParams { epsilon: 1, ..ColeParams::default() };
        let mut run = ComparedRun::build(dir.path(), &params, rows, &|| Ok(())).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "the fences have no name");
        assert_eq!(run.pairs(), pairs.len() as u64);
        let pages = PageSearch::ALL.map(|search| run.index_pages(search));
        assert!(pages[1] >= pages[2] && pages[2] > 0 && pages[3] == 0, "{pages:?}");
        assert!(pages[2] < run.value_pages() / 16, "{pages:?}");
        let mut rng = StdRng::seed_from_u64(6);
        for target in targets(&pairs, keys, &mut rng) {
            let (key, block) = (&*target.0, target.1);
            let expected = pairs.range(..=&target).next_back().filter(|((of, _), _)| of == key);
            let expected = expected.map(|((_, block), value)| (*block, value.clone()));
            for search in PageSearch::ALL {
                let found = run.get(search, key, block).unwrap();
                let found = found.map(|(block, value)| (block, value.map(|v| v.to_vec())));
                assert_eq!(found, expected, "{search:?}, {target:?}");
                let PagesRead { index, values } = run.pages_read(search, key, block).unwrap();
                assert_eq!(index == 0, search == PageSearch::ValuePages);
                // Below all fences no value page is read.
                assert!(values > 0 || expected.is_none() && search != PageSearch::Learned);
            }
        }
    }
}
