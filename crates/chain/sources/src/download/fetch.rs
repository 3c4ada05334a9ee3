//! Fetches one file over HTTP into its `.part`, resuming an earlier try.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, SeekFrom, Write},
    path::Path,
};

use ureq::{Body, http::Response};

use super::error::DownloadErrorKind;
use crate::{
    http::{BlockingClient, HttpFault, header, status_fault},
    objects::{ObjectError, StoredObject},
};

/// First entry of every era1 and ere file: the version, empty.
const MAGIC: [u8; 8] = [0x65, 0x32, 0, 0, 0, 0, 0, 0];

/// A `.part` file, locked against other processes.
#[derive(Debug)]
pub(super) struct PartFile {
    file: File,
    /// Bytes received so far.
    len: u64,
}

/// Data about the file on the server, from earlier answers.
#[derive(Debug, Default)]
struct RemoteFile {
    /// Length of the whole file.
    total: Option<u64>,
    /// For `If-Range`: a strong entity tag.
    tag: Option<String>,
}

impl PartFile {
    pub(super) fn open(path: &Path) -> Result<Self, DownloadErrorKind> {
        let io = |error| DownloadErrorKind::Io { action: "open the .part file", error };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DownloadErrorKind::Locked),
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        let len = file.metadata().map_err(io)?.len();
        Ok(Self { file, len })
    }

    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// Empties the file.
    pub(super) fn clear(&mut self) -> Result<(), DownloadErrorKind> {
        let io = |error| DownloadErrorKind::Io { action: "empty the .part file", error };
        self.file.set_len(0).map_err(io)?;
        self.len = 0;
        Ok(())
    }

    /// Fetches the rest and makes it durable. `report` is called with the bytes received and the
    /// length of the whole file, if known.
    pub(super) fn fetch(
        &mut self,
        http: &BlockingClient,
        url: &str,
        report: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<(), DownloadErrorKind> {
        let mut remote = RemoteFile::default();
        let mut backoff = http.backoff();
        // Only bytes beyond the furthest one count as progress; otherwise a server that always
        // breaks at the same byte would be retried for ever.
        let mut furthest = self.len;
        loop {
            let fault = match self.round(http, url, &mut remote, report) {
                Ok(()) => break,
                Err(DownloadErrorKind::Http(fault)) => fault,
                Err(other) => return Err(other),
            };
            if self.len > furthest {
                furthest = self.len;
                backoff.reset();
            }
            backoff.wait(fault).map_err(|fault| match fault {
                HttpFault::Stopped => DownloadErrorKind::Stopped { bytes: self.len },
                fault => fault.into(),
            })?;
        }
        let io = |error| DownloadErrorKind::Io { action: "sync the .part file to disk", error };
        self.file.sync_all().map_err(io)
    }

    /// The same from an object store. Its reader handles broken connections.
    pub(super) fn fetch_object(
        &mut self,
        object: &StoredObject,
        report: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<(), DownloadErrorKind> {
        let write = |error| DownloadErrorKind::Io { action: "write the .part file", error };
        let read = |error| match ObjectError::of_io(error) {
            Ok(ObjectError::Broken { fault: HttpFault::Stopped, offset }) => {
                DownloadErrorKind::Stopped { bytes: offset }
            }
            Ok(error) => error.into(),
            Err(error) => DownloadErrorKind::Io { action: "read the object", error },
        };
        let total = object.size()?;
        // A longer `.part` is not of this file.
        if self.len > total {
            self.clear()?;
        }
        // The caller checks the checksum of the whole file.
        let mut reader = object.unchecked_reader().starting_at(self.len);
        self.file.seek(SeekFrom::Start(self.len)).map_err(write)?;
        let mut buffer = vec![0; 64 << 10];
        while self.len < total {
            object.check_stop(self.len).map_err(ObjectError::into_io).map_err(read)?;
            let read = reader.read(&mut buffer).map_err(read)?;
            self.file.write_all(&buffer[..read]).map_err(write)?;
            self.len += read as u64;
            report(self.len, Some(total));
        }
        let io = |error| DownloadErrorKind::Io { action: "sync the .part file to disk", error };
        self.file.sync_all().map_err(io)
    }

    /// One request, and as much of its answer as can be read.
    fn round(
        &mut self,
        http: &BlockingClient,
        url: &str,
        remote: &mut RemoteFile,
        report: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<(), DownloadErrorKind> {
        http.check_stop()?;
        let mut headers = vec![("accept-encoding", "identity".to_owned())];
        if self.len > 0 {
            headers.push(("range", format!("bytes={}-", self.len)));
            headers.extend(remote.tag.clone().map(|tag| ("if-range", tag)));
        }
        let answer = http.get(url, &headers)?;
        if answer.status().is_success()
            && let Some(kind) = header(&answer, "content-type")
            && ["text/html", "application/json"].iter().any(|page| kind.starts_with(page))
        {
            return Err(DownloadErrorKind::NotEra { got: kind.to_owned() });
        }
        let total = match answer.status().as_u16() {
            200 => {
                self.clear()?;
                header(&answer, "content-length").and_then(|value| value.parse().ok())
            }
            206 => match content_range(&answer) {
                Some((start, total)) if start == self.len => total,
                _ => return self.restart("the server sent another range than asked for"),
            },
            416 if self.len > 0 => match unsatisfied_range(&answer) {
                Some(total) if total == self.len => return Ok(()),
                _ => return self.restart("the file on the server is shorter than the .part file"),
            },
            _ => return Err(status_fault(&answer).into()),
        };
        if remote.total.is_some_and(|known| total.is_some_and(|total| total != known)) {
            *remote = RemoteFile::default();
            return self.restart("the file on the server has changed");
        }
        remote.total = remote.total.or(total);
        remote.tag = header(&answer, "etag").filter(|tag| tag.starts_with('"')).map(Into::into);
        self.copy(http, answer, remote.total, report)
    }

    /// Empties the file, so that the next request begins at 0.
    fn restart(&mut self, reason: &str) -> Result<(), DownloadErrorKind> {
        self.clear()?;
        Err(HttpFault::Broken(reason.to_owned()).into())
    }

    fn copy(
        &mut self,
        http: &BlockingClient,
        answer: Response<Body>,
        total: Option<u64>,
        report: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<(), DownloadErrorKind> {
        let write = |error| DownloadErrorKind::Io { action: "write the .part file", error };
        let mut head: Vec<u8> = Vec::new();
        let mut checked = self.len > 0;
        self.file.seek(SeekFrom::Start(self.len)).map_err(write)?;
        let mut body = answer.into_body().into_reader();
        let mut buffer = vec![0; 64 << 10];
        loop {
            http.check_stop()?;
            let read = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) => return Err(http.read_fault(error).into()),
            };
            if !checked {
                head.extend(buffer[..read].iter().take(MAGIC.len() - head.len()));
                if head != MAGIC[..head.len()] {
                    self.clear()?;
                    return Err(DownloadErrorKind::NotEra { got: "other data".to_owned() });
                }
                checked = head.len() == MAGIC.len();
            }
            if total.is_some_and(|total| self.len + read as u64 > total) {
                return self.restart("more bytes than the server announced");
            }
            self.file.write_all(&buffer[..read]).map_err(write)?;
            self.len += read as u64;
            report(self.len, total);
        }
        match total {
            Some(total) if self.len < total => {
                let reason = format!("it ended after {} of {total} bytes", self.len);
                Err(HttpFault::Broken(reason).into())
            }
            _ => Ok(()),
        }
    }
}

/// `Content-Range: bytes START-END/TOTAL` (RFC 9110, 14.4); the total may be `*`.
fn content_range(answer: &Response<Body>) -> Option<(u64, Option<u64>)> {
    let (range, total) =
        header(answer, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((start.parse().ok()?, total))
}

/// `Content-Range: bytes */TOTAL` of an answer with status 416.
fn unsatisfied_range(answer: &Response<Body>) -> Option<u64> {
    header(answer, "content-range")?.strip_prefix("bytes */")?.parse().ok()
}
