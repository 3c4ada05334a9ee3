//! The transaction pool: what it refuses and with which messages, where transactions wait, in which
//! order they are executed and evicted, the effect of heads and reorgs; and, step by step, against
//! a model that recomputes everything.

mod blobs;
mod fixtures;
mod heads;
mod journal;
mod model;
mod order;
mod races;
mod refusals;
mod strangers;
mod waiting;
