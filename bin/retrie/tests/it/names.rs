//! Names of types are the field's: a noun phrase that says of what, one word for one thing.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// One-word names among all names, in percent, at most. Those that there are stand for exactly what the
/// field calls so (`Enode`, `Trie`), or are associated types that a trait of others names.
const MOST_ONE_WORD: usize = 10;
/// Participles that do not end like one.
const IRREGULAR: &[&str] = &[
    "Begun",
    "Bound",
    "Broken",
    "Built",
    "Chosen",
    "Done",
    "Drawn",
    "Driven",
    "Found",
    "Frozen",
    "Given",
    "Gone",
    "Heard",
    "Held",
    "Hidden",
    "Kept",
    "Known",
    "Left",
    "Lost",
    "Made",
    "Met",
    "Paid",
    "Proven",
    "Ran",
    "Said",
    "Seen",
    "Sent",
    "Shown",
    "Spent",
    "Taken",
    "Thrown",
    "Told",
    "Torn",
    "Understood",
    "Woken",
    "Written",
];
/// Nouns that end like a participle.
const NOUNS: &[&str] = &[
    "Bed", "Embed", "Encoding", "Feed", "Padding", "Ping", "Ring", "Seed", "Speed", "Spring",
    "String", "Thing",
];
/// Words with one meaning, and where alone types may have them.
const ONE_MEANING: &[(&str, &str, &[&str])] = &[(
    "Run",
    "a sorted file of COLE",
    &["storage-cole", "crates/state/store/tests", "storage-cole/tests"],
)];
/// Words that say nothing here, or that one name for something else has replaced.
const RETIRED: &[(&str, &str)] = &[
    ("Coming", "say what is prefetched"),
    ("Desk", "a scheduler, a queue"),
    ("Moment", "a snapshot"),
    ("Telling", "say who observes what"),
    ("Thing", "say what"),
    ("Way", "a source, a route, a method"),
    ("Whom", "a peer, a caller"),
];

struct TypeDefinition {
    name: String,
    file: String,
}

impl TypeDefinition {
    fn words(&self) -> Vec<&str> {
        words(&self.name)
    }

    fn package(&self) -> &str {
        let parts = if self.file.starts_with("crates/") { 3 } else { 1 };
        let end = self.file.match_indices('/').nth(parts - 1).map_or(self.file.len(), |(at, _)| at);
        &self.file[..end]
    }
}

/// The words of a name in camel case: `BlockTree` has two, `EVM` and `V4` one each.
fn words(name: &str) -> Vec<&str> {
    let bytes = name.as_bytes();
    let is_start = |at: usize| {
        let next_is_lower = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
        at == 0
            || bytes[at].is_ascii_uppercase()
                && (!bytes[at - 1].is_ascii_uppercase() || next_is_lower)
    };
    let starts: Vec<usize> = (0..bytes.len()).filter(|&at| is_start(at)).collect();
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    starts.iter().zip(ends).map(|(&start, end)| &name[start..end]).collect()
}

fn is_participle(word: &str) -> bool {
    let looks_so = word.len() > 3 && (word.ends_with("ed") || word.ends_with("ing"));
    (looks_so || IRREGULAR.contains(&word)) && !NOUNS.contains(&word)
}

fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
    let entries =
        std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            all.push(path);
        }
    }
}

/// All types of the workspace that have a name of their own.
fn types() -> Vec<TypeDefinition> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&root).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if ["bin", "crates", "examples"].contains(&&*name) || name.starts_with("storage-") {
            sources(&path, &mut files);
        }
    }
    files.sort();
    let mut all = BTreeMap::new();
    for path in files {
        let file = path.strip_prefix(&root).unwrap().display().to_string();
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            if let Some(name) = defined(line) {
                all.entry((name.to_owned(), file.clone())).or_insert(());
            }
        }
    }
    all.into_keys().map(|(name, file)| TypeDefinition { name, file }).collect()
}

/// The type that a line of source defines.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
    let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    let end = rest.find(|at: char| !at.is_alphanumeric() && at != '_').unwrap_or(rest.len());
    let name = &rest[..end];
    // Associated types have names that their trait gives them.
    let is_associated =
        line.starts_with("type ") && !rest[end..].contains('=') || name.contains('_');
    (name.starts_with(|first: char| first.is_uppercase()) && !is_associated).then_some(name)
}

#[test]
fn a_bare_participle_is_no_type() {
    let types = types();
    let bare = types.iter().filter(|one| one.words().len() == 1 && is_participle(&one.name));
    let bare: Vec<String> = bare.map(|one| format!("{} in {}", one.name, one.file)).collect();
    assert!(bare.is_empty(), "say what the type is of:\n{}", bare.join("\n"));
}

#[test]
fn most_types_say_of_what_they_are() {
    let types = types();
    let one_word: Vec<&str> =
        types.iter().filter(|one| one.words().len() == 1).map(|one| &*one.name).collect();
    let share = one_word.len() * 100 / types.len();
    assert!(types.len() > 1000 && share <= MOST_ONE_WORD, "{share} % have one word: {one_word:?}");
}

#[test]
fn one_word_has_one_meaning() {
    let mut wrong = Vec::new();
    for one in types() {
        for word in one.words() {
            for (retired, instead) in RETIRED {
                if word == *retired {
                    wrong.push(format!("{} in {}: {instead}", one.name, one.file));
                }
            }
            for (only, meaning, places) in ONE_MEANING {
                if word == *only && !places.iter().any(|place| one.file.starts_with(place)) {
                    wrong.push(format!("{} in {}: `{only}` is {meaning}", one.name, one.file));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_two_types_of_a_crate_are_one_letter_apart() {
    let types = types();
    let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for one in &types {
        names.entry(one.package()).or_default().insert(&one.name);
    }
    let mut wrong = Vec::new();
    for (package, names) in &names {
        for name in names {
            let plural = format!("{name}s");
            if names.contains(&*plural) {
                wrong.push(format!("{package}: {name} and {plural}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_words_of_a_name_are_told_apart() {
    assert_eq!(words("BlockTree"), ["Block", "Tree"]);
    assert_eq!(words("EVMState"), ["EVM", "State"]);
    assert_eq!(words("V4"), ["V4"]);
    assert_eq!(defined("    pub(crate) struct RowPlace<'a> {"), Some("RowPlace"));
    assert_eq!(defined("    type Cache;"), None);
    assert!(is_participle("Known") && is_participle("Settled") && !is_participle("Ring"));
}
