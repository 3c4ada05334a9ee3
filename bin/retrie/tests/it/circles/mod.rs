//! Finds cycles of imports between the files of a crate, from their text.
//!
//! A file imports another if it names one of its items by `crate::`, `super::` or the name of a
//! child module. A re-export (`pub use`) in `lib.rs` or `mod.rs` leads to the file that defines the
//! item. `foo.rs` and the folder `foo/` of a module count as one folder, if the folder has more
//! than tests. Tests are left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The path of a module from the crate's root.
type ModulePath = Vec<String>;

#[derive(Default)]
struct SourceFile {
    /// Path of the file from `src`.
    file: String,
    /// The folder that the file belongs to.
    folder: String,
    /// Paths that the file names.
    names: Vec<Vec<String>>,
    /// Its re-exports: by name, and of whole modules.
    passes_on: BTreeMap<String, Vec<String>>,
    passes_on_all: Vec<Vec<String>>,
}

/// The import cycles of the crate with this `src` that span more than one folder, as lists of
/// files.
pub(crate) fn of(src: &Path) -> Vec<Vec<String>> {
    let mut sources = BTreeMap::new();
    let root = ["lib.rs", "main.rs"].into_iter().find(|name| src.join(name).is_file());
    if let Some(root) = root {
        load(src, root, Vec::new(), &mut sources);
    }
    let imports: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = sources
        .iter()
        .map(|(module, source)| (module, imports(module, source, &sources)))
        .collect();
    let reach: BTreeMap<_, _> =
        imports.keys().map(|from| (*from, reachable(&imports, from))).collect();
    let mut circles = BTreeSet::new();
    for (module, reached) in &reach {
        if !reached.contains(module) {
            continue;
        }
        let circle = || reached.iter().filter(|other| reach[*other].contains(module));
        let folders: BTreeSet<_> = circle().map(|other| &sources[*other].folder).collect();
        if folders.len() > 1 {
            circles.insert(circle().map(|other| sources[*other].file.clone()).collect());
        }
    }
    circles.into_iter().collect()
}

fn reachable<'a>(
    imports: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>,
    from: &'a ModulePath,
) -> BTreeSet<&'a ModulePath> {
    let mut all = BTreeSet::new();
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        next.extend(imports[at].iter().filter(|to| all.insert(**to)));
    }
    all
}

/// Reads a file and the files of its modules.
fn load(
    src: &Path,
    file: &str,
    module: ModulePath,
    sources: &mut BTreeMap<ModulePath, SourceFile>,
) {
    let text = std::fs::read_to_string(src.join(file)).unwrap();
    let text = without_tests(&without_comments(&text));
    let dir = module.join("/");
    let known = sources.len();
    for child in text.lines().filter_map(declared_module) {
        let path = |rest: &str| match dir.is_empty() {
            true => format!("{child}{rest}"),
            false => format!("{dir}/{child}{rest}"),
        };
        let files = [path(".rs"), path("/mod.rs")];
        if let Some(file) = files.iter().find(|file| src.join(file).is_file()) {
            load(src, file, [&module[..], &[child.to_owned()]].concat(), sources);
        }
    }
    let is_folder = module.is_empty() || sources.len() > known;
    let folder = if is_folder { dir } else { module[..module.len() - 1].join("/") };
    let mut source = SourceFile { file: file.to_owned(), folder, ..SourceFile::default() };
    let (uses, rest) = split_uses(&text);
    for (is_public, tree) in uses {
        for path in flat(&tree) {
            if !is_public {
                source.names.push(path);
            } else if path.last().is_some_and(|last| last == "*") {
                source.passes_on_all.push(path[..path.len() - 1].to_vec());
            } else if let Some((name, path)) = named(path) {
                source.passes_on.insert(name, path);
            }
        }
    }
    source.names.extend(paths_in(&rest));
    sources.insert(module, source);
}

fn declared_module(line: &str) -> Option<&str> {
    let line = line.trim().strip_suffix(';')?;
    let stripped = ["pub ", "pub(crate) "].into_iter().find_map(|word| line.strip_prefix(word));
    let line = stripped.unwrap_or(line);
    line.strip_prefix("mod ")
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// The text without items under `#[cfg(test)]` or `#[cfg(all(test, ..))]`.
fn without_tests(text: &str) -> String {
    let text = text.replace("#[cfg(all(test,", "#[cfg(test)] ");
    let mut rest = &text[..];
    let mut kept = String::new();
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        let item = &rest[at..];
        let mut depth = 0;
        let end = item.char_indices().find(|(_, c)| {
            depth += i32::from(*c == '{') - i32::from(*c == '}');
            depth == 0 && matches!(c, '}' | ';')
        });
        rest = end.map_or("", |(end, _)| &item[end + 1..]);
    }
    kept.push_str(rest);
    kept
}

/// The `use` items, whether each is public, and the text without them.
fn split_uses(text: &str) -> (Vec<(bool, String)>, String) {
    let (mut uses, mut rest) = (Vec::new(), String::new());
    for item in text.split_inclusive(';') {
        let start = item.rfind("use ").filter(|at| {
            let line = item[..*at].rsplit('\n').next().unwrap_or("").trim();
            matches!(line, "" | "pub" | "pub(crate)" | "pub(super)")
        });
        match start {
            Some(at) => {
                let line = item[..at].rsplit('\n').next().unwrap_or("");
                uses.push((line.contains("pub"), item[at + 4..].trim_end_matches(';').to_owned()));
                rest.push_str(&item[..at]);
            }
            None => rest.push_str(item),
        }
    }
    (uses, rest)
}

/// The paths of a use tree: `a::{b, c::d}` has two.
fn flat(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let segments = |path: &str| -> Vec<String> {
        path.split("::")
            .map(|part| part.trim().to_owned())
            .filter(|part| !part.is_empty())
            .collect()
    };
    let Some((head, rest)) = tree.split_once('{') else { return vec![segments(tree)] };
    let (mut all, mut depth, mut part) = (Vec::new(), 0, String::new());
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    for c in inner.chars().chain([',']) {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            if !part.trim().is_empty() {
                all.extend(flat(&part).into_iter().map(|tail| [segments(head), tail].concat()));
            }
            part.clear();
        } else {
            part.push(c);
        }
    }
    all
}

/// The name under which a path is re-exported, and the path.
fn named(mut path: Vec<String>) -> Option<(String, Vec<String>)> {
    let last = path.pop()?;
    let (own, name) = last.split_once(" as ").unwrap_or((&last, &last));
    let name = if own == "self" { path.last()?.clone() } else { name.trim().to_owned() };
    if own != "self" {
        path.push(own.trim().to_owned());
    }
    Some((name, path))
}

/// Paths within the text. Paths out of the crate are sorted out later.
fn paths_in(text: &str) -> Vec<Vec<String>> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let path = |word: &str| -> Vec<String> {
        word.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    words.filter(|word| word.contains("::")).map(path).filter(|path| !path.is_empty()).collect()
}

/// The modules that `source` imports.
fn imports<'a>(
    module: &ModulePath,
    source: &SourceFile,
    sources: &'a BTreeMap<ModulePath, SourceFile>,
) -> BTreeSet<&'a ModulePath> {
    let found = source.names.iter().filter_map(|path| resolve(module, path, sources, 8));
    found.filter(|found| *found != module).collect()
}

/// The module that defines what `path` names in `module`.
fn resolve<'a>(
    module: &ModulePath,
    path: &[String],
    sources: &'a BTreeMap<ModulePath, SourceFile>,
    depth: u32,
) -> Option<&'a ModulePath> {
    let mut at = module.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (at, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                at.pop();
                rest = &rest[1..];
            }
        }
        // A path of this crate starts with one of its modules.
        first if !sources.contains_key(&[&at[..], &[first.to_owned()]].concat()) => return None,
        _ => {}
    }
    while let Some(next) = rest.first() {
        let child = [&at[..], std::slice::from_ref(next)].concat();
        if sources.contains_key(&child) {
            (at, rest) = (child, &rest[1..]);
            continue;
        }
        let source = sources.get(&at)?;
        let further = depth.checked_sub(1)?;
        if let Some(path) = source.passes_on.get(next) {
            let path = [&path[..], &rest[1..]].concat();
            return resolve(&at, &path, sources, further);
        }
        // A glob re-export.
        let has = |path: &&Vec<String>| {
            let found = resolve(&at, path, sources, further);
            found.is_some_and(|found| sources[found].passes_on.contains_key(next))
        };
        if let Some(path) = source.passes_on_all.iter().find(has) {
            return resolve(&at, &[&path[..], rest].concat(), sources, further);
        }
        break;
    }
    sources.get_key_value(&at).map(|(module, _)| module)
}

#[test]
fn circles_are_found_through_what_is_passed_on_and_tests_are_left_out() {
    let src = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = src.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\nmod c;\npub use {a::Thing, b::*};\n");
    write("a/mod.rs", "mod inner;\npub use inner::{Inner as Thing};\n");
    write("a/inner.rs", "use crate::b::Other;\npub struct Inner(Other);\n");
    write("b.rs", "#[cfg(test)]\nmod tests {\n    use crate::Thing;\n}\npub struct Other;\n");
    write("c.rs", "use crate::b::Other;\n// crate::Thing\n");
    assert!(of(src.path()).is_empty());
    write("b.rs", "use crate::{\n    Thing,\n};\npub struct Other;\n");
    assert_eq!(of(src.path()), [["a/inner.rs", "b.rs"]]);
    // A cycle within one folder is allowed.
    write("b.rs", "use super::c::three;\npub struct Other;\n");
    assert!(of(src.path()).is_empty());
    write("b.rs", "pub struct Other;\nfn f() { crate::a::inner::g() }\n");
    assert_eq!(of(src.path()), [["a/inner.rs", "b.rs"]]);
}
