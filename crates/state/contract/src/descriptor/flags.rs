//! Flags of backends as data, and their values.

use super::MakeError;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt::Display,
    path::Path,
    str::FromStr,
};

/// A flag of a backend.
#[derive(Clone, Copy, Debug)]
pub struct BackendFlag {
    /// Its name without dashes; it begins with the backend's name: `cole.size-ratio`.
    pub long: &'static str,
    /// The placeholder of its value in `--help`; unused if it [takes](FlagArgument) none.
    pub value_name: &'static str,
    /// Its text in `--help`.
    pub help: &'static str,
    /// Its value if it is not given.
    pub default: Option<&'static str>,
    /// The kind of value it takes.
    pub takes: FlagArgument,
}

/// The kind of value that a flag takes.
#[derive(Clone, Copy, Debug)]
pub enum FlagArgument {
    /// No value: it is given or not.
    Nothing,
    /// A path.
    Path,
    /// A text that passes this check, such as [`parses_as`].
    Text(fn(&str) -> Result<(), String>),
    /// The same; the second field is the value if the flag is given without one.
    TextOr(fn(&str) -> Result<(), String>, &'static str),
}

/// Whether `text` parses as a `T`: a check for [`FlagArgument::Text`].
///
/// # Errors
/// Why it does not parse.
pub fn parses_as<T: FromStr<Err: Display>>(text: &str) -> Result<(), String> {
    text.parse::<T>().map(drop).map_err(|error| error.to_string())
}

impl BackendFlag {
    /// Whether `value` is valid for this flag.
    ///
    /// # Errors
    /// Why it is invalid.
    pub fn check(&self, value: &OsStr) -> Result<(), String> {
        match self.takes {
            FlagArgument::Nothing if value.is_empty() => Ok(()),
            FlagArgument::Nothing => Err("it takes no value".into()),
            FlagArgument::Path => Ok(()),
            FlagArgument::Text(check) | FlagArgument::TextOr(check, _) => {
                check(value.to_str().ok_or("it is not UTF-8")?)
            }
        }
    }

    /// Its name without the backend's name: `size-ratio`.
    pub fn short(&self) -> &'static str {
        self.long.split_once('.').map_or(self.long, |(_, short)| short)
    }
}

/// The flags that are set, of any number of backends, and their values; and how much memory caches
/// may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlagValues {
    values: BTreeMap<&'static str, OsString>,
    cache_bytes: Option<u64>,
}

impl FlagValues {
    /// Sets a flag. The value of a flag that takes none is empty.
    ///
    /// # Errors
    /// [`MakeError::Flag`] if the value is invalid.
    pub fn set(&mut self, flag: &BackendFlag, value: impl Into<OsString>) -> Result<(), MakeError> {
        let value = value.into();
        match flag.check(&value) {
            Ok(()) => {
                self.values.insert(flag.long, value);
                Ok(())
            }
            Err(why) => Err(MakeError::flag(flag.long, &value, why)),
        }
    }

    /// Whether the flag with this name is set.
    pub fn has(&self, long: &str) -> bool {
        self.values.contains_key(long)
    }

    /// The path that the flag with this name is set to.
    pub fn path(&self, long: &str) -> Option<&Path> {
        self.values.get(long).map(Path::new)
    }

    /// The value that the flag with this name is set to.
    ///
    /// # Errors
    /// [`MakeError::Flag`] if it does not parse as a `T`.
    pub fn get<T: FromStr<Err: Display>>(
        &self,
        long: &'static str,
    ) -> Result<Option<T>, MakeError> {
        let Some(value) = self.values.get(long) else { return Ok(None) };
        let failed = |why: String| MakeError::flag(long, value, why);
        let text = value.to_str().ok_or_else(|| failed("it is not UTF-8".into()))?;
        text.parse().map(Some).map_err(|error: T::Err| failed(error.to_string()))
    }

    /// Limits the caches of a backend to `bytes`. It shrinks what it can do without; what it needs
    /// anyway stays, and its [profile](crate::BackendProfile::cache_bytes) says how much that is.
    pub const fn limit_caches(&mut self, bytes: u64) {
        self.cache_bytes = Some(bytes);
    }

    /// The limit of a backend's caches in bytes, in place of its default.
    pub const fn cache_bytes(&self) -> Option<u64> {
        self.cache_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: BackendFlag = BackendFlag {
        long: "store.size",
        value_name: "N",
        help: "How large",
        default: None,
        takes: FlagArgument::Text(parses_as::<u8>),
    };
    const DEV: BackendFlag =
        BackendFlag { long: "store.dev", takes: FlagArgument::Nothing, ..SIZE };

    #[test]
    fn a_flag_takes_what_it_says_and_nothing_else() {
        let mut flags = FlagValues::default();
        flags.set(&SIZE, "7").unwrap();
        flags.set(&DEV, "").unwrap();
        assert_eq!(flags.get::<u8>("store.size").unwrap(), Some(7));
        assert_eq!(flags.get::<u8>("store.other").unwrap(), None);
        assert!(flags.has("store.dev") && !flags.has("store.other"));
        for (flag, value) in [(SIZE, "256"), (SIZE, ""), (DEV, "true")] {
            let error = flags.set(&flag, value).unwrap_err().to_string();
            assert!(error.contains(&format!("--{}", flag.long)), "{error}");
        }
        assert_eq!(flags.get::<u8>("store.size").unwrap(), Some(7));
        assert_eq!(SIZE.short(), "size");
    }
}
