//! The result of a race of state stores.

use super::{
    contender::RaceTerms,
    outcome::StoreOutcome,
    workload::{InitialKeys, KeyDistribution, StoreWorkload},
};
use crate::{BenchError, memory::cap_params, report::BenchResult};
use retrie_db::SyncMode;
use serde_json::{Map, Value, json};

/// The result of a race.
#[derive(Debug)]
pub struct RaceResult {
    /// One outcome per contender, in the order of the contenders.
    pub outcomes: Vec<StoreOutcome>,
    /// Whether the race ran to its end, or why not. If it was cut short, the outcomes contain the
    /// slices that all contenders have run, and of the rest (flush and roots, then proofs) the
    /// steps that all have finished.
    pub ended: Result<(), BenchError>,
    /// The memory cap, if there was one: bytes, means (`cgroup` or `balloon`), number of stores
    /// that share it.
    pub memory: Option<(u64, &'static str, usize)>,
}

impl RaceResult {
    /// The outcomes as results of `--json`.
    pub fn results(&self, workload: &StoreWorkload, terms: &RaceTerms) -> Vec<BenchResult> {
        let params = self.params(workload, terms);
        self.outcomes.iter().map(|outcome| outcome.result(params.clone())).collect()
    }

    /// The params that all contenders share. Params with their default value are left out.
    pub fn params(&self, workload: &StoreWorkload, terms: &RaceTerms) -> Map<String, Value> {
        let keys = match &workload.keys {
            InitialKeys::Preloaded(keys) => json!(keys),
            InitialKeys::Adversary(scene) => json!(scene.keys()),
            InitialKeys::Fresh | InitialKeys::Real(_) => json!(workload.keys.to_string()),
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
            InitialKeys::Real(trace) => {
                set("blocks", json!(trace.figures().blocks));
                set("pad_accounts", json!(trace.padding().accounts));
                set("pad_slots", json!(trace.padding().slots));
            }
            InitialKeys::Adversary(scene) => {
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
        if workload.choice != KeyDistribution::Uniform {
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
