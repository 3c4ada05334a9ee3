//! The pack: data of EIP-8297 and EIP-8347. Which suites a folder has, and their cases.

use crate::archive::{ArchiveError, TestFile, read_checked};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{collections::BTreeSet, fs, path::Path};

/// Codes of histories.
pub(crate) const CODES: &str = "codes.json.zst";
/// The folder beside the pack that states are read from.
pub(crate) const STATES: &str = "mainnet";
/// A source of states that is all files of block changes.
const ALL_CHANGES: &str = "diffs/*";
const CHANGES: &str = "diffs";

/// The file of histories, which the migration also reads.
pub(crate) const HISTORIES: &str = "histories.jsonl.zst";

/// A suite of the pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackSuite {
    Histories,
    States,
    Migration,
    Faults,
    Public,
}

impl PackSuite {
    const ALL: [Self; 5] =
        [Self::Histories, Self::States, Self::Migration, Self::Faults, Self::Public];

    /// The suite's name, and the file or folder that has its cases.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Histories => ("pbt-histories", HISTORIES),
            Self::States => ("pbt-states", "real.jsonl.zst"),
            Self::Migration => ("pbt-migration", "migration.jsonl.zst"),
            Self::Faults => ("pbt-faults", "negative.jsonl.zst"),
            Self::Public => ("pbt-public", "public"),
        }
    }

    /// The suite's name.
    pub(crate) const fn name(self) -> &'static str {
        self.names().0
    }

    /// Whether a file that [`read`] gives is a case.
    pub(crate) fn is_case(self, path: &str) -> bool {
        let separator = if self == Self::Public { "/" } else { ": " };
        path.strip_prefix(self.names().1).is_some_and(|rest| rest.starts_with(separator))
    }
}

/// The name of the suite whose cases this file or folder has; also of a file in that folder.
pub(crate) fn suite_of(file: &str) -> Option<&'static str> {
    let file = file.split('/').next().unwrap_or(file);
    let found = PackSuite::ALL.into_iter().find(|suite| suite.names().1 == file);
    found.map(PackSuite::name)
}

/// The suite with this name.
pub(crate) fn find(name: &str) -> Option<PackSuite> {
    PackSuite::ALL.into_iter().find(|suite| suite.name() == name)
}

/// The cases of a suite, each as a file named `FILE: CASE`, and the files that they need.
///
/// # Errors
/// If a file is missing or damaged.
pub(crate) fn read(dir: &Path, suite: PackSuite) -> Result<Vec<TestFile>, ArchiveError> {
    let mut files = Vec::new();
    match suite {
        PackSuite::Public => read_public(dir, &mut files)?,
        _ => read_lines(dir, suite.names().1, &mut files)?,
    }
    match suite {
        PackSuite::Histories => read_codes(dir, &mut files)?,
        PackSuite::Migration => {
            read_lines(dir, HISTORIES, &mut files)?;
            read_codes(dir, &mut files)?;
        }
        PackSuite::States => read_states(dir, &mut files)?,
        PackSuite::Faults | PackSuite::Public => {}
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// What names a line: its id, or the file that was changed and how.
#[derive(Debug, Default, Deserialize)]
struct LineName {
    #[serde(default)]
    id: String,
    #[serde(default)]
    base: String,
    #[serde(default)]
    fault: String,
    #[serde(default)]
    source: String,
}

impl LineName {
    fn of(line: &str) -> Self {
        serde_json::from_str(line).unwrap_or_default()
    }

    fn name(&self, number: usize) -> String {
        match self {
            Self { id, .. } if !id.is_empty() => id.clone(),
            Self { base, fault, .. } if !fault.is_empty() => format!("{base}, {fault}"),
            _ => format!("line {number}"),
        }
    }
}

fn read_lines(dir: &Path, name: &str, files: &mut Vec<TestFile>) -> Result<(), ArchiveError> {
    let text = unpacked(dir, name)?;
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let case = LineName::of(&String::from_utf8_lossy(line)).name(number + 1);
        files.push(TestFile { path: format!("{name}: {case}"), content: line.to_vec() });
    }
    Ok(())
}

fn read_codes(dir: &Path, files: &mut Vec<TestFile>) -> Result<(), ArchiveError> {
    if dir.join(CODES).exists() {
        files.push(TestFile { path: CODES.into(), content: unpacked(dir, CODES)? });
    }
    Ok(())
}

fn unpacked(dir: &Path, name: &str) -> Result<Vec<u8>, ArchiveError> {
    let packed = read_checked(dir, name)?;
    zstd::stream::decode_all(&packed[..])
        .map_err(|source| ArchiveError::Damaged { path: dir.join(name), source })
}

/// The files that the cases name as the sources of their states.
fn read_states(dir: &Path, files: &mut Vec<TestFile>) -> Result<(), ArchiveError> {
    let folder = dir.join("..").join(STATES);
    let named = files.iter().map(|file| LineName::of(&String::from_utf8_lossy(&file.content)));
    let mut sources: BTreeSet<String> = named.map(|name| name.source).collect();
    sources.remove("");
    if sources.iter().any(|source| source.starts_with(CHANGES)) {
        sources.remove(ALL_CHANGES);
        let changes = folder.join(CHANGES);
        let io = |source| ArchiveError::Io { path: changes.clone(), source };
        for entry in fs::read_dir(&changes).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            sources.insert(format!("{CHANGES}/{}", name.to_string_lossy()));
        }
    }
    for source in sources {
        let content = read_checked(&folder, &source)?;
        files.push(TestFile { path: format!("{STATES}/{source}"), content });
    }
    Ok(())
}

/// The vectors, one by one where a file has several.
fn read_public(dir: &Path, files: &mut Vec<TestFile>) -> Result<(), ArchiveError> {
    let folder = PackSuite::Public.names().1;
    let io = |source| ArchiveError::Io { path: dir.join(folder), source };
    for entry in fs::read_dir(dir.join(folder)).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        let path = format!("{folder}/{}", name.to_string_lossy());
        let content = read_checked(dir, &path)?;
        split(path, content, files);
    }
    Ok(())
}

/// Appends the vectors of a file. What is neither a list of vectors nor an object with lists stays whole.
fn split(path: String, content: Vec<u8>, files: &mut Vec<TestFile>) {
    use std::collections::BTreeMap;
    let mut push = |path: String, json: &RawValue| {
        files.push(TestFile { path, content: json.get().as_bytes().to_vec() });
    };
    if let Ok(list) = serde_json::from_slice::<Vec<&RawValue>>(&content) {
        for (at, vector) in list.into_iter().enumerate() {
            push(format!("{path}: {}", vector_name(vector, at)), vector);
        }
        return;
    }
    let members: Result<BTreeMap<String, &RawValue>, _> = serde_json::from_slice(&content);
    let has_lists = |members: &BTreeMap<String, &RawValue>| {
        members.values().any(|member| member.get().starts_with('['))
    };
    let Some(members) = members.ok().filter(has_lists) else {
        files.push(TestFile { path, content });
        return;
    };
    for (member, json) in members {
        match serde_json::from_str::<Vec<&RawValue>>(json.get()) {
            Ok(list) => {
                for (at, vector) in list.into_iter().enumerate() {
                    push(format!("{path}: {member}/{}", vector_name(vector, at)), vector);
                }
            }
            Err(_) => push(format!("{path}: {member}"), json),
        }
    }
}

/// The name of a vector; else its number in the list.
fn vector_name(vector: &RawValue, at: usize) -> String {
    #[derive(Deserialize)]
    struct VectorName {
        name: Option<String>,
    }
    let name = serde_json::from_str::<VectorName>(vector.get()).ok().and_then(|it| it.name);
    name.unwrap_or_else(|| at.to_string())
}
