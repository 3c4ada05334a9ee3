//! The calls of a chain without a preload: first the calls that set the contracts up, then the mix.
//!
//! The planner executes nothing. It tracks allowances and shares of pairs, so that the calls which
//! must succeed do succeed.

use super::{
    ChainRecipe,
    contracts::{IRouter, IToken, KV_STORE, PAIR, ROUTER, SMALL_BANK, TOKEN},
    ledgers::{BANKS, LedgerCalls},
    recipe::{TransactionKind, TransactionMix},
    sign::EnvelopeKind,
};
use crate::random::{SplitMix64, derive};
use alloy_primitives::{Address, Bytes, TxKind, U256};
use alloy_sol_types::{SolCall, SolValue};
use std::collections::{HashSet, VecDeque};

/// Number of tokens; a pair trades each with the next one.
const TOKENS: usize = 4;
const PAIRS: usize = TOKENS - 1;
/// Sender that deploys the contracts and mints.
const OWNER: usize = 0;
/// One token, in units.
const UNIT: u64 = 1_000_000_000_000_000_000;
/// Initial tokens of each sender: more than a sender can spend.
const AIRDROP: u64 = 1_000_000_000;
/// Initial reserve of a pair of each of its tokens.
const LIQUIDITY: u64 = 100_000_000;
/// Gas limit of calls of banks and store. It covers the first write of a slot.
pub(crate) const LEDGER_GAS: u64 = 120_000;
/// Gas limit of any call from Amsterdam on, where new slots cost more (EIP-8037).
pub(crate) const AMSTERDAM_CALL_GAS: u64 = 380_000;
/// Senders per airdrop call.
const AIRDROP_CHUNK: usize = 64;

/// A planned transaction. Nonce, fees and signature are added when its block is built.
#[derive(Clone, Debug)]
pub(crate) struct PlannedCall {
    /// Index of the sender.
    pub(crate) from: usize,
    /// Recipient, or creation.
    pub(crate) to: TxKind,
    /// Wei.
    pub(crate) value: U256,
    /// Input, or creation code.
    pub(crate) input: Bytes,
    /// Gas limit, without an access list.
    pub(crate) gas_limit: u64,
    /// The envelope.
    pub(crate) kind: EnvelopeKind,
}

/// Addresses of the contracts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContractAddresses {
    pub(crate) tokens: [Address; TOKENS],
    pub(crate) pairs: [Address; PAIRS],
    pub(crate) router: Address,
    pub(crate) banks: [Address; BANKS],
    pub(crate) store: Address,
}

impl ContractAddresses {
    /// The addresses of the owner's first creations, in the order of [`DeployPlanner::setup`].
    /// Contracts that the mix does not call are not created.
    fn of(owner: Address, mix: TransactionMix) -> Self {
        let created = |nonce: usize| owner.create(nonce as u64);
        let banks = if mix.smallbank > 0 { BANKS } else { 0 };
        let ledgers = banks + usize::from(mix.kvstore > 0);
        Self {
            banks: std::array::from_fn(created),
            store: created(banks),
            tokens: std::array::from_fn(|token| created(ledgers + token)),
            router: created(ledgers + TOKENS),
            pairs: std::array::from_fn(|pair| created(ledgers + TOKENS + 1 + pair)),
        }
    }
}

/// Chooses the calls of a chain without a preload.
#[derive(Clone, Debug)]
pub(crate) struct DeployPlanner {
    recipe: ChainRecipe,
    random: SplitMix64,
    senders: Vec<Address>,
    contracts: ContractAddresses,
    ledgers: LedgerCalls,
    setup: VecDeque<PlannedCall>,
    /// Approvals of the router: sender, and token or pair.
    approved: HashSet<(usize, Address)>,
    /// Unused allowances between senders: token, owner, spender.
    grants: Vec<(Address, usize, usize)>,
    /// Deposits of liquidity that can be removed: pair, owner.
    deposits: Vec<(usize, usize)>,
    /// Number of calls of the mix that are planned to revert.
    reverts: u64,
}

impl DeployPlanner {
    pub(crate) fn new(recipe: ChainRecipe, senders: Vec<Address>) -> Self {
        let contracts = ContractAddresses::of(senders[OWNER], recipe.mix);
        let ContractAddresses { banks, store, .. } = contracts;
        let mut planner = Self {
            random: SplitMix64::new(recipe.seed),
            contracts,
            ledgers: LedgerCalls::new(banks, store, recipe.accounts, recipe.keys),
            recipe,
            senders,
            setup: VecDeque::new(),
            approved: HashSet::new(),
            grants: Vec::new(),
            deposits: Vec::new(),
            reverts: 0,
        };
        planner.setup = planner.setup();
        planner
    }

    /// Addresses of the contracts.
    #[cfg(test)]
    pub(crate) const fn contracts(&self) -> &ContractAddresses {
        &self.contracts
    }

    /// Continues with the calls that `seed` gives.
    pub(crate) const fn reseed(&mut self, seed: u64) {
        self.random = SplitMix64::new(seed);
    }

    /// Number of calls that are planned to revert.
    pub(crate) const fn reverts(&self) -> u64 {
        self.reverts
    }

    /// The next set-up calls, as many as fit into `gas`; none when the set-up is complete.
    pub(crate) fn next_setup(&mut self, mut gas: u64) -> Vec<PlannedCall> {
        let mut calls = Vec::new();
        while let Some(call) = self.setup.pop_front_if(|call| call.gas_limit <= gas) {
            gas -= call.gas_limit;
            calls.push(call);
        }
        calls
    }

    /// The next call of the mix.
    pub(crate) fn next(&mut self) -> PlannedCall {
        let mix = self.recipe.mix;
        let call = match mix.choose(self.random.below(mix.sum())) {
            TransactionKind::Transfer => self.transfer(),
            TransactionKind::Erc20 => self.erc20(),
            TransactionKind::Swap => self.exchange(),
            TransactionKind::SmallBank => {
                let (bank, input) = self.ledgers.bank(&mut self.random);
                call(self.sender(), bank, input, LEDGER_GAS)
            }
            TransactionKind::KvStore => {
                let (store, input) = self.ledgers.store(&mut self.random);
                call(self.sender(), store, input, LEDGER_GAS)
            }
        };
        PlannedCall { kind: EnvelopeKind::any(&mut self.random), ..call }
    }

    // -- the mix ----------------------------------------------------------------------------------

    fn transfer(&mut self) -> PlannedCall {
        let (from, to) = (self.sender(), self.receiver());
        // Up to a thousandth of an ether.
        let value = U256::from(1 + self.random.below(UNIT / 1000));
        PlannedCall { value, ..call(from, to, Bytes::new(), 21_000) }
    }

    fn erc20(&mut self) -> PlannedCall {
        let token = self.contracts.tokens[self.random.below(TOKENS as u64) as usize];
        let from = self.sender();
        let value = self.amount(1);
        match self.random.below(100) {
            0..80 => {
                let to = self.receiver();
                call(from, token, IToken::transferCall { to, value }.abi_encode(), 70_000)
            }
            80..87 => self.grant(token, from),
            87..95 => match self.grants.pop() {
                Some((token, owner, spender)) => {
                    let (from, to) = (self.senders[owner], self.receiver());
                    let input = IToken::transferFromCall { from, to, value }.abi_encode();
                    call(spender, token, input, 100_000)
                }
                None => self.grant(token, from),
            },
            95..99 => {
                let to = self.receiver();
                call(OWNER, token, IToken::mintCall { to, value }.abi_encode(), 90_000)
            }
            _ => {
                self.reverts += 1;
                let (to, value) = (self.receiver(), U256::MAX);
                call(from, token, IToken::transferCall { to, value }.abi_encode(), 70_000)
            }
        }
    }

    /// A call that allows another sender to spend one amount.
    fn grant(&mut self, token: Address, owner: usize) -> PlannedCall {
        let spender = self.sender();
        self.grants.push((token, owner, spender));
        let (spender, value) = (self.senders[spender], U256::from(UNIT));
        call(owner, token, IToken::approveCall { spender, value }.abi_encode(), 60_000)
    }

    /// A swap, or a change of liquidity. If the router lacks an approval, the approval comes first.
    fn exchange(&mut self) -> PlannedCall {
        let pair = self.random.below(PAIRS as u64) as usize;
        let from = self.sender();
        match self.random.below(200) {
            0..189 => self.swap(pair, from, U256::from(1)),
            189..196 => self.add_liquidity(pair, from),
            196..199 => match self.deposits.pop() {
                Some((pair, owner)) => self.remove_liquidity(pair, owner),
                None => self.add_liquidity(pair, from),
            },
            // The pair cannot pay this, so the call reverts.
            _ => self.swap(pair, from, U256::MAX),
        }
    }

    fn swap(&mut self, pair: usize, from: usize, min_out: U256) -> PlannedCall {
        let token = self.contracts.tokens[pair + self.random.below(2) as usize];
        let amount = self.amount(10);
        if let Some(approval) = self.approval(from, token) {
            return approval;
        }
        self.reverts += u64::from(min_out == U256::MAX);
        let input = IRouter::swapCall {
            pair: self.contracts.pairs[pair],
            tokenIn: token,
            amountIn: amount,
            minOut: min_out,
            to: self.senders[from],
        };
        call(from, self.contracts.router, input.abi_encode(), 150_000)
    }

    fn add_liquidity(&mut self, pair: usize, from: usize) -> PlannedCall {
        let [token0, token1] = [self.contracts.tokens[pair], self.contracts.tokens[pair + 1]];
        let lacking = self.approval(from, token0).or_else(|| self.approval(from, token1));
        if let Some(approval) = lacking {
            return approval;
        }
        self.deposits.push((pair, from));
        self.deposit(pair, from, U256::from(UNIT), U256::from(10 * UNIT))
    }

    fn deposit(&self, pair: usize, from: usize, amount0: U256, max1: U256) -> PlannedCall {
        let (pair, to) = (self.contracts.pairs[pair], self.senders[from]);
        let input = IRouter::addLiquidityCall { pair, amount0, max1, to }.abi_encode();
        call(from, self.contracts.router, input, 350_000)
    }

    fn remove_liquidity(&mut self, pair: usize, owner: usize) -> PlannedCall {
        let (pair_index, pair) = (pair, self.contracts.pairs[pair]);
        if let Some(approval) = self.approval(owner, pair) {
            self.deposits.push((pair_index, owner));
            return approval;
        }
        // A deposit was about one token of each kind.
        let (shares, to) = (U256::from(UNIT / 2), self.senders[owner]);
        let input = IRouter::removeLiquidityCall { pair, shares, to }.abi_encode();
        call(owner, self.contracts.router, input, 300_000)
    }

    /// The call by which `from` approves `token` for the router; `None` if it was chosen before.
    fn approval(&mut self, from: usize, token: Address) -> Option<PlannedCall> {
        let fresh = self.approved.insert((from, token));
        fresh.then(|| approve_all(from, token, self.contracts.router))
    }

    fn sender(&mut self) -> usize {
        self.random.index(&self.senders)
    }

    fn receiver(&mut self) -> Address {
        let n = self.random.below(self.recipe.accounts);
        receiver(self.recipe.seed, n)
    }

    /// A random amount of at least one unit and at most `tokens` tokens.
    fn amount(&mut self, tokens: u64) -> U256 {
        U256::from(1 + self.random.below(tokens * UNIT))
    }

    // -- the set-up -------------------------------------------------------------------------------

    /// Deployments in the order of [`ContractAddresses::of`], airdrops to all senders, first
    /// liquidity.
    fn setup(&mut self) -> VecDeque<PlannedCall> {
        let ContractAddresses { tokens, pairs, router, .. } = self.contracts;
        let mix = self.recipe.mix;
        let create =
            |code: Bytes, gas| PlannedCall { to: TxKind::Create, ..call(OWNER, router, code, gas) };
        let mut calls = VecDeque::new();
        if mix.smallbank > 0 {
            calls.extend((0..BANKS).map(|_| create(SMALL_BANK.creation(), 1_000_000)));
        }
        if mix.kvstore > 0 {
            calls.push_back(create(KV_STORE.creation(), 500_000));
        }
        if !mix.has_tokens() {
            return calls;
        }
        for symbol in ["AAA", "BBB", "CCC", "DDD"] {
            let names = (format!("Token {symbol}"), symbol.to_owned());
            let code = TOKEN.creation_with(&names.abi_encode_params());
            calls.push_back(create(code, 1_500_000));
        }
        calls.push_back(create(ROUTER.creation(), 1_500_000));
        for pair in tokens.windows(2) {
            let code = PAIR.creation_with(&(pair[0], pair[1]).abi_encode_params());
            calls.push_back(create(code, 2_500_000));
        }
        for token in tokens {
            for to in self.senders.chunks(AIRDROP_CHUNK) {
                let value = U256::from(AIRDROP) * U256::from(UNIT);
                let gas = 60_000 + 30_000 * to.len() as u64;
                let input = IToken::airdropCall { to: to.to_vec(), value }.abi_encode();
                calls.push_back(call(OWNER, token, input, gas));
            }
        }
        for token in tokens {
            calls.extend(self.approval(OWNER, token));
        }
        let amount = U256::from(LIQUIDITY) * U256::from(UNIT);
        for pair in 0..pairs.len() {
            calls.push_back(self.deposit(pair, OWNER, amount, amount));
        }
        calls
    }
}

/// Receiver `n` of the chain of this seed. Its private key is unknown.
pub(crate) fn receiver(seed: u64, n: u64) -> Address {
    Address::from_slice(&derive(seed, "receiver", n)[12..])
}

fn approve_all(from: usize, token: Address, spender: Address) -> PlannedCall {
    let input = IToken::approveCall { spender, value: U256::MAX }.abi_encode();
    call(from, token, input, 60_000)
}

/// A call without value.
pub(crate) fn call(
    from: usize,
    to: Address,
    input: impl Into<Bytes>,
    gas_limit: u64,
) -> PlannedCall {
    let (to, input) = (TxKind::Call(to), input.into());
    PlannedCall { from, to, value: U256::ZERO, input, gas_limit, kind: EnvelopeKind::DynamicFee }
}
