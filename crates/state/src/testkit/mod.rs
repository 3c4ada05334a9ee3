//! The test-kit that every backend runs.
