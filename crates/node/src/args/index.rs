//! Flags of indexes.

use retrie_db::AddressBounds;

/// Flags of indexes.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Indexes")]
pub(crate) struct IndexArgs {
    /// Index by address, in the background, which transactions an account takes part in, also
    /// through internal calls, and which one created a contract: for Otterscan (`ots_`).
    #[arg(id = "index_addresses", long = "index.addresses")]
    addresses: bool,
}

impl IndexArgs {
    /// How the address index is built; `None` without it.
    pub(crate) fn addresses(self) -> Option<AddressBounds> {
        self.addresses.then(AddressBounds::default)
    }
}
