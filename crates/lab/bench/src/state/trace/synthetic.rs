//! A synthetic trace with the counts of the LVMT paper's trace of mainnet.

use super::{
    error::MakeTraceError,
    zipf::{TraceCounts, fit},
};
use crate::{
    random::{SplitMix64, ZipfDistribution, numbered, slot_value},
    state::real::{BlockAccesses, KeyTouch},
};
use alloy_primitives::{Address, B256, U256};
use retrie_state::{Account, StateKey, StateValue};
use std::collections::HashMap;

/// Of five keys two are accounts. Among the keys of the 68 bundles of the data folder 39 % are.
const ACCOUNTS_OF_FIVE: u8 = 2;
/// Slots of a contract, on average.
const SLOTS_OF_CONTRACT: u64 = 30;
/// The least scale: 47 blocks of 90 reads.
const LEAST_SCALE: f64 = 0.001;

/// Takes a block, and entries that are there before the first block.
type SyntheticVisitor<'a> =
    dyn FnMut(BlockAccesses, Vec<(StateKey, StateValue)>) -> Result<(), MakeTraceError> + 'a;

/// The counts of a synthetic trace, and the seed of all that the counts leave open.
///
/// Keys are drawn by Zipf's law with the constant 0.99. The number of keys to draw from is fitted,
/// so that as many distinct ones are drawn as the counts say. Reads, writes and blocks are exact;
/// keys and creations differ by chance, by a percent or two.
///
/// What it does not model:
/// * **Time.** A key is as likely in the last block as in the first. On mainnet a key that was used
///   recently is likelier, and new contracts become hot.
/// * **Together.** Keys of a block are independent. A transaction touches its sender, a contract and
///   slots of that contract; here the contract of a slot is not accessed with it.
/// * **Removals.** Nothing is removed.
/// * **Values.** Slots have 32 random bytes, as the paper's other workloads. Most of mainnet's are
///   shorter.
/// * **Sizes of contracts** follow a power law, with 3 % of the slots in the largest at scale 1;
///   mainnet's largest have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticRecipe {
    /// Number of blocks.
    pub blocks: u64,
    /// Keys read, summed over blocks. Written keys are read first.
    pub reads: u64,
    /// Keys written, summed over blocks.
    pub writes: u64,
    /// Distinct keys.
    pub keys: u64,
    /// Writes that create their key. Other keys have a value before the first block.
    pub creations: u64,
    /// Number of the first block.
    pub first: u64,
    /// Seed of keys, values and choices.
    pub seed: u64,
}

impl SyntheticRecipe {
    /// The counts of the LVMT paper's "real" trace (section 6), times `scale`: blocks 13,500,000 to
    /// 13,546,700; 4.2 million reads, 2.4 million writes, 1.3 million distinct keys; about half of
    /// the writes create an entry.
    ///
    /// These are 90 reads a block, and the 85 blocks of the data folder touch 756 keys on average:
    /// the paper's blocks may be there in part.
    ///
    /// # Errors
    /// If `scale` is not 0.001 to 1.
    pub fn lvmt(scale: f64, seed: u64) -> Result<Self, MakeTraceError> {
        if !(LEAST_SCALE..=1.0).contains(&scale) {
            let what = format!("the scale is {scale}, and must lie between {LEAST_SCALE} and 1");
            return Err(MakeTraceError::Recipe(what));
        }
        let of = |count: u64| (count as f64 * scale).round() as u64;
        Ok(Self {
            blocks: of(46_700),
            reads: of(4_200_000),
            writes: of(2_400_000),
            keys: of(1_300_000),
            creations: of(1_200_000),
            first: 13_500_000,
            seed,
        })
    }

    /// What a trace says about where its blocks are from.
    pub(super) fn source(&self) -> String {
        let Self { blocks, reads, writes, keys, seed, .. } = self;
        format!(
            "synthetic, fitted to {blocks} blocks, {reads} reads, {writes} writes and {keys} keys, \
             seed {seed}"
        )
    }

    /// Calls `visit` with each block, and the entries of the contracts whose slots it touches.
    pub(super) fn generate(&self, visit: &mut SyntheticVisitor<'_>) -> Result<(), MakeTraceError> {
        let mut generator = BlockGenerator::new(self)?;
        let contract = Account { nonce: 1, balance: U256::from(1), ..Account::default() }.encode();
        for block in 0..self.blocks {
            let touches = generator.block(block);
            // A contract is there, but not accessed.
            let of = |touch: &KeyTouch| match touch.key {
                StateKey::Slot(address, _) => Some(StateKey::Account(address)),
                StateKey::Account(_) => None,
            };
            let contracts = touches.iter().filter_map(of).map(|key| (key, contract.clone()));
            let contracts = contracts.collect();
            let number = self.first + block;
            visit(BlockAccesses { number, touches, ..BlockAccesses::default() }, contracts)?;
        }
        Ok(())
    }

    /// The part of `total` in the first `blocks` blocks.
    const fn share(&self, total: u64, blocks: u64) -> u64 {
        (total as u128 * blocks as u128 / self.blocks as u128) as u64
    }
}

/// Draws the blocks of a synthetic trace.
struct BlockGenerator<'a> {
    recipe: &'a SyntheticRecipe,
    random: SplitMix64,
    zipf: ZipfDistribution,
    /// The index of each number that was drawn among `keys`.
    drawn: HashMap<u64, usize>,
    keys: Vec<DrawnKey>,
    /// Number of writes so far.
    written: u64,
}

/// A key that was drawn before.
struct DrawnKey {
    key: StateKey,
    value: Option<StateValue>,
    /// The last block with it.
    block: u64,
}

impl<'a> BlockGenerator<'a> {
    fn new(recipe: &'a SyntheticRecipe) -> Result<Self, MakeTraceError> {
        let SyntheticRecipe { blocks, reads, writes, keys, creations, seed, .. } = *recipe;
        let refused = |what: String| Err(MakeTraceError::Recipe(what));
        if blocks == 0 || reads < blocks || writes > reads || creations > writes.min(keys) {
            return refused(format!(
                "{reads} reads in {blocks} blocks must be one a block at least; {writes} writes are \
                 reads too, and {creations} creations are writes, each of another key"
            ));
        }
        // The first block alone has that many.
        let fits = (reads.div_ceil(blocks)..=reads).contains(&keys);
        let items = fits.then(|| fit(&TraceCounts { blocks, reads, keys })).flatten();
        let Some(items) = items else {
            return refused(format!("{reads} reads in {blocks} blocks cannot have {keys} keys"));
        };
        Ok(Self {
            recipe,
            random: SplitMix64::new(seed),
            zipf: ZipfDistribution::new(items, ZipfDistribution::YCSB),
            drawn: HashMap::new(),
            keys: Vec::new(),
            written: 0,
        })
    }

    /// The touches of the next block, in the order in which they are drawn.
    fn block(&mut self, block: u64) -> Vec<KeyTouch> {
        let recipe = self.recipe;
        let reads = recipe.share(recipe.reads, block + 1) - recipe.share(recipe.reads, block);
        // The indices of its keys, and whether the block creates them.
        let mut chosen = Vec::with_capacity(reads as usize);
        while (chosen.len() as u64) < reads {
            let number = self.zipf.next(&mut self.random);
            match self.drawn.get(&number).copied() {
                Some(at) if self.keys[at].block == block => {}
                Some(at) => {
                    self.keys[at].block = block;
                    chosen.push((at, false));
                }
                None => chosen.push(self.add(number, block)),
            }
        }
        let created = chosen.iter().filter(|(_, is_new)| *is_new).count() as u64;
        // Others are written too, until the writes so far have their share.
        let due = recipe.share(recipe.writes, block + 1);
        let mut left = reads - created;
        let mut others = due.saturating_sub(self.written + created).min(left);
        self.written += created + others;
        let touch = |(at, is_new): (usize, bool)| {
            let is_written = is_new || {
                // Each choice of that many of the rest is equally likely.
                let is_chosen = self.random.below(left) < others;
                left -= 1;
                others -= u64::from(is_chosen);
                is_chosen
            };
            let DrawnKey { key, value: before, .. } = &self.keys[at];
            let (key, before) = (*key, before.clone());
            let mut after = before.clone();
            while is_written && after == before {
                after = Some(value(&mut self.random, &key));
            }
            self.keys[at].value.clone_from(&after);
            KeyTouch { key, before, after }
        };
        chosen.into_iter().map(touch).collect()
    }

    /// Adds a key that no block has touched. Returns its index, and whether the block creates it.
    fn add(&mut self, number: u64, block: u64) -> (usize, bool) {
        let SyntheticRecipe { keys, creations, .. } = *self.recipe;
        let at = self.keys.len();
        let due = |n: usize| u128::from(creations) * n as u128 / u128::from(keys);
        let is_new = due(at + 1) > due(at);
        let key = self.key(number);
        let value = (!is_new).then(|| value(&mut self.random, &key));
        self.drawn.insert(number, at);
        self.keys.push(DrawnKey { key, value, block });
        (at, is_new)
    }

    /// The `number`th key to draw from; number 0 is the likeliest.
    fn key(&self, number: u64) -> StateKey {
        let seed = self.recipe.seed;
        let hash = numbered(b't', seed, number);
        if hash[31] % 5 < ACCOUNTS_OF_FIVE {
            return StateKey::Account(Address::from_slice(&hash[..20]));
        }
        // The cube of a uniform number: few contracts have most slots.
        let slots = self.recipe.keys * u64::from(5 - ACCOUNTS_OF_FIVE) / 5;
        let contracts = slots.div_ceil(SLOTS_OF_CONTRACT).max(1);
        let place = SplitMix64::new(seed ^ number).fraction();
        let contract = ((contracts as f64 * place.powi(3)) as u64).min(contracts - 1);
        let address = Address::from_slice(&numbered(b'c', seed, contract)[..20]);
        StateKey::Slot(address, B256::from(hash))
    }
}

/// A new value for a key.
fn value(random: &mut SplitMix64, key: &StateKey) -> StateValue {
    match key {
        StateKey::Account(_) => Account {
            nonce: random.below(1000),
            // Up to 18 ether.
            balance: U256::from(random.next()),
            ..Account::default()
        }
        .encode(),
        StateKey::Slot(..) => slot_value(random),
    }
}
