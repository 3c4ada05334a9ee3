//! Comparison of all rows of a table.

use super::{KeyRange, NodeRead, RowTable, ScanDirection, TableRow};
use crate::StateError;

#[cfg(doc)]
use super::Backend;

/// Compares all rows of one table: `found` must have the rows of `expected` and no others. For
/// [`Backend::check`] of backends whose rows depend on the values alone.
pub fn compare_rows(
    table: RowTable,
    found: &dyn NodeRead,
    expected: &dyn NodeRead,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    let mut found = found.scan(table, KeyRange::ALL, ScanDirection::Forward)?;
    let mut expected = expected.scan(table, KeyRange::ALL, ScanDirection::Forward)?;
    let (mut left, mut right) = (found.next().transpose()?, expected.next().transpose()?);
    loop {
        let order = match (&left, &right) {
            (None, None) => return Ok(()),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((left, _)), Some((right, _))) => left.cmp(right),
        };
        let mut bad = |row: &Option<TableRow>, what: &str| {
            let key = row.as_ref().map(|(key, _)| key.to_string()).unwrap_or_default();
            report(StateError::corrupt(table.name, format!("key {key}: {what}")));
        };
        if order.is_lt() {
            bad(&left, "the values have no use for this row");
        } else if order.is_gt() {
            bad(&right, "a row that the values ask for is missing");
        } else if left != right {
            bad(&left, "the row is not what the values ask for");
        }
        if order.is_le() {
            left = found.next().transpose()?;
        }
        if order.is_ge() {
            right = expected.next().transpose()?;
        }
    }
}
