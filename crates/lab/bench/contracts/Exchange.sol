// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.28;

import {ERC20} from "./ERC20.sol";
import {Pair} from "./Pair.sol";

/// Swaps on one pair through the two functions of Uniswap's router that traders call, with the same
/// arguments. `path` is the token that is paid and the token that is wanted.
contract Exchange {
    error Expired(uint256 deadline);
    error ForeignPath(address tokenIn, address tokenOut);
    error TooLittleOut(uint256 out, uint256 wanted);
    error TooMuchIn(uint256 needed, uint256 allowed);
    error TooLittleLiquidity(uint256 wanted, uint256 reserve);
    error TransferFailed(address token);

    Pair public immutable pair;

    constructor(Pair pair_) {
        pair = pair_;
    }

    function swapExactTokensForTokens(
        uint256 amountIn,
        uint256 amountOutMin,
        address[] calldata path,
        address to,
        uint256 deadline
    ) external returns (uint256[] memory amounts) {
        (bool forward, uint256 reserveIn, uint256 reserveOut) = _market(path, deadline);
        uint256 counted = amountIn * 997;
        uint256 out = (counted * reserveOut) / (reserveIn * 1000 + counted);
        if (out < amountOutMin) revert TooLittleOut(out, amountOutMin);
        return _swap(path[0], forward, amountIn, out, to);
    }

    function swapTokensForExactTokens(
        uint256 amountOut,
        uint256 amountInMax,
        address[] calldata path,
        address to,
        uint256 deadline
    ) external returns (uint256[] memory amounts) {
        (bool forward, uint256 reserveIn, uint256 reserveOut) = _market(path, deadline);
        if (amountOut >= reserveOut) revert TooLittleLiquidity(amountOut, reserveOut);
        uint256 needed = (reserveIn * amountOut * 1000) / ((reserveOut - amountOut) * 997) + 1;
        if (needed > amountInMax) revert TooMuchIn(needed, amountInMax);
        return _swap(path[0], forward, needed, amountOut, to);
    }

    /// Whether the path goes from token 0 to token 1, and the reserves in its order.
    function _market(address[] calldata path, uint256 deadline)
        private
        view
        returns (bool forward, uint256 reserveIn, uint256 reserveOut)
    {
        if (block.timestamp > deadline) revert Expired(deadline);
        (address token0, address token1) = (pair.token0(), pair.token1());
        forward = path[0] == token0;
        if (path.length != 2 || path[forward ? 1 : 0] != token1 || path[forward ? 0 : 1] != token0)
        {
            revert ForeignPath(path[0], path[path.length - 1]);
        }
        (reserveIn, reserveOut) = pair.reserves();
        if (!forward) (reserveIn, reserveOut) = (reserveOut, reserveIn);
    }

    function _swap(address tokenIn, bool forward, uint256 paid, uint256 out, address to)
        private
        returns (uint256[] memory amounts)
    {
        bool taken = ERC20(tokenIn).transferFrom(msg.sender, address(pair), paid);
        if (!taken) revert TransferFailed(tokenIn);
        pair.swap(forward ? 0 : out, forward ? out : 0, to);
        amounts = new uint256[](2);
        (amounts[0], amounts[1]) = (paid, out);
    }
}
