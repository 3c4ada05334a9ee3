//! Complete logs: the answers of `state_getLogs` in both forms, and their verification.

mod receipt_paths;
mod receipts;
mod response;
mod tables_response;
mod tables_verify;
mod verify;

pub use response::{HeaderWithReceipts, LogsResponse};
pub use tables_response::{HeaderWithPaths, LogTablesResponse, RangeBytes, TableSlice};
pub use tables_verify::{TableTrust, TabledLogs, verify_log_tables};
pub use verify::{CompleteLogs, VerifiedLog, verify_logs};
