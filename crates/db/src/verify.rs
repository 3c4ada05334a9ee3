//! Checks that need not know what rows mean: the pages of the file, and checksum and order of every
//! row. What rows say to each other is checked by those who write them.

use crate::{
    Db, DbError, ReadTxn, Result, checksum,
    error::show_key,
    raw::{Handle, RawRead},
    tables::ChainTable,
};
use mdbx::ffi;
use serde::Serialize;
use std::ffi::{CStr, c_char};

/// Rows of one table, as they were counted one by one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedTable {
    /// Name on disk.
    pub name: String,
    /// Number of rows.
    pub rows: u64,
}

/// Rows between two calls of a progress report.
const STEP: u64 = 1 << 14;

impl Db {
    /// Walks all B-trees of the file and the list of free pages; returns what does not fit together,
    /// in MDBX's words. Only a file without such findings is safe to read row by row.
    pub fn check_pages(&self) -> Result<Vec<String>> {
        /// MDBX's context and what our callback leaves; the former first, so that its address is
        /// that of the whole.
        #[repr(C)]
        struct Context {
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
            // SAFETY: the context of `check_pages`, which nobody else uses meanwhile.
            let context = unsafe { &mut *context.cast::<Context>() };
            if context.issues.len() < MOST_ISSUES {
                context.issues.push(format!("{} {entry}: {}", text(object), text(issue)));
            }
        }
        // SAFETY: all-zero is what MDBX asks for: no callbacks, no pointers, no counts.
        let (mut callbacks, mdbx) =
            unsafe { (std::mem::zeroed::<ffi::MDBX_chk_callbacks_t>(), std::mem::zeroed()) };
        callbacks.issue = Some(issue);
        let mut context = Context { mdbx, issues: Vec::new() };
        let code = self.inner.env.with_raw_env_ptr(|env| {
            // SAFETY: the environment is open, the rest outlives the call. The pointer to the
            // context comes from the whole of it, for the callback.
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
        let Context { mdbx, mut issues } = context;
        let problems = mdbx.result.total_problems as u64;
        if code != 0 && issues.is_empty() {
            issues.push(mdbx::MdbxError::from_err_code(code).to_string());
        } else if problems > issues.len() as u64 {
            issues.push(format!("{problems} problems of pages in all"));
        }
        Ok(issues)
    }
}

/// Findings about pages that are kept one by one.
const MOST_ISSUES: usize = 20;

impl ReadTxn {
    /// Reads every row of every table: its checksum must be right and its key sort after the one
    /// before; each that is not is given to `fault` as [`DbError::Corrupt`]. `progress` hears of the
    /// rows of the table under way. Returns the tables in the order of
    /// [`DbStats::tables`](crate::DbStats::tables).
    pub fn check_rows(
        &self,
        progress: &mut dyn FnMut(&str, u64),
        fault: &mut dyn FnMut(DbError),
    ) -> Result<Vec<CheckedTable>> {
        let chain = ChainTable::ALL.map(|table| (table.name().to_owned(), self.chain(table).db));
        let mut tables = chain.to_vec();
        let mut state = self.inner().tables.all_state();
        state.sort_by(|a, b| a.0.cmp(&b.0));
        tables.extend(state.into_iter().map(|(name, db)| (name, Some(db))));
        let mut checked = Vec::new();
        for (name, db) in tables {
            let table = Handle::new("of this snapshot", &name, db);
            let counted = self.raw_stat(table)?.map_or(0, |stat| stat.entries() as u64);
            let mut rows = 0;
            let mut last: Option<Vec<u8>> = None;
            let walked = self.walk(table, |key, row| {
                rows += 1;
                if !checksum::is_right(table.start, &key, &row) {
                    fault(DbError::corrupt(&name, &key, checksum::MISMATCH));
                }
                if let Some(last) = last.as_ref().filter(|last| **last >= key) {
                    let what = format!("it does not sort after the key before, {}", show_key(last));
                    fault(DbError::corrupt(&name, &key, what));
                }
                last = Some(key);
                if rows % STEP == 0 {
                    progress(&name, rows);
                }
                // Pages that lead in a circle would never end.
                rows <= counted
            });
            let key = last.unwrap_or_default();
            if let Err(e) = walked {
                fault(DbError::corrupt(&name, &key, format!("reading on after this key: {e}")));
            } else if rows != counted {
                let what = format!("this is row {rows}, and the table counts {counted}");
                fault(DbError::corrupt(&name, &key, what));
            }
            progress(&name, rows);
            checked.push(CheckedTable { name, rows });
        }
        Ok(checked)
    }
}
