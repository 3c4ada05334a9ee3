//! What a made chain shall be.

use super::MakeChainError;
use std::{fmt, str::FromStr};

/// Gas that blocks aim at, at most: half of their limit, at which the base fee stays as it is.
pub const MAX_GAS_TARGET: u64 = 30_000_000;
/// Accounts that receive, at most: beyond, nobody has the disk.
const MAX_ACCOUNTS: u64 = 1_000_000_000;

/// A made chain is a function of its recipe. Two chains of one recipe share their first blocks,
/// however long they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Whence keys, addresses, amounts and choices come.
    pub seed: u64,
    /// How full blocks are, once contracts and balances are in place.
    pub fill: Fill,
    /// What transactions do.
    pub mix: Mix,
    /// Number of accounts that ether and tokens are sent to.
    pub accounts: u64,
}

impl Default for Recipe {
    /// The built-in chain of `retrie replay`.
    fn default() -> Self {
        Self { seed: 1, fill: Fill::Transactions(120), mix: Mix::default(), accounts: 10_000 }
    }
}

impl Recipe {
    /// # Errors
    /// [`MakeChainError::Recipe`] if it cannot be followed.
    pub fn check(&self) -> Result<(), MakeChainError> {
        let refuse = |what: &str| Err(MakeChainError::Recipe { what: what.into() });
        match self.fill {
            Fill::Transactions(0) => return refuse("a block needs one transaction at least"),
            Fill::Gas(target) if !(21_000..=MAX_GAS_TARGET).contains(&target) => {
                return refuse("the gas target lies between 21000 and 30 million");
            }
            Fill::Transactions(_) | Fill::Gas(_) => {}
        }
        if self.mix.sum() == 0 {
            return refuse("the mix is empty: give one kind of transaction a share");
        }
        if !(1..=MAX_ACCOUNTS).contains(&self.accounts) {
            return refuse("the number of accounts lies between 1 and 1,000,000,000");
        }
        Ok(())
    }
}

/// How full blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// This many transactions, or fewer where they would take more than [`MAX_GAS_TARGET`].
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
}

impl Default for Mix {
    fn default() -> Self {
        Self { transfers: 40, erc20: 30, swaps: 30 }
    }
}

impl Mix {
    pub(crate) const fn sum(self) -> u64 {
        self.transfers as u64 + self.erc20 as u64 + self.swaps as u64
    }

    /// Whether contracts are needed.
    pub(crate) const fn has_calls(self) -> bool {
        self.erc20 > 0 || self.swaps > 0
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transfers={},erc20={},swaps={}", self.transfers, self.erc20, self.swaps)
    }
}

impl FromStr for Mix {
    type Err = String;

    /// `transfers=40,erc20=30,swaps=30`; what is not named has no share.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix = Self { transfers: 0, erc20: 0, swaps: 0 };
        for part in text.split(',') {
            let (name, share) = part.split_once('=').ok_or_else(|| {
                format!("`{part}` is not a share such as transfers=40, erc20=30 or swaps=30")
            })?;
            let field = match name.trim() {
                "transfers" => &mut mix.transfers,
                "erc20" => &mut mix.erc20,
                "swaps" => &mut mix.swaps,
                name => {
                    return Err(format!(
                        "no transactions are called `{name}`; there are transfers, erc20, swaps"
                    ));
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
        assert_eq!("swaps=1".parse(), Ok(Mix { transfers: 0, erc20: 0, swaps: 1 }));
        for wrong in ["", "swaps", "swaps=-1", "swap=1", "swaps=1,", "swaps=1.5"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn recipe_that_cannot_be_followed_is_refused() {
        let good = Recipe::default();
        good.check().unwrap();
        let nothing = Mix { transfers: 0, erc20: 0, swaps: 0 };
        for wrong in [
            Recipe { fill: Fill::Transactions(0), ..good },
            Recipe { fill: Fill::Gas(MAX_GAS_TARGET + 1), ..good },
            Recipe { fill: Fill::Gas(20_999), ..good },
            Recipe { mix: nothing, ..good },
            Recipe { accounts: 0, ..good },
        ] {
            assert!(matches!(wrong.check(), Err(MakeChainError::Recipe { .. })), "{wrong:?}");
        }
    }
}
