//! Calls on a preloaded state. Each kind of transaction does one thing, and no call reverts.

use super::{
    ChainFork, ChainRecipe, ContractSet, GenesisPreload,
    base::GenesisBase,
    contracts::{IExchange, IToken},
    ledgers::LedgerCalls,
    plan::{AMSTERDAM_CALL_GAS, LEDGER_GAS, PlannedCall, call, receiver},
    recipe::{TransactionKind, TransactionMix},
    sign::EnvelopeKind,
};
use crate::random::{SplitMix64, ZipfDistribution};
use alloy_primitives::{Address, Bytes, U256};
use alloy_sol_types::SolCall;
use std::sync::Arc;

/// Largest value of a transfer, in wei.
const MAX_VALUE: u64 = 1_000_000_000_000_000;
/// Gas limits. They cover the first write of a slot.
const TOKEN_GAS: u64 = 100_000;
const SWAP_GAS: u64 = 250_000;

/// Chooses the calls of a chain with a preload.
#[derive(Clone, Debug)]
pub(crate) struct PreloadPlanner {
    mix: TransactionMix,
    seed: u64,
    accounts: u64,
    random: SplitMix64,
    senders: Vec<Address>,
    contracts: Arc<ContractSet>,
    ledgers: LedgerCalls,
    /// Least gas limit of a call of a contract.
    least_gas: u64,
    /// Distribution of the receivers; `None` if all are equally likely.
    zipf: Option<ZipfDistribution>,
}

impl PreloadPlanner {
    pub(crate) fn new(
        recipe: &ChainRecipe,
        preload: &GenesisPreload,
        senders: Vec<Address>,
    ) -> Self {
        let ChainRecipe { mix, seed, accounts, keys, fork, .. } = *recipe;
        let least_gas = match fork {
            ChainFork::Prague => 0,
            ChainFork::Amsterdam => AMSTERDAM_CALL_GAS,
        };
        Self {
            mix,
            seed,
            accounts,
            random: SplitMix64::new(seed),
            senders,
            contracts: preload.contracts.clone(),
            ledgers: LedgerCalls::new(GenesisBase::banks(), GenesisBase::store(), accounts, keys),
            least_gas,
            zipf: keys.zipf.map(|theta| ZipfDistribution::new(accounts, theta)),
        }
    }

    /// Continues with the calls that `seed` gives.
    pub(crate) const fn reseed(&mut self, seed: u64) {
        self.random = SplitMix64::new(seed);
    }

    /// The next call.
    pub(crate) fn next(&mut self) -> PlannedCall {
        let from = self.random.index(&self.senders);
        let call = match self.mix.choose(self.random.below(self.mix.sum())) {
            TransactionKind::Transfer => {
                let value = U256::from(1 + self.random.below(MAX_VALUE));
                PlannedCall { value, ..call(from, self.receiver(), Bytes::new(), 21_000) }
            }
            TransactionKind::Erc20 => {
                let token = &self.contracts.tokens[1];
                let value = U256::from(1 + self.random.below(token.lot));
                let (at, to) = (token.at.address, self.receiver());
                call(from, at, IToken::transferCall { to, value }.abi_encode(), TOKEN_GAS)
            }
            TransactionKind::Swap => self.swap(from),
            TransactionKind::SmallBank => {
                let (bank, input) = self.ledgers.bank(&mut self.random);
                call(from, bank, input, LEDGER_GAS)
            }
            TransactionKind::KvStore => {
                let (store, input) = self.ledgers.store(&mut self.random);
                call(from, store, input, LEDGER_GAS)
            }
        };
        let gas_limit = match call.input.is_empty() {
            true => call.gas_limit,
            false => call.gas_limit.max(self.least_gas),
        };
        PlannedCall { kind: EnvelopeKind::any(&mut self.random), gas_limit, ..call }
    }

    /// One of the router's two functions, in one of two directions.
    fn swap(&mut self, from: usize) -> PlannedCall {
        let (is_exact_in, paid) = (self.random.below(2) == 0, self.random.below(2) as usize);
        let [token_in, token_out] =
            [&self.contracts.tokens[paid], &self.contracts.tokens[1 - paid]];
        let path = vec![token_in.at.address, token_out.at.address];
        let (to, deadline) = (self.senders[from], U256::MAX);
        let lot = if is_exact_in { token_in.lot } else { token_out.lot };
        // At least a thousandth of a lot, so that neither amount of the swap is rounded to zero.
        let amount = U256::from(lot / 1000 + self.random.below(lot));
        let input = if is_exact_in {
            IExchange::swapExactTokensForTokensCall {
                amountIn: amount,
                amountOutMin: U256::ONE,
                path,
                to,
                deadline,
            }
            .abi_encode()
        } else {
            IExchange::swapTokensForExactTokensCall {
                amountOut: amount,
                amountInMax: U256::MAX,
                path,
                to,
                deadline,
            }
            .abi_encode()
        };
        call(from, self.contracts.router.address, input, SWAP_GAS)
    }

    fn receiver(&mut self) -> Address {
        let n = match &self.zipf {
            None => self.random.below(self.accounts),
            Some(zipf) => zipf.next(&mut self.random),
        };
        receiver(self.seed, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{
        BlockFill, ChainFork, ChainMaker, KeyChoice,
        base::{mapped, word},
        contract_set::TokenContract,
        contracts::{IKVStore, ISmallBank},
    };
    use alloy_consensus::Transaction as _;
    use alloy_primitives::keccak256;
    use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
    use retrie_state::StateReader;
    use retrie_storage_mpt::Mpt;
    use std::collections::{BTreeMap, BTreeSet};

    const SIGNERS: u64 = 30;
    const ACCOUNTS: u64 = 50;

    fn recipe(mix: TransactionMix, contracts: &Arc<ContractSet>) -> ChainRecipe {
        ChainRecipe {
            fork: ChainFork::Prague,
            seed: 5,
            fill: BlockFill::Transactions(40),
            mix,
            accounts: ACCOUNTS,
            keys: KeyChoice { reads: 50, inserts: 0, zipf: Some(0.9) },
            preload: Some(GenesisPreload {
                senders: SIGNERS,
                contracts: contracts.clone(),
                empty_ledgers: false,
            }),
        }
    }

    fn make(
        mix: TransactionMix,
        contracts: &Arc<ContractSet>,
    ) -> (ChainMaker, Vec<RecoveredBlock>) {
        let mut maker = ChainMaker::new(recipe(mix, contracts), Arc::new(Mpt::default())).unwrap();
        let blocks: Vec<_> = (0..4).map(|_| maker.next_block().unwrap()).collect();
        assert_eq!(maker.reverts(), (0, 0));
        assert!(blocks.iter().all(|block| block.body().transactions.len() == 40));
        (maker, blocks)
    }

    /// The contracts of this repository, and those of mainnet if the data is present.
    fn sets() -> Vec<Arc<ContractSet>> {
        let real = retrie_state_testkit::data::find("");
        let real = real.map(|data| Arc::new(ContractSet::mainnet(&data).unwrap()));
        [Arc::new(ContractSet::own())].into_iter().chain(real).collect()
    }

    fn balance(maker: &ChainMaker, token: &TokenContract, of: Address) -> U256 {
        let slot = mapped(of.into_word(), word(token.balances));
        maker.state().unwrap().slot(&token.at.address, &slot).unwrap()
    }

    #[test]
    fn transfers_pay_receivers_that_are_there() {
        let own = Arc::new(ContractSet::own());
        let (maker, blocks) =
            make(TransactionMix { transfers: 1, ..TransactionMix::NOTHING }, &own);
        assert!(blocks.iter().all(|block| block.header().gas_used == 40 * 21_000));
        let receivers: BTreeSet<_> = (0..ACCOUNTS).map(|n| receiver(5, n)).collect();
        let base = GenesisBase::of(&recipe(
            TransactionMix { transfers: 1, ..TransactionMix::NOTHING },
            &own,
        ))
        .unwrap();
        let entries = base.unwrap().entries();
        let genesis: BTreeSet<_> = entries.iter().map(|(key, _)| *key.address()).collect();
        assert!(receivers.is_subset(&genesis));
        let txs = blocks.iter().flat_map(|block| &block.body().transactions);
        assert!(txs.map(|tx| tx.to().unwrap()).all(|to| receivers.contains(&to)));
        assert!(maker.state().unwrap().account(receivers.first().unwrap()).unwrap().is_some());
    }

    #[test]
    fn tokens_arrive_at_receivers() {
        for set in sets() {
            let (maker, blocks) =
                make(TransactionMix { erc20: 1, ..TransactionMix::NOTHING }, &set);
            let token = &set.tokens[1];
            let mut received: BTreeMap<Address, U256> = BTreeMap::new();
            for tx in blocks.iter().flat_map(|block| &block.body().transactions) {
                assert_eq!(tx.to(), Some(token.at.address));
                let call = IToken::transferCall::abi_decode(tx.input()).unwrap();
                *received.entry(call.to).or_default() += call.value;
            }
            let before = U256::from(token.lot / 1000);
            for (receiver, value) in received {
                assert_eq!(balance(&maker, token, receiver), before + value, "{}", set.name());
            }
        }
    }

    #[test]
    fn swaps_take_both_functions_in_both_directions() {
        for set in sets() {
            let (maker, blocks) =
                make(TransactionMix { swaps: 1, ..TransactionMix::NOTHING }, &set);
            let mut kinds: BTreeMap<([u8; 4], Address), usize> = BTreeMap::new();
            for tx in blocks.iter().flat_map(|block| &block.body().transactions) {
                assert_eq!(tx.to(), Some(set.router.address));
                let selector = *tx.input().first_chunk().unwrap();
                let path = match selector {
                    IExchange::swapExactTokensForTokensCall::SELECTOR => {
                        IExchange::swapExactTokensForTokensCall::abi_decode(tx.input())
                            .unwrap()
                            .path
                    }
                    _ => {
                        IExchange::swapTokensForExactTokensCall::abi_decode(tx.input())
                            .unwrap()
                            .path
                    }
                };
                *kinds.entry((selector, path[0])).or_default() += 1;
            }
            assert!(kinds.len() == 4 && kinds.values().all(|n| *n > 20), "{kinds:?}");
            // The reserves in the pair's slot equal its balances.
            let held = [0, 1].map(|n| balance(&maker, &set.tokens[n], set.pair.address));
            let tokens = [0, 1].map(|n: usize| set.tokens[n].at.address);
            // Uniswap packs a timestamp above the reserves.
            let (reserves, mask) =
                if set.name() == "own" { (3, U256::MAX) } else { (8, U256::MAX >> 32) };
            let slots = (set.pair_slots)(tokens, held);
            let (_, expected) = slots.into_iter().find(|(slot, _)| *slot == reserves).unwrap();
            let found = maker.state().unwrap().slot(&set.pair.address, &word(reserves)).unwrap();
            assert_eq!(found & mask, expected, "{}", set.name());
            let start =
                set.tokens.each_ref().map(|token| U256::from(token.lot) * U256::from(100_000));
            assert_ne!(held, start);
        }
    }

    #[test]
    fn banks_and_store_keep_what_calls_leave() {
        let own = Arc::new(ContractSet::own());
        let (maker, blocks) =
            make(TransactionMix { smallbank: 1, kvstore: 1, ..TransactionMix::NOTHING }, &own);
        let mut values: BTreeMap<U256, U256> = BTreeMap::new();
        let mut checking: BTreeMap<U256, i64> = BTreeMap::new();
        let mut savings: BTreeMap<U256, i64> = BTreeMap::new();
        let start = 10_000;
        for tx in blocks.iter().flat_map(|block| &block.body().transactions) {
            let input = tx.input();
            let arg = |n: usize| U256::from_be_slice(&input[4 + 32 * n..36 + 32 * n]);
            let amount = |n: usize| arg(n).to::<i64>();
            let a = arg(0);
            match *input.first_chunk().unwrap() {
                IKVStore::setCall::SELECTOR => {
                    values.insert(a, arg(1));
                }
                ISmallBank::amalgamateCall::SELECTOR => {
                    let all = savings.insert(a, 0).unwrap_or(start)
                        + checking.insert(a, 0).unwrap_or(start);
                    *checking.entry(arg(1)).or_insert(start) += all;
                }
                ISmallBank::updateBalanceCall::SELECTOR => {
                    *checking.entry(a).or_insert(start) += amount(1);
                }
                ISmallBank::updateSavingCall::SELECTOR => {
                    *savings.entry(a).or_insert(start) += amount(1);
                }
                ISmallBank::sendPaymentCall::SELECTOR => {
                    *checking.entry(a).or_insert(start) -= amount(2);
                    *checking.entry(arg(1)).or_insert(start) += amount(2);
                }
                ISmallBank::writeCheckCall::SELECTOR => {
                    let all =
                        savings.get(&a).unwrap_or(&start) + checking.get(&a).unwrap_or(&start);
                    let penalty = i64::from(all < amount(1));
                    *checking.entry(a).or_insert(start) -= amount(1) + penalty;
                }
                _ => {}
            }
        }
        let state = maker.state().unwrap();
        assert!(values.len() > 5 && checking.len() > 5 && savings.len() > 5);
        for (key, value) in values {
            let slot = mapped(key.into(), word(0));
            assert_eq!(state.slot(&GenesisBase::store(), &slot).unwrap(), value);
        }
        for (mapping, accounts) in [(0, savings), (1, checking)] {
            for (account, balance) in accounts {
                let bank = GenesisBase::banks()[LedgerCalls::bank_of(account.to())];
                let found = state.slot(&bank, &mapped(account.into(), word(mapping))).unwrap();
                let expected = alloy_primitives::I256::try_from(balance).unwrap().into_raw();
                assert_eq!(found, expected, "account {account}, mapping {mapping}");
            }
        }
    }

    #[test]
    fn blocks_of_amsterdam_have_access_lists() {
        let all = TransactionMix { transfers: 1, erc20: 1, swaps: 1, smallbank: 1, kvstore: 1 };
        for set in sets() {
            let recipe = ChainRecipe { fork: ChainFork::Amsterdam, ..recipe(all, &set) };
            let mut maker = ChainMaker::new(recipe, Arc::new(Mpt::default())).unwrap();
            assert_eq!(maker.access_list(), None);
            for slot in 1..4 {
                let block = maker.next_block().unwrap();
                assert_eq!(block.body().transactions.len(), 40, "{}", set.name());
                assert_eq!(block.header().slot_number, Some(slot));
                let hash = keccak256(maker.access_list().unwrap());
                assert_eq!(block.header().block_access_list_hash, Some(hash));
            }
        }
    }

    #[test]
    fn genesis_file_has_the_state_that_blocks_stand_on() {
        let all = TransactionMix { transfers: 1, erc20: 1, swaps: 1, smallbank: 1, kvstore: 1 };
        for set in sets() {
            let (maker, blocks) = make(all, &set);
            let mut json = Vec::new();
            maker.write_genesis(&mut json).unwrap();
            let spec = ChainSpec::from_genesis_json(&String::from_utf8(json).unwrap()).unwrap();
            assert_eq!(spec.genesis_hash(), maker.spec().genesis_hash(), "{}", set.name());
            assert_eq!(blocks[0].header().parent_hash, spec.genesis_hash());
            // The same again.
            let (_, again) = make(all, &set);
            assert_eq!(again[3].hash(), blocks[3].hash());
        }
    }
}
