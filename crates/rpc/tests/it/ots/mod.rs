//! The methods of Otterscan on a made chain with creations, transfers within calls, SELFDESTRUCT and
//! reverts.

mod answers;
mod history;
mod scene;
