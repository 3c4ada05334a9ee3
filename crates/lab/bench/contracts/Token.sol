// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.28;

import {ERC20} from "./ERC20.sol";

/// A token that its owner mints.
contract Token is ERC20 {
    error NotOwner(address caller);

    string public name;
    string public symbol;
    address public immutable owner = msg.sender;

    modifier onlyOwner() {
        if (msg.sender != owner) revert NotOwner(msg.sender);
        _;
    }

    constructor(string memory name_, string memory symbol_) {
        name = name_;
        symbol = symbol_;
    }

    function mint(address to, uint256 value) external onlyOwner {
        _mint(to, value);
    }

    /// The same value to each of `to`.
    function airdrop(address[] calldata to, uint256 value) external onlyOwner {
        for (uint256 i = 0; i < to.length; ++i) _mint(to[i], value);
    }
}
