//! Backends from the command line: their flags, which storage crates describe, and how they are made.

use clap::{Arg, ArgAction, ArgMatches, Command, builder::ValueParser, error::ErrorKind};
use eyre::{OptionExt, bail, eyre};
use retrie_backends::{
    Descriptor, Flag, Flags, MakeError, Making, Purpose, Takes, all, find, flags, pin_flags,
    with_ethereum_root, witness_openers,
};
use retrie_bench::cache::user_cache;
use retrie_db::Metadata;
use retrie_light_client::Verifier;
use retrie_state::{AnyBackend, HashId};
use std::{ffi::OsString, fmt::Write, path::Path, sync::Arc};

/// Flags of the backends that have any; the others ignore them.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackendArgs(Flags);

/// Flags that say which parameters a verifier of proofs trusts.
#[derive(Clone, Debug, Default)]
pub(crate) struct PinArgs(Flags);

/// A hash function on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Hash {
    /// keccak-256, as in Ethereum
    Keccak,
    /// BLAKE2b-256
    Blake2b,
}

impl Hash {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Keccak => "keccak",
            Self::Blake2b => "blake2b",
        }
    }

    pub(super) const fn id(self) -> HashId {
        match self {
            Self::Keccak => HashId::Keccak256,
            Self::Blake2b => HashId::Blake2b256,
        }
    }
}

/// Makes arguments of a command line of a list of flags.
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
flag_args!(PinArgs, pin_flags, None::<&'static str>);

/// The flag as an argument of a command line.
fn arg(flag: &'static Flag) -> Arg {
    let arg = Arg::new(flag.long).long(flag.long).help(flag.help);
    let text = |check: fn(&str) -> Result<(), String>| {
        ValueParser::from(move |text: &str| check(text).map(|()| OsString::from(text)))
    };
    let arg = match flag.takes {
        Takes::Nothing => return arg.action(ArgAction::SetTrue),
        Takes::Path => arg.value_parser(ValueParser::os_string()),
        Takes::Text(check) => arg.value_parser(text(check)),
        Takes::TextOr(check, alone) => {
            arg.value_parser(text(check)).num_args(0..=1).default_missing_value(alone)
        }
    };
    let arg = arg.value_name(flag.value_name);
    match flag.default {
        Some(default) => arg.default_value(default),
        None => arg,
    }
}

/// The flags with the values they have on this command line.
fn given(flags: &[&'static Flag], matches: &ArgMatches) -> Result<Flags, clap::Error> {
    let mut given = Flags::default();
    for flag in flags {
        let value = match flag.takes {
            Takes::Nothing => matches.get_flag(flag.long).then(OsString::new),
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
    pub(crate) const fn flags(&self) -> &Flags {
        &self.0
    }

    /// The flags that are set, with their values as text; of a path its last part, as every machine may
    /// keep the file elsewhere.
    pub(crate) fn words(&self) -> impl Iterator<Item = (String, String)> {
        flags().into_iter().filter_map(|flag| {
            let value = self.0.path(flag.long)?;
            let value = match flag.takes {
                Takes::Path => Path::new(value.file_name().unwrap_or_default()),
                _ => value,
            };
            Some((flag.long.to_owned(), value.display().to_string()))
        })
    }
}

impl PinArgs {
    /// A verifier that trusts what the flags say.
    pub(crate) fn verifier(&self) -> eyre::Result<Verifier> {
        let mut verifier = Verifier::new();
        for backend in all() {
            let Some(pins) = backend.pins else { continue };
            for pinned in (pins.verifiers)(&self.0).map_err(|error| advised(backend, error))? {
                verifier = verifier.pin(pinned);
            }
        }
        Ok(verifier)
    }

    /// The flag that says which parameters of `backend` are trusted.
    pub(crate) fn flag_of(backend: &str) -> Option<&'static str> {
        Some(find(backend).ok()?.pins?.flags.first()?.long)
    }
}

/// What `--help` says of a flag that names a backend: `what`, and all of them with a line each.
pub(super) fn help(what: &str) -> String {
    let width = all().map(|backend| backend.name.len()).max().unwrap_or_default();
    let mut text = what.to_owned();
    for backend in all() {
        // A string takes all that is written to it.
        let _ = write!(text, "\n{:<width$}  {}", backend.name, backend.about);
    }
    text
}

/// Refuses names of no backend, and a `hash` that none of them has the choice of.
pub(crate) fn check_names(names: &[&str], hash: Option<Hash>) -> eyre::Result<()> {
    let has_choice = |backend: &&Descriptor| !backend.hashes.is_empty();
    let chosen = || all().filter(|backend| names.contains(&backend.name));
    if let Some(hash) = hash
        && !chosen().any(|backend| has_choice(&backend))
    {
        let having: Vec<_> = all().filter(has_choice).map(|backend| backend.name).collect();
        bail!(
            "--hash {}: backend {} has no choice of hash function; {} has",
            hash.name(),
            names.join(", "),
            having.join(", ")
        );
    }
    Ok(names.iter().try_for_each(|name| find(name).map(drop))?)
}

/// The backend; with `hash` in place of its own hash function, if it has that.
pub(crate) fn make(
    backend: &Descriptor,
    hash: Option<Hash>,
    flags: &Flags,
    purpose: Purpose<'_>,
) -> eyre::Result<Arc<dyn AnyBackend>> {
    let other =
        backend.hashes.iter().find(|other| hash.is_some_and(|hash| other.hash == hash.id()));
    if let Some(other) = other {
        return Ok((other.make)());
    }
    let cache = user_cache();
    let making = Making { flags, purpose, cache: cache.as_deref() };
    (backend.make)(&making).map_err(|error| advised(backend, error))
}

/// The backend that a datadir with this metadata was made by.
pub(crate) fn backend_of(
    metadata: &Metadata,
    args: &BackendArgs,
    datadir: &Path,
) -> eyre::Result<Arc<dyn AnyBackend>> {
    make_existing(find(&metadata.backend)?, metadata, args.flags(), datadir)
}

/// `backend` with the hash function and the parameters that a datadir with this metadata was made with.
pub(super) fn make_existing(
    backend: &Descriptor,
    metadata: &Metadata,
    flags: &Flags,
    datadir: &Path,
) -> eyre::Result<Arc<dyn AnyBackend>> {
    let Metadata { hash, params, layout, .. } = metadata;
    match backend.hashes.iter().find(|other| other.hash.name() == hash) {
        Some(other) => Ok((other.make)()),
        None => {
            let purpose = Purpose::Existing { datadir, params: *params, layout };
            make(backend, None, flags, purpose)
        }
    }
}

/// The error with what to do about it.
fn advised(backend: &Descriptor, error: MakeError) -> eyre::Report {
    match (backend.advice)(&error) {
        Some(advice) => eyre!("{error}: {advice}"),
        None => error.into(),
    }
}

/// A backend with Ethereum's roots called `name`, for `--referee`.
pub(crate) fn referee(name: &str) -> eyre::Result<Arc<dyn AnyBackend>> {
    let backend = find(name)?;
    if !backend.capabilities().ethereum_root {
        bail!("backend `{name}` cannot be the referee: its roots are not Ethereum's");
    }
    Ok(backend.trial()?)
}

/// A backend that opens witnesses.
pub(crate) fn witness_opener() -> eyre::Result<Option<Arc<dyn AnyBackend>>> {
    Ok(witness_openers().next().map(Descriptor::trial).transpose()?)
}

/// A backend with Ethereum's roots, for headers of made blocks.
pub(crate) fn root_maker() -> eyre::Result<Arc<dyn AnyBackend>> {
    let backend = with_ethereum_root().next();
    Ok(backend.ok_or_eyre("no backend computes Ethereum's roots")?.trial()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        backends: BackendArgs,
        #[command(flatten)]
        pins: PinArgs,
    }

    #[test]
    fn flags_are_what_storage_crates_say() {
        Line::command().debug_assert();
        let line = Line::parse_from(["", "--cole.async-merge", "--cole.size-ratio", "6"]);
        let flags = line.backends.flags();
        assert_eq!(flags.get::<bool>("cole.async-merge").unwrap(), Some(true));
        assert_eq!(flags.get::<u8>("cole.size-ratio").unwrap(), Some(6));
        assert_eq!(flags.get::<String>("lvmt.proof-shard").unwrap().as_deref(), Some("none"));
        assert!(!flags.has("lvmt.insecure-dev") && !flags.has("cole.fanout"));
        let line = Line::parse_from(["", "--lvmt.insecure-dev", "--cole.async-merge", "false"]);
        let flags = line.backends.flags();
        assert!(flags.has("lvmt.insecure-dev"));
        assert_eq!(flags.get::<bool>("cole.async-merge").unwrap(), Some(false));
        for wrong in ["--cole.fanout=300", "--lvmt.proof-shard=3/15", "--insecure-dev=17"] {
            let error = Line::try_parse_from(["", wrong]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ValueValidation, "{wrong}");
        }
    }

    #[test]
    fn every_backend_is_named_in_help_with_its_line() {
        let text = help("The state store");
        for backend in all() {
            let line = text.lines().find(|line| line.starts_with(&format!("{} ", backend.name)));
            assert!(line.is_some_and(|line| line.ends_with(backend.about)), "{}", backend.name);
            assert_eq!(PinArgs::flag_of(backend.name).is_some(), backend.pins.is_some());
        }
    }

    #[test]
    fn what_a_backend_must_be_able_to_do_is_asked_of_it() {
        for backend in all() {
            let can = backend.capabilities().ethereum_root;
            assert_eq!(referee(backend.name).is_ok(), can, "{}", backend.name);
        }
        assert!(witness_opener().unwrap().unwrap().partial_state().is_some());
        assert!(root_maker().unwrap().capabilities().ethereum_root);
    }
}
