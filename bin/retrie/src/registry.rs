//! The one place that knows which backends exist. A new backend adds its line here.

use crate::{cole, lvmt};
use Make::{Configured, Plain};
use alloy_primitives::B256;
use clap::{Args as _, FromArgMatches as _, parser::ValueSource};
use eyre::{bail, eyre};
use retrie_chainspec::ChainSpec;
use retrie_state::Backend;
use retrie_storage_mpt::{MptArchive, TrieHash};
use std::{path::Path, sync::Arc};

/// Name on the command line, and how to make it.
const BACKENDS: &[(&str, Make)] = &[
    ("mpt", Plain(|| Arc::new(retrie_storage_mpt::Mpt::default()))),
    ("mpt-archive", Plain(|| Arc::new(MptArchive::new(TrieHash::Keccak256)))),
    ("raw", Plain(|| Arc::new(retrie_storage_raw::Raw))),
    ("lvmt", Configured(|args, purpose| lvmt::backend(&args.lvmt, purpose))),
    ("cole", Configured(|args, purpose| cole::backend(&args.cole, true, purpose))),
    ("cole-sync", Configured(|args, purpose| cole::backend(&args.cole, false, purpose))),
];

/// Backends that have another hash function beside their own, for comparison only.
const OTHER_HASHES: &[(&str, Hash, Constructor)] =
    &[("mpt-archive", Hash::Blake2b, || Arc::new(MptArchive::new(TrieHash::Blake2b256)))];

type Constructor = fn() -> Arc<dyn Backend>;

/// How a backend is made.
enum Make {
    /// Out of nothing, at once.
    Plain(Constructor),
    /// From its flags; that may take seconds. Of these none has Ethereum's roots or opens witnesses.
    Configured(fn(&BackendArgs, Purpose<'_>) -> eyre::Result<Arc<dyn Backend>>),
}

impl Make {
    fn plain(&self) -> Option<Arc<dyn Backend>> {
        match self {
            Plain(make) => Some(make()),
            Configured(_) => None,
        }
    }
}

/// Flags of the backends that are configured; the others ignore them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BackendArgs {
    #[command(flatten)]
    lvmt: lvmt::LvmtArgs,
    #[command(flatten)]
    cole: cole::ColeArgs,
}

/// What a backend is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose<'a> {
    /// A store that goes when the command ends.
    Trial,
    /// A new datadir of this chain.
    New(&'a ChainSpec),
    /// A datadir that there is.
    Existing {
        /// Its folder.
        datadir: &'a Path,
        /// Digest of the parameters that its backend was made with.
        params: B256,
    },
}

/// A hash function on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Hash {
    /// keccak-256, as in Ethereum
    Keccak,
    /// BLAKE2b-256
    Blake2b,
}

impl Hash {
    const fn name(self) -> &'static str {
        match self {
            Self::Keccak => "keccak",
            Self::Blake2b => "blake2b",
        }
    }
}

impl BackendArgs {
    /// The same for `backend` with another proof shard.
    pub(crate) fn with_proof_shard(&self, backend: &str, shard: &str) -> eyre::Result<Self> {
        match row(backend)? {
            Configured(_) => Ok(Self { lvmt: self.lvmt.with_proof_shard(shard)?, ..self.clone() }),
            Plain(_) => bail!("backend `{backend}` has no proof shards, so no {shard}"),
        }
    }
}

impl BackendArgs {
    /// The same with one flag of `backend` set: flag `size-ratio` of `cole`, and of `cole-sync`, is
    /// `--cole.size-ratio`.
    pub(crate) fn with_flag(&self, backend: &str, flag: &str, value: &str) -> eyre::Result<Self> {
        if let Plain(_) = row(backend)? {
            bail!("backend `{backend}` has no flags, so no {flag}={value}");
        }
        let family = format!("{}.", backend.split('-').next().unwrap_or(backend));
        let command = Self::augment_args_for_update(clap::Command::new("").no_binary_name(true));
        let longs = command.get_arguments().filter_map(|arg| arg.get_long());
        let known: Vec<_> = longs.filter_map(|long| long.strip_prefix(&family)).collect();
        if !known.contains(&flag) {
            bail!("backend `{backend}` has no flag `{flag}`; there are: {}", known.join(", "));
        }
        let ids: Vec<_> = command.get_arguments().map(|arg| arg.get_id().clone()).collect();
        let mut matches = command
            .try_get_matches_from([format!("--{family}{flag}={value}")])
            .map_err(|error| {
                let text = error.to_string();
                let line = text.lines().next().unwrap_or_default();
                eyre!("{}", line.trim_start_matches("error: "))
            })?;
        // What was not given keeps its value, instead of going back to its default.
        for id in &ids {
            if matches.value_source(id.as_str()) != Some(ValueSource::CommandLine) {
                matches.try_clear_id(id.as_str())?;
            }
        }
        let mut args = self.clone();
        args.update_from_arg_matches_mut(&mut matches)?;
        Ok(args)
    }
}

/// The backends called `names`, with `hash` where they have the choice. At least one must.
pub(crate) fn backends(
    names: &[String],
    hash: Option<Hash>,
    args: &BackendArgs,
    purpose: Purpose<'_>,
) -> eyre::Result<Vec<Arc<dyn Backend>>> {
    check_names(names, hash)?;
    names.iter().map(|name| backend_with(name, hash, args, purpose)).collect()
}

/// Refuses names of no backend, and a `hash` that none of them has the choice of.
pub(crate) fn check_names(names: &[String], hash: Option<Hash>) -> eyre::Result<()> {
    let has_choice = |name: &String| OTHER_HASHES.iter().any(|(known, ..)| known == name);
    if let Some(hash) = hash
        && !names.iter().any(has_choice)
    {
        let having: Vec<_> = OTHER_HASHES.iter().map(|(name, ..)| *name).collect();
        bail!(
            "--hash {}: backend {} has no choice of hash function; {} has",
            hash.name(),
            names.join(", "),
            having.join(", ")
        );
    }
    names.iter().try_for_each(|name| row(name).map(|_| ()))
}

/// The backend called `name`; with `hash` in place of its own hash function, if it has that.
pub(crate) fn backend_with(
    name: &str,
    hash: Option<Hash>,
    args: &BackendArgs,
    purpose: Purpose<'_>,
) -> eyre::Result<Arc<dyn Backend>> {
    let other = OTHER_HASHES.iter().find(|(known, of, _)| *known == name && Some(*of) == hash);
    other.map_or_else(|| backend(name, args, purpose), |(.., make)| Ok(make()))
}

/// The backend of a datadir that was made by `name` with the hash function named `hash`.
pub(crate) fn backend_of(
    name: &str,
    hash: &str,
    args: &BackendArgs,
    purpose: Purpose<'_>,
) -> eyre::Result<Arc<dyn Backend>> {
    let other = OTHER_HASHES.iter().map(|(known, _, make)| (known, make()));
    let same = |(known, backend): &(&&str, Arc<dyn Backend>)| {
        **known == name && backend.identity().hash.name() == hash
    };
    let other = other.into_iter().find(same);
    other.map_or_else(|| backend(name, args, purpose), |(_, backend)| Ok(backend))
}

/// What a datadir of the backend called `name` says it holds: `cole-sync` is `cole` with a parameter
/// of its own.
pub(crate) fn stored_name(name: &str) -> &str {
    if name == "cole-sync" { "cole" } else { name }
}

/// Whether the backend called `name` is made from flags.
pub(crate) fn is_configured(name: &str) -> bool {
    matches!(row(name), Ok(Configured(_)))
}

/// The backend called `name`, which takes no flags.
pub(crate) fn plain(name: &str) -> eyre::Result<Arc<dyn Backend>> {
    match row(name)?.plain() {
        Some(backend) => Ok(backend),
        None => bail!("backend `{name}` has flags of its own, which this use of it does not take"),
    }
}

fn backend(name: &str, args: &BackendArgs, purpose: Purpose<'_>) -> eyre::Result<Arc<dyn Backend>> {
    match row(name)? {
        Plain(make) => Ok(make()),
        Configured(make) => make(args, purpose),
    }
}

fn row(name: &str) -> eyre::Result<&'static Make> {
    match BACKENDS.iter().find(|(known, _)| *known == name) {
        Some((_, make)) => Ok(make),
        None => bail!("no backend is called `{name}`; there are: {}", names()),
    }
}

/// A backend with Ethereum's roots called `name`, for `--referee`.
pub(crate) fn referee(name: &str) -> eyre::Result<Arc<dyn Backend>> {
    match row(name)?.plain().filter(|backend| backend.capabilities().ethereum_root) {
        Some(backend) => Ok(backend),
        None => bail!("backend `{name}` cannot be the referee: its roots are not Ethereum's"),
    }
}

/// A backend that opens witnesses.
pub(crate) fn witness_opener() -> Option<Arc<dyn Backend>> {
    all_plain().find(|backend| backend.partial_state().is_some())
}

/// A backend with Ethereum's roots, for headers of made blocks.
pub(crate) fn root_maker() -> Option<Arc<dyn Backend>> {
    all_plain().find(|backend| backend.capabilities().ethereum_root)
}

fn all_plain() -> impl Iterator<Item = Arc<dyn Backend>> {
    BACKENDS.iter().filter_map(|(_, make)| make.plain())
}

/// The names of all backends.
pub(crate) fn all() -> Vec<String> {
    BACKENDS.iter().map(|(name, _)| (*name).into()).collect()
}

/// All names, for messages.
pub(crate) fn names() -> String {
    BACKENDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
