//! What flags may be changed after an error of a measurement: the library's errors state facts alone.

use retrie_bench::{
    BenchError, Setting, cache::CacheError, chain::MakeChainError, locality::LocalityError,
    state::TraceError,
};
use std::error::Error;

/// Advice about one error of a chain of causes; nothing if there is none to give.
pub(crate) fn of(error: &(dyn Error + 'static)) -> Option<String> {
    let advice = match error.downcast_ref::<BenchError>() {
        Some(BenchError::Setting { setting, .. }) => return Some(about(*setting)),
        Some(BenchError::DiskFull { .. }) => STATES,
        Some(BenchError::Cache(_)) => FOLDERS,
        Some(BenchError::MakeChain(MakeChainError::Contracts { .. })) => OWN_CONTRACTS,
        _ if error.is::<CacheError>() => FOLDERS,
        _ if matches!(
            error.downcast_ref(),
            Some(LocalityError::InMemory { .. } | LocalityError::Io { .. })
        ) =>
        {
            "--dir names another folder"
        }
        _ => match (error.downcast_ref::<MakeChainError>(), error.downcast_ref::<TraceError>()) {
            (Some(MakeChainError::Contracts { .. }), _) => OWN_CONTRACTS,
            (_, Some(TraceError::NoData { .. })) => {
                "only --keys real and --blocks-from real need them"
            }
            _ => return None,
        },
    };
    Some(advice.into())
}

const STATES: &str = "--state-cache names another folder, TMPDIR where that is `none`";
const FOLDERS: &str = "--state-cache names another folder for states, TMPDIR for temporary ones";
const OWN_CONTRACTS: &str = "`--contracts own` takes contracts of this program";

/// Which flag a setting comes from, and what is to be known of it.
fn about(setting: Setting) -> String {
    let words = match setting {
        Setting::Keys => "--keys takes their number; that of bench state `fresh` or `real` too",
        Setting::Pairs => "change --pairs",
        Setting::CommitEvery => "change --commit-every, or leave it out",
        Setting::Reads => "change --reads",
        Setting::Choice => {
            "--reads and --keys-by do not go with --keys fresh, nor with --keys real"
        }
        Setting::Warmup => "change --warmup",
        Setting::Slices => "change --slices",
        Setting::Slots => "change --slots",
        Setting::Grind => "change --grind, or leave ground-keys out of --attacks",
        Setting::Tiny => "change --tiny",
        Setting::Blocks => "change --blocks",
        Setting::Queries => "change --queries",
        Setting::Retention => "change --retention",
        Setting::Range(range) => {
            return format!("--range {range} needs at least as many --blocks");
        }
        Setting::Backends => "leave it out of --backends",
        _ => "see --help",
    };
    words.into()
}
