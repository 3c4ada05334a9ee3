//! Pruning flags.

use eyre::bail;
use retrie_chainspec::ChainSpec;
use retrie_db::{ACCESS_LIST_DISTANCE, HistoryKept, KeptBlocks};
use retrie_state_store::FlatHistory;

/// Blocks of history that a full node keeps: reth's `MINIMUM_PRUNING_DISTANCE`.
const FULL_NODE_DISTANCE: u64 = 10_064;

/// Pruning flags, with reth's names. Accounts and storage share one history here, so reth's
/// `--prune.account-history.*` and `--prune.storage-history.*` are one flag. Blocks within
/// `--retention` are never pruned.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Pruning")]
pub struct PruneArgs {
    /// Prune like a full node: keep the state history and the receipts of the last 10,064 blocks,
    /// and no bodies from before the merge. Without this flag everything is kept. The other pruning
    /// flags override it.
    #[arg(long)]
    full: bool,
    /// Keep the state history of the last BLOCKS blocks, so that their states can be read. If
    /// several are given, the largest counts. Backends that keep old states themselves
    /// (`mpt-archive`, `cole`) have this history only with this flag.
    #[arg(
        long = "prune.state-history.distance",
        visible_aliases = ["prune.account-history.distance", "prune.storage-history.distance"],
        value_name = "BLOCKS"
    )]
    history_distance: Vec<u64>,
    /// Keep no state history.
    #[arg(long = "prune.state-history.full", conflicts_with = "history_distance")]
    no_history: bool,
    /// Keep the receipts of the last BLOCKS blocks.
    #[arg(
        long = "prune.receipts.distance",
        value_name = "BLOCKS",
        conflicts_with_all = ["receipts_before", "no_receipts"]
    )]
    receipts_distance: Option<u64>,
    /// Keep the receipts from this block on.
    #[arg(
        long = "prune.receipts.before",
        value_name = "BLOCK_NUMBER",
        conflicts_with = "no_receipts"
    )]
    receipts_before: Option<u64>,
    /// Keep only the receipts of blocks within the retention window.
    #[arg(long = "prune.receipts.full")]
    no_receipts: bool,
    /// Keep no receipts from before the merge.
    #[arg(
        long = "prune.receipts.pre-merge",
        conflicts_with_all = ["receipts_distance", "receipts_before", "no_receipts"]
    )]
    no_receipts_before_merge: bool,
    /// Keep no bodies from before the merge: no transactions, ommers and receipts.
    #[arg(long = "prune.bodies.pre-merge", conflicts_with_all = ["bodies_distance", "bodies_before"])]
    no_bodies_before_merge: bool,
    /// Keep the bodies of the last BLOCKS blocks.
    #[arg(long = "prune.bodies.distance", value_name = "BLOCKS", conflicts_with = "bodies_before")]
    bodies_distance: Option<u64>,
    /// Keep the bodies from this block on.
    #[arg(long = "prune.bodies.before", value_name = "BLOCK_NUMBER")]
    bodies_before: Option<u64>,
    /// Keep the transaction hash index for the last BLOCKS blocks.
    #[arg(
        long = "prune.transaction-lookup.distance",
        visible_alias = "prune.transactionlookup.distance",
        value_name = "BLOCKS",
        conflicts_with_all = ["lookup_before", "no_lookup"]
    )]
    lookup_distance: Option<u64>,
    /// Keep the transaction hash index from this block on.
    #[arg(
        long = "prune.transaction-lookup.before",
        visible_alias = "prune.transactionlookup.before",
        value_name = "BLOCK_NUMBER",
        conflicts_with = "no_lookup"
    )]
    lookup_before: Option<u64>,
    /// Keep the transaction hash index only for blocks within the retention window.
    #[arg(long = "prune.transaction-lookup.full", visible_alias = "prune.transactionlookup.full")]
    no_lookup: bool,
    /// Keep the block access lists of the last BLOCKS blocks. Peers fetch them to catch up (snap/2).
    #[arg(
        long = "prune.access-lists.distance",
        value_name = "BLOCKS",
        default_value_t = ACCESS_LIST_DISTANCE
    )]
    access_list_distance: u64,
    /// Rejected: senders are stored with their transactions and are pruned with the bodies.
    #[arg(
        long = "prune.sender-recovery.full",
        visible_aliases = [
            "prune.sender-recovery.distance",
            "prune.sender-recovery.before",
            "prune.senderrecovery.full",
            "prune.senderrecovery.distance",
            "prune.senderrecovery.before",
        ],
        value_name = "BLOCKS",
        num_args = 0..=1,
        default_missing_value = "full",
        hide = true,
        value_parser = refuse_senders
    )]
    senders: Option<RefusedValue>,
}

/// The value of a flag that is always rejected.
#[derive(Clone, Copy, Debug)]
enum RefusedValue {}

fn refuse_senders(_: &str) -> Result<RefusedValue, String> {
    Err("senders are kept in the rows of their transactions, 20 bytes each, so there is nothing to \
         prune but both: --prune.bodies.distance or --prune.bodies.before"
        .into())
}

/// Generations within which an ommer may lie (yellow paper 11.1). Validation reads this many bodies
/// back.
const OMMERS_REACH: u64 = 7;

impl PruneArgs {
    /// The state store's flat history. A backend with a history of its own has none by default.
    pub(super) fn flat_history(&self, backend_has_history: bool) -> FlatHistory {
        match self.history_distance.iter().max() {
            _ if self.no_history => FlatHistory::Off,
            Some(blocks) => FlatHistory::Last(*blocks),
            None if backend_has_history => FlatHistory::Off,
            None if self.full => FlatHistory::Last(FULL_NODE_DISTANCE),
            None => FlatHistory::All,
        }
    }

    /// The database's [`HistoryKept`] on this chain; `retention` blocks are always kept.
    pub(super) fn kept(&self, spec: &ChainSpec, retention: u64) -> eyre::Result<HistoryKept> {
        if let Some(never) = self.senders {
            match never {}
        }
        let merge = spec.merge_block();
        for (is_set, kind) in
            [(self.no_bodies_before_merge, "bodies"), (self.no_receipts_before_merge, "receipts")]
        {
            if is_set && merge.is_none() {
                bail!(
                    "--prune.{kind}.pre-merge: it is not known where chain {} was merged; name the \
                     block: --prune.{kind}.before",
                    spec.name()
                );
            }
        }
        let receipts_from =
            self.receipts_before.or_else(|| merge.filter(|_| self.no_receipts_before_merge));
        let merge = merge
            .filter(|_| self.no_bodies_before_merge || self.full && self.bodies_distance.is_none());
        let receipts = self.receipts_distance.or_else(|| self.full.then_some(FULL_NODE_DISTANCE));
        Ok(HistoryKept {
            bodies: kept_blocks(
                false,
                self.bodies_distance,
                self.bodies_before.or(merge),
                retention.max(OMMERS_REACH),
            ),
            receipts: kept_blocks(self.no_receipts, receipts, receipts_from, retention),
            lookup: kept_blocks(
                self.no_lookup,
                self.lookup_distance,
                self.lookup_before,
                retention,
            ),
            access_lists: kept_blocks(false, Some(self.access_list_distance), None, retention),
        })
    }
}

/// Combines the three flags of one kind of row; the last `least` blocks are always kept.
fn kept_blocks(none: bool, distance: Option<u64>, before: Option<u64>, least: u64) -> KeptBlocks {
    let last = |blocks: u64| KeptBlocks { from: u64::MAX, last: blocks.max(least) };
    match (before, distance) {
        _ if none => last(0),
        (Some(from), _) => KeptBlocks { from, last: least },
        (None, Some(blocks)) => last(blocks),
        (None, None) => KeptBlocks::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_chainspec::parse_chain;

    #[derive(clap::Parser)]
    struct PruneCli {
        #[command(flatten)]
        prune: PruneArgs,
    }

    fn kept_on(chain: &str, line: &str) -> Result<(FlatHistory, HistoryKept), String> {
        let words = ["retrie"].into_iter().chain(line.split_whitespace());
        let line: PruneCli =
            clap::Parser::try_parse_from(words).map_err(|error| error.to_string())?;
        let spec = parse_chain(chain).unwrap();
        let kept = line.prune.kept(&spec, 128).map_err(|error| error.to_string())?;
        let (plain, own) = (line.prune.flat_history(false), line.prune.flat_history(true));
        // A backend with its own history has a flat history only on request.
        let is_asked_for = !line.prune.history_distance.is_empty();
        assert_eq!(own, if is_asked_for { plain } else { FlatHistory::Off }, "{:?}", line.prune);
        Ok((plain, kept))
    }

    const MERGE: u64 = 15_537_394;

    const fn last(last: u64) -> KeptBlocks {
        KeptBlocks { from: u64::MAX, last }
    }

    const fn before(from: u64) -> KeptBlocks {
        KeptBlocks { from, last: 128 }
    }

    #[test]
    fn what_is_pruned_is_what_the_flags_of_reth_say() {
        let all = HistoryKept::default();
        let bodies = |bodies| HistoryKept { bodies, ..all };
        let receipts = |receipts| HistoryKept { receipts, ..all };
        let lookup = |lookup| HistoryKept { lookup, ..all };
        let lists = |access_lists| HistoryKept { access_lists, ..all };
        assert_eq!(all.access_lists, last(113_056));
        let full = HistoryKept { bodies: before(MERGE), receipts: last(10_064), ..all };
        for (line, changes, kept) in [
            ("", FlatHistory::All, all),
            ("--full", FlatHistory::Last(10_064), full),
            ("--prune.state-history.distance 7", FlatHistory::Last(7), all),
            (
                "--full --prune.account-history.distance 20000 \
                 --prune.storage-history.distance=15000",
                FlatHistory::Last(20_000),
                full,
            ),
            ("--prune.state-history.full --full", FlatHistory::Off, full),
            (
                "--full --prune.receipts.distance 300 --prune.bodies.distance 500",
                FlatHistory::Last(10_064),
                HistoryKept { bodies: last(500), receipts: last(300), ..all },
            ),
            ("--prune.receipts.distance 3", FlatHistory::All, receipts(last(128))),
            ("--prune.receipts.full", FlatHistory::All, receipts(last(128))),
            ("--prune.receipts.before 99", FlatHistory::All, receipts(before(99))),
            ("--prune.receipts.pre-merge", FlatHistory::All, receipts(before(MERGE))),
            // The rolling window of EIP-4444: 82,125 epochs, about a year.
            (
                "--prune.bodies.distance 2628000 --prune.receipts.distance 2628000",
                FlatHistory::All,
                HistoryKept { bodies: last(2_628_000), receipts: last(2_628_000), ..all },
            ),
            (
                "--full --prune.receipts.pre-merge",
                FlatHistory::Last(10_064),
                HistoryKept { receipts: before(MERGE), ..full },
            ),
            ("--prune.bodies.pre-merge", FlatHistory::All, bodies(before(MERGE))),
            ("--prune.bodies.before 99", FlatHistory::All, bodies(before(99))),
            ("--prune.bodies.distance 1000", FlatHistory::All, bodies(last(1000))),
            ("--prune.transaction-lookup.full", FlatHistory::All, lookup(last(128))),
            ("--prune.access-lists.distance 3", FlatHistory::All, lists(last(128))),
            ("--prune.access-lists.distance 300", FlatHistory::All, lists(last(300))),
            ("--prune.transactionlookup.distance 200", FlatHistory::All, lookup(last(200))),
            ("--prune.transaction-lookup.before 9", FlatHistory::All, lookup(before(9))),
        ] {
            assert_eq!(kept_on("mainnet", line), Ok((changes, kept)), "{line}");
        }
        for both in [
            "--prune.state-history.full --prune.account-history.distance 7",
            "--prune.receipts.full --prune.receipts.before 7",
            "--prune.receipts.distance 7 --prune.receipts.before 7",
            "--prune.bodies.distance 7 --prune.bodies.before 7",
            "--prune.bodies.pre-merge --prune.bodies.before 7",
            "--prune.receipts.pre-merge --prune.receipts.distance 7",
            "--prune.transaction-lookup.full --prune.transaction-lookup.before 7",
        ] {
            assert!(
                kept_on("mainnet", both).unwrap_err().contains("cannot be used with"),
                "{both}"
            );
        }
        for senders in ["--prune.sender-recovery.full", "--prune.senderrecovery.distance 7"] {
            let error = kept_on("mainnet", senders).unwrap_err();
            assert!(error.contains("rows of their transactions"), "{error}");
        }
    }
}
