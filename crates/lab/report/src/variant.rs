//! Variants of workloads: which results were raced against each other, and the name of a variant.

use super::{BenchResult, words::short_count};
use serde_json::{Map, Value};

/// Params of a single contender, not of the race.
const OF_ONE: [&str; 1] = ["hash"];

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
        params.retain(|name, _| !OF_ONE.contains(&name.as_str()));
        Self { workload: result.workload.clone(), params }
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

    /// Whether `setting` names counts (`1m keys, 250k pairs`) and this variant has all of them.
    pub(super) fn is_setting(&self, setting: &str) -> bool {
        let mut sizes = sizes_of(setting).peekable();
        let is_size = |(number, name): (&str, &str)| {
            let own = self.params.get(name).and_then(Value::as_u64);
            own.is_some_and(|n| short_count(n) == number)
        };
        sizes.peek().is_some() && sizes.all(is_size)
    }
}

/// The counts that the setting of a reference figure names: number, and param.
pub(super) fn sizes_of(setting: &str) -> impl Iterator<Item = (&str, &'static str)> {
    let words: Vec<_> = setting.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let sizes: Vec<_> = words
        .windows(2)
        .filter(|pair| pair[0].starts_with(|first: char| first.is_ascii_digit()))
        .filter_map(|pair| {
            let name = match pair[1] {
                "receivers" | "accounts" | "senders" => "accounts",
                "keys" => "keys",
                "pairs" => "pairs",
                "blocks" => "blocks",
                _ => return None,
            };
            Some((pair[0], name))
        })
        .collect();
    sizes.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_setting_is_met_by_number_and_noun() {
        let params = json!({"keys": 1_000_000, "pairs": 250_000, "blocks": 1000, "slices": 16});
        let params = params.as_object().unwrap().clone();
        let variant = WorkloadVariant { workload: "state".into(), params };
        for met in ["1m keys", "1m keys, 250k pairs, not synced", "1k blocks (10^3)"] {
            assert!(variant.is_setting(met), "{met}");
        }
        for other in [
            "1m accounts",
            "1k keys",
            "1m pairs",
            "1m keys, 1m pairs",
            "16 elements a chunk",
            "large state",
        ] {
            assert!(!variant.is_setting(other), "{other}");
        }
        assert_eq!(variant.size_words(), "1m keys");
        assert_eq!(sizes_of("up to, here or on kvstore").count(), 0);
    }
}
