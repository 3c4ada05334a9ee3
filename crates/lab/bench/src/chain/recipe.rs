//! The parameters of a generated chain.

use super::{ContractSet, MakeChainError};
use std::{fmt, str::FromStr, sync::Arc};

/// Gas target of blocks: half of their limit, so the base fee stays constant. It is mainnet's of
/// 2026, unless a recipe has a larger one.
pub(crate) const GAS_TARGET: u64 = 30_000_000;
/// Most transfers of ether, of 21,000 gas, in [`GAS_TARGET`].
pub(crate) const MOST_TRANSFERS: u64 = GAS_TARGET / 21_000;
/// Largest gas limit of a call of any mix, with its access list.
pub(crate) const MAX_CALL_GAS: u64 = 400_000;
/// Largest number of transactions of a block, which are planned and signed in memory.
const MAX_TRANSACTIONS: u64 = 100_000;
/// Largest gas target: the transactions of a block are planned and signed in memory.
const MAX_GAS_TARGET: u64 = 1_000_000_000;
/// Largest number of receivers. More do not fit on a usual disk.
const MAX_ACCOUNTS: u64 = 1_000_000_000;

/// Largest number of senders: their keys are in memory.
const MAX_SENDERS: u64 = 1_000_000;

/// The parameters of a chain. The chain is a function of its recipe. Two chains of one recipe have
/// the same first blocks, however long they are.
#[derive(Clone, Debug)]
pub struct ChainRecipe {
    /// Seed of keys, addresses, amounts and choices.
    pub seed: u64,
    /// The rules of all blocks.
    pub fork: ChainFork,
    /// How full blocks are, after the set-up of contracts and balances.
    pub fill: BlockFill,
    /// Shares of the kinds of transactions.
    pub mix: TransactionMix,
    /// Number of receivers of ether and tokens, of bank accounts, and of keys in the key-value
    /// store.
    pub accounts: u64,
    /// Distribution of keys and receivers, and shares of reads and inserts in the key-value store.
    pub keys: KeyChoice,
    /// State preloaded in genesis; without it genesis holds the senders and the system contracts.
    pub preload: Option<GenesisPreload>,
}

/// State that exists from genesis on. Then no block sets contracts up, no call is chosen to revert,
/// and each kind of transaction is the papers' workload of this name.
#[derive(Clone, Debug)]
pub struct GenesisPreload {
    /// Number of senders; without a preload there are 256.
    pub senders: u64,
    /// The token contracts, and the pair of two tokens with its router.
    pub contracts: Arc<ContractSet>,
    /// Whether banks and store are empty at first, as in the COLE authors' program. Then calls fill
    /// them.
    pub empty_ledgers: bool,
}

/// Calls of the key-value store in the style of YCSB, and the distribution of receivers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyChoice {
    /// Number of reads among 100 calls; the others write.
    pub reads: u32,
    /// Number of inserts among 100 writes. An insert sets a new key, which is larger than all
    /// others.
    pub inserts: u32,
    /// Skew of keys and receivers: YCSB's constant theta, between 0 and 1; `None` if all are
    /// equally likely.
    pub zipf: Option<f64>,
}

impl Default for ChainRecipe {
    fn default() -> Self {
        Self::BUILT_IN
    }
}

impl ChainRecipe {
    /// The built-in chain of `retrie replay`.
    pub const BUILT_IN: Self = Self {
        seed: 1,
        fork: ChainFork::Prague,
        fill: BlockFill::Transactions(120),
        mix: TransactionMix { transfers: 40, erc20: 30, swaps: 30, ..TransactionMix::NOTHING },
        accounts: 10_000,
        keys: KeyChoice { reads: 50, inserts: 0, zipf: None },
        preload: None,
    };

    /// Gas limit of every block: twice the gas target, and at least mainnet's; what that many of the
    /// largest calls take, if mainnet's target holds no such number of transfers.
    pub(crate) fn gas_limit(&self) -> u64 {
        match self.fill {
            BlockFill::Gas(target) => 2 * target.max(GAS_TARGET),
            BlockFill::Transactions(count) if count > MOST_TRANSFERS => count * MAX_CALL_GAS,
            BlockFill::Transactions(_) => 2 * GAS_TARGET,
        }
    }

    /// # Errors
    /// [`MakeChainError::Recipe`] if a value cannot be used.
    pub fn check(&self) -> Result<(), MakeChainError> {
        let refuse = |what: &str| Err(MakeChainError::Recipe { what: what.into() });
        match self.fill {
            BlockFill::Transactions(0) => return refuse("a block needs one transaction at least"),
            BlockFill::Transactions(count) if count > MAX_TRANSACTIONS => {
                return refuse("a block has 100,000 transactions at most");
            }
            BlockFill::Gas(target) if !(21_000..=MAX_GAS_TARGET).contains(&target) => {
                return refuse("the gas target lies between 21000 and 1 billion");
            }
            BlockFill::Transactions(_) | BlockFill::Gas(_) => {}
        }
        if self.mix.sum() == 0 {
            return refuse("the mix is empty: give one kind of transaction a share");
        }
        if !(1..=MAX_ACCOUNTS).contains(&self.accounts) {
            return refuse("the number of accounts lies between 1 and 1,000,000,000");
        }
        if self.keys.reads > 100 {
            return refuse("at most 100 of 100 calls read");
        }
        if self.keys.inserts > 100 {
            return refuse("at most 100 of 100 writes insert");
        }
        if self.keys.zipf.is_some_and(|theta| !(theta > 0.0 && theta < 1.0)) {
            return refuse(
                "the constant of a Zipf distribution lies between 0 and 1, such as 0.99",
            );
        }
        if self.fork == ChainFork::Amsterdam && self.preload.is_none() {
            return refuse(
                "the set-up of contracts has the gas limits of Prague, and new state costs more in Amsterdam: preload the state",
            );
        }
        if let Some(preload) = &self.preload
            && !(1..=MAX_SENDERS).contains(&preload.senders)
        {
            return refuse("the number of senders lies between 1 and 1,000,000");
        }
        Ok(())
    }
}

/// The fork that is active from genesis on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChainFork {
    /// Prague.
    #[default]
    Prague,
    /// Amsterdam, with all forks before it. Each block has an access list (EIP-7928).
    Amsterdam,
}

/// How full blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFill {
    /// This many transactions, or fewer where they would take more than 30 Mgas. More than 1,428,
    /// which 30 Mgas never hold, are taken whole.
    Transactions(u64),
    /// About this much gas, estimated from the previous block.
    Gas(u64),
}

/// Shares of the kinds of transactions. Their sum is arbitrary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionMix {
    /// Plain transfers of ether.
    pub transfers: u32,
    /// Mostly token transfers; also approvals, `transferFrom` and minting.
    pub erc20: u32,
    /// Mostly swaps on pairs through a router, in both directions; also changes of liquidity.
    pub swaps: u32,
    /// Operations on accounts of ten banks.
    pub smallbank: u32,
    /// Reads and writes of a key-value store.
    pub kvstore: u32,
}

impl Default for TransactionMix {
    fn default() -> Self {
        ChainRecipe::BUILT_IN.mix
    }
}

impl TransactionMix {
    /// No shares. The base for struct updates.
    pub const NOTHING: Self = Self { transfers: 0, erc20: 0, swaps: 0, smallbank: 0, kvstore: 0 };

    /// The shares by name.
    const fn shares(self) -> [(&'static str, u32); 5] {
        [
            ("transfers", self.transfers),
            ("erc20", self.erc20),
            ("swaps", self.swaps),
            ("smallbank", self.smallbank),
            ("kvstore", self.kvstore),
        ]
    }

    /// Whether the mix has plain transfers and nothing else.
    pub(crate) fn transfers_alone(self) -> bool {
        self.transfers > 0 && self.sum() == u64::from(self.transfers)
    }

    pub(crate) fn sum(self) -> u64 {
        self.shares().iter().map(|(_, share)| u64::from(*share)).sum()
    }

    /// Whether the mix needs token contracts.
    pub const fn has_tokens(self) -> bool {
        self.erc20 > 0 || self.swaps > 0
    }

    /// The kind of transaction for a random number `n` below [`sum`](Self::sum).
    pub(crate) fn choose(self, mut n: u64) -> TransactionKind {
        let kinds = [
            TransactionKind::Transfer,
            TransactionKind::Erc20,
            TransactionKind::Swap,
            TransactionKind::SmallBank,
        ];
        for (kind, (_, share)) in kinds.into_iter().zip(self.shares()) {
            match n.checked_sub(share.into()) {
                Some(rest) => n = rest,
                None => return kind,
            }
        }
        TransactionKind::KvStore
    }
}

/// The kind of a transaction: one for each share of the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionKind {
    Transfer,
    Erc20,
    Swap,
    SmallBank,
    KvStore,
}

impl fmt::Display for TransactionMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some = self.shares().into_iter().filter(|(_, share)| *share > 0);
        let some: Vec<_> = some.map(|(name, share)| format!("{name}={share}")).collect();
        f.write_str(&some.join(","))
    }
}

impl FromStr for TransactionMix {
    type Err = String;

    /// Parses `transfers=40,erc20=30,swaps=30`. A kind that is not named has no share.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix = Self::NOTHING;
        for part in text.split(',') {
            let (name, share) = part.split_once('=').ok_or_else(|| {
                format!("`{part}` is not a share such as transfers=40, erc20=30 or swaps=30")
            })?;
            let field = match name.trim() {
                "transfers" => &mut mix.transfers,
                "erc20" => &mut mix.erc20,
                "swaps" => &mut mix.swaps,
                "smallbank" => &mut mix.smallbank,
                "kvstore" => &mut mix.kvstore,
                name => {
                    let known = Self::NOTHING.shares().map(|(name, _)| name).join(", ");
                    return Err(format!("no transactions are called `{name}`; there are {known}"));
                }
            };
            let share = share.trim();
            *field = share.parse().map_err(|_| format!("`{share}` is not a whole number"))?;
        }
        Ok(mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_read_as_it_is_written() {
        assert_eq!(TransactionMix::default().to_string().parse(), Ok(TransactionMix::default()));
        assert_eq!("swaps=1".parse(), Ok(TransactionMix { swaps: 1, ..TransactionMix::NOTHING }));
        let banks =
            TransactionMix { transfers: 2, smallbank: 1, kvstore: 3, ..TransactionMix::NOTHING };
        assert_eq!(banks.to_string(), "transfers=2,smallbank=1,kvstore=3");
        assert_eq!(banks.to_string().parse(), Ok(banks));
        for wrong in ["", "swaps", "swaps=-1", "swap=1", "swaps=1,", "swaps=1.5"] {
            assert!(wrong.parse::<TransactionMix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn kinds_have_their_shares() {
        let mix = TransactionMix { transfers: 2, erc20: 0, swaps: 1, smallbank: 0, kvstore: 3 };
        let kinds: Vec<_> = (0..mix.sum()).map(|n| mix.choose(n)).collect();
        let (t, s, k) =
            (TransactionKind::Transfer, TransactionKind::Swap, TransactionKind::KvStore);
        assert_eq!(kinds, [t, t, s, k, k, k]);
    }

    #[test]
    fn recipe_that_cannot_be_followed_is_refused() {
        let good = ChainRecipe::default;
        good().check().unwrap();
        let preload = |senders| {
            let (contracts, empty_ledgers) = (ContractSet::own().into(), false);
            Some(GenesisPreload { senders, contracts, empty_ledgers })
        };
        ChainRecipe { preload: preload(1), ..good() }.check().unwrap();
        let keys = |reads, inserts, zipf| KeyChoice { reads, inserts, zipf };
        for wrong in [
            ChainRecipe { fill: BlockFill::Transactions(0), ..good() },
            ChainRecipe { fill: BlockFill::Transactions(MAX_TRANSACTIONS + 1), ..good() },
            ChainRecipe { fill: BlockFill::Gas(MAX_GAS_TARGET + 1), ..good() },
            ChainRecipe { fill: BlockFill::Gas(20_999), ..good() },
            ChainRecipe { mix: TransactionMix::NOTHING, ..good() },
            ChainRecipe { accounts: 0, ..good() },
            ChainRecipe { keys: keys(101, 0, None), ..good() },
            ChainRecipe { keys: keys(50, 101, None), ..good() },
            ChainRecipe { keys: keys(50, 0, Some(1.0)), ..good() },
            ChainRecipe { keys: keys(50, 0, Some(f64::NAN)), ..good() },
            ChainRecipe { preload: preload(0), ..good() },
        ] {
            assert!(matches!(wrong.check(), Err(MakeChainError::Recipe { .. })), "{wrong:?}");
        }
    }
}
