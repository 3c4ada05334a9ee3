//! Makes the backend from its flags, and finds the public parameters that the flags name.

use super::NAME;
use crate::{Lvmt, LvmtParams, ParamsError, ProofShard, VerifierParams, backend::LAYOUT};
use retrie_state::{
    AnyBackend,
    descriptor::{
        BackendDescriptor, BackendFlag, ConstructorInput, FlagArgument, FlagValues, MakeError,
        ProofVerifier, StorePurpose, TrustedParams, parses_as,
    },
};
use std::{
    fs, io,
    ops::ControlFlow,
    path::Path,
    sync::{Arc, OnceLock},
};

/// Height of development parameters: the paper's height.
const HEIGHT: u8 = 16;
/// Height of the small backend of tests: AMTs of 16 entries, so that few keys reach deep levels.
const SMALL_HEIGHT: u8 = 4;

const PARAMS: &str = "lvmt.params";
const INSECURE_DEV: &str = "lvmt.insecure-dev";
const PROOF_SHARD: &str = "lvmt.proof-shard";
const TRUSTED_PARAMS: &str = "params";
const TRUSTED_INSECURE_DEV: &str = "insecure-dev";

/// The descriptor of `lvmt`.
pub static BACKENDS: &[BackendDescriptor] = &[BackendDescriptor {
    flags: &[
        BackendFlag {
            long: PARAMS,
            value_name: "FILE",
            help: "Public parameters of `lvmt`, a file that `retrie params lvmt` has made",
            default: None,
            takes: FlagArgument::Path,
        },
        BackendFlag {
            long: INSECURE_DEV,
            value_name: "",
            help: "Let `lvmt` use development parameters on a public network. Everybody can forge \
                   proofs under them. Elsewhere they are the default",
            default: None,
            takes: FlagArgument::Nothing,
        },
        BackendFlag {
            long: PROOF_SHARD,
            value_name: "SHARD",
            help: "What `lvmt` is able to prove: `none`, `all`, or a part of the keys such as \
                   `3/16`, where the first is 0 and the number of parts a power of two",
            default: Some("none"),
            takes: FlagArgument::Text(parses_as::<ProofShard>),
        },
    ],
    shard_flag: Some(PROOF_SHARD),
    small_flags: &[(INSECURE_DEV, "")],
    trusted_params: Some(&TrustedParams {
        flags: &[
            BackendFlag {
                long: TRUSTED_PARAMS,
                value_name: "FILE",
                help: "Public parameters of `lvmt` that you trust, a file that `retrie params lvmt` \
                       has made. Only the verifier's part is read",
                default: None,
                takes: FlagArgument::Path,
            },
            BackendFlag {
                long: TRUSTED_INSECURE_DEV,
                value_name: "HEIGHT",
                help: "Take the development parameters of `lvmt` of this height. Everybody can \
                       forge proofs under them",
                default: None,
                takes: FlagArgument::TextOr(is_height, "16"),
            },
        ],
        verifiers: pinned,
    }),
    advice,
    ..BackendDescriptor::plain(
        NAME,
        "LVMT: versions under commitments, proof shards",
        make,
        small,
        ["#d55e00", "#f0853a"],
    )
}];

fn is_height(text: &str) -> Result<(), String> {
    match text.parse() {
        Ok(1..=16u8) => Ok(()),
        _ => Err("it is not in 1..=16".into()),
    }
}

fn advice(error: &MakeError) -> Option<&'static str> {
    Some(match error {
        MakeError::NoParams { .. } => {
            "pass --lvmt.params FILE, which `retrie params lvmt --ptau CEREMONY -o FILE` makes; \
             --lvmt.insecure-dev forces development ones, under which everybody can forge proofs"
        }
        MakeError::InsecureParams { .. } => {
            "make others with `retrie params lvmt --ptau CEREMONY -o FILE`; --lvmt.insecure-dev \
             forces these"
        }
        MakeError::OtherParams { .. } => "pass --lvmt.params with the file it was made with",
        MakeError::OtherLayout { .. } => {
            "another version of retrie made it: export its blocks with that one, and import them into \
             a fresh datadir"
        }
        _ => return None,
    })
}

/// The small backend of tests: collects garbage early, and proves everything.
fn small() -> Arc<dyn AnyBackend> {
    static PARAMS: OnceLock<Arc<LvmtParams>> = OnceLock::new();
    let params = PARAMS.get_or_init(|| {
        let params =
            LvmtParams::insecure_dev(SMALL_HEIGHT, true, &|_, _, _| ControlFlow::Continue(()));
        Arc::new(params.expect("a height within its range, and a callback that never stops"))
    });
    let backend = Lvmt::new(params.clone(), ProofShard::All);
    Arc::new(backend.expect("there are tables for proofs").with_slack(64))
}

fn make(making: &ConstructorInput<'_>) -> Result<Arc<dyn AnyBackend>, MakeError> {
    let shard = making.flags.get(PROOF_SHARD)?.unwrap_or_default();
    if let StorePurpose::Existing { datadir, layout, .. } = making.purpose
        && layout != LAYOUT
    {
        return Err(MakeError::OtherLayout {
            backend: NAME,
            datadir: datadir.to_owned(),
            found: layout.to_owned(),
            expected: LAYOUT.to_owned(),
        });
    }
    let params = params(making, shard)?;
    if params.is_insecure() {
        tracing::warn!(
            "lvmt uses development parameters: everybody knows their secret and can forge proofs"
        );
    }
    Ok(Arc::new(Lvmt::new(Arc::new(params), shard).map_err(MakeError::backend)?))
}

fn params(making: &ConstructorInput<'_>, shard: ProofShard) -> Result<LvmtParams, MakeError> {
    let file = making.flags.path(PARAMS);
    let load = |file: &Path| LvmtParams::load(file).map_err(MakeError::backend);
    let development = || development(HEIGHT, shard != ProofShard::None, making.cache);
    match (making.purpose, file) {
        (StorePurpose::Temporary, None) => development(),
        (StorePurpose::Temporary, Some(file)) => load(file),
        (StorePurpose::New { chain, is_public }, file) => {
            let refuses_insecure = is_public && !making.flags.has(INSECURE_DEV);
            let chain = || chain.to_owned();
            match file {
                None if refuses_insecure => {
                    Err(MakeError::NoParams { backend: NAME, chain: chain() })
                }
                None => development(),
                Some(file) => match load(file)? {
                    params if refuses_insecure && params.is_insecure() => {
                        Err(MakeError::InsecureParams { file: file.to_owned(), chain: chain() })
                    }
                    params => Ok(params),
                },
            }
        }
        // The datadir fixes the parameters: these must be the same.
        (StorePurpose::Existing { datadir, params: expected, .. }, file) => {
            let found = file.map_or_else(development, load)?;
            if found.digest() != expected {
                return Err(MakeError::OtherParams {
                    backend: NAME,
                    datadir: datadir.to_owned(),
                    expected,
                    found: file.map(|file| Box::new((file.to_owned(), found.digest()))),
                });
            }
            Ok(found)
        }
    }
}

/// Development parameters, with or without the tables for proofs. With these tables it takes
/// seconds on all cores to make them, else one second. So a folder of `cache` keeps them.
fn development(height: u8, proves: bool, cache: Option<&Path>) -> Result<LvmtParams, MakeError> {
    let make = || {
        LvmtParams::insecure_dev(height, proves, &|_, _, _| ControlFlow::Continue(()))
            .map_err(MakeError::backend)
    };
    let Some(cache) = cache else { return make() };
    let plain = if proves { "" } else { "-plain" };
    let file = cache.join(NAME).join(format!("insecure-dev-{height}{plain}.params"));
    match LvmtParams::load(&file) {
        Ok(params) if fits(&params, height, proves) => return Ok(params),
        Ok(_) => tracing::warn!("{} holds other parameters; making them again", file.display()),
        Err(ParamsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        Err(why) => tracing::warn!("{why}; making them again"),
    }
    if proves {
        tracing::info!("making lvmt's development parameters with the tables for proofs");
    }
    let params = make()?;
    if let Err(why) = keep(&params, &file) {
        tracing::warn!("the parameters are not kept for the next time: {why}");
    }
    Ok(params)
}

fn fits(params: &LvmtParams, height: u8, proves: bool) -> bool {
    params.is_insecure() && params.height() == height && params.has_quotients() == proves
}

fn keep(params: &LvmtParams, file: &Path) -> Result<(), ParamsError> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(|source| ParamsError::Io {
            doing: "creating",
            path: folder.to_owned(),
            source,
        })?;
    }
    params.write(file)
}

/// The verifiers under the parameters that the flags name.
fn pinned(flags: &FlagValues) -> Result<Vec<Arc<dyn ProofVerifier>>, MakeError> {
    let mut pinned: Vec<Arc<dyn ProofVerifier>> = Vec::new();
    if let Some(file) = flags.path(TRUSTED_PARAMS) {
        pinned.push(Arc::new(LvmtParams::load_verifier(file).map_err(MakeError::backend)?));
    }
    let height = flags.get(TRUSTED_INSECURE_DEV)?;
    if let Some(params) = height.and_then(VerifierParams::insecure_dev) {
        pinned.push(Arc::new(params));
    }
    Ok(pinned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datadir_with_rows_of_another_layout_is_refused() {
        let flags = FlagValues::default();
        let digest = VerifierParams::insecure_dev(HEIGHT).unwrap().digest();
        let make_for = |layout| {
            let purpose =
                StorePurpose::Existing { datadir: Path::new("old"), params: digest, layout };
            make(&ConstructorInput { flags: &flags, purpose, cache: None })
        };
        assert_eq!(make_for(LAYOUT).unwrap().identity().layout, LAYOUT);
        let refused = make_for("").err().unwrap();
        assert!(matches!(&refused, MakeError::OtherLayout { found, .. } if found.is_empty()));
        assert!(advice(&refused).unwrap().contains("fresh datadir"));
    }

    #[test]
    fn development_parameters_are_made_once_and_again_when_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Some(folder.path());
        for (proves, name) in
            [(true, "insecure-dev-3.params"), (false, "insecure-dev-3-plain.params")]
        {
            let file = folder.path().join("lvmt").join(name);
            let made = development(3, proves, cache).unwrap();
            assert!(fits(&made, 3, proves) && !fits(&made, 4, proves) && !fits(&made, 3, !proves));
            let written = fs::read(&file).unwrap();
            let modified = fs::metadata(&file).unwrap().modified().unwrap();
            let loaded = development(3, proves, cache).unwrap();
            assert_eq!(loaded.digest(), made.digest());
            assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), modified);
            // A truncated file, a foreign one, and no folder to keep the parameters in.
            fs::write(&file, &written[..written.len() / 2]).unwrap();
            assert_eq!(development(3, proves, cache).unwrap().digest(), made.digest());
            assert_eq!(fs::read(&file).unwrap(), written);
            let other =
                LvmtParams::insecure_dev(4, proves, &|_, _, _| ControlFlow::Continue(())).unwrap();
            other.write(&file).unwrap();
            assert_eq!(development(3, proves, cache).unwrap().digest(), made.digest());
            assert_eq!(development(3, proves, None).unwrap().digest(), made.digest());
        }
    }
}
