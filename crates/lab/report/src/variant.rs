//! Variants of workloads: which results were raced against each other, and the name of a variant.

use super::{BenchResult, words::short_count};
use serde_json::{Map, Value};

/// Params of a single contender, not of the race.
const OF_ONE: [&str; 2] = ["hash", "policy"];
/// Such params of `bench locality`: they are in the backend's name too.
const OF_ONE_TREE: [&str; 3] = ["layout", "p", "padded"];

/// A workload with the params that its contenders have in common.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WorkloadVariant {
    /// Name of the workload.
    pub(super) workload: String,
    /// The params.
    pub(super) params: Map<String, Value>,
}

impl WorkloadVariant {
    /// The variant that `result` belongs to.
    pub(super) fn of(result: &BenchResult) -> Self {
        let mut params = result.params.clone();
        let trees = if result.workload == "locality" { &OF_ONE_TREE[..] } else { &[] };
        params.retain(|name, _| !OF_ONE.iter().chain(trees).any(|of_one| of_one == name));
        Self { workload: result.workload.clone(), params }
    }

    /// This variant with another value of a param.
    pub(super) fn with(&self, param: &str, value: Value) -> Self {
        let mut other = self.clone();
        other.params.insert(param.into(), value);
        other
    }

    /// Whether both are the same but for the figures that they make.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let work = |variant: &Self| {
            let mut params = variant.params.clone();
            params.remove("figure");
            params
        };
        self.workload == other.workload && work(self) == work(other)
    }

    /// The params in `names`, in words: `keys 1m, sync durable`.
    pub(super) fn words(&self, names: &[&str]) -> String {
        let shown = names.iter().filter_map(|name| Some((name, self.params.get(*name)?)));
        let words: Vec<_> = shown.map(|(name, value)| param(name, value)).collect();
        words.join(", ")
    }
}

/// Params that are counts. Those that determine the size of a workload come first.
const SIZES: [&str; 11] = [
    "keys",
    "accounts",
    "receivers",
    "elements",
    "blocks",
    "range",
    "pairs",
    "senders",
    "signers",
    "txs",
    "slices",
];

/// One param in words: `1m keys`, `sync durable`.
fn param(name: &str, value: &Value) -> String {
    let number = value.as_u64();
    let text = match value {
        Value::String(text) => text.clone(),
        other => match number {
            Some(n) if !["seed", "from", "to"].contains(&name) => short_count(n),
            _ => other.to_string(),
        },
    };
    let words = name.replace('_', " ");
    match name {
        "kind" | "attack" => text,
        "from" | "to" => format!("{words} block {text}"),
        "cache_mb" => format!("{text} MiB of cache"),
        "memory_budget" => format!("{text} MiB of memory"),
        _ if SIZES.contains(&name) => format!("{text} {words}"),
        _ => format!("{words} {text}"),
    }
}

/// The params in which `variants` differ: counts first, then by name.
pub(super) fn differing<'a>(variants: &[&'a WorkloadVariant]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for variant in variants {
        let differs = |name: &&String| {
            let first = variants[0].params.get(*name);
            variants.iter().any(|other| other.params.get(*name) != first)
        };
        names.extend(variant.params.keys().filter(differs).map(String::as_str));
    }
    let size = |name: &str| SIZES.iter().position(|size| *size == name).unwrap_or(SIZES.len());
    names.sort_by_key(|name| (size(name), *name));
    names.dedup();
    names
}

impl WorkloadVariant {
    /// The size of the variant: the value of its first count.
    pub(super) fn size(&self) -> u64 {
        SIZES.iter().find_map(|name| self.params.get(*name)?.as_u64()).unwrap_or(0)
    }

    /// The size of the variant in words: `1m keys`; empty if it has no count.
    pub(super) fn size_words(&self) -> String {
        let size = SIZES.iter().filter(|name| self.params.get(**name).is_some_and(|v| v.is_u64()));
        self.words(&size.take(1).copied().collect::<Vec<_>>())
    }
}
