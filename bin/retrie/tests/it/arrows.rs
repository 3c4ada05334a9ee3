//! The arrows of `docs/architecture.md` are those of the manifests, and within a crate no circle of
//! imports spans more than one folder.

use crate::circles;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Folders of all packages of the workspace, by their names, and what each depends on.
struct Workspace {
    packages: BTreeMap<String, String>,
    depends: BTreeMap<String, BTreeSet<String>>,
}

impl Workspace {
    fn load() -> Self {
        let root = root();
        let manifest: toml::Table = read(&root.join("Cargo.toml")).parse().unwrap();
        let members = manifest["workspace"]["members"].as_array().unwrap();
        let members = members.iter().flat_map(|member| folders(&root, member.as_str().unwrap()));
        let manifests: Vec<(String, toml::Table)> = members
            .map(|folder| {
                let text = read(&root.join(&folder).join("Cargo.toml"));
                (folder, text.parse().unwrap())
            })
            .collect();
        let name =
            |manifest: &toml::Table| manifest["package"]["name"].as_str().unwrap().to_owned();
        let packages: BTreeMap<_, _> =
            manifests.iter().map(|(folder, manifest)| (name(manifest), folder.clone())).collect();
        let depends = |manifest: &toml::Table| {
            let all = manifest.get("dependencies").and_then(|all| all.as_table());
            let all = all.into_iter().flat_map(|all| all.keys());
            all.filter_map(|name| packages.get(name).cloned()).collect()
        };
        let depends =
            manifests.iter().map(|(folder, manifest)| (folder.clone(), depends(manifest)));
        Self { depends: depends.collect(), packages }
    }
}

/// The folders that a member of the workspace names: `crates/*`, `storage-*`, `examples`.
fn folders(root: &Path, member: &str) -> Vec<String> {
    let Some(prefix) = member.strip_suffix('*') else { return vec![member.to_owned()] };
    let (parent, start) = prefix.rsplit_once('/').map_or(("", prefix), |(dir, start)| (dir, start));
    let entries = std::fs::read_dir(root.join(parent)).unwrap();
    let mut all: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("Cargo.toml").is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name.starts_with(start))
        .map(|name| if parent.is_empty() { name } else { format!("{parent}/{name}") })
        .collect();
    all.sort();
    all
}

/// The arrows of the graph on the page, from folder to folder; `storage-*` stands for all of these.
fn drawn() -> BTreeSet<(String, String)> {
    let page = read(&root().join("docs/architecture.md"));
    let graph = page.split("```mermaid").nth(1).and_then(|rest| rest.split("```").next());
    let lines: Vec<_> =
        graph.expect("a graph").lines().filter_map(|l| l.split_once("-->")).collect();
    // `rpc[crates/rpc<br>JSON-RPC]` names the folder once, `rpc` is it from then on.
    let mut labels = BTreeMap::new();
    let mut ends = Vec::new();
    for (from, to) in lines {
        let [from, to] = [from, to].map(|end| {
            let (id, label) = end.trim().split_once('[').unwrap_or_else(|| (end.trim(), ""));
            if !label.is_empty() {
                let folder = label.trim_end_matches(']').split("<br>").next().unwrap_or(label);
                labels.insert(id.to_owned(), folder.to_owned());
            }
            id.to_owned()
        });
        ends.push((from, to));
    }
    let folder = |id: &String| {
        labels.get(id).unwrap_or_else(|| panic!("`{id}` has no folder in the graph")).clone()
    };
    ends.iter().map(|(from, to)| (folder(from), folder(to))).collect()
}

/// All that can be reached from `from` by arrows.
fn below(arrows: &BTreeSet<(String, String)>, from: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(at) = next.pop() {
        for (_, to) in arrows.iter().filter(|(from, _)| *from == at) {
            if all.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    all
}

#[test]
fn the_graph_has_the_arrows_of_the_manifests_and_no_others() {
    let (workspace, drawn) = (Workspace::load(), drawn());
    let root = root();
    let spread = |(from, to): &(String, String)| -> Vec<(String, String)> {
        let all = folders(&root, to);
        let from = folders(&root, from).into_iter();
        from.flat_map(|from| all.clone().into_iter().map(move |to| (from.clone(), to))).collect()
    };
    let arrows: BTreeSet<_> = drawn.iter().flat_map(&spread).collect();
    let mut wrong = Vec::new();
    for (from, depends) in &workspace.depends {
        let below = below(&arrows, from);
        assert!(!below.contains(from), "{from} lies below itself");
        for to in depends.difference(&below) {
            wrong.push(format!("{from} depends on {to}, which no arrows lead to"));
        }
    }
    let is_there = |(from, to): &(String, String)| {
        workspace.depends.get(from).is_some_and(|depends| depends.contains(to))
    };
    for arrow in &drawn {
        let (from, to) = arrow;
        if !spread(arrow).iter().any(is_there) {
            wrong.push(format!("an arrow leads from {from} to {to}, which it does not depend on"));
        }
    }
    assert!(wrong.is_empty(), "docs/architecture.md, Crates:\n{}", wrong.join("\n"));
}

#[test]
fn no_circle_of_imports_spans_more_than_one_folder() {
    let mut wrong = Vec::new();
    for folder in Workspace::load().packages.values() {
        for circle in circles::of(&root().join(folder).join("src")) {
            wrong.push(format!("{folder}: {}", circle.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "files that import each other in a circle:\n{}", wrong.join("\n"));
}
