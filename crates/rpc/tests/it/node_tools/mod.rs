//! Methods for operators and developers: transactions to sign, state dumps, rewinding the chain,
//! receipts of new blocks.

mod dump;
mod fill;
mod receipts;
mod set_head;
