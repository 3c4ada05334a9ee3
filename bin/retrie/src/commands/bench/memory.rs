//! Memory budgets and cold pages, of every race.

use crate::output::{CommandOutput, say};
use retrie_bench::{
    BenchError,
    memory::{MemoryCap, parse_size},
    race::{MemoryBudget, MemoryTerms, RaceResult, RaceTerms},
};

/// Flags about the memory of each store.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MemoryArgs {
    /// One budget of memory for each store (512MB, 2GB), and one race for each of several budgets:
    /// for its caches, its unfolded rows and the pages of its files. Each store races alone, under
    /// a cap as of --memory-limit. Where memory cannot be capped, all race together, and the budget
    /// is for caches and unfolded rows alone.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    memory_budget: Vec<u64>,
    /// Leave pages of files out of --memory-budget: no cap, and all stores race together.
    #[arg(long, requires = "memory_budget")]
    unbounded_pages: bool,
    /// Drop the pages of a store's files from memory before each of its measured turns. Its caches
    /// and unfolded rows stay.
    #[arg(long)]
    cold: bool,
}

impl MemoryArgs {
    /// The terms of each race: one for each budget, or one without. Says so if memory cannot be
    /// capped.
    pub(crate) fn terms(&self, out: &CommandOutput) -> eyre::Result<Vec<MemoryTerms>> {
        if self.memory_budget.is_empty() || self.unbounded_pages {
            return Ok(self.terms_of_stores());
        }
        let has_pages = match MemoryCap::permitted() {
            Ok(_) => true,
            Err(why) => {
                say!(out, "{why}; so the budget is for caches and unfolded rows alone");
                false
            }
        };
        Ok(self.each(has_pages))
    }

    /// The same, with budgets for caches and unfolded rows alone.
    pub(crate) fn terms_of_stores(&self) -> Vec<MemoryTerms> {
        self.each(false)
    }

    fn each(&self, has_pages: bool) -> Vec<MemoryTerms> {
        let of = |bytes: &u64| {
            let budget = Some(MemoryBudget { bytes: *bytes, has_pages });
            MemoryTerms { budget, cold: self.cold }
        };
        match &self.memory_budget[..] {
            [] => vec![MemoryTerms { budget: None, cold: self.cold }],
            budgets => budgets.iter().map(of).collect(),
        }
    }
}

/// Runs `race` with all `entrants`, or with each alone if that is how they share no memory. What was
/// measured before an error is kept.
///
/// # Errors
/// Of the first race.
pub(crate) fn raced<E, F>(
    entrants: &[E],
    memory: MemoryTerms,
    mut race: impl FnMut(&[E]) -> Result<RaceResult<F>, BenchError>,
) -> Result<RaceResult<F>, BenchError> {
    let together = if memory.is_alone() { 1 } else { entrants.len().max(1) };
    let mut all = RaceResult { outcomes: Vec::new(), ended: Ok(()) };
    for group in entrants.chunks(together) {
        match race(group) {
            Err(error) if all.outcomes.is_empty() => return Err(error),
            Err(error) => all.ended = Err(error),
            Ok(raced) => {
                all.outcomes.extend(raced.outcomes);
                all.ended = raced.ended;
            }
        }
        if all.ended.is_err() {
            break;
        }
    }
    Ok(all)
}

/// The memory of each store, for the line of equal terms. `own` has the name of each store, and the
/// bytes of its caches.
pub(crate) fn words<'n>(terms: &RaceTerms, own: impl Iterator<Item = (&'n str, u64)>) -> String {
    let cold = match terms.memory.cold {
        true => "; pages of a store's files dropped before each of its turns",
        false => "",
    };
    let Some(budget) = terms.memory.budget else {
        return format!("memory for unfolded rows {} MiB{cold}", terms.cache_bytes >> 20);
    };
    let pages = match budget.has_pages {
        true => "pages of its files included, each raced alone",
        false => "pages of its files not counted",
    };
    let part = |(name, own): (&str, u64)| {
        format!("{name} {} + {}", own >> 20, terms.rows_bytes(own) >> 20)
    };
    let parts: Vec<_> = own.map(part).collect();
    format!(
        "memory budget {} MiB a store, {pages}; caches + unfolded rows in MiB: {}{cold}",
        budget.bytes >> 20,
        parts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use retrie_db::SyncMode;

    #[derive(Debug, clap::Parser)]
    struct MemoryCli {
        #[command(flatten)]
        memory: MemoryArgs,
    }

    #[test]
    fn budgets_are_an_axis_and_are_said_part_by_part() {
        let line = ["", "--memory-budget", "64MB,1GB", "--unbounded-pages", "--cold"];
        let memory = MemoryCli::parse_from(line).memory;
        let all = memory.terms(&CommandOutput::default()).unwrap();
        let bytes: Vec<_> = all.iter().map(|one| one.budget.unwrap().bytes >> 20).collect();
        assert_eq!(bytes, [64, 1024]);
        assert!(all.iter().all(|one| one.cold && !one.is_alone()));
        let terms = RaceTerms {
            sync: SyncMode::NoSync,
            cache_bytes: 64 << 20,
            retention: 4,
            read_threads: 0,
            memory: all[0],
        };
        let said = words(&terms, [("raw", 0), ("mpt", 32 << 20)].into_iter());
        assert!(said.contains("raw 0 + 64, mpt 32 + 32; pages of a store's"), "{said}");
        let free = RaceTerms { memory: MemoryTerms::FREE, ..terms };
        assert_eq!(words(&free, [].into_iter()), "memory for unfolded rows 64 MiB");
        assert!(MemoryCli::try_parse_from(["", "--unbounded-pages"]).is_err());
    }

    #[test]
    fn stores_with_a_budget_of_pages_race_alone_and_keep_what_was_measured() {
        let budget = |has_pages| MemoryTerms {
            budget: Some(MemoryBudget { bytes: 1 << 30, has_pages }),
            cold: false,
        };
        let groups = |memory| {
            let mut groups = Vec::new();
            let race = |group: &[u8]| {
                groups.push(group.to_vec());
                Ok(RaceResult::<()> { outcomes: Vec::new(), ended: Ok(()) })
            };
            raced(&[1, 2, 3], memory, race).unwrap();
            groups
        };
        assert_eq!(groups(budget(true)), [vec![1], vec![2], vec![3]]);
        assert_eq!(groups(budget(false)), [vec![1, 2, 3]]);
        assert_eq!(groups(MemoryTerms::FREE), [vec![1, 2, 3]]);
        let stopped = raced::<_, ()>(&[1, 2], budget(true), |_| Err(BenchError::Stopped));
        assert!(matches!(stopped, Err(BenchError::Stopped)));
    }
}
