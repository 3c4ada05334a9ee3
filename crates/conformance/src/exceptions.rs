//! Cases that are known to fail, each with its reason: one by one, or a family of them, where a rule that
//! its files test was withdrawn.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The committed list.
const LIST: &str = include_str!("../exceptions.toml");

/// Cases that are known to fail.
#[derive(Clone, Debug, Default)]
pub struct Exceptions {
    /// By suite and case.
    cases: BTreeMap<(String, String), String>,
    /// Part of the files' path, and reason.
    families: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    exception: Vec<Entry>,
    #[serde(default)]
    family: Vec<FamilyEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FamilyEntry {
    path: String,
    reason: String,
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
    /// A family has no path, or no reason.
    #[error("exceptions.toml: the family {path:?} needs a path and a reason")]
    Family {
        /// Its path.
        path: String,
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
        let File { exception, family } = toml::from_str(text)?;
        let mut cases = BTreeMap::new();
        for Entry { suite, name, reason } in exception {
            if reason.trim().is_empty() {
                return Err(ExceptionsError::NoReason { suite, name });
            }
            let key = (suite, name);
            if cases.contains_key(&key) {
                return Err(ExceptionsError::Twice { suite: key.0, name: key.1 });
            }
            cases.insert(key, reason);
        }
        let mut families = Vec::new();
        for FamilyEntry { path, reason } in family {
            if path.trim().is_empty() || reason.trim().is_empty() {
                return Err(ExceptionsError::Family { path });
            }
            families.push((path, reason));
        }
        Ok(Self { cases, families })
    }

    /// Why this case fails, if it is known to.
    pub fn reason(&self, suite: &str, name: &str) -> Option<&str> {
        self.cases.get(&(suite.to_owned(), name.to_owned())).map(String::as_str)
    }

    /// Why a case of this name may fail, in whatever suite, if it is of a family whose rule was withdrawn.
    /// Some cases of a family do not depend on the rule, and pass.
    pub fn family_reason(&self, name: &str) -> Option<&str> {
        let file = name.split_once(": ").map_or(name, |(file, _)| file);
        let family = self.families.iter().find(|(path, _)| file.contains(path.as_str()));
        family.map(|(_, reason)| reason.as_str())
    }

    /// All entries: suite, case, reason.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.cases.iter().map(|((suite, name), reason)| (&**suite, &**name, &**reason))
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

    #[test]
    fn a_family_is_named_by_its_files() {
        let family = |path: &str| format!("[[family]]\npath = \"{path}\"\nreason = \"why\"\n");
        let list = Exceptions::parse(&family("paris/withdrawn/")).unwrap();
        assert_eq!(list.family_reason("a/paris/withdrawn/test.json: case"), Some("why"));
        assert_eq!(list.family_reason("a/paris/other.json: paris/withdrawn/"), None);
        assert!(matches!(Exceptions::parse(&family(" ")), Err(ExceptionsError::Family { .. })));
    }
}
