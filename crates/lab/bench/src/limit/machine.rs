//! What each kind of work costs on this machine.

use super::trie::HashWork;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Permutations of keccak-256 for a full branch; a leaf takes one.
const BRANCH_PERMUTATIONS: f64 = 4.0;

/// Seconds for one unit of work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitCost {
    /// On one core, while the others are idle.
    pub alone: f64,
    /// On the whole machine, while all cores do this work: elapsed seconds over all units.
    pub together: f64,
}

impl UnitCost {
    /// How many times the work of one core the whole machine does.
    pub fn speedup(self) -> f64 {
        self.alone / self.together
    }
}

/// The cost of execution on a state in memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutionCost {
    /// Of one gas.
    pub gas: UnitCost,
    /// Mean gas of a transaction.
    pub gas_per_transaction: f64,
}

impl ExecutionCost {
    /// Of a mean transaction.
    pub fn transaction(self) -> UnitCost {
        let UnitCost { alone, together } = self.gas;
        let gas = self.gas_per_transaction;
        UnitCost { alone: alone * gas, together: together * gas }
    }
}

/// The cost of a durable commit, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DurableCost {
    /// Of the commit, however small.
    pub commit: f64,
    /// Of each byte.
    pub byte: f64,
}

impl DurableCost {
    /// The line through two sizes in bytes, and the seconds of a commit of each.
    pub(super) fn through(small: (f64, f64), large: (f64, f64)) -> Self {
        let byte = ((large.1 - small.1) / (large.0 - small.0)).max(0.0);
        Self { commit: (small.1 - small.0 * byte).max(0.0), byte }
    }
}

/// The costs of the disk of the cache of prepared states.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskCosts {
    /// A write at the next place of a file that has its final size, then `fdatasync`.
    pub file: DurableCost,
    /// The same by a thread on each core, each on a file of its own: elapsed seconds of the whole
    /// machine.
    pub files: DurableCost,
    /// Rows appended to a table of our database (MDBX), then its commit.
    pub database: DurableCost,
    /// A random page of 4096 bytes that is not in the page cache: `alone` one at a time, `together`
    /// by 16 threads.
    pub page: UnitCost,
}

impl DiskCosts {
    /// The least seconds of a commit, and of each of its bytes.
    fn least(&self) -> DurableCost {
        let Self { file, files, database, .. } = self;
        DurableCost {
            commit: file.commit.min(database.commit),
            byte: file.byte.min(files.byte).min(database.byte),
        }
    }

    /// The least seconds for durable commits one after the other, with these bytes in all.
    pub(super) fn durable(&self, commits: u64, bytes: u64) -> f64 {
        let DurableCost { commit, byte } = self.least();
        commits as f64 * commit + bytes as f64 * byte
    }
}

/// What each kind of work costs on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineLimits {
    /// Recovery of the sender of a transaction.
    pub sender: UnitCost,
    /// Execution of blocks, by the name of their mix of transactions.
    pub execution: BTreeMap<String, ExecutionCost>,
    /// keccak-256 of 532 bytes: a full branch of a trie.
    pub branch_hash: UnitCost,
    /// keccak-256 of 70 bytes: a leaf with the value of a slot.
    pub leaf_hash: UnitCost,
    /// A lookup of a state key in a hash map.
    pub lookup: UnitCost,
    /// The disk.
    pub disk: DiskCosts,
}

impl MachineLimits {
    /// The cost of a gas of this mix, or of the cheapest mix if it was not measured.
    pub(super) fn gas(&self, mix: &str) -> UnitCost {
        if let Some(cost) = self.execution.get(mix) {
            return cost.gas;
        }
        let least = |part: fn(&UnitCost) -> f64| {
            let costs = self.execution.values().map(|cost| part(&cost.gas));
            costs.min_by(f64::total_cmp).unwrap_or(0.0)
        };
        UnitCost { alone: least(|cost| cost.alone), together: least(|cost| cost.together) }
    }

    /// The least seconds in which all cores hash these nodes.
    pub(super) fn hashing(&self, work: HashWork) -> f64 {
        let (branch, leaf) = (self.branch_hash.together, self.leaf_hash.together);
        let permutation = ((branch - leaf) / (BRANCH_PERMUTATIONS - 1.0)).max(0.0);
        leaf * work.nodes + permutation * (work.permutations - work.nodes).max(0.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two cores, each twice as fast alone as two together; round figures.
    pub(in crate::limit) fn limits() -> MachineLimits {
        let cost = |alone: f64| UnitCost { alone, together: alone / 2.0 };
        let execution = |gas| ExecutionCost { gas: cost(gas), gas_per_transaction: 21_000.0 };
        MachineLimits {
            sender: cost(40e-6),
            execution: BTreeMap::from([
                ("cheap".to_owned(), execution(1e-10)),
                ("dear".to_owned(), execution(4e-10)),
            ]),
            branch_hash: cost(1.6e-6),
            leaf_hash: cost(0.4e-6),
            lookup: cost(20e-9),
            disk: DiskCosts {
                file: DurableCost { commit: 1e-3, byte: 4e-9 },
                files: DurableCost { commit: 0.7e-3, byte: 3e-9 },
                database: DurableCost { commit: 2e-3, byte: 10e-9 },
                page: UnitCost { alone: 100e-6, together: 10e-6 },
            },
        }
    }

    #[test]
    fn a_line_through_two_sizes_has_a_fixed_part_and_one_by_byte() {
        let cost = DurableCost::through((1000.0, 1.5e-3), (3000.0, 2.5e-3));
        assert!((cost.commit - 1e-3).abs() < 1e-12 && (cost.byte - 5e-7).abs() < 1e-12, "{cost:?}");
        // Noise made the large commit the faster one: no part is below zero.
        let noisy = DurableCost::through((1000.0, 2e-3), (3000.0, 1e-3));
        assert_eq!((noisy.commit, noisy.byte), (2e-3, 0.0));
    }

    #[test]
    fn unknown_mix_costs_what_the_cheapest_does() {
        let limits = limits();
        assert_eq!(limits.gas("dear").alone, 4e-10);
        assert_eq!(limits.gas("another").alone, 1e-10);
        let none = MachineLimits { execution: BTreeMap::new(), ..limits };
        assert_eq!(none.gas("dear"), UnitCost { alone: 0.0, together: 0.0 });
    }

    #[test]
    fn hashes_cost_by_their_permutations() {
        let limits = limits();
        let near = |work: HashWork, seconds: f64| {
            assert!((limits.hashing(work) - seconds).abs() < 1e-12, "{work:?}");
        };
        near(HashWork::leaves(1), 0.2e-6);
        near(HashWork { nodes: 1.0, permutations: 4.0 }, 0.8e-6);
        near(HashWork { nodes: 1.0, permutations: 2.0 }, 0.4e-6);
    }
}
