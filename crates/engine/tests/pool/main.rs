//! The transaction pool against its contract: what it refuses and in which words, where transactions
//! wait, in which order they leave, what heads and reorgs do to them; and, step by step, against a
//! model that looks at everything anew.

mod blobs;
mod heads;
mod model;
mod refusals;
mod waiting;
mod world;
