//! `PayloadStatus`.

use super::{
    super::ssz::{ContainerWriter, SszBuffer, list_of},
    MAX_ERROR,
};
use alloy_rpc_types_engine::{PayloadStatus, PayloadStatusEnum};

/// Writes a status; its error is cut after [`MAX_ERROR`] bytes.
pub(crate) fn encode_status(status: &PayloadStatus) -> SszBuffer {
    let (code, error) = match &status.status {
        PayloadStatusEnum::Valid => (0_u8, None),
        PayloadStatusEnum::Invalid { validation_error } => (1, Some(validation_error)),
        PayloadStatusEnum::Syncing => (2, None),
        PayloadStatusEnum::Accepted => (3, None),
    };
    let mut hash = SszBuffer::default();
    if let Some(latest) = status.latest_valid_hash {
        hash.put(latest);
    }
    let text = error.map(|error| {
        let mut text = SszBuffer::default();
        let (cut, _) = error.split_at(error.floor_char_boundary(MAX_ERROR));
        text.put(cut);
        text
    });
    let mut fields = ContainerWriter::default();
    fields.put([code]);
    fields.put_variable(hash);
    fields.put_variable(list_of(text));
    fields.finish()
}
