// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.28;

import {ERC20} from "./ERC20.sol";
import {Pair} from "./Pair.sol";

/// Pays a pair and calls it in one transaction, with the caller's tokens, which it must be allowed
/// to spend.
contract Router {
    error TooLittleOut(uint256 out, uint256 wanted);
    error TooMuchIn(uint256 needed, uint256 allowed);
    error ForeignToken(address token);
    error TransferFailed(address token);

    /// Swaps exactly `amountIn` of `tokenIn` for at least `minOut` of the pair's other token.
    function swap(Pair pair, address tokenIn, uint256 amountIn, uint256 minOut, address to)
        external
        returns (uint256 out)
    {
        bool forward = tokenIn == pair.token0();
        if (!forward && tokenIn != pair.token1()) revert ForeignToken(tokenIn);
        (uint256 reserveIn, uint256 reserveOut) = pair.reserves();
        if (!forward) (reserveIn, reserveOut) = (reserveOut, reserveIn);
        uint256 counted = amountIn * 997;
        out = (counted * reserveOut) / (reserveIn * 1000 + counted);
        if (out < minOut) revert TooLittleOut(out, minOut);
        _pay(tokenIn, pair, amountIn);
        pair.swap(forward ? 0 : out, forward ? out : 0, to);
    }

    /// Adds `amount0` and as much of the other token as keeps the price, at most `max1`.
    function addLiquidity(Pair pair, uint256 amount0, uint256 max1, address to)
        external
        returns (uint256 shares)
    {
        (uint256 reserve0, uint256 reserve1) = pair.reserves();
        uint256 amount1 = reserve0 == 0 ? max1 : (amount0 * reserve1) / reserve0;
        if (amount1 > max1) revert TooMuchIn(amount1, max1);
        _pay(pair.token0(), pair, amount0);
        _pay(pair.token1(), pair, amount1);
        shares = pair.mint(to);
    }

    /// Turns `shares` back into both tokens.
    function removeLiquidity(Pair pair, uint256 shares, address to)
        external
        returns (uint256 amount0, uint256 amount1)
    {
        _pay(address(pair), pair, shares);
        (amount0, amount1) = pair.burn(to);
    }

    function _pay(address token, Pair pair, uint256 value) private {
        bool paid = ERC20(token).transferFrom(msg.sender, address(pair), value);
        if (!paid) revert TransferFailed(token);
    }
}
