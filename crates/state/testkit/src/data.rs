//! Finds the public test data: real blocks, and suites of other clients.
//!
//! | environment variable | meaning |
//! |---|---|
//! | `RETRIE_DATA` | the folder of the data; without it `../shared/data` beside the repository |
//! | `RETRIE_REQUIRE_DATA=1` | a test fails if its data is missing, instead of being skipped |

use std::{
    env,
    path::{Path, PathBuf},
};

/// The folder of the data, which may be missing.
pub fn folder() -> PathBuf {
    let named = env::var_os("RETRIE_DATA").filter(|value| !value.is_empty());
    named.map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data"),
        PathBuf::from,
    )
}

/// The file or folder at `path` in the [data](folder), such as `mainnet/chain`; an empty path is
/// the data folder itself. If it is missing, it prints that the test is skipped and returns `None`.
///
/// # Panics
/// If it is missing and `RETRIE_REQUIRE_DATA` is 1.
pub fn find(path: impl AsRef<Path>) -> Option<PathBuf> {
    let found = folder().join(path);
    if let Ok(found) = found.canonicalize() {
        return Some(found);
    }
    let is_required = env::var("RETRIE_REQUIRE_DATA").is_ok_and(|value| value == "1");
    assert!(!is_required, "RETRIE_REQUIRE_DATA=1, but {} is missing", found.display());
    println!("skipped: no RETRIE_DATA");
    None
}
