// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.28;

import {ERC20} from "./ERC20.sol";

/// A market of two tokens: the product of its reserves never falls, and 0.3 % of what comes in stays.
///
/// Callers pay first and then call, as the pair goes by what it finds in its balances. Shares in
/// the reserves are tokens themselves.
contract Pair is ERC20 {
    event Mint(address indexed sender, uint256 amount0, uint256 amount1);
    event Burn(address indexed sender, uint256 amount0, uint256 amount1, address indexed to);
    event Swap(
        address indexed sender,
        uint256 in0,
        uint256 in1,
        uint256 out0,
        uint256 out1,
        address indexed to
    );
    event Sync(uint128 reserve0, uint128 reserve1);

    error Locked();
    error NothingIn();
    error NothingOut();
    error InsufficientLiquidity();
    error InvalidReceiver(address to);
    error ProductFell();
    error TransferFailed(address token);

    string public constant name = "Share of a pair";
    string public constant symbol = "PAIR";
    /// Shares of the first deposit that nobody gets, so that a share cannot become too dear.
    uint256 public constant MINIMUM_LIQUIDITY = 1000;

    address public immutable token0;
    address public immutable token1;
    uint128 private reserve0;
    uint128 private reserve1;
    bool private transient entered;

    modifier lock() {
        if (entered) revert Locked();
        entered = true;
        _;
        entered = false;
    }

    constructor(address token0_, address token1_) {
        token0 = token0_;
        token1 = token1_;
    }

    function reserves() external view returns (uint128, uint128) {
        return (reserve0, reserve1);
    }

    /// Shares for what was paid in.
    function mint(address to) external lock returns (uint256 shares) {
        (uint256 balance0, uint256 balance1) = _balances();
        uint256 amount0 = balance0 - reserve0;
        uint256 amount1 = balance1 - reserve1;
        uint256 supply = totalSupply;
        if (supply == 0) {
            shares = _sqrt(amount0 * amount1);
            if (shares <= MINIMUM_LIQUIDITY) revert InsufficientLiquidity();
            shares -= MINIMUM_LIQUIDITY;
            _mint(address(0), MINIMUM_LIQUIDITY);
        } else {
            uint256 by0 = (amount0 * supply) / reserve0;
            uint256 by1 = (amount1 * supply) / reserve1;
            shares = by0 < by1 ? by0 : by1;
            if (shares == 0) revert InsufficientLiquidity();
        }
        _mint(to, shares);
        _update(balance0, balance1);
        emit Mint(msg.sender, amount0, amount1);
    }

    /// What the shares that the pair was sent are worth.
    function burn(address to) external lock returns (uint256 amount0, uint256 amount1) {
        (uint256 balance0, uint256 balance1) = _balances();
        uint256 shares = balanceOf[address(this)];
        amount0 = (shares * balance0) / totalSupply;
        amount1 = (shares * balance1) / totalSupply;
        if (amount0 == 0 || amount1 == 0) revert InsufficientLiquidity();
        _burn(address(this), shares);
        _send(token0, to, amount0);
        _send(token1, to, amount1);
        (balance0, balance1) = _balances();
        _update(balance0, balance1);
        emit Burn(msg.sender, amount0, amount1, to);
    }

    /// Sends out what is asked for, and checks that enough came in for it.
    function swap(uint256 out0, uint256 out1, address to) external lock {
        if (out0 == 0 && out1 == 0) revert NothingOut();
        if (out0 >= reserve0 || out1 >= reserve1) revert InsufficientLiquidity();
        if (to == token0 || to == token1) revert InvalidReceiver(to);
        if (out0 > 0) _send(token0, to, out0);
        if (out1 > 0) _send(token1, to, out1);
        (uint256 balance0, uint256 balance1) = _balances();
        uint256 in0 = _above(balance0, reserve0 - out0);
        uint256 in1 = _above(balance1, reserve1 - out1);
        if (in0 == 0 && in1 == 0) revert NothingIn();
        // In thousandths: 3 of each 1000 that came in do not count.
        uint256 product = (balance0 * 1000 - in0 * 3) * (balance1 * 1000 - in1 * 3);
        if (product < uint256(reserve0) * reserve1 * 1000 ** 2) revert ProductFell();
        _update(balance0, balance1);
        emit Swap(msg.sender, in0, in1, out0, out1, to);
    }

    /// Takes what it holds for its reserves.
    function sync() external lock {
        (uint256 balance0, uint256 balance1) = _balances();
        _update(balance0, balance1);
    }

    function _balances() private view returns (uint256, uint256) {
        return (ERC20(token0).balanceOf(address(this)), ERC20(token1).balanceOf(address(this)));
    }

    function _update(uint256 balance0, uint256 balance1) private {
        // The products above stay within 256 bits.
        if (balance0 > type(uint112).max || balance1 > type(uint112).max) {
            revert InsufficientLiquidity();
        }
        reserve0 = uint128(balance0);
        reserve1 = uint128(balance1);
        emit Sync(uint128(balance0), uint128(balance1));
    }

    function _send(address token, address to, uint256 value) private {
        if (!ERC20(token).transfer(to, value)) revert TransferFailed(token);
    }

    function _above(uint256 a, uint256 b) private pure returns (uint256) {
        return a > b ? a - b : 0;
    }

    /// The square root, rounded down, by Newton's method from above.
    function _sqrt(uint256 n) private pure returns (uint256 root) {
        if (n < 4) return n == 0 ? 0 : 1;
        root = n;
        for (uint256 next = n / 2 + 1; next < root; next = (n / next + next) / 2) root = next;
    }
}
