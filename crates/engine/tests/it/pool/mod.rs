//! The transaction pool against its contract: what it refuses and in which words, where transactions
//! wait, in which order they leave, what heads and reorgs do to them; and, step by step, against a
//! model that looks at everything anew.

mod blobs;
mod heads;
mod journal;
mod model;
mod order;
mod races;
mod refusals;
mod strangers;
mod waiting;
mod world;
