//! Token and market contracts of preloaded chains: mainnet's, or those of this repository.

use super::{
    MakeChainError, TransactionMix,
    contracts::{EXCHANGE, PAIR, TOKEN},
};
use crate::random::derive;
use alloy_primitives::{Address, B256, Bytes, U256, address, keccak256};
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader},
    path::{Path, PathBuf},
};

/// Codes of mainnet's contracts, relative to the data folder.
const REAL_CODES: &str = "mainnet/contracts/runtime.json.gz";

const OWN: &str = "own";

/// Two tokens, and a pair of them with its router. Immutables are part of the codes, so the address
/// of each contract is fixed.
#[derive(Clone, Debug)]
pub struct ContractSet {
    name: &'static str,
    /// The tokens in the order of the pair. The second one is the token of `erc20`.
    pub(crate) tokens: [TokenContract; 2],
    pub(crate) pair: DeployedCode,
    /// Computes the slots of the pair from its tokens and reserves.
    pub(crate) pair_slots: PairSlots,
    pub(crate) router: DeployedCode,
}

type PairSlots = fn([Address; 2], [U256; 2]) -> Vec<(u64, U256)>;

/// A contract's code and its address.
#[derive(Clone, Debug)]
pub(crate) struct DeployedCode {
    pub(crate) address: Address,
    pub(crate) code: Bytes,
}

/// A token and its storage layout.
#[derive(Clone, Debug)]
pub(crate) struct TokenContract {
    pub(crate) at: DeployedCode,
    /// Slot of the mapping of balances.
    pub(crate) balances: u64,
    /// Slot of the mapping of allowances, by owner and spender.
    pub(crate) allowances: u64,
    /// Slot of the total supply; `None` for wrapped ether, whose supply is its balance.
    pub(crate) supply: Option<u64>,
    /// Largest amount of a swap, in units: about the same value of either token.
    pub(crate) lot: u64,
}

impl ContractSet {
    /// The contracts of this repository.
    pub fn own() -> Self {
        let address = |n| Address::from_slice(&derive(0, "contract", n)[12..]);
        let word = |address: Address| address.into_word();
        let [token0, token1, pair, router] = [0, 1, 2, 3].map(address);
        let token = |address: Address| TokenContract {
            // No account may mint.
            at: DeployedCode { address, code: TOKEN.deployed(&[("owner", B256::ZERO)]) },
            balances: 1,
            allowances: 2,
            supply: Some(0),
            lot: 1_000_000_000_000_000_000,
        };
        let of_pair = [("token0", word(token0)), ("token1", word(token1))];
        Self {
            name: OWN,
            tokens: [token(token0), token(token1)],
            pair: DeployedCode { address: pair, code: PAIR.deployed(&of_pair) },
            pair_slots: |_, [reserve0, reserve1]| vec![(3, reserve0 | reserve1 << 128)],
            router: DeployedCode {
                address: router,
                code: EXCHANGE.deployed(&[("pair", word(pair))]),
            },
        }
    }

    /// The contracts of mainnet, with codes from the folder `data`: Tether's token, and Uniswap
    /// V2's pair of wrapped ether and Tether with Router02.
    ///
    /// # Errors
    /// [`MakeChainError::Contracts`] if a code is missing or does not match its hash.
    pub fn mainnet(data: &Path) -> Result<Self, MakeChainError> {
        let codes = RealCodeFile::open(&data.join(REAL_CODES))?;
        let token = |address, balances, allowances, supply, lot| {
            Ok::<_, MakeChainError>(TokenContract {
                at: codes.at(address)?,
                balances,
                allowances,
                supply,
                lot,
            })
        };
        Ok(Self {
            name: "mainnet",
            tokens: [
                token(WETH, 3, 4, None, 1_000_000_000_000_000_000)?,
                // At 2,000 dollars; six decimals.
                token(TETHER, 2, 5, Some(1), 2_000_000_000)?,
            ],
            pair: codes.at(PAIR_WETH_TETHER)?,
            pair_slots: |[token0, token1], [reserve0, reserve1]| {
                let word = |address: Address| U256::from_be_bytes(address.into_word().0);
                let reserves = reserve0 | reserve1 << 112;
                let unlocked = U256::ONE;
                vec![
                    (5, word(FACTORY)),
                    (6, word(token0)),
                    (7, word(token1)),
                    (8, reserves),
                    (12, unlocked),
                ]
            },
            router: codes.at(ROUTER_02)?,
        })
    }

    /// `own` or `mainnet`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The contracts that a mix calls, in words.
    pub fn description(&self, mix: TransactionMix) -> &'static str {
        match (self.name, mix.swaps) {
            (OWN, 0) => "Token of this repository",
            (OWN, _) => "Token, Pair and Exchange of this repository",
            (_, 0) => "mainnet's USDT",
            _ => "mainnet's USDT, WETH, Uniswap V2 pair WETH/USDT and Router02",
        }
    }
}

const WETH: Address = address!("c02aaa39b223fe8d0a0e5c4f27ead9083c756cc2");
const TETHER: Address = address!("dac17f958d2ee523a2206206994597c13d831ec7");
const PAIR_WETH_TETHER: Address = address!("0d4a11d5eeaac28ec3f61d100daf4d40471f1852");
const FACTORY: Address = address!("5c69bee701ef814a2b6a3edd4b1652cb9cc5aa6f");
const ROUTER_02: Address = address!("7a250d5630b4cf539739df2c5dacb4c659f2488d");

/// The file with the codes of mainnet's contracts.
struct RealCodeFile {
    path: PathBuf,
    codes: BTreeMap<Address, RealCodeEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RealCodeEntry {
    address: Address,
    code_hash: B256,
    runtime: Bytes,
}

impl RealCodeFile {
    fn open(path: &Path) -> Result<Self, MakeChainError> {
        let read = || -> io::Result<BTreeMap<String, RealCodeEntry>> {
            let file = MultiGzDecoder::new(BufReader::new(File::open(path)?));
            Ok(serde_json::from_reader(BufReader::new(file))?)
        };
        let codes = read().map_err(|e| Self::unusable(path, e.to_string()))?;
        let codes = codes.into_values().map(|code| (code.address, code)).collect();
        Ok(Self { path: path.to_owned(), codes })
    }

    fn at(&self, address: Address) -> Result<DeployedCode, MakeChainError> {
        let code = self.codes.get(&address);
        let code = code.filter(|code| keccak256(&code.runtime) == code.code_hash);
        let code = code.ok_or_else(|| {
            Self::unusable(&self.path, format!("the code of {address} is missing or damaged"))
        })?;
        Ok(DeployedCode { address, code: code.runtime.clone() })
    }

    fn unusable(path: &Path, why: String) -> MakeChainError {
        MakeChainError::Contracts { file: path.to_owned(), why }
    }
}
