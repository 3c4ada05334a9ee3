//! Backends on the command line: their flags, which the storage crates describe, and their
//! construction.

use clap::{Arg, ArgAction, ArgMatches, Command, builder::ValueParser, error::ErrorKind};
use eyre::{OptionExt, bail, eyre};
use retrie_backends::{
    BackendConstructor, BackendDescriptor, BackendFlag, ConstructorInput, FlagArgument, FlagValues,
    MakeError, ProofVerifier, StorePurpose, all, find, flags, trusted_param_flags, user_cache,
    with_ethereum_root, witness_openers,
};
use retrie_db::DatadirMetadata;
use retrie_light_client::StateVerifier;
use retrie_state::{AnyBackend, BackendProfile, HashId};
use std::{ffi::OsString, fmt::Write, path::Path, sync::Arc};

/// The flags of all backends. A backend ignores the flags of the others.
#[derive(Clone, Debug, Default)]
pub struct BackendArgs(FlagValues);

/// Flags for the parameters that a proof verifier trusts.
#[derive(Clone, Debug, Default)]
pub struct PinArgs(FlagValues);

/// A hash function on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HashChoice {
    /// keccak-256, as in Ethereum
    Keccak,
    /// BLAKE2b-256
    Blake2b,
    /// BLAKE3
    Blake3,
    /// Poseidon2 over KoalaBear
    #[cfg(feature = "algebraic")]
    Poseidon2,
}

impl HashChoice {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keccak => "keccak",
            Self::Blake2b => "blake2b",
            Self::Blake3 => "blake3",
            #[cfg(feature = "algebraic")]
            Self::Poseidon2 => "poseidon2",
        }
    }

    pub(super) const fn id(self) -> HashId {
        match self {
            Self::Keccak => HashId::Keccak256,
            Self::Blake2b => HashId::Blake2b256,
            Self::Blake3 => HashId::Blake3,
            #[cfg(feature = "algebraic")]
            Self::Poseidon2 => HashId::Poseidon2,
        }
    }
}

/// Makes clap arguments from a list of flags.
macro_rules! flag_args {
    ($name:ident, $flags:expr, $heading:expr) => {
        impl clap::Args for $name {
            fn augment_args(command: Command) -> Command {
                command.args($flags().into_iter().map(|flag| arg(flag).help_heading($heading)))
            }

            fn augment_args_for_update(command: Command) -> Command {
                Self::augment_args(command)
            }
        }

        impl clap::FromArgMatches for $name {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                Ok(Self(given(&$flags(), matches)?))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }
    };
}

flag_args!(BackendArgs, flags, Some("State backend"));
flag_args!(PinArgs, trusted_param_flags, None::<&'static str>);

/// The clap argument for a flag.
fn arg(flag: &'static BackendFlag) -> Arg {
    let arg = Arg::new(flag.long).long(flag.long).help(flag.help);
    let text = |check: fn(&str) -> Result<(), String>| {
        ValueParser::from(move |text: &str| check(text).map(|()| OsString::from(text)))
    };
    let arg = match flag.takes {
        FlagArgument::Nothing => return arg.action(ArgAction::SetTrue),
        FlagArgument::Path => arg.value_parser(ValueParser::os_string()),
        FlagArgument::Text(check) => arg.value_parser(text(check)),
        FlagArgument::TextOr(check, alone) => {
            arg.value_parser(text(check)).num_args(0..=1).default_missing_value(alone)
        }
    };
    let arg = arg.value_name(flag.value_name);
    match flag.default {
        Some(default) => arg.default_value(default),
        None => arg,
    }
}

/// The flags with their values on this command line.
fn given(flags: &[&'static BackendFlag], matches: &ArgMatches) -> Result<FlagValues, clap::Error> {
    let mut given = FlagValues::default();
    for flag in flags {
        let value = match flag.takes {
            FlagArgument::Nothing => matches.get_flag(flag.long).then(OsString::new),
            _ => matches.get_one::<OsString>(flag.long).cloned(),
        };
        if let Some(value) = value {
            let refused = |why: MakeError| clap::Error::raw(ErrorKind::ValueValidation, why);
            given.set(flag, value).map_err(refused)?;
        }
    }
    Ok(given)
}

impl BackendArgs {
    /// The flags with their values.
    pub const fn flags(&self) -> &FlagValues {
        &self.0
    }

    /// Sets a flag; a name that no backend has is ignored.
    ///
    /// # Errors
    /// If the flag does not take the value.
    pub fn set(&mut self, long: &str, value: &dyn ToString) -> Result<(), MakeError> {
        let flag = flags().into_iter().find(|flag| flag.long == long);
        flag.map_or(Ok(()), |flag| self.0.set(flag, value.to_string()))
    }

    /// The flags that are set, with their values as text. Of a path only the file name is given,
    /// since every machine may keep the file in another folder.
    pub fn flag_pairs(&self) -> impl Iterator<Item = (String, String)> {
        flags().into_iter().filter_map(|flag| {
            let value = self.0.path(flag.long)?;
            let value = match flag.takes {
                FlagArgument::Path => Path::new(value.file_name().unwrap_or_default()),
                _ => value,
            };
            Some((flag.long.to_owned(), value.display().to_string()))
        })
    }
}

impl PinArgs {
    /// A verifier that trusts the given parameters.
    ///
    /// # Errors
    /// If parameters cannot be read.
    pub fn verifier(&self) -> eyre::Result<StateVerifier> {
        Ok(self.verifiers()?.into_iter().fold(StateVerifier::new(), StateVerifier::pin))
    }

    /// The verifiers under the given parameters.
    ///
    /// # Errors
    /// As [`verifier`](Self::verifier).
    pub fn verifiers(&self) -> eyre::Result<Vec<Arc<dyn ProofVerifier>>> {
        let mut all_pinned = Vec::new();
        for backend in all() {
            let Some(pins) = backend.trusted_params else { continue };
            all_pinned.extend((pins.verifiers)(&self.0).map_err(|error| advised(backend, error))?);
        }
        Ok(all_pinned)
    }

    /// The flag for the trusted parameters of `backend`.
    pub fn flag_of(backend: &str) -> Option<&'static str> {
        Some(find(backend).ok()?.trusted_params?.flags.first()?.long)
    }
}

/// The `--help` text of a flag that names a backend: `what`, then one line for each backend.
pub(super) fn help(what: &str) -> String {
    let width = all().map(|backend| backend.name.len()).max().unwrap_or_default();
    let mut text = what.to_owned();
    for backend in all() {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "\n{:<width$}  {}", backend.name, backend.about);
    }
    text
}

/// Rejects unknown backend names, and a `hash` that is a choice of none of the backends.
///
/// # Errors
/// These two.
pub fn check_names(names: &[&str], hash: Option<HashChoice>) -> eyre::Result<()> {
    if let Some(hash) = hash {
        let having: Vec<_> =
            all().filter(|backend| offers(backend, hash)).map(|backend| backend.name).collect();
        if !having.iter().any(|name| names.contains(name)) {
            bail!(
                "--hash {}: not a choice of backend {}, but of {}",
                hash.name(),
                names.join(", "),
                having.join(", ")
            );
        }
    }
    Ok(names.iter().try_for_each(|name| find(name).map(drop))?)
}

/// Whether the backend has several hash functions, and this is one of them.
fn offers(backend: &BackendDescriptor, hash: HashChoice) -> bool {
    let own = || (backend.small)().identity().hash;
    let mut others = backend.hashes.iter().map(|other| other.hash);
    !backend.hashes.is_empty() && (own() == hash.id() || others.any(|other| other == hash.id()))
}

/// Makes the backend, with `hash` in place of its own hash function if it supports that.
///
/// # Errors
/// If its parameters are missing or wrong; with the advice of its descriptor.
pub fn make(
    backend: &BackendDescriptor,
    hash: Option<HashChoice>,
    flags: &FlagValues,
    purpose: StorePurpose<'_>,
) -> eyre::Result<Arc<dyn AnyBackend>> {
    let other =
        backend.hashes.iter().find(|other| hash.is_some_and(|hash| other.hash == hash.id()));
    make_by(other.map_or(backend.make, |other| other.make), backend, flags, purpose)
}

/// Makes the backend by this one of its constructors.
fn make_by(
    constructor: BackendConstructor,
    backend: &BackendDescriptor,
    flags: &FlagValues,
    purpose: StorePurpose<'_>,
) -> eyre::Result<Arc<dyn AnyBackend>> {
    let cache = user_cache();
    let making = ConstructorInput { flags, purpose, cache: cache.as_deref() };
    constructor(&making).map_err(|error| advised(backend, error))
}

/// The backend of the datadir with this metadata.
///
/// # Errors
/// If no backend has its name, or as [`make`].
pub fn backend_of(
    metadata: &DatadirMetadata,
    args: &BackendArgs,
    datadir: &Path,
) -> eyre::Result<Arc<dyn AnyBackend>> {
    make_existing(find(&metadata.backend)?, metadata, args.flags(), datadir)
}

/// `backend` with the hash function and the parameters of the datadir with this metadata.
pub(super) fn make_existing(
    backend: &BackendDescriptor,
    metadata: &DatadirMetadata,
    flags: &FlagValues,
    datadir: &Path,
) -> eyre::Result<Arc<dyn AnyBackend>> {
    let DatadirMetadata { hash, params, layout, .. } = metadata;
    let other = backend.hashes.iter().find(|other| other.hash.name() == hash);
    let purpose = StorePurpose::Existing { datadir, params: *params, layout };
    make_by(other.map_or(backend.make, |other| other.make), backend, flags, purpose)
}

/// The error with its advice.
fn advised(backend: &BackendDescriptor, error: MakeError) -> eyre::Report {
    match (backend.advice)(&error) {
        Some(advice) => eyre!("{error}: {advice}"),
        None => error.into(),
    }
}

/// The backend `name` for `--referee`; it must have roots that headers carry: Ethereum's, or those of
/// the binary tree for chains that switch to it.
///
/// # Errors
/// If there is no such backend, or its roots are others.
pub fn referee(name: &str) -> eyre::Result<Arc<dyn AnyBackend>> {
    let backend = find(name)?;
    if !has_header_root(&backend.profile()) {
        bail!("backend `{name}` cannot be the referee: no chain's headers carry its roots");
    }
    Ok(backend.make_temporary()?)
}

/// Whether headers of some chain, at some time, carry roots of this kind.
const fn has_header_root(profile: &BackendProfile) -> bool {
    profile.ethereum_root || profile.binary_root
}

/// A backend that can open witnesses.
///
/// # Errors
/// If it cannot be made.
pub fn witness_opener() -> eyre::Result<Option<Arc<dyn AnyBackend>>> {
    Ok(witness_openers().next().map(BackendDescriptor::make_temporary).transpose()?)
}

/// A backend with Ethereum's roots, for the headers of generated blocks.
///
/// # Errors
/// If there is none, or it cannot be made.
pub fn root_backend() -> eyre::Result<Arc<dyn AnyBackend>> {
    let backend = with_ethereum_root().next();
    Ok(backend.ok_or_eyre("no backend computes Ethereum's roots")?.make_temporary()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, clap::Parser)]
    struct BackendCli {
        #[command(flatten)]
        backends: BackendArgs,
        #[command(flatten)]
        pins: PinArgs,
    }

    #[test]
    fn flags_are_what_storage_crates_say() {
        BackendCli::command().debug_assert();
        let line = BackendCli::parse_from(["", "--cole.async-merge", "--cole.size-ratio", "6"]);
        let flags = line.backends.flags();
        assert_eq!(flags.get::<bool>("cole.async-merge").unwrap(), Some(true));
        assert_eq!(flags.get::<u8>("cole.size-ratio").unwrap(), Some(6));
        assert_eq!(flags.get::<String>("lvmt.proof-shard").unwrap().as_deref(), Some("none"));
        assert!(!flags.has("lvmt.insecure-dev") && !flags.has("cole.fanout"));
        let line =
            BackendCli::parse_from(["", "--lvmt.insecure-dev", "--cole.async-merge", "false"]);
        let flags = line.backends.flags();
        assert!(flags.has("lvmt.insecure-dev"));
        assert_eq!(flags.get::<bool>("cole.async-merge").unwrap(), Some(false));
        for wrong in ["--cole.fanout=300", "--lvmt.proof-shard=3/15", "--insecure-dev=17"] {
            let error = BackendCli::try_parse_from(["", wrong]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ValueValidation, "{wrong}");
        }
    }

    #[test]
    fn every_backend_is_named_in_help_with_its_line() {
        let text = help("The state store");
        for backend in all() {
            let line = text.lines().find(|line| line.starts_with(&format!("{} ", backend.name)));
            assert!(line.is_some_and(|line| line.ends_with(backend.about)), "{}", backend.name);
            assert_eq!(PinArgs::flag_of(backend.name).is_some(), backend.trusted_params.is_some());
        }
    }

    #[test]
    fn what_a_backend_must_be_able_to_do_is_asked_of_it() {
        for backend in all() {
            let can = has_header_root(&backend.profile());
            assert_eq!(referee(backend.name).is_ok(), can, "{}", backend.name);
        }
        assert!(witness_opener().unwrap().unwrap().extensions().partial_state.is_some());
        assert!(root_backend().unwrap().profile().ethereum_root);
    }
}
