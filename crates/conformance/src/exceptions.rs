//! Cases that are known to fail, one by one, each with its reason.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The committed list.
const LIST: &str = include_str!("../exceptions.toml");

/// Cases that are known to fail.
#[derive(Clone, Debug, Default)]
pub struct Exceptions(BTreeMap<(String, String), String>);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    exception: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    suite: String,
    name: String,
    reason: String,
}

/// The list of exceptions cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExceptionsError {
    /// It is not TOML of this form.
    #[error("exceptions.toml: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A case is listed twice.
    #[error("exceptions.toml: {suite}: {name} is listed twice")]
    Twice {
        /// The suite.
        suite: String,
        /// The case.
        name: String,
    },
    /// A case has no reason.
    #[error("exceptions.toml: {suite}: {name} has no reason")]
    NoReason {
        /// The suite.
        suite: String,
        /// The case.
        name: String,
    },
}

impl Exceptions {
    /// The committed list.
    pub fn committed() -> Result<Self, ExceptionsError> {
        Self::parse(LIST)
    }

    /// A list in the form of `exceptions.toml`.
    pub fn parse(text: &str) -> Result<Self, ExceptionsError> {
        let mut entries = BTreeMap::new();
        for Entry { suite, name, reason } in toml::from_str::<File>(text)?.exception {
            if reason.trim().is_empty() {
                return Err(ExceptionsError::NoReason { suite, name });
            }
            let key = (suite, name);
            if entries.contains_key(&key) {
                return Err(ExceptionsError::Twice { suite: key.0, name: key.1 });
            }
            entries.insert(key, reason);
        }
        Ok(Self(entries))
    }

    /// Why this case fails, if it is known to.
    pub fn reason(&self, suite: &str, name: &str) -> Option<&str> {
        self.0.get(&(suite.to_owned(), name.to_owned())).map(String::as_str)
    }

    /// All entries: suite, case, reason.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.0.iter().map(|((suite, name), reason)| (&**suite, &**name, &**reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_list_is_sound() {
        let list = Exceptions::committed().unwrap();
        assert!(list.iter().all(|(suite, ..)| crate::suite::find(suite).is_some()));
    }

    #[test]
    fn each_exception_needs_a_reason_and_stands_once() {
        let entry = |reason: &str| {
            format!("[[exception]]\nsuite = \"s\"\nname = \"n\"\nreason = \"{reason}\"\n")
        };
        let list = Exceptions::parse(&entry("why")).unwrap();
        assert_eq!(list.reason("s", "n"), Some("why"));
        assert_eq!(list.reason("s", "m"), None);
        let error = Exceptions::parse(&entry(" ")).unwrap_err().to_string();
        assert!(error.contains("no reason"), "{error}");
        let error = Exceptions::parse(&entry("why").repeat(2)).unwrap_err().to_string();
        assert!(error.contains("twice"), "{error}");
    }
}
