//! The tree of calls.

use super::{FrameEnd, FrameStart, events::json};
use crate::{
    RpcError, RpcResult,
    geth_errors::{opcode_name, revert_reason},
};
use alloy_primitives::{Address, B256, Bytes, Log, U256};
use revm::bytecode::opcode;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// A frame in the form of `callTracer`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallFrame {
    pub(super) from: Address,
    #[serde(with = "alloy_serde::quantity")]
    pub(super) gas: u64,
    #[serde(with = "alloy_serde::quantity")]
    pub(super) gas_used: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to: Option<Address>,
    pub(super) input: Bytes,
    #[serde(skip_serializing_if = "is_empty")]
    pub(super) output: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) revert_reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) logs: Vec<CallLog>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<U256>,
    #[serde(rename = "type", serialize_with = "kind_name")]
    pub(super) kind: u8,
}

fn is_empty(bytes: &Bytes) -> bool {
    bytes.is_empty()
}

fn kind_name<S: Serializer>(kind: &u8, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&opcode_name(*kind))
}

/// A log within a frame.
#[derive(Debug, Serialize)]
pub(super) struct CallLog {
    pub(super) address: Address,
    pub(super) topics: Vec<B256>,
    pub(super) data: Bytes,
    /// Index in the block.
    #[serde(with = "alloy_serde::quantity")]
    pub(super) index: u64,
    /// Number of calls of its frame before it.
    #[serde(with = "alloy_serde::quantity")]
    pub(super) position: u64,
}

impl CallFrame {
    fn new(entry: &FrameStart) -> Self {
        Self {
            from: entry.from,
            gas: entry.gas,
            gas_used: 0,
            to: Some(entry.to),
            input: entry.input.clone(),
            output: Bytes::new(),
            error: None,
            revert_reason: None,
            logs: Vec::new(),
            value: entry.value,
            kind: entry.kind,
        }
    }

    fn end(&mut self, exit: &FrameEnd) {
        self.gas_used = exit.gas_used;
        let Some(error) = &exit.error else {
            self.output = exit.output.clone();
            return;
        };
        self.error = Some(error.clone());
        if matches!(self.kind, opcode::CREATE | opcode::CREATE2) {
            self.to = None;
        }
        if error == REVERTED {
            self.output = exit.output.clone();
            self.revert_reason = revert_reason(&exit.output);
        }
    }
}

/// The error of a frame that executed REVERT.
pub(super) const REVERTED: &str = "execution reverted";

/// A frame in a [`CallTree`].
#[derive(Debug)]
pub(super) struct CallNode<T> {
    pub(super) frame: CallFrame,
    pub(super) more: T,
    pub(super) parent: Option<usize>,
    pub(super) children: Vec<usize>,
}

/// The frames of a transaction in the order of their start. `T` is a tracer's own data per frame.
#[derive(Debug)]
pub(super) struct CallTree<T> {
    nodes: Vec<CallNode<T>>,
    open: Vec<usize>,
}

impl<T> Default for CallTree<T> {
    fn default() -> Self {
        Self { nodes: Vec::new(), open: Vec::new() }
    }
}

impl<T: Default> CallTree<T> {
    pub(super) fn enter(&mut self, entry: &FrameStart) {
        let (at, parent) = (self.nodes.len(), self.open.last().copied());
        if let Some(parent) = parent.and_then(|parent| self.nodes.get_mut(parent)) {
            parent.children.push(at);
        }
        let (frame, more) = (CallFrame::new(entry), T::default());
        self.nodes.push(CallNode { frame, more, parent, children: Vec::new() });
        self.open.push(at);
    }
}

impl<T> CallTree<T> {
    /// Ends the innermost open frame and returns it.
    pub(super) fn exit(&mut self, exit: &FrameEnd) -> Option<&mut CallNode<T>> {
        let node = self.nodes.get_mut(self.open.pop()?)?;
        node.frame.end(exit);
        Some(node)
    }

    /// The innermost open frame.
    pub(super) fn current(&mut self) -> Option<&mut CallNode<T>> {
        self.nodes.get_mut(*self.open.last()?)
    }

    /// Removes the last frame, which must have no inner frames.
    pub(super) fn remove_last(&mut self) {
        let taken = self.nodes.pop();
        if let Some(parent) = taken.and_then(|node| node.parent) {
            self.nodes[parent].children.pop();
        }
    }

    /// The outermost frame.
    pub(super) fn root(&mut self) -> Option<&mut CallNode<T>> {
        self.nodes.first_mut()
    }

    pub(super) fn nodes(&self) -> &[CallNode<T>] {
        &self.nodes
    }

    /// Adds a log to the innermost open frame.
    pub(super) fn log(&mut self, log: &Log, index: usize) {
        if let Some(node) = self.current() {
            let position = node.children.len() as u64;
            let topics = log.topics().to_vec();
            let (address, data) = (log.address, log.data.data.clone());
            node.frame.logs.push(CallLog { address, topics, data, index: index as u64, position });
        }
    }

    /// Sets the gas of the outermost frame to that of the transaction.
    pub(super) fn end(&mut self, gas_limit: u64, gas_used: u64) {
        if let Some(root) = self.nodes.first_mut() {
            root.frame.gas = gas_limit;
            root.frame.gas_used = gas_used;
        }
    }

    /// Drops the logs of failed frames and of their inner frames, and adds `logs_before` to the
    /// index of each remaining log.
    pub(super) fn finalize_logs(&mut self, logs_before: usize) {
        let mut has_failed = Vec::with_capacity(self.nodes.len());
        for node in &mut self.nodes {
            let parent_failed = node.parent.is_some_and(|parent| has_failed[parent]);
            let failed = parent_failed || node.frame.error.is_some();
            has_failed.push(failed);
            if failed {
                node.frame.logs.clear();
            }
            node.frame.logs.iter_mut().for_each(|log| log.index += logs_before as u64);
        }
    }

    /// The tree in JSON; each frame has its inner frames as `calls`. It is built without recursion,
    /// because frames may be 1,024 deep.
    ///
    /// # Errors
    /// If `own` fails, which returns the fields of a frame as an object.
    pub(super) fn json(
        &self,
        mut own: impl FnMut(&CallNode<T>) -> RpcResult<Box<RawValue>>,
    ) -> RpcResult<Box<RawValue>> {
        let mut text = String::new();
        // Frames that are not fully written, and the number of their calls that are.
        let mut open: Vec<(usize, usize)> = Vec::new();
        if let Some(root) = self.nodes.first() {
            begin(&mut text, &own(root)?);
            open.push((0, 0));
        }
        while let Some((at, written)) = open.last_mut() {
            let children = &self.nodes[*at].children;
            let Some(&child) = children.get(*written) else {
                text.push_str(if children.is_empty() { "}" } else { "]}" });
                open.pop();
                continue;
            };
            text.push_str(if *written == 0 { ",\"calls\":[" } else { "," });
            *written += 1;
            begin(&mut text, &own(&self.nodes[child])?);
            open.push((child, 0));
        }
        RawValue::from_string(text).map_err(|error| RpcError::Internal(error.to_string()))
    }
}

/// Writes an object without its closing brace.
fn begin(text: &mut String, object: &RawValue) {
    let object = object.get();
    text.push_str(object.strip_suffix('}').unwrap_or(object));
}

/// The fields of a frame and of `more` in one object.
pub(super) fn joined(frame: &CallFrame, more: &impl Serialize) -> RpcResult<Box<RawValue>> {
    #[derive(Serialize)]
    struct JoinedFrame<'a, T> {
        #[serde(flatten)]
        frame: &'a CallFrame,
        #[serde(flatten)]
        more: &'a T,
    }
    json(&JoinedFrame { frame, more })
}
