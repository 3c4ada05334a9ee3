//! The contracts of generated chains: their code, and how they are called.
//!
//! Sources and artifacts are in `crates/lab/bench/contracts`; `scripts/check/compile-contracts`
//! compiles the sources.

use alloy_primitives::{B256, Bytes};
use serde::Deserialize;
use std::{collections::BTreeMap, sync::LazyLock};

#[allow(missing_docs, unreachable_pub)]
mod calls {
    alloy_sol_types::sol! {
        interface IToken {
            function transfer(address to, uint256 value);
            function approve(address spender, uint256 value);
            function transferFrom(address from, address to, uint256 value);
            function mint(address to, uint256 value);
            function airdrop(address[] to, uint256 value);
        }
        interface IRouter {
            function swap(address pair, address tokenIn, uint256 amountIn, uint256 minOut, address to);
            function addLiquidity(address pair, uint256 amount0, uint256 max1, address to);
            function removeLiquidity(address pair, uint256 shares, address to);
        }
        /// As Uniswap's Router02 has it.
        interface IExchange {
            function swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] path, address to, uint256 deadline);
            function swapTokensForExactTokens(uint256 amountOut, uint256 amountInMax, address[] path, address to, uint256 deadline);
        }
        interface ISmallBank {
            function getBalance(uint256 account);
            function amalgamate(uint256 from, uint256 to);
            function updateBalance(uint256 account, int256 amount);
            function updateSaving(uint256 account, int256 amount);
            function sendPayment(uint256 from, uint256 to, int256 amount);
            function writeCheck(uint256 account, int256 amount);
        }
        interface IKVStore {
            function set(uint256 key, uint256 value);
            function get(uint256 key);
        }
    }
}
pub(crate) use calls::{IExchange, IKVStore, IRouter, ISmallBank, IToken};

/// `Token.sol`; its constructor takes name and symbol.
pub(crate) static TOKEN: LazyLock<ContractArtifact> =
    LazyLock::new(|| artifact(include_str!("../../contracts/Token.json")));
/// `Pair.sol`; its constructor takes both tokens.
pub(crate) static PAIR: LazyLock<ContractArtifact> =
    LazyLock::new(|| artifact(include_str!("../../contracts/Pair.json")));
/// `Router.sol`.
pub(crate) static ROUTER: LazyLock<ContractArtifact> =
    LazyLock::new(|| artifact(include_str!("../../contracts/Router.json")));
/// `Exchange.sol`; its constructor takes the pair.
pub(crate) static EXCHANGE: LazyLock<ContractArtifact> =
    LazyLock::new(|| artifact(include_str!("../../contracts/Exchange.json")));
/// `SmallBank.sol`.
pub(crate) static SMALL_BANK: LazyLock<ContractArtifact> =
    LazyLock::new(|| artifact(include_str!("../../contracts/SmallBank.json")));
/// `KVStore.sol`.
pub(crate) static KV_STORE: LazyLock<ContractArtifact> =
    LazyLock::new(|| artifact(include_str!("../../contracts/KVStore.json")));

/// A compiled contract.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContractArtifact {
    /// Creation code.
    bytecode: Bytes,
    deployed_bytecode: Bytes,
    /// Offsets of each immutable in the deployed code, in bytes.
    immutables: BTreeMap<String, Vec<usize>>,
}

impl ContractArtifact {
    /// Creation code of a contract whose constructor has no arguments.
    pub(crate) fn creation(&self) -> Bytes {
        self.bytecode.clone()
    }

    /// Creation code with the encoded arguments of its constructor.
    pub(crate) fn creation_with(&self, arguments: &[u8]) -> Bytes {
        [&self.bytecode[..], arguments].concat().into()
    }

    /// The code on the chain after the constructor has set `immutables`, which must name all of
    /// them.
    pub(crate) fn deployed(&self, immutables: &[(&str, B256)]) -> Bytes {
        let mut code = self.deployed_bytecode.to_vec();
        for (name, places) in &self.immutables {
            let value = immutables.iter().find(|(known, _)| known == name);
            let (_, value) = value.expect("a test deploys each contract");
            for place in places {
                code[*place..place + 32].copy_from_slice(value.as_slice());
            }
        }
        code.into()
    }
}

fn artifact(json: &str) -> ContractArtifact {
    serde_json::from_str(json).expect("compiled into the binary and covered by tests")
}
