//! The backends that take part in a race, with their own flags ([`lane`](retrie_backends::lane())).

use crate::args::{BackendArgs, HashChoice, check_names, make};
use eyre::bail;
use retrie_backends::{BackendLane, StorePurpose, kind, lane};
use retrie_bench::{cmi, race::MemoryTerms};
use retrie_state::AnyBackend;
use std::sync::Arc;

/// Default memory for unfolded rows of each contender, in MiB.
const CACHE_MB: u64 = 1024;

/// Memory for unfolded rows of each contender, in MiB: as requested, or under a memory limit (in
/// bytes) an equal share of half of it, less the `fixed` caches of all contenders.
fn cache_mb(asked: Option<u32>, limit: Option<u64>, fixed: &[u64]) -> u64 {
    match (asked, limit) {
        (Some(asked), _) => asked.into(),
        (None, None) => CACHE_MB,
        (None, Some(limit)) => {
            let rest = (limit / 2).saturating_sub(fixed.iter().sum());
            ((rest >> 20) / fixed.len().max(1) as u64).clamp(1, CACHE_MB)
        }
    }
}

/// Memory of each contender beside the page cache, in bytes: its part of a budget, which covers its
/// caches too, or as [`cache_mb`].
pub(crate) fn cache_bytes(
    asked: Option<u32>,
    limit: Option<u64>,
    memory: MemoryTerms,
    fixed: &[u64],
) -> u64 {
    match memory.budget {
        Some(budget) => budget.store_bytes(),
        None => cache_mb(asked, limit, fixed) << 20,
    }
}

/// The given names, or those of all our backends. `is_foreign` recognises stores of other projects.
///
/// # Errors
///
/// If a name is given twice or is unknown, or if no backend supports `hash`.
pub(crate) fn names(
    given: &[String],
    hash: Option<HashChoice>,
    is_foreign: impl Fn(&str) -> bool,
) -> eyre::Result<Vec<String>> {
    let names = match given {
        [] => retrie_backends::names().into_iter().map(str::to_owned).collect(),
        given => given.to_vec(),
    };
    if let Some((n, twice)) = names.iter().enumerate().find(|(n, name)| names[..*n].contains(name))
    {
        bail!("--backends names `{twice}` twice (place {})", n + 1);
    }
    let ours = names.iter().filter(|name| !is_foreign(name) && *name != cmi::NAME);
    let kinds: Vec<_> = ours.map(|name| kind(name)).collect();
    check_names(&kinds, hash)?;
    Ok(names)
}

/// The backend `name`, for a store that is removed after the race. Flags missing in the name come
/// from the command line. A budget of `memory` limits its caches.
pub(crate) fn backend(
    name: &str,
    hash: Option<HashChoice>,
    args: &BackendArgs,
    memory: MemoryTerms,
) -> eyre::Result<Arc<dyn AnyBackend>> {
    // A baseline that only races have.
    if let Some(backend) = cmi::backend(name) {
        return Ok(backend);
    }
    let BackendLane { backend, mut flags } = lane(name, args.flags())?;
    if let Some(budget) = memory.budget {
        flags.limit_caches(budget.cache_bytes());
    }
    make(backend, hash, &flags, StorePurpose::Temporary)
}
