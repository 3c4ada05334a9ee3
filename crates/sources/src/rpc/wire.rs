//! Requests and answers of JSON-RPC 2.0: single calls, batches, and what to do when a node refuses
//! them.

use std::sync::atomic::Ordering;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{RpcClient, RpcError, RpcErrorKind};
use crate::http::{HttpFault, status_fault};

/// Longest answer that is read (1 GiB).
const MAX_ANSWER_BYTES: u64 = 1 << 30;
/// Longest answer that holds one block or header (96 MiB). A block has at most 10 MiB (EIP-7934); as
/// JSON that is twice as much if it is all calldata, and seven times if it is the smallest of
/// transactions.
const MAX_BLOCK_BYTES: u64 = 96 << 20;

/// One call of a method.
#[derive(Debug)]
pub(super) struct Call {
    method: &'static str,
    params: Value,
    /// The block it is about, for messages.
    block: Option<u64>,
    /// Longest answer that is read, in bytes.
    most: u64,
}

impl Call {
    pub(super) const fn new(method: &'static str, params: Value, block: Option<u64>) -> Self {
        Self { method, params, block, most: MAX_ANSWER_BYTES }
    }

    /// The same, for one block or header and no more.
    pub(super) const fn of_block(method: &'static str, params: Value, block: Option<u64>) -> Self {
        Self { method, params, block, most: MAX_BLOCK_BYTES }
    }

    /// The same, of whose answer at most `most` bytes are read.
    pub(super) fn at_most(self, most: u64) -> Self {
        Self { most, ..self }
    }

    fn request(&self, id: u64) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "method": self.method, "params": self.params})
    }
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    id: Value,
    #[serde(default)]
    result: Value,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
}

impl Refusal {
    /// Providers say "too many requests" in an answer 200, too.
    fn is_rate_limit(&self) -> bool {
        let lower = self.message.to_ascii_lowercase();
        matches!(self.code, 429 | -32005)
            || ["rate limit", "too many requests", "request limit", "capacity exceeded"]
                .iter()
                .any(|sign| lower.contains(sign))
    }
}

impl Answer {
    fn outcome(self) -> Result<Value, RpcErrorKind> {
        match self.error {
            Some(Refusal { code, message }) => Err(RpcErrorKind::refusal(code, message)),
            None => Ok(self.result),
        }
    }
}

/// What came back for a batch.
enum Batch {
    Answers(Vec<Answer>),
    /// The node takes no batches, or none of this size; calls of their own will tell why.
    Refused,
}

impl RpcClient {
    /// One call, its result parsed.
    pub(super) fn one<T: DeserializeOwned>(&self, call: &Call) -> Result<T, RpcError> {
        let result = self.single(call).and_then(Answer::outcome);
        self.parse(call, result.map_err(|kind| self.error(call, kind))?)
    }

    /// All calls; the first refusal fails.
    pub(super) fn all(&self, calls: &[Call]) -> Result<Vec<Value>, RpcError> {
        let each = calls.iter().zip(self.each(calls)?);
        each.map(|(call, result)| result.map_err(|kind| self.error(call, kind))).collect()
    }

    /// All calls, each with its result or refusal.
    pub(super) fn each(
        &self,
        calls: &[Call],
    ) -> Result<Vec<Result<Value, RpcErrorKind>>, RpcError> {
        let mut results = Vec::with_capacity(calls.len());
        while let Some(call) = calls.get(results.len()) {
            let size = self.batch.load(Ordering::Relaxed).min(calls.len() - results.len());
            let error = |kind| self.error(call, kind);
            if size == 1 {
                results.push(self.single(call).map_err(error)?.outcome());
                continue;
            }
            let chunk = &calls[results.len()..results.len() + size];
            match self.batch(chunk).map_err(error)? {
                Batch::Answers(answers) => {
                    results.extend(answers.into_iter().map(Answer::outcome));
                }
                Batch::Refused => self.batch.store((size / 4).max(1), Ordering::Relaxed),
            }
        }
        Ok(results)
    }

    pub(super) fn parse<T: DeserializeOwned>(
        &self,
        call: &Call,
        result: Value,
    ) -> Result<T, RpcError> {
        serde_json::from_value(result).map_err(|e| self.error(call, RpcErrorKind::Result(e)))
    }

    /// The same of a result that is needed again.
    pub(super) fn parse_part<T: DeserializeOwned>(
        &self,
        call: &Call,
        result: &Value,
    ) -> Result<T, RpcError> {
        T::deserialize(result).map_err(|e| self.error(call, RpcErrorKind::Result(e)))
    }

    pub(super) fn error(&self, call: &Call, kind: RpcErrorKind) -> RpcError {
        RpcError {
            endpoint: self.endpoint.clone(),
            method: call.method,
            block: call.block,
            kind: Box::new(kind),
        }
    }

    fn single(&self, call: &Call) -> Result<Answer, RpcErrorKind> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut backoff = self.http.backoff();
        loop {
            let (status, body) = self.post(&call.request(id), call.most)?;
            let answer: Answer = match serde_json::from_slice(&body) {
                Ok(answer) => answer,
                Err(_) => return Err(no_json_rpc(status, &body)),
            };
            match answer.error {
                Some(error) if error.is_rate_limit() => backoff.wait(too_many())?,
                // A node that cannot read a request does not know its id.
                None if answer.id != json!(id) => return Err(no_json_rpc(status, &body)),
                _ => return Ok(answer),
            }
        }
    }

    fn batch(&self, calls: &[Call]) -> Result<Batch, RpcErrorKind> {
        let first = self.next_id.fetch_add(calls.len() as u64, Ordering::Relaxed);
        let request: Vec<_> = (first..).zip(calls).map(|(id, call)| call.request(id)).collect();
        let request = Value::Array(request);
        let mut backoff = self.http.backoff();
        loop {
            let (status, body) = match self.post(&request, MAX_ANSWER_BYTES) {
                Ok(answer) => answer,
                Err(RpcErrorKind::Http(HttpFault::TooLong(_))) => return Ok(Batch::Refused),
                Err(kind) => return Err(kind),
            };
            let mut answers: Vec<Answer> = match serde_json::from_slice(&body) {
                Ok(answers) => answers,
                Err(_) => match serde_json::from_slice::<Answer>(&body) {
                    Ok(Answer { error: Some(error), .. }) if error.is_rate_limit() => {
                        backoff.wait(too_many())?;
                        continue;
                    }
                    Ok(Answer { error: Some(_), .. }) => return Ok(Batch::Refused),
                    // 400, 405, 413, ...: some gateways refuse batches like this.
                    _ if !(200..300).contains(&status) => return Ok(Batch::Refused),
                    _ => return Err(no_json_rpc(status, &body)),
                },
            };
            if answers.iter().any(|a| a.error.as_ref().is_some_and(Refusal::is_rate_limit)) {
                backoff.wait(too_many())?;
                continue;
            }
            // A node may answer in any order.
            answers.sort_by_key(|answer| answer.id.as_u64());
            let ids = answers.iter().map(|answer| answer.id.as_u64());
            if !ids.eq((first..first + calls.len() as u64).map(Some)) {
                // Not all were answered: a limit of the node's, said in nobody's name.
                return match answers.iter().any(|answer| answer.error.is_some()) {
                    true => Ok(Batch::Refused),
                    false => Err(RpcErrorKind::NotJsonRpc("a batch answered in part".into())),
                };
            }
            return Ok(Batch::Answers(answers));
        }
    }

    /// Status and body of the answer, tried again as long as that may help.
    fn post(&self, request: &Value, most: u64) -> Result<(u16, Vec<u8>), RpcErrorKind> {
        let body = request.to_string();
        let answer = self.http.retry(|| {
            self.http.go_on()?;
            let answer = self.http.post_json(&self.url, body.as_bytes())?;
            let status = answer.status().as_u16();
            // Nodes answer refusals with 200 or with a 4xx and JSON; these are none.
            if matches!(status, 401 | 402 | 403 | 404 | 407 | 408 | 429 | 500..) {
                return Err(status_fault(&answer));
            }
            Ok((status, self.http.read(answer, most)?))
        });
        Ok(answer?)
    }
}

const fn too_many() -> HttpFault {
    HttpFault::Status { code: 429, retry_after: None }
}

fn no_json_rpc(status: u16, body: &[u8]) -> RpcErrorKind {
    let text = String::from_utf8_lossy(&body[..body.len().min(60)]);
    let begin: Vec<_> = text.split_whitespace().collect();
    RpcErrorKind::NotJsonRpc(format!("status {status}, it begins `{}`", begin.join(" ")))
}
