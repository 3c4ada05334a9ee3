//! Why an object could not be read or written, and which failures are retried.

use std::{error::Error, io};

use alloy_primitives::{B256, hex};

use super::connector::StoreRefusal;
use crate::http::HttpFault;

/// Why an object could not be read or written. The enclosing error names the object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The URL is not a valid object URL.
    #[error("not a usable address: {0}")]
    Address(String),
    /// The environment's settings of the store are invalid.
    #[error("the store cannot be used with these settings of the environment: {0}")]
    Settings(String),
    /// There are no credentials.
    #[error("no credentials ({why}): set {variables}")]
    NoCredentials {
        /// What was tried.
        why: String,
        /// What can be set.
        variables: &'static str,
    },
    /// The store denies access.
    #[error("access denied ({status}{}): check the credentials and what they may do", code_of(.code))]
    Denied {
        /// Status of the answer.
        status: u16,
        /// The store's name for the reason.
        code: Option<String>,
    },
    /// There is no such bucket.
    #[error("there is no such bucket")]
    NoBucket,
    /// There is no such object.
    #[error("there is no such object")]
    NotFound,
    /// The bucket is in another region.
    #[error("the bucket is in another region{}: set AWS_REGION", code_of(.region))]
    Region {
        /// The region, if the store names it.
        region: Option<String>,
    },
    /// A request failed, or the answer broke off.
    #[error("at byte {offset} of the object: {fault}")]
    Broken {
        /// How far it was read.
        offset: u64,
        /// The last failure.
        fault: HttpFault,
    },
    /// A request that reads no content failed.
    #[error("cannot {action}: {fault}")]
    Request {
        /// What was attempted.
        action: &'static str,
        /// The last failure.
        fault: HttpFault,
    },
    /// The object is not as long as the listing says.
    #[error(
        "the object has {got} bytes, its listing says {expected}: truncated, or replaced since then"
    )]
    Truncated {
        /// Bytes listed.
        expected: u64,
        /// Real length in bytes.
        got: u64,
    },
    /// The object was replaced while it was read.
    #[error("the object was replaced while it was read, at byte {offset}: read it again")]
    Replaced {
        /// How far the old one was read.
        offset: u64,
    },
    /// The content does not have the listed checksum.
    #[error(
        "its SHA-256 is {}, but SHA256SUMS beside it says {}: the object is damaged or replaced; copy \
         it there again, or make SHA256SUMS anew",
        hex::encode(.got),
        hex::encode(.expected)
    )]
    Checksum {
        /// The listed checksum.
        expected: B256,
        /// Computed.
        got: B256,
    },
    /// The list of checksums is malformed.
    #[error("line {line} is not `HASH  NAME` as sha256sum writes it")]
    NotAManifest {
        /// Number of the line, from 1.
        line: usize,
    },
    /// A folder on a web server without a list.
    #[error(
        "a folder over http(s) is read by the list SHA256SUMS in it, and there is none: make it with \
         `sha256sum * > SHA256SUMS`, or name single files"
    )]
    NoList,
    /// Web servers are read-only.
    #[error("nothing is written over http(s): name an s3:// or gs:// prefix, or a folder")]
    ReadOnly,
    /// Another writer has written the object at the same time.
    #[error(
        "others write the object at the same time, again and again: run the same command again"
    )]
    Conflict,
    /// The store does not support conditional writes.
    #[error("the store does not know conditions of writes")]
    NotImplemented,
    /// The temporary file for the content could not be written.
    #[error("cannot write it to a temporary file, which needs as much space as the object: {0}")]
    Spool(io::Error),
    /// The operating system has refused a thread or timer.
    #[error("the operating system refuses what requests need: {0}")]
    Runtime(io::Error),
    /// Another error of the store.
    #[error("{0}")]
    Store(String),
}

fn code_of(code: &Option<String>) -> String {
    code.as_ref().map(|code| format!(" {code}")).unwrap_or_default()
}

impl ObjectError {
    /// Whether the object does not exist, or the store does not tell.
    pub(crate) const fn is_absence(&self) -> bool {
        matches!(self, Self::NotFound | Self::Denied { status: 403, .. })
    }

    /// Wraps the error for an `io::Read`.
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::other(CarriedError(self))
    }

    /// Unwraps an error of [`into_io`](Self::into_io); otherwise the reader's own error.
    pub(crate) fn of_io(error: io::Error) -> Result<Self, io::Error> {
        error.downcast::<CarriedError>().map(|CarriedError(error)| error)
    }
}

/// An object error inside an `io::Error`, distinct from errors of decoders.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct CarriedError(ObjectError);

/// Why one try failed.
#[derive(Debug)]
pub(super) enum ObjectFault {
    /// The exchange failed. The client decides whether to retry.
    Exchange(HttpFault),
    /// The object has another length than its listing.
    Truncated { expected: u64, got: u64 },
    /// A retry cannot help.
    Final(ObjectError),
}

impl From<ObjectError> for ObjectFault {
    fn from(error: ObjectError) -> Self {
        Self::Final(error)
    }
}

/// Classifies an error of `object_store`. `offset` is how far the object was read.
pub(super) fn classify(error: &object_store::Error, offset: u64) -> ObjectFault {
    if let Some(fault) = find::<HttpFault>(error) {
        return ObjectFault::Exchange(fault.clone());
    }
    let Some(refusal) = find::<StoreRefusal>(error) else {
        return match error {
            object_store::Error::NotImplemented { .. } => ObjectError::NotImplemented,
            _ => ObjectError::Store(innermost(error)),
        }
        .into();
    };
    let code = refusal.code.clone();
    let is = |names: &[&str]| code.as_deref().is_some_and(|code| names.contains(&code));
    let status = refusal.status;
    match status {
        404 if is(&["NoSuchBucket"]) => ObjectError::NoBucket,
        404 | 410 => ObjectError::NotFound,
        401 | 403 => ObjectError::Denied { status, code },
        400 if is(&["ExpiredToken", "InvalidToken", "TokenRefreshRequired"]) => {
            ObjectError::Denied { status, code }
        }
        400 if is(&["AuthorizationHeaderMalformed"]) => {
            ObjectError::Region { region: refusal.region.clone() }
        }
        301 | 302 | 307 | 308 => ObjectError::Region { region: refusal.region.clone() },
        409 => ObjectError::Conflict,
        501 => ObjectError::NotImplemented,
        412 | 416 => ObjectError::Replaced { offset },
        code => {
            let fault = HttpFault::Status { code, retry_after: refusal.retry_after };
            return ObjectFault::Exchange(fault);
        }
    }
    .into()
}

/// The first cause of this type.
pub(super) fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// The text of the innermost cause: the outer ones repeat it.
pub(super) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
