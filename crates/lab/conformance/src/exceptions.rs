//! Cases that are known to fail, each with its reason. Either single cases, or a family of cases
//! whose rule was withdrawn.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The committed list.
const LIST: &str = include_str!("../exceptions.toml");

/// Cases that are known to fail.
#[derive(Clone, Debug, Default)]
pub struct ExceptionList {
    /// By suite and case.
    cases: BTreeMap<(String, String), String>,
    /// Part of the files' path, and reason.
    families: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExceptionFile {
    #[serde(default)]
    exception: Vec<ExceptionEntry>,
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
struct ExceptionEntry {
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

impl ExceptionList {
    /// The committed list.
    pub fn committed() -> Result<Self, ExceptionsError> {
        Self::parse(LIST)
    }

    /// A list in the form of `exceptions.toml`.
    pub fn parse(text: &str) -> Result<Self, ExceptionsError> {
        let ExceptionFile { exception, family } = toml::from_str(text)?;
        let mut cases = BTreeMap::new();
        for ExceptionEntry { suite, name, reason } in exception {
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

    /// The reason why this case fails, if it is an exception.
    pub fn reason(&self, suite: &str, name: &str) -> Option<&str> {
        self.cases.get(&(suite.to_owned(), name.to_owned())).map(String::as_str)
    }

    /// The reason why a case with this name may fail in any suite, if it belongs to a family whose
    /// rule was withdrawn. Cases of the family that do not depend on the rule pass.
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
        let list = ExceptionList::committed().unwrap();
        assert!(list.iter().all(|(suite, ..)| crate::suite::find(suite).is_some()));
    }

    #[test]
    fn each_exception_needs_a_reason_and_stands_once() {
        let entry = |reason: &str| {
            format!("[[exception]]\nsuite = \"s\"\nname = \"n\"\nreason = \"{reason}\"\n")
        };
        let list = ExceptionList::parse(&entry("why")).unwrap();
        assert_eq!(list.reason("s", "n"), Some("why"));
        assert_eq!(list.reason("s", "m"), None);
        let error = ExceptionList::parse(&entry(" ")).unwrap_err().to_string();
        assert!(error.contains("no reason"), "{error}");
        let error = ExceptionList::parse(&entry("why").repeat(2)).unwrap_err().to_string();
        assert!(error.contains("twice"), "{error}");
    }

    #[test]
    fn a_family_is_named_by_its_files() {
        let family = |path: &str| format!("[[family]]\npath = \"{path}\"\nreason = \"why\"\n");
        let list = ExceptionList::parse(&family("paris/withdrawn/")).unwrap();
        assert_eq!(list.family_reason("a/paris/withdrawn/test.json: case"), Some("why"));
        assert_eq!(list.family_reason("a/paris/other.json: paris/withdrawn/"), None);
        assert!(matches!(ExceptionList::parse(&family(" ")), Err(ExceptionsError::Family { .. })));
    }
}
