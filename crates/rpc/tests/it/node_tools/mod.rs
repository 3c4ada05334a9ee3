//! What whoever runs or develops against a node asks of it: transactions to sign, whole states, the
//! chain taken back, receipts as they come.

mod dump;
mod fill;
mod receipts;
mod set_head;
