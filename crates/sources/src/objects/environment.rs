//! What the environment says of stores: endpoints, regions and credentials, by the names that every
//! tool of theirs takes.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

/// Variables and files that say how stores are reached, and as whom.
#[derive(Clone, Default)]
pub struct Environment {
    vars: BTreeMap<String, String>,
}

/// Names alone: values are secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.vars.keys()).finish()
    }
}

impl Environment {
    /// That of this process.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// Variables of this prefix, as `object_store` names what they set.
    pub(super) fn settings<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (String, &'a str)> {
        let set =
            move |(name, value): &(&String, &String)| name.starts_with(prefix) && !value.is_empty();
        self.vars.iter().filter(set).map(|(name, value)| (name.to_lowercase(), value.as_str()))
    }

    /// A variable that is set and not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a variable says yes.
    pub(super) fn says(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| ["1", "true", "yes"].contains(&&*value.to_lowercase()))
    }

    /// The profile of AWS's files that is to be used.
    pub(super) fn profile(&self) -> Profile {
        let asked = self.get("AWS_PROFILE");
        let name = asked.unwrap_or("default");
        let file = |variable, usual: &str| {
            let given = self.get(variable).map(PathBuf::from);
            given.or_else(|| Some(Path::new(self.get("HOME")?).join(usual)))
        };
        let mut profile = Profile { asked: asked.map(str::to_owned), ..Profile::default() };
        // The file of credentials goes first.
        let headings = [name.to_owned(), format!("profile {name}")];
        for file in [
            file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"),
            file("AWS_CONFIG_FILE", ".aws/config"),
        ] {
            // Who needs what is not there is told so when it is missed.
            let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
            for heading in &headings {
                profile.take_in(&text, heading);
            }
        }
        profile
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(vars: I) -> Self {
        Self { vars: vars.into_iter().map(|(name, value)| (name.into(), value.into())).collect() }
    }
}

/// A profile of `~/.aws/credentials` and `~/.aws/config`.
#[derive(Clone, Default)]
pub(super) struct Profile {
    /// Its name, if somebody asked for it.
    pub(super) asked: Option<String>,
    values: BTreeMap<String, String>,
}

impl Profile {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Key and secret.
    pub(super) fn has_keys(&self) -> bool {
        ["aws_access_key_id", "aws_secret_access_key"].iter().all(|key| self.get(key).is_some())
    }

    /// The `key = value` lines below `[heading]`; indented ones belong to tools.
    fn take_in(&mut self, text: &str, heading: &str) {
        let mut is_it = false;
        for line in text.lines() {
            if let Some(name) = line.trim().strip_prefix('[') {
                is_it = name.strip_suffix(']').is_some_and(|name| name.trim() == heading);
            } else if is_it
                && !line.starts_with([' ', '\t', '#', ';'])
                && let Some((key, value)) = line.split_once('=')
            {
                let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
                self.values.entry(key).or_insert(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_from_both_files_and_secrets_are_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let aws = folder.path().join(".aws");
        std::fs::create_dir(&aws).unwrap();
        let credentials = "[default]\naws_access_key_id=one\n# a = b\n\n[lab]\naws_access_key_id = k\n\
                           aws_secret_access_key = a=b/c\n";
        std::fs::write(aws.join("credentials"), credentials).unwrap();
        let config = "[profile lab]\nregion = eu-west-1\naws_access_key_id = other\ns3 =\n  \
                      region = no\n[default]\nregion = us-west-2\n";
        std::fs::write(aws.join("config"), config).unwrap();
        let home = folder.path().to_str().unwrap();
        let environment: Environment =
            [("HOME", home), ("AWS_PROFILE", "lab")].into_iter().collect();
        let profile = environment.profile();
        assert!(profile.has_keys());
        assert_eq!(profile.get("aws_access_key_id"), Some("k"));
        assert_eq!(profile.get("aws_secret_access_key"), Some("a=b/c"));
        assert_eq!(profile.get("region"), Some("eu-west-1"));
        let environment: Environment = [("HOME", home)].into_iter().collect();
        let profile = environment.profile();
        assert!(!profile.has_keys());
        assert_eq!(profile.get("region"), Some("us-west-2"));
        assert!(!format!("{environment:?}").contains(home));
    }
}
