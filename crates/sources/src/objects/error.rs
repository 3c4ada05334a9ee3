//! Why an object could not be read or written, and which failures are worth another try.

use std::{error::Error, io};

use alloy_primitives::{B256, hex};

use super::connector::Refusal;
use crate::http::HttpFault;

/// Why an object could not be read or written. It names no object: the error around it does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The URL cannot be one of an object.
    #[error("not a usable address: {0}")]
    Address(String),
    /// What the environment says of the store cannot be.
    #[error("the store cannot be used with these settings of the environment: {0}")]
    Settings(String),
    /// Nobody says who asks.
    #[error("no credentials ({why}): set {variables}")]
    NoCredentials {
        /// What was tried.
        why: String,
        /// What can be set.
        variables: &'static str,
    },
    /// The store does not let us.
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
    /// The bucket is served elsewhere.
    #[error("the bucket is in another region{}: set AWS_REGION", code_of(.region))]
    Region {
        /// Which one, if the store says so.
        region: Option<String>,
    },
    /// A request failed, or the answer broke off.
    #[error("at byte {offset} of the object: {fault}")]
    Broken {
        /// How far it was read.
        offset: u64,
        /// What happened at last.
        fault: HttpFault,
    },
    /// A request that reads no content failed.
    #[error("cannot {action}: {fault}")]
    Request {
        /// What was attempted.
        action: &'static str,
        /// What happened at last.
        fault: HttpFault,
    },
    /// The object is not as long as the listing says.
    #[error(
        "the object has {got} bytes, its listing says {expected}: truncated, or replaced since then"
    )]
    Truncated {
        /// Bytes listed.
        expected: u64,
        /// Bytes that there are.
        got: u64,
    },
    /// It became another object while it was read.
    #[error("the object was replaced while it was read, at byte {offset}: read it again")]
    Replaced {
        /// How far the old one was read.
        offset: u64,
    },
    /// The content is not that of its checksum.
    #[error(
        "its SHA-256 is {}, but SHA256SUMS beside it says {}: the object is damaged or replaced; copy \
         it there again, or make SHA256SUMS anew",
        hex::encode(.got),
        hex::encode(.expected)
    )]
    Checksum {
        /// That of the list.
        expected: B256,
        /// Computed.
        got: B256,
    },
    /// The list of checksums is none.
    #[error("line {line} is not `HASH  NAME` as sha256sum writes it")]
    NotAManifest {
        /// Which line, from 1.
        line: usize,
    },
    /// A folder on a web server that has no list.
    #[error(
        "a folder over http(s) is read by the list SHA256SUMS in it, and there is none: make it with \
         `sha256sum * > SHA256SUMS`, or name single files"
    )]
    NoList,
    /// Only stores are written to.
    #[error("nothing is written over http(s): name an s3:// or gs:// prefix, or a folder")]
    ReadOnly,
    /// Somebody else wrote it at the same time.
    #[error(
        "others write the object at the same time, again and again: run the same command again"
    )]
    Conflict,
    /// The store cannot write on a condition.
    #[error("the store does not know conditions of writes")]
    NotImplemented,
    /// The content goes through a file, which could not be written.
    #[error("cannot write it to a temporary file, which needs as much space as the object: {0}")]
    Spool(io::Error),
    /// No thread or timer.
    #[error("the operating system refuses what requests need: {0}")]
    Runtime(io::Error),
    /// The store says something else.
    #[error("{0}")]
    Store(String),
}

fn code_of(code: &Option<String>) -> String {
    code.as_ref().map(|code| format!(" {code}")).unwrap_or_default()
}

impl ObjectError {
    /// Whether the store says that there is no such thing, or hides whether there is.
    pub(crate) const fn is_absence(&self) -> bool {
        matches!(self, Self::NotFound | Self::Denied { status: 403, .. })
    }

    /// As an error of a reader.
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::other(Carried(self))
    }

    /// The error that a reader has passed on, or the reader's own.
    pub(crate) fn of_io(error: io::Error) -> Result<Self, io::Error> {
        error.downcast::<Carried>().map(|Carried(error)| error)
    }
}

/// An error on its way through a reader, distinct from what decoders make themselves.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Carried(ObjectError);

/// A failed try.
#[derive(Debug)]
pub(super) enum Fault {
    /// Of the exchange; whether it is worth another try is the client's to say.
    Exchange(HttpFault),
    /// The object has another length than its listing.
    Truncated { expected: u64, got: u64 },
    /// Nothing that another try changes.
    Final(ObjectError),
}

impl From<ObjectError> for Fault {
    fn from(error: ObjectError) -> Self {
        Self::Final(error)
    }
}

/// What an error of the library comes from. `offset` is how far the object was read.
pub(super) fn classify(error: &object_store::Error, offset: u64) -> Fault {
    if let Some(fault) = find::<HttpFault>(error) {
        return Fault::Exchange(fault.clone());
    }
    let Some(refusal) = find::<Refusal>(error) else {
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
            return Fault::Exchange(fault);
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

/// What the last cause says: those around it repeat it.
pub(super) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
