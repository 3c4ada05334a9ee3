//! The genesis state of a preloaded chain: what the mix of its recipe needs, and no more.
//!
//! ```text
//!  genesis specification   contracts with code, system contracts; header with the root of all
//!  entries                 the same, senders, receivers, balances in tokens, accounts of banks, keys
//! ```
//!
//! With five million receivers a genesis file has half a gigabyte, so a race bulk-loads the
//! entries. [`write_genesis`](GenesisBase::write_genesis) writes them for other clients: the
//! genesis block is the same, and so is the chain.

use super::{
    ChainRecipe, GenesisPreload, MakeChainError,
    contracts::{KV_STORE, SMALL_BANK},
    genesis::{FUNDS, genesis_with, write_with_alloc},
    ledgers::{BANKS, DEPOSIT, LedgerCalls},
    plan::receiver,
    sign::ChainSender,
};
use crate::random::derive;
use alloy_primitives::{Address, B256, Bytes, Keccak256, U256, keccak256};
use rayon::prelude::*;
use retrie_chainspec::ChainSpec;
use retrie_pipeline::genesis_delta;
use retrie_state::{Account, StateKey, StateValue, encode_slot};
use serde_json::{Map, json};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::Arc,
};

/// Wei that each receiver has.
const RECEIVER_FUNDS: u64 = 1_000_000_000_000_000;
/// Lots of each token that a sender has: more than a sender can spend.
const SENDER_LOTS: u64 = 1_000_000_000;
/// Lots of each token in the pair.
const RESERVE_LOTS: u64 = 100_000;

/// Number of holders of each kind whose entries go into the digest in a name.
const DIGESTED: u64 = 256;

/// The genesis state of a preloaded chain.
#[derive(Clone, Debug)]
pub(crate) struct GenesisBase {
    recipe: ChainRecipe,
    preload: GenesisPreload,
    senders: Vec<Address>,
}

/// A contract in genesis, with its code and slots.
struct GenesisContract {
    address: Address,
    code: Bytes,
    balance: U256,
    slots: Vec<(B256, U256)>,
}

impl GenesisBase {
    /// The genesis state of a recipe; `None` if the recipe has no preload.
    ///
    /// # Errors
    /// [`MakeChainError::Recipe`] if a value of the recipe cannot be used.
    pub(crate) fn of(recipe: &ChainRecipe) -> Result<Option<Self>, MakeChainError> {
        recipe.check()?;
        Ok(recipe.preload.as_ref().map(|preload| {
            let keys = (0..preload.senders).into_par_iter();
            let senders = keys.map(|n| ChainSender::new(recipe.seed, n).address).collect();
            Self::new(recipe.clone(), preload.clone(), senders)
        }))
    }

    pub(crate) fn new(recipe: ChainRecipe, preload: GenesisPreload, senders: Vec<Address>) -> Self {
        Self { recipe, preload, senders }
    }

    /// Addresses of the banks.
    pub(crate) fn banks() -> [Address; BANKS] {
        std::array::from_fn(|bank| Address::from_slice(&derive(0, "bank", bank as u64)[12..]))
    }

    /// Address of the key-value store.
    pub(crate) fn store() -> Address {
        Address::from_slice(&derive(0, "key-value store", 0)[12..])
    }

    /// The slot in which the key-value store keeps key `n`.
    pub(crate) fn store_slot(n: u64) -> StateKey {
        slot_of(Self::store(), U256::from(n).into(), 0)
    }

    /// The chain specification. It lists the contracts alone, so the caller has to set the state
    /// root of the genesis header to the root of all entries.
    pub(crate) fn spec(&self) -> ChainSpec {
        let genesis = genesis_with(&self.recipe, self.alloc());
        ChainSpec::from_genesis_json(&genesis.to_string()).expect("a genesis of our own")
    }

    /// Writes the genesis file with all entries.
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
                let field = |(key, value): &(StateKey, StateValue)| match key {
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
    pub(crate) fn entries(&self) -> Vec<(StateKey, StateValue)> {
        let (delta, _) = genesis_delta(&Arc::new(self.spec()));
        let listed = delta.changes().iter();
        let mut entries: Vec<_> =
            listed.filter_map(|one| Some((one.key, one.next.clone()?))).collect();
        let ChainRecipe { mix, seed, accounts, .. } = self.recipe;
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
                let (bank, deposit) = (banks[LedgerCalls::bank_of(n)], deposit.clone());
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

    /// Adds the token balances of receivers and senders, and the allowances that senders give the
    /// router.
    fn add_balances(&self, receivers: &[Address], entries: &mut Vec<(StateKey, StateValue)>) {
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

    /// Balance of each sender, and of each receiver, of token `n`.
    fn holdings(&self, n: usize) -> (U256, U256) {
        let lot = U256::from(self.preload.contracts.tokens[n].lot);
        (lot * U256::from(SENDER_LOTS), lot / U256::from(1000))
    }

    /// Reserve of the pair of token `n`.
    fn reserve(&self, n: usize) -> U256 {
        let lot = self.preload.contracts.tokens[n].lot;
        match self.recipe.mix.swaps {
            0 => U256::ZERO,
            _ => U256::from(lot) * U256::from(RESERVE_LOTS),
        }
    }

    /// The contracts of the mix, as the `alloc` of a genesis file.
    fn alloc(&self) -> Map<String, serde_json::Value> {
        let alloc = |contract: GenesisContract| {
            let GenesisContract { address, code, balance, slots } = contract;
            let slots = slots.into_iter().filter(|(_, value)| !value.is_zero());
            let field = |(slot, value): (B256, U256)| (slot.to_string(), json!(B256::from(value)));
            let storage: Map<_, _> = slots.map(field).collect();
            let fields =
                json!({ "balance": balance, "nonce": "0x1", "code": code, "storage": storage });
            (address.to_string(), fields)
        };
        self.contracts().into_iter().map(alloc).collect()
    }

    fn contracts(&self) -> Vec<GenesisContract> {
        let ChainRecipe { mix, accounts, .. } = self.recipe;
        let set = &self.preload.contracts;
        let plain = |address, code: &Bytes| {
            let (code, balance, slots) = (code.clone(), U256::ZERO, Vec::new());
            GenesisContract { address, code, balance, slots }
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

    /// A name for the content, valid as a file name. The number at its end is the version of the
    /// rules by which blocks are generated.
    pub(crate) fn name(&self) -> String {
        let ChainRecipe { seed, mix, accounts, .. } = self.recipe;
        let mix = mix.to_string().replace([',', '='], "-");
        let (senders, digest) = (self.senders.len(), &self.digest().to_string()[2..18]);
        let empty = if self.preload.empty_ledgers { "empty-" } else { "" };
        format!("{mix}-{accounts}-accounts-{senders}-senders-seed-{seed}-{empty}{digest}-v1")
    }

    /// A digest of what the entries depend on beside the recipe: rules, system contracts, codes,
    /// reserves, lots, slot numbers, funds. It covers genesis without holders, and the entries of a
    /// base that differs from this one in having few holders only.
    fn digest(&self) -> B256 {
        let mut hasher = Keccak256::new();
        hasher.update(genesis_with(&self.recipe, self.alloc()).to_string());
        let recipe =
            ChainRecipe { accounts: self.recipe.accounts.min(DIGESTED), ..self.recipe.clone() };
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

/// The slot in which Solidity keeps the value of `key` of the mapping at `slot`.
pub(super) fn mapped(key: B256, slot: B256) -> B256 {
    keccak256([key, slot].concat())
}

fn slot_of(contract: Address, key: B256, mapping: u64) -> StateKey {
    StateKey::Slot(contract, mapped(key, word(mapping)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{ContractSet, TransactionMix};
    use std::collections::BTreeSet;

    #[test]
    fn name_changes_with_all_that_entries_depend_on() {
        let name = |change: fn(&mut ContractSet)| {
            let mut contracts = ContractSet::own();
            change(&mut contracts);
            let preload =
                GenesisPreload { senders: 300, contracts: contracts.into(), empty_ledgers: false };
            let recipe = ChainRecipe {
                mix: TransactionMix { erc20: 1, swaps: 1, ..TransactionMix::NOTHING },
                accounts: 1000,
                preload: Some(preload),
                ..ChainRecipe::BUILT_IN
            };
            GenesisBase::of(&recipe).unwrap().unwrap().name()
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
