//! The backend `cole` on the command line: its flags.

use crate::registry::Purpose;
use eyre::bail;
use retrie_state::Backend;
use retrie_storage_cole::{Cole, Params};
use std::sync::Arc;

/// Flags of `cole`; they are settled when a datadir is made.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ColeArgs {
    /// Whether `cole` merges in the background (COLE*), with equal roots on slow and fast nodes, or
    /// while a block waits. [default: true; false for `cole-sync`]
    #[arg(
        long = "cole.async-merge",
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    async_merge: Option<bool>,
    /// Size ratio T between levels of `cole`: how many runs are merged into one. [default: 4]
    #[arg(long = "cole.size-ratio", value_name = "T")]
    size_ratio: Option<u8>,
    /// Fanout m of the Merkle trees of `cole`. [default: 4]
    #[arg(long = "cole.fanout", value_name = "M")]
    fanout: Option<u8>,
    /// How far the models of `cole` may be off, in 64ths of a page. [default: 32]
    #[arg(long = "cole.epsilon", value_name = "E")]
    epsilon: Option<u8>,
    /// Pairs that a group of the memory level of `cole` holds, B. [default: 262144]
    #[arg(long = "cole.memory-pairs", value_name = "B")]
    memory_pairs: Option<u64>,
    /// Let merges of `cole` drop history older than so many blocks. [default: all is kept]
    #[arg(long = "cole.keep-history", value_name = "BLOCKS")]
    keep_history: Option<u64>,
}

/// The backend, for this purpose; `async_merge` unless the flags say something else.
pub(crate) fn backend(
    args: &ColeArgs,
    async_merge: bool,
    purpose: Purpose<'_>,
) -> eyre::Result<Arc<dyn Backend>> {
    let params = match purpose {
        Purpose::Trial | Purpose::New(_) => args.over(Params { async_merge, ..Params::default() }),
        Purpose::Existing { datadir, params } => {
            let Some(stamped) = Params::from_digest(&params) else {
                bail!(
                    "datadir {} was made with the cole parameters {params}, which this program does \
                     not know: use a newer one",
                    datadir.display()
                );
            };
            // `cole-sync` asks for COLE, `cole` for whatever the datadir has.
            let wanted = Params { async_merge: async_merge && stamped.async_merge, ..stamped };
            if args.over(wanted) != stamped {
                tracing::warn!(
                    datadir = %datadir.display(),
                    "flags of cole are settled when a datadir is made; those given now are ignored"
                );
            }
            stamped
        }
    };
    Ok(Arc::new(Cole::new(params)?))
}

impl ColeArgs {
    /// `params`, but for the flags that were given.
    fn over(&self, params: Params) -> Params {
        Params {
            async_merge: self.async_merge.unwrap_or(params.async_merge),
            size_ratio: self.size_ratio.unwrap_or(params.size_ratio),
            fanout: self.fanout.unwrap_or(params.fanout),
            epsilon: self.epsilon.unwrap_or(params.epsilon),
            memory_pairs: self.memory_pairs.unwrap_or(params.memory_pairs),
            keep_history: self.keep_history.unwrap_or(params.keep_history),
        }
    }
}
