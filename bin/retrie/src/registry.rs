//! The one place that knows which backends exist. A new backend adds its line here.

use eyre::bail;
use retrie_state::Backend;
use retrie_storage_mpt::{MptArchive, TrieHash};
use std::sync::Arc;

type Constructor = fn() -> Arc<dyn Backend>;

/// Name on the command line, and how to make it.
const BACKENDS: &[(&str, Constructor)] = &[
    ("mpt", || Arc::new(retrie_storage_mpt::Mpt::default())),
    ("mpt-archive", || Arc::new(MptArchive::new(TrieHash::Keccak256))),
    ("raw", || Arc::new(retrie_storage_raw::Raw)),
];

/// Backends that have another hash function beside their own, for comparison only.
const OTHER_HASHES: &[(&str, Hash, Constructor)] =
    &[("mpt-archive", Hash::Blake2b, || Arc::new(MptArchive::new(TrieHash::Blake2b256)))];

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

/// The backends called `names`, with `hash` where they have the choice. At least one must.
pub(crate) fn backends(
    names: &[String],
    hash: Option<Hash>,
) -> eyre::Result<Vec<Arc<dyn Backend>>> {
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
    names.iter().map(|name| backend_with(name, hash)).collect()
}

/// The backend called `name`; with `hash` in place of its own hash function, if it has that.
fn backend_with(name: &str, hash: Option<Hash>) -> eyre::Result<Arc<dyn Backend>> {
    let other = OTHER_HASHES.iter().find(|(known, of, _)| *known == name && Some(*of) == hash);
    other.map_or_else(|| backend(name), |(.., make)| Ok(make()))
}

/// The backend of a datadir that was made by `name` with the hash function named `hash`.
pub(crate) fn backend_of(name: &str, hash: &str) -> eyre::Result<Arc<dyn Backend>> {
    let other = OTHER_HASHES.iter().map(|(known, _, make)| (known, make()));
    let same = |(known, backend): &(&&str, Arc<dyn Backend>)| {
        **known == name && backend.identity().hash.name() == hash
    };
    other.into_iter().find(same).map_or_else(|| backend(name), |(_, backend)| Ok(backend))
}

/// The backend called `name`.
pub(crate) fn backend(name: &str) -> eyre::Result<Arc<dyn Backend>> {
    match BACKENDS.iter().find(|(known, _)| *known == name) {
        Some((_, make)) => Ok(make()),
        None => bail!("no backend is called `{name}`; there are: {}", names()),
    }
}

/// A backend with Ethereum's roots called `name`, for `--referee`.
pub(crate) fn referee(name: &str) -> eyre::Result<Arc<dyn Backend>> {
    let backend = backend(name)?;
    if !backend.capabilities().ethereum_root {
        bail!("backend `{name}` cannot be the referee: its roots are not Ethereum's");
    }
    Ok(backend)
}

/// A backend that opens witnesses.
pub(crate) fn witness_opener() -> Option<Arc<dyn Backend>> {
    BACKENDS.iter().map(|(_, make)| make()).find(|backend| backend.partial_state().is_some())
}

/// A backend with Ethereum's roots, for headers of made blocks.
pub(crate) fn root_maker() -> Option<Arc<dyn Backend>> {
    BACKENDS.iter().map(|(_, make)| make()).find(|backend| backend.capabilities().ethereum_root)
}

/// The names of all backends.
pub(crate) fn all() -> Vec<String> {
    BACKENDS.iter().map(|(name, _)| (*name).into()).collect()
}

/// All names, for messages.
pub(crate) fn names() -> String {
    BACKENDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
