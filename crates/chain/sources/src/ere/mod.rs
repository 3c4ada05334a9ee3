//! ere: archives of up to 8192 blocks of any time, with receipts and proofs if they are not left out.
//!
//! ```text
//!  version | header x n | body x n | receipts x n | proof x n | total-difficulty x n | other*
//!          | accumulator | index
//! ```
//!
//! Headers and bodies are always there. Receipts may be left out, proofs too, which the name of the
//! file tells ([`EreProfile`](crate::EreProfile)); total difficulties and the accumulator are in files
//! with blocks from before the merge. All but total difficulties and accumulator is RLP in snappy
//! *framed* format. Receipts are [slim](SlimReceipt): they have no bloom, which follows from the logs.
//! The index has the file offset of every component of every block. The page
//! `docs/formats/ere.md` has the bytes.
//!
//! [`EreReader`] reads the components of a block together, one block in memory. It checks while it
//! streams: the index against the entries, so that no byte of the file is without meaning; block
//! numbers, parent links, total difficulties, proofs; at the end the accumulator. **So blocks are
//! yielded before the accumulator that covers them is checked.** [`verify_ere`] makes a separate pass,
//! which also checks bodies and receipts against the headers. Of the proofs of blocks after the merge
//! only a [part](HeaderProof) can be checked without the beacon chain.
//!
//! [`EreWriter`] writes such a file. It makes the proofs of blocks before the merge; of later ones it
//! cannot, and then the file has the profile `noproofs`.

mod index;
mod proof;
mod reader;
mod receipts;
mod verify;
mod writer;

pub use proof::{HeaderProof, HeaderProofType};
pub use reader::{EreBlock, EreReader};
pub use receipts::SlimReceipt;
pub use verify::{EreSummary, verify_ere};
pub use writer::{EreWriter, ExportedFile};
