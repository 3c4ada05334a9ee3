//! Which backends take part in a race, and with which flags of their own
//! ([`lane`](retrie_backends::lane())).

use crate::args::{BackendArgs, Hash, check_names, make};
use eyre::bail;
use retrie_backends::{Lane, Purpose, kind, lane};
use retrie_state::AnyBackend;
use std::sync::Arc;

/// Memory for unfolded rows of each contender, in MiB, unless something else is asked for.
const CACHE_MB: u64 = 1024;

/// The memory for unfolded rows of each contender, in MiB: what is asked for, or under a limit on memory
/// (bytes) a share of half of it, less the `fixed` caches of all.
pub(crate) fn cache_mb(asked: Option<u32>, limit: Option<u64>, fixed: &[u64]) -> u64 {
    match (asked, limit) {
        (Some(asked), _) => asked.into(),
        (None, None) => CACHE_MB,
        (None, Some(limit)) => {
            let rest = (limit / 2).saturating_sub(fixed.iter().sum());
            ((rest >> 20) / fixed.len().max(1) as u64).clamp(1, CACHE_MB)
        }
    }
}

/// The names given, or those of all our backends; `is_foreign` tells names that are not ours.
///
/// # Errors
/// If a name stands twice, or no backend is called so; if `hash` is a choice that none has.
pub(crate) fn names(
    given: &[String],
    hash: Option<Hash>,
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
    let ours = names.iter().filter(|name| !is_foreign(name));
    let kinds: Vec<_> = ours.map(|name| kind(name)).collect();
    check_names(&kinds, hash)?;
    Ok(names)
}

/// The backend called `name`, for a store that goes when the race ends. Flags that the name does not
/// set are those of the command line.
pub(crate) fn backend(
    name: &str,
    hash: Option<Hash>,
    args: &BackendArgs,
) -> eyre::Result<Arc<dyn AnyBackend>> {
    let Lane { backend, flags } = lane(name, args.flags())?;
    make(backend, hash, &flags, Purpose::Trial)
}
