//! The settings of reference figures, in words: which results they hold for.

use super::{variant::WorkloadVariant, words::short_count};
use serde_json::Value;

/// A setting: parts that all must hold, and which result is meant if several remain.
///
/// Parts are separated by commas. A part is a count (`1m keys`, `5m receivers`, `9 peers`, `chunks
/// of 256`, `50 MB of cache`), a number of liars (`no liar`), an operation (`searches`), how often a
/// root is calculated (`a root after each insert`), whether commits are durable (`durable`, `not
/// synced`), a choice of keys (`real accesses`), a choice among results (`up to`, `large tree`) or a
/// remark (`about`). What stands in brackets is a remark.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReferenceSetting<'s> {
    parts: Vec<SettingPart<'s>>,
}

/// Which result a setting means if several have its params.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultChoice {
    /// The one with the best value: `up to`.
    Best,
    /// The one with the worst value: `at least`. So is a setting that says nothing.
    Worst,
    /// The one with the largest value of this param, or size if it is empty: `large chunks`.
    Largest(&'static str),
    /// The one with the smallest.
    Smallest(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SettingPart<'s> {
    /// A count in words: `250k`.
    Count(&'static str, &'s str),
    /// A param with this number.
    Number(&'static str, f64),
    /// A param with this text.
    Text(&'static str, &'s str),
    /// The state of `bench state`, which must be read alone, or another workload's operation.
    Reads(&'static str),
    Choice(ResultChoice),
    Remark,
}

const LIARS: [&str; 5] = ["no liar", "one liar", "two liars", "three liars", "four liars"];

impl<'s> SettingPart<'s> {
    /// `None` if the words mean nothing here.
    fn parse(words: &'s str) -> Option<Self> {
        let words = words.split(" (").next().unwrap_or(words).trim();
        if let Some(liars) = LIARS.iter().position(|known| *known == words) {
            return Some(Self::Number("byzantine", liars as f64));
        }
        if let Some((number, noun)) = words
            .split_once(' ')
            .filter(|(number, _)| number.starts_with(|c: char| c.is_ascii_digit()))
        {
            return count_param(noun).map(|name| Self::Count(name, number));
        }
        if let Some(number) = words.strip_prefix("chunks of ") {
            return number.parse().ok().map(|number| Self::Number("chunk", number));
        }
        Some(match words {
            "searches" => Self::Reads("search"),
            "reads" => Self::Reads("read"),
            "inserts" => Self::Text("operation", "insert"),
            "writes" => Self::Text("operation", "write"),
            "random read" | "sequential read" | "random write" | "sequential write"
            | "addition" | "mixed addition" | "double and add" | "multiplication"
            | "conversion" | "batch conversion" => Self::Text("operation", words),
            "a root after each insert" => Self::Number("hash_every", 1.0),
            "durable" => Self::Text("sync", "durable"),
            "not synced" | "in memory" => Self::Text("sync", "none"),
            "in MDBX" => Self::Text("medium", "mdbx"),
            "real accesses" => Self::Text("keys", "real"),
            "up to" | "at most" | "best number of receivers" => Self::Choice(ResultChoice::Best),
            "at least" | "at worst" => Self::Choice(ResultChoice::Worst),
            "large state" | "large tree" => Self::Choice(ResultChoice::Largest("")),
            "small state" | "small tree" => Self::Choice(ResultChoice::Smallest("")),
            "large chunks" => Self::Choice(ResultChoice::Largest("chunk")),
            "small chunks" => Self::Choice(ResultChoice::Smallest("chunk")),
            "about" | "around" | "almost" => Self::Remark,
            _ if words.starts_with("here or on ") => Self::Remark,
            _ => return None,
        })
    }

    fn holds(&self, variant: &WorkloadVariant) -> bool {
        let param = |name: &str| variant.params.get(name);
        let number = |name: &str| param(name).and_then(Value::as_f64);
        match *self {
            Self::Count(name, wanted) => {
                let own = param(name).and_then(Value::as_u64);
                own.is_some_and(|n| short_count(n) == wanted || n.to_string() == wanted)
            }
            Self::Number(name, wanted) => number(name) == Some(wanted),
            Self::Text(name, wanted) => param(name).is_some_and(|own| own == wanted),
            // In `bench state` a write has a read before it, unless all operations are reads.
            Self::Reads(operation) => {
                param("operation").is_some_and(|own| own == operation)
                    || variant.workload == "state" && number("reads") == Some(1.0)
            }
            Self::Choice(_) | Self::Remark => true,
        }
    }
}

/// The param that a noun counts.
fn count_param(noun: &str) -> Option<&'static str> {
    Some(match noun {
        "receivers" | "accounts" | "senders" => "accounts",
        "keys" => "keys",
        "pairs" => "pairs",
        "blocks" => "blocks",
        "elements" => "elements",
        "peers" => "peers",
        "MB of cache" => "cache_mb",
        _ => return None,
    })
}

impl<'s> ReferenceSetting<'s> {
    /// The setting in these words; `None` if one of its parts means nothing here, so that it holds
    /// for no result.
    pub(super) fn parse(words: &'s str) -> Option<Self> {
        let parts = words.split(", ").map(SettingPart::parse).collect::<Option<_>>()?;
        Some(Self { parts })
    }

    /// Whether it holds for results of `variant`.
    pub(super) fn holds(&self, variant: &WorkloadVariant) -> bool {
        self.parts.iter().all(|part| part.holds(variant))
    }

    /// Whether it names a size.
    pub(super) fn is_sized(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, SettingPart::Count(..)))
    }

    /// The value that it states for `param`, as the param of a variant: `1m keys`.
    pub(super) fn number_of(&self, param: &str, variants: &[&WorkloadVariant]) -> Option<f64> {
        let part = self.parts.iter().find(|part| match part {
            SettingPart::Count(name, _) | SettingPart::Number(name, _) => *name == param,
            _ => false,
        })?;
        let fitting = variants.iter().find(|variant| part.holds(variant))?;
        fitting.params.get(param)?.as_f64()
    }

    /// Which of several results it means.
    pub(super) fn choice(&self) -> ResultChoice {
        let choices = self.parts.iter().filter_map(|part| match part {
            SettingPart::Choice(choice) => Some(*choice),
            _ => None,
        });
        // A size says more than `up to`.
        let choices: Vec<_> = choices.collect();
        let sized = |choice: &&ResultChoice| {
            matches!(choice, ResultChoice::Largest(_) | ResultChoice::Smallest(_))
        };
        let choice = choices.iter().find(sized).or_else(|| choices.first());
        choice.copied().unwrap_or(ResultChoice::Worst)
    }
}

/// Whether one part of a setting is a count that `variant` has: it need not be said again beside a
/// heading with the size.
pub(super) fn is_known_count(words: &str, variant: &WorkloadVariant) -> bool {
    let part = SettingPart::parse(words);
    part.is_some_and(|part| matches!(part, SettingPart::Count(..)) && part.holds(variant))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn variant(workload: &str, params: Value) -> WorkloadVariant {
        let params = params.as_object().unwrap().clone();
        WorkloadVariant { workload: workload.into(), params }
    }

    fn holds(words: &str, variant: &WorkloadVariant) -> bool {
        ReferenceSetting::parse(words).is_some_and(|setting| setting.holds(variant))
    }

    #[test]
    fn a_setting_is_met_by_number_and_noun() {
        let params = json!({"keys": 1_000_000, "pairs": 250_000, "blocks": 1000, "slices": 16,
                            "sync": "none"});
        let state = variant("state", params);
        for met in ["1m keys", "1m keys, 250k pairs, not synced", "1k blocks (10^3)", "up to"] {
            assert!(holds(met, &state), "{met}");
        }
        for other in ["1m accounts", "1k keys", "1m pairs", "1m keys, 1m pairs", "1m keys, durable"]
        {
            assert!(!holds(other, &state), "{other}");
        }
        for unknown in ["16 elements a chunk", "on a Tuesday", "1m keys, at the start", ""] {
            assert_eq!(ReferenceSetting::parse(unknown), None, "{unknown}");
        }
    }

    /// Once ten rows of a paper, four liars among them, stood beside one run without a liar.
    #[test]
    fn liars_peers_and_chunks_are_those_of_the_result() {
        let sync =
            variant("sync", json!({"elements": 100_000, "chunk": 256, "peers": 9, "byzantine": 0}));
        for met in ["no liar, chunks of 256, 9 peers", "no liar, up to", "100k elements"] {
            assert!(holds(met, &sync), "{met}");
        }
        for other in [
            "four liars, chunks of 256, 9 peers",
            "one liar, up to",
            "no liar, chunks of 16",
            "no liar, 12 peers",
        ] {
            assert!(!holds(other, &sync), "{other}");
        }
        let trees = variant("trees", json!({"operation": "search", "hash_every": 0}));
        assert!(holds("searches, small tree", &trees));
        assert!(!holds("searches, a root after each insert", &trees) && !holds("inserts", &trees));
    }

    #[test]
    fn a_choice_is_the_most_exact_one() {
        let choice = |words| ReferenceSetting::parse(words).unwrap().choice();
        assert_eq!(choice("1m keys"), ResultChoice::Worst);
        assert_eq!(choice("large tree, up to"), ResultChoice::Largest(""));
        assert_eq!(choice("no liar, small chunks, 9 peers"), ResultChoice::Smallest("chunk"));
    }
}
