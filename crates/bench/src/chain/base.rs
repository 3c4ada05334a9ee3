//! The state that a preloaded chain starts from: what the mix of its recipe needs, no more.
//!
//! ```text
//!  genesis specification   contracts with code, system contracts; header with the root of all
//!  entries                 the same, senders, receivers, balances in tokens, accounts of banks, keys
//! ```
//!
//! At five million receivers a genesis file is half a gigabyte, so a race lays the entries down by
//! bulk load. [`write_genesis`](Base::write_genesis) writes them out for other clients: the genesis
//! block, and so the chain, is the same.

use super::{
    MakeChainError, Preload, Recipe,
    contracts::{KV_STORE, SMALL_BANK},
    genesis::{FUNDS, genesis_with, write_with_alloc},
    ledgers::{BANKS, DEPOSIT, Ledgers},
    plan::receiver,
    sign::Sender,
};
use crate::random::derive;
use alloy_primitives::{Address, B256, Bytes, Keccak256, U256, keccak256};
use rayon::prelude::*;
use retrie_chainspec::ChainSpec;
use retrie_pipeline::genesis_delta;
use retrie_state::{Account, StateKey, Value, encode_slot};
use serde_json::{Map, json};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::Arc,
};

/// Wei that each receiver has.
const RECEIVER_FUNDS: u64 = 1_000_000_000_000_000;
/// Lots of each token that a sender has: more than it can spend.
const SENDER_LOTS: u64 = 1_000_000_000;
/// Lots of each token in the pair.
const RESERVE_LOTS: u64 = 100_000;

/// Of how many holders of each kind the entries go into the digest in a name.
const DIGESTED: u64 = 256;

/// What a preloaded chain starts from.
#[derive(Clone, Debug)]
pub struct Base {
    recipe: Recipe,
    preload: Preload,
    senders: Vec<Address>,
}

/// A contract in genesis.
struct Contract {
    address: Address,
    code: Bytes,
    balance: U256,
    slots: Vec<(B256, U256)>,
}

impl Base {
    /// The base of a recipe; `None` if that has no preload.
    ///
    /// # Errors
    /// [`MakeChainError::Recipe`] if the recipe cannot be followed.
    pub fn of(recipe: &Recipe) -> Result<Option<Self>, MakeChainError> {
        recipe.check()?;
        Ok(recipe.preload.as_ref().map(|preload| {
            let keys = (0..preload.senders).into_par_iter();
            let senders = keys.map(|n| Sender::new(recipe.seed, n).address).collect();
            Self::new(recipe.clone(), preload.clone(), senders)
        }))
    }

    pub(crate) fn new(recipe: Recipe, preload: Preload, senders: Vec<Address>) -> Self {
        Self { recipe, preload, senders }
    }

    /// Where the banks stand.
    pub(crate) fn banks() -> [Address; BANKS] {
        std::array::from_fn(|bank| Address::from_slice(&derive(0, "bank", bank as u64)[12..]))
    }

    /// Where the key-value store stands.
    pub(crate) fn store() -> Address {
        Address::from_slice(&derive(0, "key-value store", 0)[12..])
    }

    /// Where the key-value store keeps key `n`.
    pub(crate) fn store_slot(n: u64) -> StateKey {
        slot_of(Self::store(), U256::from(n).into(), 0)
    }

    /// Rules and genesis. The accounts listed are the contracts; the root in the header has to be set
    /// to that of all entries.
    pub fn spec(&self) -> ChainSpec {
        let genesis = genesis_with(&self.recipe, self.alloc());
        ChainSpec::from_genesis_json(&genesis.to_string()).expect("a genesis of our own")
    }

    /// The genesis file with all entries.
    pub(crate) fn write_genesis(&self, out: &mut dyn Write) -> io::Result<()> {
        let spec = self.spec();
        let codes: BTreeMap<_, _> = spec
            .genesis_accounts()
            .filter_map(|(address, account)| Some((*address, account.code.clone()?)))
            .collect();
        let entries = self.entries();
        let first_slot = entries.partition_point(|(key, _)| matches!(key, StateKey::Account(_)));
        let (accounts, mut slots) = entries.split_at(first_slot);
        let genesis = genesis_with(&self.recipe, Map::new());
        write_with_alloc(out, &genesis, |out| {
            for (n, (key, value)) in accounts.iter().enumerate() {
                let address = *key.address();
                let account = Account::decode(value).unwrap_or_default();
                let mut fields = json!({ "balance": account.balance });
                if account.nonce > 0 {
                    fields["nonce"] = json!(format!("{:#x}", account.nonce));
                }
                if let Some(code) = codes.get(&address) {
                    fields["code"] = json!(code);
                }
                let of_it = slots.partition_point(|(key, _)| *key.address() <= address);
                let (own, others) = slots.split_at(of_it);
                slots = others;
                let field = |(key, value): &(StateKey, Value)| match key {
                    StateKey::Slot(_, slot) => {
                        Some((slot.to_string(), json!(B256::left_padding_from(value))))
                    }
                    StateKey::Account(_) => None,
                };
                let storage: Map<_, _> = own.iter().filter_map(field).collect();
                if !storage.is_empty() {
                    fields["storage"] = storage.into();
                }
                let comma = if n == 0 { "" } else { "," };
                write!(out, "{comma}\n    \"{address:?}\": {fields}")?;
            }
            Ok(())
        })
    }

    /// All entries of the state, sorted by key.
    pub fn entries(&self) -> Vec<(StateKey, Value)> {
        let (delta, _) = genesis_delta(&Arc::new(self.spec()));
        let listed = delta.changes().iter();
        let mut entries: Vec<_> =
            listed.filter_map(|one| Some((one.key, one.next.clone()?))).collect();
        let Recipe { mix, seed, accounts, .. } = self.recipe;
        let account = |balance| Account { balance, ..Account::default() }.encode();
        let funds = account(U256::from(FUNDS));
        entries.extend(self.senders.iter().map(|it| (StateKey::Account(*it), funds.clone())));
        if mix.transfers > 0 || mix.has_tokens() {
            let receivers: Vec<_> =
                (0..accounts).into_par_iter().map(|n| receiver(seed, n)).collect();
            let funds = account(U256::from(RECEIVER_FUNDS));
            let keys = receivers.par_iter().map(|it| StateKey::Account(*it));
            entries.par_extend(keys.map(|key| (key, funds.clone())));
            self.add_balances(&receivers, &mut entries);
        }
        let filled = !self.preload.empty_ledgers;
        if mix.smallbank > 0 && filled {
            let deposit = encode_slot(U256::from(DEPOSIT)).unwrap_or_default();
            let banks = Self::banks();
            entries.par_extend((0..accounts).into_par_iter().flat_map_iter(|n| {
                let (bank, deposit) = (banks[Ledgers::bank_of(n)], deposit.clone());
                [0, 1]
                    .map(|mapping| (slot_of(bank, U256::from(n).into(), mapping), deposit.clone()))
            }));
        }
        if mix.kvstore > 0 && filled {
            entries.par_extend((0..accounts).into_par_iter().map(|n| {
                let value = derive(seed, "value", n).into();
                (Self::store_slot(n), encode_slot(value).unwrap_or_default())
            }));
        }
        entries.par_sort_unstable_by_key(|(key, _)| *key);
        entries.dedup_by_key(|(key, _)| *key);
        entries
    }

    /// Balances of receivers and senders, and what senders allow the router.
    fn add_balances(&self, receivers: &[Address], entries: &mut Vec<(StateKey, Value)>) {
        let set = &self.preload.contracts;
        for (n, token) in set.tokens.iter().enumerate() {
            if !self.has_token(n) {
                continue;
            }
            let (sender, receiver) = self.holdings(n);
            let at = token.at.address;
            for (holders, amount) in [(&self.senders[..], sender), (receivers, receiver)] {
                let amount = encode_slot(amount).unwrap_or_default();
                let slots = holders.par_iter();
                let slots = slots.map(|it| slot_of(at, it.into_word(), token.balances));
                entries.par_extend(slots.map(|slot| (slot, amount.clone())));
            }
            if self.recipe.mix.swaps > 0 {
                let all = encode_slot(U256::MAX).unwrap_or_default();
                let spender = set.router.address.into_word();
                entries.par_extend(self.senders.par_iter().map(|owner| {
                    let inner = mapped(owner.into_word(), U256::from(token.allowances).into());
                    (StateKey::Slot(at, mapped(spender, inner)), all.clone())
                }));
            }
        }
    }

    /// Whether the mix calls token `n`.
    fn has_token(&self, n: usize) -> bool {
        self.recipe.mix.swaps > 0 || n == 1 && self.recipe.mix.erc20 > 0
    }

    /// What each sender and each receiver has of token `n`.
    fn holdings(&self, n: usize) -> (U256, U256) {
        let lot = U256::from(self.preload.contracts.tokens[n].lot);
        (lot * U256::from(SENDER_LOTS), lot / U256::from(1000))
    }

    /// What the pair has of token `n`.
    fn reserve(&self, n: usize) -> U256 {
        let lot = self.preload.contracts.tokens[n].lot;
        match self.recipe.mix.swaps {
            0 => U256::ZERO,
            _ => U256::from(lot) * U256::from(RESERVE_LOTS),
        }
    }

    /// The contracts of the mix, as the allocation of a genesis file.
    fn alloc(&self) -> Map<String, serde_json::Value> {
        let alloc = |contract: Contract| {
            let Contract { address, code, balance, slots } = contract;
            let slots = slots.into_iter().filter(|(_, value)| !value.is_zero());
            let field = |(slot, value): (B256, U256)| (slot.to_string(), json!(B256::from(value)));
            let storage: Map<_, _> = slots.map(field).collect();
            let fields =
                json!({ "balance": balance, "nonce": "0x1", "code": code, "storage": storage });
            (address.to_string(), fields)
        };
        self.contracts().into_iter().map(alloc).collect()
    }

    fn contracts(&self) -> Vec<Contract> {
        let Recipe { mix, accounts, .. } = self.recipe;
        let set = &self.preload.contracts;
        let plain = |address, code: &Bytes| {
            let (code, balance, slots) = (code.clone(), U256::ZERO, Vec::new());
            Contract { address, code, balance, slots }
        };
        let mut contracts = Vec::new();
        for (n, token) in set.tokens.iter().enumerate().filter(|(n, _)| self.has_token(*n)) {
            let mut contract = plain(token.at.address, &token.at.code);
            let (sender, receiver) = self.holdings(n);
            let [senders, receivers] = [self.senders.len() as u64, accounts].map(U256::from);
            let total = sender * senders + receiver * receivers + self.reserve(n);
            match token.supply {
                Some(slot) => contract.slots.push((word(slot), total)),
                None => contract.balance = total,
            }
            if mix.swaps > 0 {
                let of_pair = mapped(set.pair.address.into_word(), word(token.balances));
                contract.slots.push((of_pair, self.reserve(n)));
            }
            contracts.push(contract);
        }
        if mix.swaps > 0 {
            let tokens = [0, 1].map(|n: usize| set.tokens[n].at.address);
            let reserves = [0, 1].map(|n| self.reserve(n));
            let mut pair = plain(set.pair.address, &set.pair.code);
            let slots = (set.pair_slots)(tokens, reserves);
            pair.slots.extend(slots.into_iter().map(|(slot, value)| (word(slot), value)));
            contracts.push(pair);
            contracts.push(plain(set.router.address, &set.router.code));
        }
        if mix.smallbank > 0 {
            let code = SMALL_BANK.deployed(&[]);
            contracts.extend(Self::banks().map(|bank| plain(bank, &code)));
        }
        if mix.kvstore > 0 {
            contracts.push(plain(Self::store(), &KV_STORE.deployed(&[])));
        }
        contracts
    }

    /// A name for what it holds, fit for a file name. The number at its end is the version of the
    /// rules by which blocks are made.
    pub fn name(&self) -> String {
        let Recipe { seed, mix, accounts, .. } = self.recipe;
        let mix = mix.to_string().replace([',', '='], "-");
        let (senders, digest) = (self.senders.len(), &self.digest().to_string()[2..18]);
        let empty = if self.preload.empty_ledgers { "empty-" } else { "" };
        format!("{mix}-{accounts}-accounts-{senders}-senders-seed-{seed}-{empty}{digest}-v1")
    }

    /// A digest of what the entries depend on beside the recipe: rules, system contracts, codes,
    /// reserves, lots, numbers of slots, funds. It is over genesis without holders, and the entries
    /// of a base like this one with few of them.
    fn digest(&self) -> B256 {
        let mut hasher = Keccak256::new();
        hasher.update(genesis_with(&self.recipe, self.alloc()).to_string());
        let recipe = Recipe { accounts: self.recipe.accounts.min(DIGESTED), ..self.recipe.clone() };
        let senders = self.senders.iter().copied().take(DIGESTED as usize).collect();
        for (key, value) in Self::new(recipe, self.preload.clone(), senders).entries() {
            hasher.update(key.address());
            if let StateKey::Slot(_, slot) = key {
                hasher.update(slot);
            }
            hasher.update(&value);
        }
        hasher.finalize()
    }
}

pub(super) fn word(n: u64) -> B256 {
    U256::from(n).into()
}

/// Where Solidity keeps the value of `key` of the mapping at `slot`.
pub(super) fn mapped(key: B256, slot: B256) -> B256 {
    keccak256([key, slot].concat())
}

fn slot_of(contract: Address, key: B256, mapping: u64) -> StateKey {
    StateKey::Slot(contract, mapped(key, word(mapping)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{ContractSet, Mix};
    use std::collections::BTreeSet;

    #[test]
    fn name_changes_with_all_that_entries_depend_on() {
        let name = |change: fn(&mut ContractSet)| {
            let mut contracts = ContractSet::own();
            change(&mut contracts);
            let preload =
                Preload { senders: 300, contracts: contracts.into(), empty_ledgers: false };
            let recipe = Recipe {
                mix: Mix { erc20: 1, swaps: 1, ..Mix::NOTHING },
                accounts: 1000,
                preload: Some(preload),
                ..Recipe::BUILT_IN
            };
            Base::of(&recipe).unwrap().unwrap().name()
        };
        assert_eq!(name(|_| {}), name(|_| {}));
        let changes: [fn(&mut ContractSet); 7] = [
            |_| {},
            |set| set.tokens[0].lot += 1000,
            |set| set.tokens[1].balances += 1,
            |set| set.tokens[1].allowances += 10,
            |set| set.tokens[1].supply = None,
            |set| set.pair_slots = |_, [reserve, _]| vec![(3, reserve)],
            |set| set.router.code = Bytes::from_static(&[0]),
        ];
        let names: BTreeSet<_> = changes.into_iter().map(name).collect();
        assert_eq!(names.len(), changes.len(), "{names:?}");
    }
}
