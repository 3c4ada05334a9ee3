//! Complete logs: the answer of `state_getLogs`, and its verification.

mod receipts;
mod response;
mod verify;

pub use response::{HeaderWithReceipts, LogsResponse};
pub use verify::{CompleteLogs, VerifiedLog, verify_logs};
