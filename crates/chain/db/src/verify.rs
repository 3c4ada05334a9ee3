//! Checks that do not depend on the meaning of rows: the pages of the file, and checksum and order
//! of every row. The owners of the tables check that rows agree with each other.

use crate::{
    CorruptRow, DatabaseEnv, ReadError, ReadTxn, Result, checksum,
    error::show_key,
    raw::{RawRead, TableHandle},
    tables::ChainTable,
};
use mdbx::ffi;
use serde::Serialize;
use std::ffi::{CStr, c_char};

/// The number of rows of one table, counted one by one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedTable {
    /// Name on disk.
    pub name: String,
    /// Number of rows.
    pub rows: u64,
}

/// Rows between two progress reports.
const STEP: u64 = 1 << 14;

impl DatabaseEnv {
    /// Walks all B-trees of the file and the list of free pages; returns the problems in MDBX's
    /// words. Only a file without problems is safe to read row by row.
    pub fn check_pages(&self) -> Result<Vec<String>> {
        /// MDBX's context, followed by the results of the callback. MDBX's context comes first, so
        /// that both have the same address.
        #[repr(C)]
        struct CheckContext {
            mdbx: ffi::MDBX_chk_context_t,
            issues: Vec<String>,
        }
        unsafe extern "C" fn issue(
            context: *mut ffi::MDBX_chk_context_t,
            object: *const c_char,
            entry: u64,
            issue: *const c_char,
            _: *const c_char,
            _: ffi::va_list,
        ) {
            let text = |text: *const c_char| {
                // SAFETY: MDBX passes a string that ends with a zero, or null.
                let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
                text.map_or_else(String::new, |text| text.to_string_lossy().into_owned())
            };
            // SAFETY: this is the context of `check_pages`, which no other code uses meanwhile.
            let context = unsafe { &mut *context.cast::<CheckContext>() };
            if context.issues.len() < MOST_ISSUES {
                context.issues.push(format!("{} {entry}: {}", text(object), text(issue)));
            }
        }
        // SAFETY: MDBX requires all-zero values: no callbacks, no pointers, no counts.
        let (mut callbacks, mdbx) =
            unsafe { (std::mem::zeroed::<ffi::MDBX_chk_callbacks_t>(), std::mem::zeroed()) };
        callbacks.issue = Some(issue);
        let mut context = CheckContext { mdbx, issues: Vec::new() };
        let code = self.inner.env.with_raw_env_ptr(|env| {
            // SAFETY: the environment is open, and the other arguments outlive the call. The
            // pointer is valid for the whole context, which the callback uses.
            unsafe {
                ffi::mdbx_env_chk(
                    env,
                    &callbacks,
                    (&raw mut context).cast(),
                    ffi::MDBX_CHK_SKIP_KV_TRAVERSAL,
                    ffi::MDBX_chk_error,
                    0,
                )
            }
        });
        let CheckContext { mdbx, mut issues } = context;
        let problems = mdbx.result.total_problems as u64;
        if code != 0 && issues.is_empty() {
            issues.push(mdbx::MdbxError::from_err_code(code).to_string());
        } else if problems > issues.len() as u64 {
            issues.push(format!("{problems} problems of pages in total"));
        }
        Ok(issues)
    }
}

/// Maximum number of page problems that are listed one by one.
const MOST_ISSUES: usize = 20;

impl ReadTxn {
    /// Reads every row of every table. The checksum must match, and the key must sort after the key
    /// before. Each wrong row is passed to `fault`. `progress` gets the
    /// name of the current table and its number of rows so far. Returns the tables in the order of
    /// [`DbStats::tables`](crate::DbStats::tables).
    pub fn check_rows(
        &self,
        progress: &mut dyn FnMut(&str, u64),
        fault: &mut dyn FnMut(CorruptRow),
    ) -> Result<Vec<CheckedTable>, ReadError> {
        let chain = ChainTable::ALL.map(|table| (table.name().to_owned(), self.chain(table).db));
        let mut tables = chain.to_vec();
        let mut state = self.inner().tables.all_state();
        state.sort_by(|a, b| a.0.cmp(&b.0));
        tables.extend(state.into_iter().map(|(name, db)| (name, Some(db))));
        let mut checked = Vec::new();
        for (name, db) in tables {
            let table = TableHandle::new("of this snapshot", &name, db);
            let counted = self.raw_stat(table)?.map_or(0, |stat| stat.entries() as u64);
            let mut rows = 0;
            let mut last: Option<Vec<u8>> = None;
            let walked = self.walk(table, |key, row| {
                rows += 1;
                if !checksum::is_right(table.start, &key, &row) {
                    fault(CorruptRow::new(&name, &key, checksum::MISMATCH));
                }
                if let Some(last) = last.as_ref().filter(|last| **last >= key) {
                    let what = format!("it does not sort after the key before, {}", show_key(last));
                    fault(CorruptRow::new(&name, &key, what));
                }
                last = Some(key);
                if rows % STEP == 0 {
                    progress(&name, rows);
                }
                // Pages that form a cycle would never end.
                rows <= counted
            });
            let key = last.unwrap_or_default();
            if let Err(e) = walked {
                fault(CorruptRow::new(&name, &key, format!("reading after this key: {e}")));
            } else if rows != counted {
                let what = format!("it is row {rows}, but the table has {counted} rows");
                fault(CorruptRow::new(&name, &key, what));
            }
            progress(&name, rows);
            checked.push(CheckedTable { name, rows });
        }
        Ok(checked)
    }
}
