//! The command lines that repeat experiments.

use retrie_bench::paper::{ExperimentSetup, KvMix};

/// Transactions in each block, if the paper does not say.
const TXS_PER_BLOCK: u64 = 500;

/// The words after `retrie bench`.
pub(super) fn words(setup: &ExperimentSetup, backends: &[&str]) -> Vec<String> {
    let command = match setup {
        // The blocks that the papers replayed are not available; the corpus has others.
        ExperimentSetup::Replay { .. } => "state",
        _ => setup.workload(),
    };
    let mut words = vec![command.to_owned()];
    let mut flag = |name: &str, value: &dyn ToString| {
        words.extend([format!("--{name}"), value.to_string()]);
    };
    match *setup {
        ExperimentSetup::State { keys, pairs, commit_every, cache_mb, proofs, memory_limit_mb } => {
            flag("keys", &keys.map_or_else(|| "fresh".into(), |keys| keys.to_string()));
            flag("pairs", &pairs);
            flag("commit-every", &commit_every);
            if let Some(cache_mb) = cache_mb {
                flag("cache-mb", &cache_mb);
            }
            if proofs > 0 {
                flag("proofs", &proofs);
            }
            if let Some(limit) = memory_limit_mb {
                flag("memory-limit", &format!("{limit}MB"));
            }
        }
        ExperimentSetup::Chain {
            accounts,
            senders,
            txs,
            txs_per_block,
            skewed,
            cache_mb,
            merge_interval,
            own_contracts,
            workload,
        } => {
            let a_block = txs_per_block.unwrap_or(TXS_PER_BLOCK).min(txs);
            let blocks = txs.div_ceil(a_block.max(1));
            flag("accounts", &accounts);
            flag("signers", &senders);
            flag("txs", &a_block);
            flag("blocks", &blocks);
            // The papers' nodes had these transactions in their pool.
            flag("senders", &"recovered");
            if skewed {
                flag("zipf", &0.99);
            }
            if let Some(cache_mb) = cache_mb {
                flag("memory-budget", &format!("{cache_mb}MB"));
                // With a prefetch nearly all lookups of the execution would be hits.
                flag("read-ahead", &0);
            }
            if let Some(blocks) = merge_interval {
                flag("lmpt.merge-interval", &blocks);
            }
            if own_contracts && workload != "transfers" {
                flag("contracts", &"own");
            }
        }
        ExperimentSetup::SmallBank { blocks, txs_per_block, cache_mb, memory_pairs } => {
            flag("blocks", &blocks);
            flag("txs", &txs_per_block);
            // In the authors' program up to as many are named as there are transactions.
            flag("accounts", &(blocks * txs_per_block));
            of_cole(&mut flag, cache_mb, memory_pairs);
            words.push("--fresh".into());
        }
        ExperimentSetup::KvStore { base, blocks, txs_per_block, mix, cache_mb, memory_pairs } => {
            flag("accounts", &base);
            flag("inserts", &50);
            of_cole(&mut flag, cache_mb, memory_pairs);
            flag("blocks", &blocks);
            flag("txs", &txs_per_block);
            flag(
                "ratio",
                &match mix {
                    KvMix::ReadOnly => "read-only",
                    KvMix::ReadWrite => "read-write",
                    KvMix::WriteOnly => "write-only",
                },
            );
        }
        ExperimentSetup::Replay { pad_accounts, pairs, memory_limit_mb, .. } => {
            flag("keys", &"real");
            if let Some(pairs) = pairs {
                flag("pairs", &pairs);
            }
            if let Some(accounts) = pad_accounts {
                flag("pad-accounts", &accounts);
            }
            if let Some(limit) = memory_limit_mb {
                flag("memory-limit", &format!("{limit}MB"));
            }
        }
        ExperimentSetup::Provenance {
            states,
            blocks,
            txs_per_block,
            ranges,
            memory_pairs,
            queries,
        } => {
            flag("states", &states);
            flag("blocks", &blocks);
            flag("txs", &txs_per_block);
            flag("cole.memory-pairs", &memory_pairs);
            flag("range", &joined(ranges));
            if let Some(queries) = queries {
                flag("queries", &queries);
            }
        }
        ExperimentSetup::Locality {
            heights: (low, high),
            samples,
            rows,
            cold,
            layouts,
            tries,
            media,
            slot_bytes,
        } => {
            flag("heights", &format!("{low}-{high}"));
            flag("samples", &samples);
            flag("rows", &rows);
            if !layouts.is_empty() {
                flag("layouts", &layouts);
            }
            flag("tries", &tries);
            flag("media", &media);
            flag("slot-bytes", &slot_bytes);
            if cold {
                words.push("--cold".into());
            }
        }
        ExperimentSetup::Crypto { rounds, samples } => {
            flag("rounds", &rounds);
            flag("samples", &samples);
        }
        ExperimentSetup::Trees { elements, hash_every, shapes } => {
            flag("elements", &elements);
            flag("hash-every", &hash_every);
            if !shapes.is_empty() {
                flag("shapes", &joined(shapes));
            }
        }
        ExperimentSetup::Sync { elements, chunk, peers, byzantine, seeds } => {
            flag("elements", &elements);
            flag("chunk", &chunk);
            flag("peers", &peers);
            flag("byzantine", &byzantine);
            if let Some(seeds) = seeds {
                flag("seeds", &seeds);
            }
        }
    }
    if matches!(setup, ExperimentSetup::Chain { cache_mb: Some(_), .. }) {
        words.push("--unbounded-pages".into());
    }
    if !backends.is_empty() {
        words.extend(["--backends".into(), backends.join(",")]);
    }
    words
}

/// Flags that match the COLE authors' program: one caller, nothing signed, and every block is
/// measured, from the first one on.
fn of_cole(flag: &mut dyn FnMut(&str, &dyn ToString), cache_mb: Option<u32>, memory_pairs: u64) {
    flag("signers", &1);
    flag("senders", &"recovered");
    flag("warmup", &0);
    flag("cole.memory-pairs", &memory_pairs);
    if let Some(cache_mb) = cache_mb {
        flag("cache-mb", &cache_mb);
    }
}

fn joined<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}
