//! Flags of backends as data, and the values that they have got.

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
pub struct Flag {
    /// Its name without dashes, which begins with that of the backend: `cole.size-ratio`.
    pub long: &'static str,
    /// What its value is called; unused if it [takes](Takes) none.
    pub value_name: &'static str,
    /// What `--help` says of it.
    pub help: &'static str,
    /// Its value if it is not given.
    pub default: Option<&'static str>,
    /// What may be given.
    pub takes: Takes,
}

/// What a flag takes.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// No value: it is given or not.
    Nothing,
    /// A path.
    Path,
    /// A text that passes this check, as [`is`] makes one.
    Text(fn(&str) -> Result<(), String>),
    /// The same, and so much if the flag stands alone.
    TextOr(fn(&str) -> Result<(), String>, &'static str),
}

/// Whether `text` is a `T`: a check for [`Takes::Text`].
///
/// # Errors
/// Why it is none.
pub fn is<T: FromStr<Err: Display>>(text: &str) -> Result<(), String> {
    text.parse::<T>().map(drop).map_err(|error| error.to_string())
}

impl Flag {
    /// Whether `value` may be given.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, value: &OsStr) -> Result<(), String> {
        match self.takes {
            Takes::Nothing if value.is_empty() => Ok(()),
            Takes::Nothing => Err("it takes no value".into()),
            Takes::Path => Ok(()),
            Takes::Text(check) | Takes::TextOr(check, _) => {
                check(value.to_str().ok_or("it is not UTF-8")?)
            }
        }
    }

    /// Its name without that of the backend: `size-ratio`.
    pub fn short(&self) -> &'static str {
        self.long.split_once('.').map_or(self.long, |(_, short)| short)
    }
}

/// The flags that are set, of any number of backends, with their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags(BTreeMap<&'static str, OsString>);

impl Flags {
    /// Sets a flag; one that takes nothing with an empty value.
    ///
    /// # Errors
    /// [`MakeError::Flag`] if it does not take the value.
    pub fn set(&mut self, flag: &Flag, value: impl Into<OsString>) -> Result<(), MakeError> {
        let value = value.into();
        match flag.check(&value) {
            Ok(()) => {
                self.0.insert(flag.long, value);
                Ok(())
            }
            Err(why) => Err(MakeError::flag(flag.long, &value, why)),
        }
    }

    /// Whether the flag of this name is set.
    pub fn has(&self, long: &str) -> bool {
        self.0.contains_key(long)
    }

    /// The path that the flag of this name is set to.
    pub fn path(&self, long: &str) -> Option<&Path> {
        self.0.get(long).map(Path::new)
    }

    /// The value that the flag of this name is set to.
    ///
    /// # Errors
    /// [`MakeError::Flag`] if it is no `T`.
    pub fn get<T: FromStr<Err: Display>>(
        &self,
        long: &'static str,
    ) -> Result<Option<T>, MakeError> {
        let Some(value) = self.0.get(long) else { return Ok(None) };
        let failed = |why: String| MakeError::flag(long, value, why);
        let text = value.to_str().ok_or_else(|| failed("it is not UTF-8".into()))?;
        text.parse().map(Some).map_err(|error: T::Err| failed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Flag = Flag {
        long: "store.size",
        value_name: "N",
        help: "How large",
        default: None,
        takes: Takes::Text(is::<u8>),
    };
    const DEV: Flag = Flag { long: "store.dev", takes: Takes::Nothing, ..SIZE };

    #[test]
    fn a_flag_takes_what_it_says_and_nothing_else() {
        let mut flags = Flags::default();
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
