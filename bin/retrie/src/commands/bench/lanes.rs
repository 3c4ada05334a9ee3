//! Which backends take part in a race, and with which flags of their own.
//!
//! `lvmt` stands for the backend, `lvmt@3/16` for one of its proof shards. `cole:size-ratio=6:fanout=8`
//! has the flags `--cole.size-ratio 6` and `--cole.fanout 8` of its own, so that several of a kind
//! race side by side; other flags of its are those of the command line.

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

/// The name without shard and flags.
pub(crate) fn kind(name: &str) -> &str {
    name.split_once(['@', ':']).map_or(name, |(kind, _)| kind)
}

/// The backend called `name`, for a store that goes when the race ends.
pub(crate) fn backend(
    name: &str,
    hash: Option<Hash>,
    args: &BackendArgs,
) -> eyre::Result<Arc<dyn Backend>> {
    let mut parts = name.split(':');
    let head = parts.next().unwrap_or(name);
    let mut args = args.clone();
    if let Some((kind, shard)) = head.split_once('@') {
        args = args.with_proof_shard(kind, shard)?;
    }
    for flag in parts {
        let Some((flag, value)) = flag.split_once('=') else {
            bail!("`{name}`: `{flag}` is not a flag with its value, such as size-ratio=6")
        };
        args = args.with_flag(kind(name), flag, value)?;
    }
    registry::backend_with(kind(name), hash, &args, Purpose::Trial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: BackendArgs,
    }

    #[test]
    fn flags_in_a_name_are_those_of_the_command_line() {
        let args = Line::parse_from(["retrie", "--lvmt.proof-shard", "1/16"]).args;
        let shard = |name: &str| {
            let backend = backend(name, None, &args).unwrap();
            backend.proof_shards().map(|shards| shards.shard())
        };
        assert_eq!(shard("lvmt").as_deref(), Some("1/16"));
        for name in ["lvmt@3/16", "lvmt:proof-shard=3/16"] {
            assert_eq!(shard(name).as_deref(), Some("3/16"));
            assert_eq!(kind(name), "lvmt");
        }
        for (wrong, says) in [
            ("lvmt:proof-shard", "not a flag with its value"),
            ("lvmt:shard=3/16", "no flag `shard`; there are: params"),
            ("lvmt:proof-shard=3/15", "--lvmt.proof-shard"),
            ("raw:size-ratio=3", "`raw` has no flags"),
            ("nothing:size-ratio=3", "no backend is called `nothing`"),
        ] {
            let error = backend(wrong, None, &args).err().unwrap().to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{wrong}: {error}");
        }
    }
}
