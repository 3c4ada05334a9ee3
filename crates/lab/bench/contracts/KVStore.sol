// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.28;

/// Keys and values, for the mixes of reads and writes of YCSB.
contract KVStore {
    mapping(uint256 => uint256) public values;

    /// What was read; in the receipt, so that the read is part of the block.
    event Read(uint256 indexed key, uint256 value);

    function set(uint256 key, uint256 value) external {
        values[key] = value;
    }

    function get(uint256 key) external returns (uint256 value) {
        value = values[key];
        emit Read(key, value);
    }
}
