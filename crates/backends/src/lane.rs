//! Names of backends in races.

use crate::{BackendDescriptor, FlagArgument, FlagValues, MakeError, UnknownBackend, find};

/// A backend with its own flags.
#[derive(Clone, Debug)]
pub struct BackendLane {
    /// The backend.
    pub backend: &'static BackendDescriptor,
    /// Its flags, and flags of other backends.
    pub flags: FlagValues,
}

/// Why a lane's name is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// There is no backend with this name.
    #[error(transparent)]
    Unknown(#[from] UnknownBackend),
    /// The backend has no proof shards.
    #[error("backend `{backend}` has no proof shards, so no {shard}")]
    NoShards {
        /// The backend.
        backend: &'static str,
        /// The shard after the `@`.
        shard: String,
    },
    /// The backend has no such flag.
    #[error(
        "backend `{backend}` has no {}",
        match known.is_empty() {
            true => format!("flags, so no {flag}"),
            false => format!("flag `{flag}`; there are: {}", known.join(", ")),
        }
    )]
    NoFlag {
        /// The backend.
        backend: &'static str,
        /// The flag.
        flag: String,
        /// The flags of the backend.
        known: Vec<&'static str>,
    },
    /// A part of the name is not a flag with a value.
    #[error("`{lane}`: `{part}` is not a flag with its value, such as size-ratio=6")]
    NoValue {
        /// The name of the lane.
        lane: String,
        /// The invalid part.
        part: String,
    },
    /// The flag does not accept the value.
    #[error(transparent)]
    Value(#[from] MakeError),
}

/// The name without shard and flags.
pub fn kind(name: &str) -> &str {
    name.split_once(['@', ':']).map_or(name, |(kind, _)| kind)
}

/// The lane with this name: `lvmt@3/16` is `lvmt` with that proof shard,
/// `cole:size-ratio=6:fanout=8` is `cole` with the flags `--cole.size-ratio 6` and `--cole.fanout
/// 8`. Other flags are taken from `flags`.
///
/// # Errors
/// If there is no such backend, shard or flag, or a flag does not accept its value.
pub fn lane(name: &str, flags: &FlagValues) -> Result<BackendLane, LaneError> {
    let backend = find(kind(name))?;
    let mut lane = BackendLane { backend, flags: flags.clone() };
    let (head, parts) = name.split_once(':').unwrap_or((name, ""));
    if let Some((_, shard)) = head.split_once('@') {
        let flag = backend.flags.iter().find(|flag| Some(flag.long) == backend.shard_flag);
        let flag =
            flag.ok_or_else(|| LaneError::NoShards { backend: backend.name, shard: shard.into() })?;
        lane.flags.set(flag, shard)?;
    }
    for part in parts.split(':').filter(|_| head.len() < name.len()) {
        let (short, value) = part.split_once('=').unwrap_or((part, ""));
        let flag = backend.flags.iter().find(|flag| flag.short() == short).ok_or_else(|| {
            let known = backend.flags.iter().map(|flag| flag.short()).collect();
            let flag = if backend.flags.is_empty() { part } else { short }.to_owned();
            LaneError::NoFlag { backend: backend.name, flag, known }
        })?;
        let stands_alone = !part.contains('=');
        match flag.takes {
            FlagArgument::Nothing if stands_alone => lane.flags.set(flag, "")?,
            _ if stands_alone => {
                return Err(LaneError::NoValue { lane: name.into(), part: part.into() });
            }
            _ => lane.flags.set(flag, value)?,
        }
    }
    Ok(lane)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConstructorInput, StorePurpose};

    fn made(name: &str) -> Result<(FlagValues, String), LaneError> {
        let flags = FlagValues::default();
        let lane = lane(name, &flags)?;
        let making =
            ConstructorInput { flags: &lane.flags, purpose: StorePurpose::Temporary, cache: None };
        let backend = (lane.backend.make)(&making)?;
        let shard =
            backend.extensions().proof_shards.map(|shards| shards.shard()).unwrap_or_default();
        Ok((lane.flags, shard))
    }

    #[test]
    fn flags_in_a_name_are_those_of_the_command_line() {
        let (flags, _) = made("cole:size-ratio=6:fanout=8").unwrap();
        let of = |long| flags.get::<u8>(long).unwrap();
        assert_eq!((of("cole.size-ratio"), of("cole.fanout")), (Some(6), Some(8)));
        for name in ["lvmt@none", "lvmt:proof-shard=none"] {
            assert_eq!(kind(name), "lvmt");
            assert_eq!(
                made(name).unwrap().0.get::<String>("lvmt.proof-shard").unwrap().unwrap(),
                "none"
            );
        }
        let mut others = FlagValues::default();
        others.set(&find("lvmt").unwrap().flags[2], "1/16").unwrap();
        let shard = |name| lane(name, &others).unwrap().flags.get::<String>("lvmt.proof-shard");
        assert_eq!(shard("lvmt").unwrap().as_deref(), Some("1/16"));
        assert_eq!(shard("lvmt@3/16").unwrap().as_deref(), Some("3/16"));
        assert!(lane("lvmt:insecure-dev", &others).unwrap().flags.has("lvmt.insecure-dev"));
    }

    #[test]
    fn names_that_make_no_sense_are_refused_with_the_reason() {
        for (wrong, says) in [
            ("lvmt:proof-shard", "not a flag with its value"),
            ("lvmt:", "no flag ``"),
            ("lvmt:shard=3/16", "no flag `shard`; there are: params"),
            ("lvmt:proof-shard=3/15", "--lvmt.proof-shard"),
            ("lvmt:insecure-dev=true", "takes no value"),
            ("raw:size-ratio=3", "`raw` has no flags"),
            ("raw@3/16", "`raw` has no proof shards, so no 3/16"),
            ("cole@3/16", "`cole` has no proof shards, so no 3/16"),
            ("cole-sync@all", "`cole-sync` has no proof shards"),
            ("nothing:size-ratio=3", "no backend is called `nothing`"),
        ] {
            let error = lane(wrong, &FlagValues::default()).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{wrong}: {error}");
        }
    }
}
