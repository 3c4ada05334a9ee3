//! `retrie bench adversary`: state stores raced on what somebody does to slow them down, each beside
//! itself on a plain baseline.

use super::{
    measured::Measured,
    state::table::{print, print_equal_terms, remarks},
    stores::StoreArgs,
};
use crate::{
    args::parse_count,
    output::{Output, grouped, say},
    progress::RaceProgress,
};
use eyre::{WrapErr, bail};
use retrie_bench::{
    cache::StateCache,
    state::{Attack, Attacked, Outcome, Race, Raced, Siege, Terms, Workload, of_baseline},
};
use std::sync::atomic::AtomicBool;

/// Arguments of `retrie bench adversary`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// What is done to the stores, separated by commas: ground-keys (accounts and slots whose paths in
    /// Ethereum's trie are long, found by hashing --grind of each), big-contract (pairs on the --slots
    /// slots of one contract), tiny-blocks (--tiny operations a commit), empty-blocks (ten empty commits
    /// after each), one-slot (every operation on the same slot, --tiny a commit), churn (neighbouring
    /// slots removed and set again, values and commits of all sizes). All by default.
    #[arg(long, value_name = "ATTACKS", value_delimiter = ',', value_parser = parse_attack)]
    attacks: Vec<Attack>,
    /// Keys of the plain state, half accounts and half slots of one contract; a race for each number.
    #[arg(long, value_name = "N", default_value = "1m", value_delimiter = ',', value_parser = parse_count)]
    keys: Vec<u64>,
    /// Operations measured, pairs of a read and a write: so many of each attack, and as many plain ones
    /// beside it.
    #[arg(long, value_name = "N", default_value = "100k", value_parser = parse_count)]
    pairs: u64,
    /// Operations a commit.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_count)]
    commit_every: u64,
    /// Operations a commit of tiny-blocks, and of one-slot and its baseline.
    #[arg(long, value_name = "N", default_value = "10", value_parser = parse_count)]
    tiny: u64,
    /// Slots of the big contract.
    #[arg(long, value_name = "N", default_value = "2m", value_parser = parse_count)]
    slots: u64,
    /// Addresses that are hashed to find those of ground-keys, and as many slots: 16 bytes of memory
    /// each. 16 times as many make paths longer by one branch. What was found is kept beside the loaded
    /// states.
    #[arg(long, value_name = "N", default_value = "16m", value_parser = parse_count)]
    grind: u64,
    /// Operations before the measured ones; a tenth of them by default.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    warmup: Option<u64>,
    /// Turns each store gets, and its twin on the baseline; 25 by default, or one a commit if these are
    /// fewer.
    #[arg(long, value_name = "N")]
    slices: Option<u64>,
    /// Seed of keys, values and choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pub(super) stores: StoreArgs,
}

fn parse_attack(text: &str) -> Result<Attack, String> {
    let names = || Attack::ALL.map(Attack::name).join(", ");
    Attack::named(text).ok_or_else(|| format!("it is one of {}", names()))
}

impl Args {
    /// Races the stores, for every attack.
    pub(super) fn measure(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let names = self.stores.names()?;
        // Each store and its twin.
        let terms = self.stores.terms(&names, 2)?;
        let attacks = self.attacks()?;
        let sieges: Vec<_> = self.keys.iter().map(|keys| self.siege(*keys)).collect();
        sieges.iter().try_for_each(|siege| siege.check(attacks))?;
        let cache = self.stores.cache();
        let mut measured = Measured::on("adversary");
        let mut all = sieges.iter().flat_map(|siege| attacks.iter().map(move |one| (siege, *one)));
        measured.ended = all.try_for_each(|(siege, attack)| {
            let run = Run { args: &self, names: &names, terms: &terms, cache: &cache, stop };
            run.attack(siege, attack, out, &mut measured)
        });
        Ok(measured)
    }

    fn attacks(&self) -> eyre::Result<&[Attack]> {
        let twice = |(n, attack): &(usize, &Attack)| self.attacks[..*n].contains(attack);
        match self.attacks.iter().enumerate().find(twice) {
            Some((_, attack)) => bail!("--attacks names `{attack}` twice"),
            None if self.attacks.is_empty() => Ok(&Attack::ALL),
            None => Ok(&self.attacks),
        }
    }

    fn siege(&self, keys: u64) -> Siege {
        Siege {
            keys,
            pairs: self.pairs,
            warmup: self.warmup.unwrap_or(self.pairs / 10),
            commit_every: self.commit_every,
            tiny: self.tiny,
            slices: self.slices,
            slots: self.slots,
            grind: self.grind,
            seed: self.seed,
        }
    }
}

/// What all attacks have in common.
struct Run<'a> {
    args: &'a Args,
    names: &'a [String],
    terms: &'a Terms,
    cache: &'a StateCache,
    stop: &'a AtomicBool,
}

impl Run<'_> {
    /// Runs one attack and its baseline, adds what was measured to `measured`, and prints it.
    fn attack(
        &self,
        siege: &Siege,
        attack: Attack,
        out: &Output,
        measured: &mut Measured,
    ) -> eyre::Result<()> {
        let Self { terms, cache, stop, .. } = *self;
        let StoreArgs { proofs, memory_limit, proof_depths, .. } = &self.args.stores;
        let (proofs, memory_limit) = (*proofs, *memory_limit);
        let mut progress = RaceProgress::counting(out.metrics(), "adversary");
        let attacked = siege.prepare(attack, cache, stop, &mut |step| progress.update(step));
        let attacked = attacked.inspect_err(|_| progress.finish())?;
        let [entrants, twins] =
            [self.args.stores.entrants(self.names)?, self.args.stores.entrants(self.names)?];
        print_siege(out, siege, &attacked)?;
        print_equal_terms(out, terms, memory_limit, &entrants, 2)?;
        let workload = &attacked.workload;
        let race = Race { workload, terms, cache, proofs, proof_depths, memory_limit, stop };
        let raced = race
            .run_beside(&attacked.baseline, &entrants, &twins, &mut |step| progress.update(step));
        progress.finish();
        let (baseline, raced) = raced?;
        // Before anything is printed, which may fail.
        measured.results.extend(attacked.results(&baseline, &raced, terms));
        for note in attacked.note.iter().cloned().chain(remarks(&entrants)) {
            if !measured.notes.contains(&note) {
                measured.notes.push(note);
            }
        }
        let printed = print_outcomes(out, attack, &baseline, &raced);
        ended(&attacked.workload, raced).and(printed)
    }
}

/// What is done, and what stands beside it.
fn print_siege(out: &Output, siege: &Siege, attacked: &Attacked) -> eyre::Result<()> {
    for (workload, who) in [(&attacked.workload, "adversary"), (&attacked.baseline, "beside it")] {
        let Some(scene) = workload.scene() else { continue };
        let empty = match scene.empty_blocks() {
            0 => String::new(),
            empty => format!(" and then {empty} empty ones"),
        };
        let before = if who == "adversary" { "\n" } else { "" };
        say!(
            out,
            "{before}{who}, {}: {} plain keys and {} others; {} pairs (a read, a write) on {} keys after \
             {} of warm-up, {} a commit{empty}, {} slices",
            scene.name(),
            grouped(scene.keys()),
            grouped(scene.extra_keys()),
            grouped(siege.pairs),
            grouped(scene.attacked_keys()),
            grouped(siege.warmup),
            grouped(workload.commit_every),
            workload.slices
        );
    }
    if let Some(note) = &attacked.note {
        say!(out, "{note}");
    }
    Ok(())
}

/// The baseline's table, the attack's, and how they compare.
fn print_outcomes(
    out: &Output,
    attack: Attack,
    baseline: &[Outcome],
    raced: &Raced,
) -> eyre::Result<()> {
    say!(out, "\n{attack}: baseline");
    print(out, baseline, raced.memory)?;
    say!(out, "\n{attack}: attacked");
    print(out, &raced.outcomes, raced.memory)?;
    say!(
        out,
        "\n{:<16} {:>11} {:>6} {:>9} | {:>17} {:>17}",
        attack.name(),
        "of baseline",
        "spread",
        "sustained",
        "p99 ms, before",
        "free MiB, before"
    );
    for (attacked, plain) in raced.outcomes.iter().zip(baseline) {
        let of = of_baseline(attacked, plain);
        let millis = |one: &Outcome| format!("{:.2}", one.latency.micros(0.99) as f64 / 1e3);
        let free = |one: &Outcome| {
            one.free_bytes.map_or_else(
                || "-".into(),
                |free| format!("{:.1}", free as f64 / f64::from(1 << 20)),
            )
        };
        say!(
            out,
            "{:<16} {:>11.2} {:>5.0}% {:>9.2} | {:>8} {:>8} {:>8} {:>8}",
            attacked.backend,
            of.median,
            of.spread * 100.0,
            of.sustained,
            millis(attacked),
            millis(plain),
            free(attacked),
            free(plain)
        );
    }
    Ok(())
}

/// Why a race was cut short, if it was.
fn ended(workload: &Workload, raced: Raced) -> eyre::Result<()> {
    let done = raced.outcomes.first().map_or(0, |outcome| outcome.series.len());
    let of = workload.slices;
    raced.ended.wrap_err_with(|| format!("{}: {done} of {of} slices were measured", workload.keys))
}
