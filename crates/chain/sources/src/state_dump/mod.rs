//! State dumps: the whole state after one block as JSON lines, as `geth dump --iterative` writes
//! them and `reth init-state` reads them.
//!
//! ```text
//! {"root":"0xd7f8974f.."}
//! {"address":"0x00..01","balance":"0x1","nonce":0}
//! {"address":"0x00..02","balance":"17","nonce":1,"code":"0x6001..","storage":{"0x00..01":"0x2a"}}
//! ```
//!
//! The first line has the state root of the block's header. Each line after it is an account, in
//! any order. Balance and nonce are numbers, decimal strings or `0x` hex; slots and values are hex
//! of at most 32 bytes, the values with or without `0x`; a slot of zero counts as absent. Unknown
//! members are ignored.
//!
//! Two members that geth adds are checked: `codeHash` against the code, and `root`, the root of the
//! account's storage trie, against the slots. If geth lacks the preimage of a hashed address, the
//! line has no `address`; if it lacks the preimage of a slot key, the slot is missing. Dumps of this
//! program name such an account by its hash (`key`) as well, and have such slots, by their hashes,
//! in the member `storageByHash`. Dumps that lack a preimage are refused.

mod headers;
mod read;
mod write;

pub use headers::{HeaderItem, read_headers};
pub use read::{DumpedAccount, StateDump};
pub use write::{DumpedName, StateDumpWriter};

#[cfg(test)]
mod tests;
