//! The one place that knows which backends exist. A new backend adds its line here.

use eyre::bail;
use retrie_state::Backend;
use std::sync::Arc;

type Constructor = fn() -> Arc<dyn Backend>;

/// Name on the command line, and how to make it.
const BACKENDS: &[(&str, Constructor)] = &[
    ("mpt", || Arc::new(retrie_storage_mpt::Mpt::default())),
    ("raw", || Arc::new(retrie_storage_raw::Raw)),
];

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

/// All names, for messages.
pub(crate) fn names() -> String {
    BACKENDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
