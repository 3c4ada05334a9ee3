//! What a made chain shall be.

use super::{ContractSet, MakeChainError};
use std::{fmt, str::FromStr, sync::Arc};

/// Gas that blocks aim at: half of their limit, at which the base fee stays as it is. That of mainnet
/// in 2026, unless a recipe wants more.
pub const GAS_TARGET: u64 = 30_000_000;
/// Gas that blocks aim at, at most: their transactions are planned and signed in memory.
pub const MAX_GAS_TARGET: u64 = 1_000_000_000;
/// Accounts that receive, at most: beyond, nobody has the disk.
const MAX_ACCOUNTS: u64 = 1_000_000_000;

/// Senders, at most: their keys are held in memory.
const MAX_SENDERS: u64 = 1_000_000;

/// A made chain is a function of its recipe. Two chains of one recipe share their first blocks,
/// however long they are.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Whence keys, addresses, amounts and choices come.
    pub seed: u64,
    /// How full blocks are, once contracts and balances are in place.
    pub fill: Fill,
    /// What transactions do.
    pub mix: Mix,
    /// Number of accounts that ether and tokens are sent to, of accounts in banks, and of keys in the
    /// key-value store.
    pub accounts: u64,
    /// Which keys the calls of the key-value store take, and what they do with them; which accounts
    /// receive.
    pub keys: KeyChoice,
    /// What genesis holds; without it, little more than the senders.
    pub preload: Option<Preload>,
}

/// A state that is there from genesis on. No block sets anything up then, no call is chosen to
/// revert, and each kind of transaction does one thing: that of the papers' workload of this name.
#[derive(Clone, Debug)]
pub struct Preload {
    /// Number of accounts that sign; without a preload there are 256.
    pub senders: u64,
    /// The token, and the market of two tokens with its router.
    pub contracts: Arc<ContractSet>,
    /// Banks and store are empty at first, as in the COLE authors' program: calls fill them.
    pub empty_ledgers: bool,
}

/// Calls of the key-value store, as YCSB has them, and who receives ether and tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyChoice {
    /// How many of 100 calls read; the others write.
    pub reads: u32,
    /// How many of 100 writes set a key that nobody has set before, above all others.
    pub inserts: u32,
    /// Skew of the keys, and of the receivers: YCSB's constant theta, between 0 and 1; `None` if all
    /// are equally likely.
    pub zipf: Option<f64>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self::BUILT_IN
    }
}

impl Recipe {
    /// The built-in chain of `retrie replay`.
    pub const BUILT_IN: Self = Self {
        seed: 1,
        fill: Fill::Transactions(120),
        mix: Mix { transfers: 40, erc20: 30, swaps: 30, ..Mix::NOTHING },
        accounts: 10_000,
        keys: KeyChoice { reads: 50, inserts: 0, zipf: None },
        preload: None,
    };

    /// Gas limit of every block: twice what blocks aim at, and never below mainnet's.
    pub fn gas_limit(&self) -> u64 {
        let target = match self.fill {
            Fill::Gas(target) => target.max(GAS_TARGET),
            Fill::Transactions(_) => GAS_TARGET,
        };
        2 * target
    }

    /// # Errors
    /// [`MakeChainError::Recipe`] if it cannot be followed.
    pub fn check(&self) -> Result<(), MakeChainError> {
        let refuse = |what: &str| Err(MakeChainError::Recipe { what: what.into() });
        match self.fill {
            Fill::Transactions(0) => return refuse("a block needs one transaction at least"),
            Fill::Gas(target) if !(21_000..=MAX_GAS_TARGET).contains(&target) => {
                return refuse("the gas target lies between 21000 and 1 billion");
            }
            Fill::Transactions(_) | Fill::Gas(_) => {}
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
        if let Some(preload) = &self.preload
            && !(1..=MAX_SENDERS).contains(&preload.senders)
        {
            return refuse("the number of senders lies between 1 and 1,000,000");
        }
        Ok(())
    }
}

/// How full blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// This many transactions, or fewer where they would take more than [`GAS_TARGET`].
    Transactions(u64),
    /// About this much gas, going by what the block before used.
    Gas(u64),
}

/// Shares of the kinds of transactions, of any sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Plain transfers of ether.
    pub transfers: u32,
    /// Token transfers, for the most part; approvals, `transferFrom`, minting.
    pub erc20: u32,
    /// Swaps on pairs through a router, in both directions, for the most part; liquidity.
    pub swaps: u32,
    /// Operations on accounts of ten banks.
    pub smallbank: u32,
    /// Reads and writes of a key-value store.
    pub kvstore: u32,
}

impl Default for Mix {
    fn default() -> Self {
        Recipe::BUILT_IN.mix
    }
}

impl Mix {
    /// No shares, to be given some.
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

    pub(crate) fn sum(self) -> u64 {
        self.shares().iter().map(|(_, share)| u64::from(*share)).sum()
    }

    /// Whether tokens and pairs are needed.
    pub const fn has_tokens(self) -> bool {
        self.erc20 > 0 || self.swaps > 0
    }

    /// The kind of the transaction that a number below [`sum`](Self::sum) chooses.
    pub(crate) fn choose(self, mut n: u64) -> Kind {
        let kinds = [Kind::Transfer, Kind::Erc20, Kind::Swap, Kind::SmallBank];
        for (kind, (_, share)) in kinds.into_iter().zip(self.shares()) {
            match n.checked_sub(share.into()) {
                Some(rest) => n = rest,
                None => return kind,
            }
        }
        Kind::KvStore
    }
}

/// What a transaction does, by the share of the mix that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Transfer,
    Erc20,
    Swap,
    SmallBank,
    KvStore,
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some = self.shares().into_iter().filter(|(_, share)| *share > 0);
        let some: Vec<_> = some.map(|(name, share)| format!("{name}={share}")).collect();
        f.write_str(&some.join(","))
    }
}

impl FromStr for Mix {
    type Err = String;

    /// `transfers=40,erc20=30,swaps=30`; what is not named has no share.
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
        assert_eq!(Mix::default().to_string().parse(), Ok(Mix::default()));
        assert_eq!("swaps=1".parse(), Ok(Mix { swaps: 1, ..Mix::NOTHING }));
        let banks = Mix { transfers: 2, smallbank: 1, kvstore: 3, ..Mix::NOTHING };
        assert_eq!(banks.to_string(), "transfers=2,smallbank=1,kvstore=3");
        assert_eq!(banks.to_string().parse(), Ok(banks));
        for wrong in ["", "swaps", "swaps=-1", "swap=1", "swaps=1,", "swaps=1.5"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn kinds_have_their_shares() {
        let mix = Mix { transfers: 2, erc20: 0, swaps: 1, smallbank: 0, kvstore: 3 };
        let kinds: Vec<_> = (0..mix.sum()).map(|n| mix.choose(n)).collect();
        let (t, s, k) = (Kind::Transfer, Kind::Swap, Kind::KvStore);
        assert_eq!(kinds, [t, t, s, k, k, k]);
    }

    #[test]
    fn recipe_that_cannot_be_followed_is_refused() {
        let good = Recipe::default;
        good().check().unwrap();
        let preload = |senders| {
            let (contracts, empty_ledgers) = (ContractSet::own().into(), false);
            Some(Preload { senders, contracts, empty_ledgers })
        };
        Recipe { preload: preload(1), ..good() }.check().unwrap();
        let keys = |reads, inserts, zipf| KeyChoice { reads, inserts, zipf };
        for wrong in [
            Recipe { fill: Fill::Transactions(0), ..good() },
            Recipe { fill: Fill::Gas(MAX_GAS_TARGET + 1), ..good() },
            Recipe { fill: Fill::Gas(20_999), ..good() },
            Recipe { mix: Mix::NOTHING, ..good() },
            Recipe { accounts: 0, ..good() },
            Recipe { keys: keys(101, 0, None), ..good() },
            Recipe { keys: keys(50, 101, None), ..good() },
            Recipe { keys: keys(50, 0, Some(1.0)), ..good() },
            Recipe { keys: keys(50, 0, Some(f64::NAN)), ..good() },
            Recipe { preload: preload(0), ..good() },
        ] {
            assert!(matches!(wrong.check(), Err(MakeChainError::Recipe { .. })), "{wrong:?}");
        }
    }
}
