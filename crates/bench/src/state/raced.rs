//! What a race gave: all contenders, and what they were raced on.

use super::{
    contender::Terms,
    outcome::Outcome,
    workload::{Choice, Keys, Workload},
};
use crate::{BenchError, memory::cap_params, report::BenchResult};
use retrie_db::SyncMode;
use serde_json::{Map, Value, json};

/// A race that has been run.
#[derive(Debug)]
pub struct Raced {
    /// One of each contender, in their order.
    pub outcomes: Vec<Outcome>,
    /// Whether all of it was run, or why not. Where it was cut short, the slices that all contenders
    /// have run are there, and of the rest (flush and roots, then proofs) what all have reached.
    pub ended: Result<(), BenchError>,
    /// The cap on memory, if there was one: bytes, by what means, shared by how many open stores.
    pub memory: Option<(u64, &'static str, usize)>,
}

impl Raced {
    /// As results of `--json`.
    pub fn results(&self, workload: &Workload, terms: &Terms) -> Vec<BenchResult> {
        let params = self.params(workload, terms);
        self.outcomes.iter().map(|outcome| outcome.result(params.clone())).collect()
    }

    /// What all contenders share. What is as it always was is not named.
    pub fn params(&self, workload: &Workload, terms: &Terms) -> Map<String, Value> {
        let keys = match &workload.keys {
            Keys::Preloaded(keys) => json!(keys),
            Keys::Adversary(scene) => json!(scene.keys()),
            Keys::Fresh | Keys::Real(_) => json!(workload.keys.to_string()),
        };
        let sync = match terms.sync {
            SyncMode::Durable => "durable",
            SyncMode::NoSync => "none",
        };
        let mut params = Map::new();
        let mut set = |name: &str, value: Value| params.insert(name.into(), value);
        set("keys", keys);
        set("pairs", json!(workload.pairs));
        match &workload.keys {
            Keys::Real(trace) => {
                set("blocks", json!(trace.figures().blocks));
                set("pad_accounts", json!(trace.padding().accounts));
                set("pad_slots", json!(trace.padding().slots));
            }
            Keys::Adversary(scene) => {
                set("attack", json!(scene.name()));
                set("commit_every", json!(workload.commit_every));
                set("seed", json!(workload.seed));
                set("attacked_keys", json!(scene.attacked_keys()));
                if scene.extra_keys() > 0 {
                    set("extra_keys", json!(scene.extra_keys()));
                }
                if scene.empty_blocks() > 0 {
                    set("empty_blocks", json!(scene.empty_blocks()));
                }
                if let Some(depth) = scene.depth() {
                    set("path_branches", json!(depth.mean));
                    set("most_path_branches", json!(depth.most));
                    set("path_nibbles", json!(depth.mean_nibbles));
                    set("most_path_nibbles", json!(depth.most_nibbles));
                }
            }
            _ => {
                set("commit_every", json!(workload.commit_every));
                set("layout", json!(workload.layout));
                set("seed", json!(workload.seed));
            }
        }
        if workload.reads > 0.0 {
            set("reads", json!(workload.reads));
        }
        if workload.choice != Choice::Uniform {
            set("keys_by", json!(workload.choice));
        }
        set("warmup", json!(workload.warmup));
        set("slices", json!(workload.slices));
        set("sync", json!(sync));
        set("cache_mb", json!(terms.cache_bytes >> 20));
        set("retention", json!(terms.retention));
        set("read_threads", json!(terms.read_threads));
        if let Some((limit, means, shared_by)) = self.memory {
            params.extend(cap_params(limit, means, shared_by));
        }
        params
    }
}
