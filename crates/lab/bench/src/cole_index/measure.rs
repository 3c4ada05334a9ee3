//! Times lookups with each index, and counts the pages that they read.

use super::{
    IndexBenchError, KeyLayout,
    pairs::{IndexLookup, PairSet},
};
use crate::{race::turn_order, random::SplitMix64};
use retrie_state::StateError;
use retrie_storage_cole::{ColeParams, ComparedRun, PageSearch, PagesRead};
use serde::Serialize;
use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Most lookups whose pages are counted.
const COUNTED: u64 = 2_000;

/// The parameters of a comparison.
#[derive(Clone, Debug)]
pub struct IndexBenchConfig {
    /// Number of state keys.
    pub keys: u64,
    /// Versions of each key. The run has `keys` times `versions` pairs.
    pub versions: u64,
    /// How the keys lie.
    pub layout: KeyLayout,
    /// The largest error of models, in 64ths of a page, 1 to 32.
    pub epsilon: u8,
    /// Lookups of each kind in a slice.
    pub lookups: u64,
    /// Slices; in each, all searches do the same lookups.
    pub slices: u64,
    /// Folder for the files of the run, which are removed.
    pub folder: PathBuf,
    /// Seed of keys, values and lookups.
    pub seed: u64,
}

/// A run with all its indexes, measured.
#[derive(Clone, Debug, Serialize)]
pub struct IndexComparison {
    /// Name of the layout of keys.
    pub layout: &'static str,
    /// Number of state keys.
    pub keys: u64,
    /// Versions of each key.
    pub versions: u64,
    /// The largest error of models, in 64ths of a page.
    pub epsilon: u8,
    /// Bytes of the value pages.
    pub value_bytes: u64,
    /// One entry for each search and kind of lookup.
    pub searches: Vec<SearchFigures>,
}

/// One search on one kind of lookup.
#[derive(Clone, Debug, Serialize)]
pub struct SearchFigures {
    /// Name of the search.
    pub search: &'static str,
    /// Whether the keys that are looked up are in the run.
    pub present: bool,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Mean number of pages of the index that a lookup reads.
    pub index_pages: f64,
    /// Mean number of value pages that a lookup reads.
    pub value_pages: f64,
    /// Most pages of both kinds.
    pub most_pages: u64,
    /// Lookups in a slice.
    #[serde(skip)]
    pub lookups: u64,
    /// Times of the slices.
    #[serde(skip)]
    pub times: Vec<Duration>,
}

/// Builds a run and measures all searches on it.
///
/// # Errors
/// [`IndexBenchError::Wrong`] if a lookup has a wrong result, also one whose pages are counted;
/// if the disk fails; [`IndexBenchError::Stopped`].
pub fn compare(
    config: &IndexBenchConfig,
    stop: &AtomicBool,
) -> Result<IndexComparison, IndexBenchError> {
    let counts = [
        ("the number of keys", config.keys),
        ("the number of versions", config.versions),
        ("the number of lookups", config.lookups),
        ("the number of slices", config.slices),
    ];
    if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
        return Err(IndexBenchError::Nothing { what });
    }
    let made = compared(config, stop);
    // The store's error for a pause that ends its work is no failure.
    if made.is_err() && stop.load(Ordering::Relaxed) { Err(IndexBenchError::Stopped) } else { made }
}

fn compared(
    config: &IndexBenchConfig,
    stop: &AtomicBool,
) -> Result<IndexComparison, IndexBenchError> {
    let pairs = PairSet::new(config, stop)?;
    let folder = tempfile::tempdir_in(&config.folder)
        .map_err(|source| IndexBenchError::Folder { folder: config.folder.clone(), source })?;
    let pause = || match stop.load(Ordering::Relaxed) {
        true => Err(StateError::corrupt("run", "stopped")),
        false => Ok(()),
    };
    let params = ColeParams { epsilon: config.epsilon, ..ColeParams::default() }.checked()?;
    let rows = pairs.pairs().map(|(key, block, value)| (key.to_vec(), block, value));
    let mut run = ComparedRun::build(folder.path(), &params, rows, &pause)?;
    let mut searches = Vec::new();
    for present in [true, false] {
        let new = |search: PageSearch| SearchFigures {
            search: search.name(),
            present,
            index_bytes: run.index_pages(search) * PAGE,
            index_pages: 0.0,
            value_pages: 0.0,
            most_pages: 0,
            lookups: config.lookups,
            times: Vec::new(),
        };
        let mut figures = PageSearch::ALL.map(new);
        let mut lookups = LookupStream::new(&pairs, present, config.seed);
        let counted = lookups.next(config.lookups.min(COUNTED));
        for (search, figures) in PageSearch::ALL.into_iter().zip(&mut figures) {
            count(&mut run, search, &counted, figures)?;
        }
        // A first read of a page checks its checksum, which is no part of a lookup's cost.
        run.read_all()?;
        for slice in 0..config.slices {
            if stop.load(Ordering::Relaxed) {
                return Err(IndexBenchError::Stopped);
            }
            let batch = lookups.next(config.lookups);
            for lane in turn_order(PageSearch::ALL.len(), slice) {
                let time = time(&run, PageSearch::ALL[lane], &batch)?;
                figures[lane].times.push(time);
            }
        }
        searches.extend(figures);
    }
    Ok(IndexComparison {
        layout: config.layout.name(),
        keys: config.keys,
        versions: config.versions,
        epsilon: config.epsilon,
        value_bytes: run.value_pages() * PAGE,
        searches,
    })
}

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Random lookups of one kind.
struct LookupStream<'a> {
    pairs: &'a PairSet,
    present: bool,
    random: SplitMix64,
}

impl<'a> LookupStream<'a> {
    fn new(pairs: &'a PairSet, present: bool, seed: u64) -> Self {
        // Another sequence than that of the keys.
        let random = SplitMix64::new(!seed ^ u64::from(present));
        Self { pairs, present, random }
    }

    fn next(&mut self, count: u64) -> Vec<IndexLookup> {
        let one = |_| match self.present {
            true => self.pairs.present(&mut self.random),
            false => self.pairs.absent(&mut self.random),
        };
        (0..count).map(one).collect()
    }
}

/// Does the lookups, and checks each.
fn time(
    run: &ComparedRun,
    search: PageSearch,
    lookups: &[IndexLookup],
) -> Result<Duration, IndexBenchError> {
    let start = Instant::now();
    for lookup in lookups {
        look_up(run, search, lookup)?;
    }
    Ok(start.elapsed())
}

fn look_up(
    run: &ComparedRun,
    search: PageSearch,
    lookup: &IndexLookup,
) -> Result<(), IndexBenchError> {
    let IndexLookup { key, block, expected } = lookup;
    let found = run.get(search, key, *block)?;
    if found != *expected {
        return Err(IndexBenchError::Wrong {
            search: search.name(),
            key: alloy_primitives::hex::encode(&key[..]),
            block: *block,
            found: format!("{found:?}"),
            expected: format!("{expected:?}"),
        });
    }
    Ok(())
}

fn count(
    run: &mut ComparedRun,
    search: PageSearch,
    lookups: &[IndexLookup],
    figures: &mut SearchFigures,
) -> Result<(), IndexBenchError> {
    let mut sum = PagesRead::default();
    for lookup in lookups {
        look_up(run, search, lookup)?;
        let read = run.pages_read(search, &lookup.key, lookup.block)?;
        sum = PagesRead { index: sum.index + read.index, values: sum.values + read.values };
        figures.most_pages = figures.most_pages.max(read.index + read.values);
    }
    let mean = |pages: u64| pages as f64 / lookups.len() as f64;
    (figures.index_pages, figures.value_pages) = (mean(sum.index), mean(sum.values));
    Ok(())
}
