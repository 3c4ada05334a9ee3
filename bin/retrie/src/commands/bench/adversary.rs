//! `retrie bench adversary`: races state stores under attacks that slow them down, each attack
//! beside a plain baseline.

use super::{
    measurement::{RaceMeasurement, ended},
    memory::raced,
    state::table::{print, print_equal_terms, remarks},
    stores::StoreArgs,
};
use crate::{
    args::parse_count,
    output::{CommandOutput, grouped, say},
    progress::RaceProgress,
};
use eyre::bail;
use retrie_bench::{
    cache::StateCache,
    race::{RaceResult, RaceTerms},
    state::{
        AttackConfig, AttackKind, AttackPair, StoreFigures, StoreOutcome, StoreRace, baseline_ratio,
    },
};
use std::sync::atomic::AtomicBool;

/// Arguments of `retrie bench adversary`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AdversaryArgs {
    /// The attacks, separated by commas [default: all]. ground-keys: accounts and slots with long
    /// paths in Ethereum's trie, found by hashing --grind of each. big-contract: pairs on the
    /// --slots slots of one contract. tiny-blocks: --tiny operations in each commit. empty-blocks:
    /// ten empty commits after each commit. one-slot: every operation on the same slot, --tiny in
    /// each commit. churn: adjacent slots removed and set again, with values and commits of all
    /// sizes.
    #[arg(long, value_name = "ATTACKS", value_delimiter = ',', value_parser = parse_attack)]
    attacks: Vec<AttackKind>,
    /// Keys of the plain state, half accounts and half slots of one contract. One race for each
    /// number.
    #[arg(long, value_name = "N", default_value = "1m", value_delimiter = ',', value_parser = parse_count)]
    keys: Vec<u64>,
    /// Operations measured, pairs of a read and a write: this many for each attack, and as many
    /// plain ones beside it.
    #[arg(long, value_name = "N", default_value = "100k", value_parser = parse_count)]
    pairs: u64,
    /// Operations in each commit.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_count)]
    commit_every: u64,
    /// Operations in each commit of tiny-blocks, and of one-slot and its baseline.
    #[arg(long, value_name = "N", default_value = "10", value_parser = parse_count)]
    tiny: u64,
    /// Slots of the big contract.
    #[arg(long, value_name = "N", default_value = "2m", value_parser = parse_count)]
    slots: u64,
    /// Number of addresses and of slots that are hashed to find the keys of ground-keys; each takes
    /// 16 bytes of memory. A number 16 times larger makes paths one branch longer. The keys found
    /// are cached with the loaded states.
    #[arg(long, value_name = "N", default_value = "16m", value_parser = parse_count)]
    grind: u64,
    /// Operations before the measured ones [default: a tenth of them].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    warmup: Option<u64>,
    /// Turns for each store, and for its twin on the baseline [default: 25, or the number of
    /// commits if that is smaller].
    #[arg(long, value_name = "N")]
    slices: Option<u64>,
    /// Seed of keys, values and choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pub(super) stores: StoreArgs,
}

fn parse_attack(text: &str) -> Result<AttackKind, String> {
    let names = || AttackKind::ALL.map(AttackKind::name).join(", ");
    AttackKind::named(text).ok_or_else(|| format!("it is one of {}", names()))
}

impl AdversaryArgs {
    /// Races the stores under every attack.
    pub(super) fn measure(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let names = self.stores.names()?;
        let memories = self.stores.memory.terms(out)?;
        let attacks = self.attacks()?;
        let sieges: Vec<_> = self.keys.iter().map(|keys| self.attack_config(*keys)).collect();
        sieges.iter().try_for_each(|siege| siege.check(attacks))?;
        let cache = self.stores.cache();
        let mut measured = RaceMeasurement::on("adversary");
        for memory in memories {
            // Both a store and its twin are open.
            let terms = self.stores.terms(&names, 2, memory)?;
            let run = AttackRace { args: &self, names: &names, terms: &terms, cache: &cache, stop };
            let mut all =
                sieges.iter().flat_map(|siege| attacks.iter().map(move |one| (siege, *one)));
            measured.ended =
                all.try_for_each(|(siege, attack)| run.attack(siege, attack, out, &mut measured));
            if measured.ended.is_err() {
                break;
            }
        }
        Ok(measured)
    }

    fn attacks(&self) -> eyre::Result<&[AttackKind]> {
        let twice = |(n, attack): &(usize, &AttackKind)| self.attacks[..*n].contains(attack);
        match self.attacks.iter().enumerate().find(twice) {
            Some((_, attack)) => bail!("--attacks names `{attack}` twice"),
            None if self.attacks.is_empty() => Ok(&AttackKind::ALL),
            None => Ok(&self.attacks),
        }
    }

    fn attack_config(&self, keys: u64) -> AttackConfig {
        AttackConfig {
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

/// The settings that all attacks share.
struct AttackRace<'a> {
    args: &'a AdversaryArgs,
    names: &'a [String],
    terms: &'a RaceTerms,
    cache: &'a StateCache,
    stop: &'a AtomicBool,
}

impl AttackRace<'_> {
    /// Runs one attack with its baseline, adds the results to `measured`, and prints them.
    fn attack(
        &self,
        siege: &AttackConfig,
        attack: AttackKind,
        out: &CommandOutput,
        measured: &mut RaceMeasurement,
    ) -> eyre::Result<()> {
        let Self { terms, cache, stop, .. } = *self;
        let StoreArgs { proofs, proof_depths, .. } = &self.args.stores;
        let (proofs, memory) = (*proofs, terms.memory);
        let memory_limit = self.args.stores.memory_limit(memory, 2);
        let mut progress = RaceProgress::counting(out.metrics(), "adversary");
        let attacked = siege.prepare(attack, cache, stop, &mut |step| progress.update(step));
        let attacked = attacked.inspect_err(|_| progress.finish())?;
        let stores = || self.args.stores.entrants(self.names, memory);
        let (entrants, twins) = (stores()?, stores()?);
        print_attack(out, siege, &attacked)?;
        print_equal_terms(out, terms, memory_limit, &entrants, 2)?;
        let workload = &attacked.workload;
        let race = StoreRace { workload, terms, cache, proofs, proof_depths, memory_limit, stop };
        let (mut baseline, mut twins) = (Vec::new(), &twins[..]);
        let raced = raced(&entrants, memory, |group| {
            let (beside, rest) = twins.split_at(group.len());
            twins = rest;
            let (plain, attacked) =
                race.run_beside(&attacked.baseline, group, beside, &mut |step| {
                    progress.update(step)
                })?;
            baseline.extend(plain);
            Ok(attacked)
        });
        progress.finish();
        let raced = raced?;
        // Before the output, which can fail.
        measured.results.extend(attacked.results(&baseline, &raced, terms));
        for note in attacked.note.iter().cloned().chain(remarks(&entrants, memory)) {
            if !measured.notes.contains(&note) {
                measured.notes.push(note);
            }
        }
        let printed = print_outcomes(out, attack, &baseline, &raced);
        ended(&workload.keys.to_string(), workload.slices, raced).and(printed)
    }
}

/// Prints the attack and its baseline's settings.
fn print_attack(
    out: &CommandOutput,
    siege: &AttackConfig,
    attacked: &AttackPair,
) -> eyre::Result<()> {
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

/// Prints the tables of the baseline and of the attack, and their comparison.
fn print_outcomes(
    out: &CommandOutput,
    attack: AttackKind,
    baseline: &[StoreOutcome],
    raced: &RaceResult<StoreFigures>,
) -> eyre::Result<()> {
    say!(out, "\n{attack}: baseline");
    print(out, baseline)?;
    say!(out, "\n{attack}: attacked");
    print(out, &raced.outcomes)?;
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
        let of = baseline_ratio(attacked, plain);
        let millis = |one: &StoreOutcome| format!("{:.2}", one.latency().micros(0.99) as f64 / 1e3);
        let free = |one: &StoreOutcome| {
            one.figures.free_bytes.map_or_else(
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
