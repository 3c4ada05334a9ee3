//! [`PoolSender`]: the transactions of one sender, and the readiness of each.

use crate::pool::{PoolConflictError, PoolTransaction, SenderError, rules::PoolRules};
use alloy_consensus::Transaction as _;
use alloy_eips::eip7702::constants::EIP7702_DELEGATION_DESIGNATOR;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256};
use retrie_state::{Account, StateError};
use std::{collections::BTreeMap, sync::Arc, time::Instant};

/// Reads the state of one head.
pub trait HeadState {
    /// Sequence number of the head since the start of the process: a later head has a larger one,
    /// independent of its block number.
    fn sequence(&self) -> u64;
    /// The account at `address`, `None` if there is none.
    fn account(&self, address: Address) -> Result<Option<Account>, StateError>;
    /// The code with this keccak-256, `None` if it is not stored.
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError>;
}

impl<T: HeadState + ?Sized> HeadState for &T {
    fn sequence(&self) -> u64 {
        (**self).sequence()
    }

    fn account(&self, address: Address) -> Result<Option<Account>, StateError> {
        (**self).account(address)
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        (**self).code(hash)
    }
}

/// Gives the state of the present head.
pub trait HeadStateProvider {
    /// The state of the present head. The head may have changed when the state is used.
    ///
    /// # Errors
    /// If the state cannot be read.
    fn latest(&self) -> Result<Box<dyn HeadState + '_>, StateError>;
}

/// The parts of a sender's account that the pool needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SenderAccount {
    /// Next nonce in the state.
    pub(super) nonce: u64,
    /// Balance in wei.
    pub(super) balance: U256,
    /// Whether its code is a delegation (EIP-7702).
    pub(super) is_delegated: bool,
    /// Code hash if the code is no delegation: such an account may not send (EIP-3607).
    pub(super) contract: Option<B256>,
    /// Sequence number of the head it was read from; see [`HeadState::sequence`].
    pub(super) sequence: u64,
}

/// Length of a delegation in bytes: designator and address.
const DELEGATION_LEN: usize = 3 + 20;

impl SenderAccount {
    pub(super) fn read(state: &dyn HeadState, address: Address) -> Result<Self, StateError> {
        let sequence = state.sequence();
        let Some(Account { nonce, balance, code_hash }) = state.account(address)? else {
            return Ok(Self { sequence, ..Self::default() });
        };
        let mut account = Self { nonce, balance, sequence, ..Self::default() };
        if code_hash != KECCAK256_EMPTY {
            let code = state.code(&code_hash)?.ok_or_else(|| {
                StateError::corrupt("codes", format!("code {code_hash} of {address} is missing"))
            })?;
            account.is_delegated =
                code.starts_with(&EIP7702_DELEGATION_DESIGNATOR) && code.len() == DELEGATION_LEN;
            account.contract = (!account.is_delegated).then_some(code_hash);
        }
        Ok(account)
    }

    /// Checks that the account can send a transaction; one that `may_wait` need not have the funds
    /// yet.
    pub(super) fn check(&self, tx: &PoolTransaction, may_wait: bool) -> Result<(), SenderError> {
        if let Some(code_hash) = self.contract
            && !tx.is_unsigned
        {
            return Err(SenderError::NotEoa { address: tx.sender(), code_hash });
        }
        if tx.nonce() < self.nonce {
            return Err(SenderError::NonceTooLow { next: self.nonce, got: tx.nonce() });
        }
        if tx.cost() > self.balance && !may_wait {
            return Err(SenderError::InsufficientFunds { balance: self.balance, cost: tx.cost() });
        }
        Ok(())
    }
}

/// How far a transaction is from being executed; the best first. It never improves along the nonces
/// of a sender, since each transaction waits for all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TxReadiness {
    /// The next block can include it.
    Executable,
    /// It, or a transaction before it, pays less than the fees of the next block.
    Priced,
    /// The balance does not cover it and all transactions before it, or one of them has a gas limit
    /// above the next block's.
    Blocked,
    /// A nonce before it is missing.
    Gapped,
}

/// A pooled transaction with its readiness.
#[derive(Debug)]
pub(super) struct PoolSlot {
    pub(super) tx: Arc<PoolTransaction>,
    /// Arrival number.
    pub(super) id: u64,
    /// `None` until it is computed.
    pub(super) readiness: Option<TxReadiness>,
    /// Cost of this transaction and all before it, in wei; zero if gapped.
    pub(super) spent: U256,
    /// When it began to wait for a nonce or funds.
    pub(super) waits_since: Option<Instant>,
    /// Whether it was announced to subscribers.
    pub(super) is_announced: bool,
}

impl PoolSlot {
    pub(super) const fn new(tx: Arc<PoolTransaction>, id: u64) -> Self {
        Self { tx, id, readiness: None, spent: U256::ZERO, waits_since: None, is_announced: false }
    }
}

/// A sender with its transactions in the pool.
#[derive(Debug)]
pub(super) struct PoolSender {
    pub(super) account: SenderAccount,
    /// By nonce; no nonce is below the account's.
    pub(super) slots: BTreeMap<u64, PoolSlot>,
}

impl PoolSender {
    pub(super) const fn new(account: SenderAccount) -> Self {
        Self { account, slots: BTreeMap::new() }
    }

    /// The first nonce, from the account's on, without a pooled transaction.
    pub(super) fn next_nonce(&self) -> u64 {
        let ready =
            self.slots.values().take_while(|slot| slot.readiness < Some(TxReadiness::Gapped));
        self.account.nonce + ready.count() as u64
    }

    /// Whether its transactions have blobs.
    pub(super) fn has_blobs(&self) -> bool {
        self.slots.first_key_value().is_some_and(|(_, slot)| slot.tx.is_blob())
    }

    /// Cost in wei of all its transactions except the one with this nonce.
    pub(super) fn cost_without(&self, nonce: u64) -> U256 {
        let others = self.slots.iter().filter(|(other, _)| **other != nonce);
        others.fold(U256::ZERO, |sum, (_, slot)| sum.saturating_add(slot.tx.cost()))
    }

    /// Starts a walk along the nonces at `from`.
    pub(super) fn walk(&self, from: u64) -> NonceWalk {
        let balance = self.account.balance;
        let before = self.slots.range(..from).next_back();
        before.map_or(
            NonceWalk {
                expected: self.account.nonce,
                balance,
                spent: U256::ZERO,
                readiness: TxReadiness::Executable,
            },
            |(nonce, slot)| NonceWalk {
                // No pooled transaction has the largest nonce, so this does not overflow.
                expected: nonce + 1,
                balance,
                spent: slot.spent,
                readiness: slot.readiness.unwrap_or(TxReadiness::Gapped),
            },
        )
    }
}

/// A walk along the transactions of a sender, in the order of their nonces.
#[derive(Clone, Copy, Debug)]
pub(super) struct NonceWalk {
    expected: u64,
    balance: U256,
    spent: U256,
    readiness: TxReadiness,
}

impl NonceWalk {
    /// Moves to the next transaction: returns its readiness, and the cost up to it.
    pub(super) fn step(&mut self, tx: &PoolTransaction, rules: &PoolRules) -> (TxReadiness, U256) {
        if tx.nonce() != self.expected {
            self.readiness = TxReadiness::Gapped;
        }
        if self.readiness == TxReadiness::Gapped {
            return (TxReadiness::Gapped, U256::ZERO);
        }
        self.expected += 1;
        self.spent = self.spent.saturating_add(tx.cost());
        let own = if self.spent > self.balance || !rules.fits_block(tx) {
            TxReadiness::Blocked
        } else if rules.pays_fees(tx) {
            TxReadiness::Executable
        } else {
            TxReadiness::Priced
        };
        self.readiness = self.readiness.max(own);
        (self.readiness, self.spent)
    }
}

/// Checks that a transaction may replace one of the same nonce: every fee must be higher by `bump`
/// percent, rounded up, and the maximum fee per gas must be strictly higher.
pub(super) fn check_replacement(
    old: &PoolTransaction,
    new: &PoolTransaction,
    bump: u128,
) -> Result<(), PoolConflictError> {
    let is_enough = |old: u128, new: u128| {
        let needed = U256::from(old) * U256::from(bump.saturating_add(100));
        U256::from(new) * U256::from(100) >= needed
    };
    let blob_fee = |tx: &PoolTransaction| tx.transaction.max_fee_per_blob_gas().unwrap_or_default();
    let (old_fee, new_fee) = (old.transaction.max_fee_per_gas(), new.transaction.max_fee_per_gas());
    let (old_tip, new_tip) =
        (old.transaction.priority_fee_or_price(), new.transaction.priority_fee_or_price());
    let replaces = new_fee > old_fee
        && is_enough(old_fee, new_fee)
        && is_enough(old_tip, new_tip)
        && is_enough(blob_fee(old), blob_fee(new));
    if replaces { Ok(()) } else { Err(PoolConflictError::ReplacementUnderpriced) }
}
