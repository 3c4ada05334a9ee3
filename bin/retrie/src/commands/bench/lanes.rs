//! Which backends take part in a race: `lvmt`, or `lvmt@3/16` for one of its proof shards.

use crate::registry::{self, BackendArgs, Hash, Purpose};
use eyre::bail;
use retrie_state::Backend;
use std::sync::Arc;

/// The names given, or those of all our backends; `is_foreign` tells names that are not ours.
///
/// # Errors
/// If a name stands twice, or no backend is called so; if `hash` is a choice that none has.
pub(crate) fn names(
    given: &[String],
    hash: Option<Hash>,
    is_foreign: impl Fn(&str) -> bool,
) -> eyre::Result<Vec<String>> {
    let names = if given.is_empty() { registry::all() } else { given.to_vec() };
    if let Some((n, twice)) = names.iter().enumerate().find(|(n, name)| names[..*n].contains(name))
    {
        bail!("--backends names `{twice}` twice (place {})", n + 1);
    }
    let ours = names.iter().filter(|name| !is_foreign(name));
    let kinds: Vec<_> = ours.map(|name| kind(name).to_owned()).collect();
    registry::check_names(&kinds, hash)?;
    Ok(names)
}

/// The name without the shard.
pub(crate) fn kind(name: &str) -> &str {
    name.split_once('@').map_or(name, |(kind, _)| kind)
}

/// The backend called `name`, for a store that goes when the race ends.
pub(crate) fn backend(
    name: &str,
    hash: Option<Hash>,
    args: &BackendArgs,
) -> eyre::Result<Arc<dyn Backend>> {
    match name.split_once('@') {
        None => registry::backend_with(name, hash, args, Purpose::Trial),
        Some((kind, shard)) => {
            let args = args.with_proof_shard(kind, shard)?;
            registry::backend_with(kind, hash, &args, Purpose::Trial)
        }
    }
}
