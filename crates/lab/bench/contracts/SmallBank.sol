// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.28;

/// The bank of the SmallBank benchmark (Cahill, Roehm, Fekete: Serializable Isolation for Snapshot
/// Databases, 2008), as Blockbench runs it on chains: accounts by number, each with savings and a
/// checking balance, and six operations.
///
/// Balances may fall below zero, so nothing reverts: a customer who overdraws pays a penalty.
contract SmallBank {
    /// What a check costs that is not covered.
    int256 public constant PENALTY = 1;

    mapping(uint256 => int256) public savings;
    mapping(uint256 => int256) public checking;

    /// What an account holds; in the receipt, so that the reads are part of the block.
    event Balance(uint256 indexed account, int256 total);

    /// Reads both balances.
    function getBalance(uint256 account) external returns (int256 total) {
        total = savings[account] + checking[account];
        emit Balance(account, total);
    }

    /// Moves all that `from` holds into the checking balance of `to`.
    function amalgamate(uint256 from, uint256 to) external {
        int256 total = savings[from] + checking[from];
        savings[from] = 0;
        checking[from] = 0;
        checking[to] += total;
    }

    /// Pays into the checking balance.
    function updateBalance(uint256 account, int256 amount) external {
        checking[account] += amount;
    }

    /// Pays into the savings.
    function updateSaving(uint256 account, int256 amount) external {
        savings[account] += amount;
    }

    /// Pays from checking balance to checking balance.
    function sendPayment(uint256 from, uint256 to, int256 amount) external {
        checking[from] -= amount;
        checking[to] += amount;
    }

    /// Takes a check, and a penalty where savings and checking balance do not cover it.
    function writeCheck(uint256 account, int256 amount) external {
        bool covered = savings[account] + checking[account] >= amount;
        checking[account] -= covered ? amount : amount + PENALTY;
    }
}
