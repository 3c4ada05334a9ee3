//! The contracts of made chains: creation code, and how they are called.
//!
//! Sources and artifacts are in `crates/bench/contracts`; `scripts/compile-contracts` makes the
//! latter of the former.

use alloy_primitives::Bytes;
use std::sync::LazyLock;

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
    }
}
pub(crate) use calls::{IRouter, IToken};

/// Creation code of `Token.sol`; its constructor takes name and symbol.
pub(crate) static TOKEN: LazyLock<Bytes> =
    LazyLock::new(|| creation_code(include_str!("../../contracts/Token.json")));
/// Creation code of `Pair.sol`; its constructor takes both tokens.
pub(crate) static PAIR: LazyLock<Bytes> =
    LazyLock::new(|| creation_code(include_str!("../../contracts/Pair.json")));
/// Creation code of `Router.sol`.
pub(crate) static ROUTER: LazyLock<Bytes> =
    LazyLock::new(|| creation_code(include_str!("../../contracts/Router.json")));

/// Creation code with the encoded arguments of its constructor.
pub(crate) fn with_arguments(code: &Bytes, arguments: &[u8]) -> Bytes {
    [&code[..], arguments].concat().into()
}

fn creation_code(artifact: &str) -> Bytes {
    #[derive(serde::Deserialize)]
    struct Artifact {
        bytecode: Bytes,
    }
    let artifact: Artifact =
        serde_json::from_str(artifact).expect("compiled into the binary and covered by tests");
    artifact.bytecode
}
