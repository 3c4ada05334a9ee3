//! Requests and answers of JSON-RPC 2.0: single calls, batches, and the handling of refusals.

use std::sync::atomic::Ordering;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{RpcClient, RpcError, RpcErrorKind};
use crate::http::{HttpFault, status_fault};

/// Size limit of an answer (1 GiB).
const MAX_ANSWER_BYTES: u64 = 1 << 30;
/// Size limit of an answer with one block or header (96 MiB). A block has at most 10 MiB
/// (EIP-7934); as JSON it has twice as much if it is all calldata, and seven times as much if it
/// has the smallest transactions.
const MAX_BLOCK_BYTES: u64 = 96 << 20;

/// One call of a method.
#[derive(Debug)]
pub(super) struct RpcCall {
    method: &'static str,
    params: Value,
    /// The block that it is about, for messages.
    block: Option<u64>,
    /// Size limit of the answer, in bytes.
    most: u64,
}

impl RpcCall {
    pub(super) const fn new(method: &'static str, params: Value, block: Option<u64>) -> Self {
        Self { method, params, block, most: MAX_ANSWER_BYTES }
    }

    /// A call whose answer has one block or header.
    pub(super) const fn of_block(method: &'static str, params: Value, block: Option<u64>) -> Self {
        Self { method, params, block, most: MAX_BLOCK_BYTES }
    }

    /// The same with a limit of `most` bytes for the answer.
    pub(super) fn at_most(self, most: u64) -> Self {
        Self { most, ..self }
    }

    fn request(&self, id: u64) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "method": self.method, "params": self.params})
    }
}

#[derive(Deserialize)]
struct NodeAnswer {
    #[serde(default)]
    id: Value,
    #[serde(default)]
    result: Value,
    error: Option<RpcRefusal>,
}

#[derive(Deserialize)]
struct RpcRefusal {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
}

impl RpcRefusal {
    /// Some providers send "too many requests" with status 200.
    fn is_rate_limit(&self) -> bool {
        let lower = self.message.to_ascii_lowercase();
        matches!(self.code, 429 | -32005)
            || ["rate limit", "too many requests", "request limit", "capacity exceeded"]
                .iter()
                .any(|sign| lower.contains(sign))
    }
}

impl NodeAnswer {
    fn outcome(self) -> Result<Value, RpcErrorKind> {
        match self.error {
            Some(RpcRefusal { code, message }) => Err(RpcErrorKind::refusal(code, message)),
            None => Ok(self.result),
        }
    }
}

/// The answer to a batch.
enum BatchResponse {
    Answers(Vec<NodeAnswer>),
    /// The node takes no batches, or none of this size. Single calls will return the reason.
    Refused,
}

impl RpcClient {
    /// Makes one call and parses its result.
    pub(super) fn one<T: DeserializeOwned>(&self, call: &RpcCall) -> Result<T, RpcError> {
        let result = self.single(call).and_then(NodeAnswer::outcome);
        self.parse(call, result.map_err(|kind| self.error(call, kind))?)
    }

    /// Makes all calls. Fails with the first refusal.
    pub(super) fn all(&self, calls: &[RpcCall]) -> Result<Vec<Value>, RpcError> {
        let each = calls.iter().zip(self.each(calls)?);
        each.map(|(call, result)| result.map_err(|kind| self.error(call, kind))).collect()
    }

    /// Makes all calls. Returns the result or refusal of each.
    pub(super) fn each(
        &self,
        calls: &[RpcCall],
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
                BatchResponse::Answers(answers) => {
                    results.extend(answers.into_iter().map(NodeAnswer::outcome));
                }
                BatchResponse::Refused => self.batch.store((size / 4).max(1), Ordering::Relaxed),
            }
        }
        Ok(results)
    }

    pub(super) fn parse<T: DeserializeOwned>(
        &self,
        call: &RpcCall,
        result: Value,
    ) -> Result<T, RpcError> {
        serde_json::from_value(result).map_err(|e| self.error(call, RpcErrorKind::Result(e)))
    }

    /// The same for a result that is needed again.
    pub(super) fn parse_part<T: DeserializeOwned>(
        &self,
        call: &RpcCall,
        result: &Value,
    ) -> Result<T, RpcError> {
        T::deserialize(result).map_err(|e| self.error(call, RpcErrorKind::Result(e)))
    }

    pub(super) fn error(&self, call: &RpcCall, kind: RpcErrorKind) -> RpcError {
        RpcError {
            endpoint: self.endpoint.clone(),
            method: call.method,
            block: call.block,
            kind: Box::new(kind),
        }
    }

    fn single(&self, call: &RpcCall) -> Result<NodeAnswer, RpcErrorKind> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut backoff = self.http.backoff();
        loop {
            let (status, body) = self.post(&call.request(id), call.most)?;
            let answer: NodeAnswer = match serde_json::from_slice(&body) {
                Ok(answer) => answer,
                Err(_) => return Err(no_json_rpc(status, &body)),
            };
            match answer.error {
                Some(error) if error.is_rate_limit() => backoff.wait(too_many())?,
                // A node that could not parse the request does not know its id.
                None if answer.id != json!(id) => return Err(no_json_rpc(status, &body)),
                _ => return Ok(answer),
            }
        }
    }

    fn batch(&self, calls: &[RpcCall]) -> Result<BatchResponse, RpcErrorKind> {
        let first = self.next_id.fetch_add(calls.len() as u64, Ordering::Relaxed);
        let request: Vec<_> = (first..).zip(calls).map(|(id, call)| call.request(id)).collect();
        let request = Value::Array(request);
        let mut backoff = self.http.backoff();
        loop {
            let (status, body) = match self.post(&request, MAX_ANSWER_BYTES) {
                Ok(answer) => answer,
                Err(RpcErrorKind::Http(HttpFault::TooLong(_))) => {
                    return Ok(BatchResponse::Refused);
                }
                Err(kind) => return Err(kind),
            };
            let mut answers: Vec<NodeAnswer> = match serde_json::from_slice(&body) {
                Ok(answers) => answers,
                Err(_) => match serde_json::from_slice::<NodeAnswer>(&body) {
                    Ok(NodeAnswer { error: Some(error), .. }) if error.is_rate_limit() => {
                        backoff.wait(too_many())?;
                        continue;
                    }
                    Ok(NodeAnswer { error: Some(_), .. }) => return Ok(BatchResponse::Refused),
                    // 400, 405, 413, ...: some gateways refuse batches like this.
                    _ if !(200..300).contains(&status) => return Ok(BatchResponse::Refused),
                    _ => return Err(no_json_rpc(status, &body)),
                },
            };
            if answers.iter().any(|a| a.error.as_ref().is_some_and(RpcRefusal::is_rate_limit)) {
                backoff.wait(too_many())?;
                continue;
            }
            // A node may answer in any order.
            answers.sort_by_key(|answer| answer.id.as_u64());
            let ids = answers.iter().map(|answer| answer.id.as_u64());
            if !ids.eq((first..first + calls.len() as u64).map(Some)) {
                // Some calls were not answered: a limit of the node, returned without an id.
                return match answers.iter().any(|answer| answer.error.is_some()) {
                    true => Ok(BatchResponse::Refused),
                    false => Err(RpcErrorKind::NotJsonRpc("a batch answered in part".into())),
                };
            }
            return Ok(BatchResponse::Answers(answers));
        }
    }

    /// Status and body of the answer, with retries.
    fn post(&self, request: &Value, most: u64) -> Result<(u16, Vec<u8>), RpcErrorKind> {
        let body = request.to_string();
        let answer = self.http.retry(|| {
            self.http.check_stop()?;
            let answer = self.http.post_json(&self.url, body.as_bytes())?;
            let status = answer.status().as_u16();
            // Nodes send refusals with 200, or with a 4xx status and JSON; these statuses are no
            // such answers.
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
