//! The check of a store for `db verify`: every file, every row, and whether they fit together.

use crate::{
    levels::LsmLevels,
    record::{MANIFEST, META, RunManifest},
    run::RunDescription,
    state::ColeState,
};
use alloy_primitives::B256;
use retrie_state::{NodeRead, StateError};

/// Checks the state that `view` shows and from which `state` was opened; see
/// [`Backend::check`](retrie_state::Backend::check).
pub(crate) fn check(
    view: &dyn NodeRead,
    state: &ColeState,
    root: B256,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    let levels = &state.levels;
    // The pairs of the memory level were hashed when the state was opened.
    if levels.root() != root {
        let what = format!("the levels have the root {}, recorded is {root}", levels.root());
        report(StateError::corrupt(META.name, what));
    }
    if let Some(row) = view.get(META, MANIFEST)?
        && RunManifest::decode(&row, RunDescription::decode)? != levels.manifest()
    {
        report(StateError::corrupt(META.name, "the manifest names other runs than are in use"));
    }
    let groups = levels.memory().into_iter().filter_map(|group| group.source());
    for source in groups.chain(levels.runs().map(|stored| *stored.source())) {
        let fits = |(first, last)| first <= source.first_block && source.last_block <= last;
        if !state.blocks.is_some_and(fits) {
            let what = "the row `blocks` does not fit the blocks there are pairs of";
            report(StateError::corrupt(META.name, what));
        }
    }
    check_ages(levels, report);
    for stored in levels.runs() {
        stored.run.check(report, &|| Ok(()))?;
    }
    Ok(())
}

/// Checks that sources are ordered by age: a search ends at the first version found.
fn check_ages(levels: &LsmLevels, report: &mut dyn FnMut(StateError)) {
    let memory = levels.memory().into_iter().filter_map(|group| group.source());
    let runs = levels.runs().map(|stored| *stored.source());
    let mut above: Option<u64> = None;
    for source in memory.chain(runs) {
        if above.is_some_and(|first| source.last_block >= first) {
            let what = format!(
                "a source with blocks {} to {} lies below younger ones that begin at block {}",
                source.first_block,
                source.last_block,
                above.unwrap_or_default()
            );
            report(StateError::corrupt(META.name, what));
        }
        above = Some(source.first_block);
    }
}
