//! Advice about errors of a measurement: which flags to change. The library's errors state facts
//! only.

use retrie_bench::{
    BenchError, RaceSetting, cache::CacheError, chain::MakeChainError, locality::LocalityError,
    state::TraceError,
};
use std::error::Error;

/// The advice about one error of a chain of causes; `None` if there is none.
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
        _ if matches!(error.downcast_ref(), Some(LocalityError::NoSpace { .. })) => {
            "--dir names another folder, --heights lower trees; --samples 0 counts without files"
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

/// The flag of a setting, and advice about it.
fn about(setting: RaceSetting) -> String {
    let words = match setting {
        RaceSetting::Keys => "--keys takes their number; that of bench state `fresh` or `real` too",
        RaceSetting::Pairs => "change --pairs",
        RaceSetting::CommitEvery => "change --commit-every, or leave it out",
        RaceSetting::Reads => "change --reads",
        RaceSetting::Choice => {
            "--reads and --keys-by do not go with --keys fresh, nor with --keys real"
        }
        RaceSetting::Warmup => "change --warmup",
        RaceSetting::Slices => "change --slices",
        RaceSetting::Slots => "change --slots",
        RaceSetting::Grind => "change --grind, or leave ground-keys out of --attacks",
        RaceSetting::Tiny => "change --tiny",
        RaceSetting::Blocks => "change --blocks",
        RaceSetting::Queries => "change --queries",
        RaceSetting::Retention => "change --retention",
        RaceSetting::Range(range) => {
            return format!("--range {range} needs at least as many --blocks");
        }
        RaceSetting::Backends => "leave it out of --backends",
        _ => "see --help",
    };
    words.into()
}
