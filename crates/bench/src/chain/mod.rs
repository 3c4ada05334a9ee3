//! Chains made from a seed.
