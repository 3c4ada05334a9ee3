//! Settings of stores from the environment: endpoints, regions and credentials, in the variables
//! that the stores' own tools use.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

/// Environment variables and files with the endpoints and credentials of stores.
#[derive(Clone, Default)]
pub struct StoreEnvironment {
    vars: BTreeMap<String, String>,
}

/// Only names: values are secrets.
impl fmt::Debug for StoreEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.vars.keys()).finish()
    }
}

impl StoreEnvironment {
    /// The environment of this process.
    pub fn from_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// Variables with this prefix, under the names that `object_store` uses.
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

    /// Whether a variable is `1`, `true` or `yes`.
    pub(super) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| ["1", "true", "yes"].contains(&&*value.to_lowercase()))
    }

    /// The selected profile of AWS's files.
    pub(super) fn profile(&self) -> AwsProfile {
        let asked = self.get("AWS_PROFILE");
        let name = asked.unwrap_or("default");
        let file = |variable, usual: &str| {
            let given = self.get(variable).map(PathBuf::from);
            given.or_else(|| Some(Path::new(self.get("HOME")?).join(usual)))
        };
        let mut profile = AwsProfile { asked: asked.map(str::to_owned), ..AwsProfile::default() };
        // The credentials file has precedence.
        let headings = [name.to_owned(), format!("profile {name}")];
        for file in [
            file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"),
            file("AWS_CONFIG_FILE", ".aws/config"),
        ] {
            // A missing file is reported later, when its values are needed.
            let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
            for heading in &headings {
                profile.take_in(&text, heading);
            }
        }
        profile
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for StoreEnvironment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(vars: I) -> Self {
        Self { vars: vars.into_iter().map(|(name, value)| (name.into(), value.into())).collect() }
    }
}

/// A profile of `~/.aws/credentials` and `~/.aws/config`.
#[derive(Clone, Default)]
pub(super) struct AwsProfile {
    /// Its name, if the environment names one.
    pub(super) asked: Option<String>,
    values: BTreeMap<String, String>,
}

impl AwsProfile {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Whether it has key and secret.
    pub(super) fn has_keys(&self) -> bool {
        ["aws_access_key_id", "aws_secret_access_key"].iter().all(|key| self.get(key).is_some())
    }

    /// Reads the `key = value` lines below `[heading]`. Indented lines belong to other tools.
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
        let environment: StoreEnvironment =
            [("HOME", home), ("AWS_PROFILE", "lab")].into_iter().collect();
        let profile = environment.profile();
        assert!(profile.has_keys());
        assert_eq!(profile.get("aws_access_key_id"), Some("k"));
        assert_eq!(profile.get("aws_secret_access_key"), Some("a=b/c"));
        assert_eq!(profile.get("region"), Some("eu-west-1"));
        let environment: StoreEnvironment = [("HOME", home)].into_iter().collect();
        let profile = environment.profile();
        assert!(!profile.has_keys());
        assert_eq!(profile.get("region"), Some("us-west-2"));
        assert!(!format!("{environment:?}").contains(home));
    }
}
