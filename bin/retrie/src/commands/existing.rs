//! Datadirs that there are: backend, referee and root mode are theirs, whatever the flags say.

use super::{ChainArgs, fold_bytes_of, open_to_read};
use crate::registry::{self, BackendArgs, Purpose};
use eyre::OptionExt;
use retrie_db::{ChainRead, OpenOptions};
use retrie_pipeline::{Chain, ChainOptions, verify::referee_name};
use retrie_state::StoreOptions;

/// Opens the datadir that `chain` names, with the backend it was made by.
pub(crate) fn open_existing(
    chain: &ChainArgs,
    backends: &BackendArgs,
    db: OpenOptions,
) -> eyre::Result<Chain> {
    let spec = chain.spec()?;
    let datadir = chain.datadir(&spec)?;
    let (metadata, referee) = {
        let read = open_to_read(&datadir)?.begin_read()?;
        let metadata =
            read.metadata()?.ok_or_eyre("the datadir is not initialised; run `retrie init`")?;
        let referee = referee_name(&read, &metadata)?;
        (metadata, referee)
    };
    let purpose = Purpose::Existing { datadir: &datadir, params: metadata.params };
    let backend = registry::backend_of(&metadata.backend, &metadata.hash, backends, purpose)?;
    Ok(Chain::open(ChainOptions {
        spec,
        backend,
        referee: referee.as_deref().map(registry::referee).transpose()?,
        root_mode: metadata.state_root,
        datadir,
        db,
        store: fold_bytes_of(StoreOptions::default()),
    })?)
}
