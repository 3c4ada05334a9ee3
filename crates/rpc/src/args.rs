//! The positional parameters of a request, and the functions that register methods by cost class.

mod block;

pub(crate) use block::BlockNumberParam;

use crate::{RpcContext, RpcError, RpcResult};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::B256;
use block::{BlockIdParam, LenientBlockParam};
use jsonrpsee::{RpcModule, types::Params};
use retrie_engine::LiveView;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// The positional parameters of one request, read one after the other. Error texts are geth's.
#[derive(Debug)]
pub struct MethodParams<'a> {
    items: std::vec::IntoIter<&'a RawValue>,
    taken: usize,
}

impl<'a> MethodParams<'a> {
    /// Parses the parameters of a request.
    ///
    /// # Errors
    /// [`RpcError::InvalidParams`] if they are not a list.
    pub fn new(params: &'a Params<'_>) -> RpcResult<Self> {
        let items: Vec<&RawValue> = match params.as_str() {
            None | Some("null") => Vec::new(),
            Some(json) => serde_json::from_str(json)
                .map_err(|_| RpcError::InvalidParams("non-array args".into()))?,
        };
        Ok(Self { items: items.into_iter(), taken: 0 })
    }

    /// Reads the next parameter.
    ///
    /// # Errors
    /// [`RpcError::InvalidParams`] if it is missing or not a `T`.
    pub fn required<T: Deserialize<'a>>(&mut self) -> RpcResult<T> {
        let index = self.taken;
        self.optional()?.ok_or_else(|| {
            RpcError::InvalidParams(format!("missing value for required argument {index}"))
        })
    }

    /// Reads the next parameter: 32 bytes in hexadecimal. As in geth, `0x` is required.
    ///
    /// # Errors
    /// As [`required`](Self::required).
    pub fn hash(&mut self) -> RpcResult<B256> {
        let index = self.taken;
        let text: Cow<'_, str> = self.required()?;
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let hash = digits
            .filter(|digits| !digits.starts_with("0x"))
            .and_then(|digits| digits.parse().ok());
        hash.ok_or_else(|| {
            let message = format!("invalid argument {index}: {text:?} is not 0x and 32 bytes");
            RpcError::InvalidParams(message)
        })
    }

    /// Reads the next parameter: a block by number, tag or hash.
    ///
    /// # Errors
    /// As [`required`](Self::required).
    pub fn block(&mut self) -> RpcResult<BlockId> {
        self.required().map(|BlockIdParam(id)| id)
    }

    /// Reads the next parameter: a block; the head if the parameter is missing or null.
    ///
    /// # Errors
    /// As [`optional`](Self::optional).
    pub fn block_or_latest(&mut self) -> RpcResult<BlockId> {
        Ok(self.optional_block()?.unwrap_or_default())
    }

    /// Reads the next parameter: a block; `None` if the parameter is missing or null.
    ///
    /// # Errors
    /// As [`optional`](Self::optional).
    pub fn optional_block(&mut self) -> RpcResult<Option<BlockId>> {
        Ok(self.optional()?.map(|BlockIdParam(id)| id))
    }

    /// Reads the next parameter: a block, whose number may also be a JSON number.
    ///
    /// # Errors
    /// As [`required`](Self::required).
    pub fn lenient_block(&mut self) -> RpcResult<BlockId> {
        self.required().map(LenientBlockParam::id)
    }

    /// As [`lenient_block`](Self::lenient_block); `None` if the parameter is missing or null.
    ///
    /// # Errors
    /// As [`optional`](Self::optional).
    pub fn optional_lenient_block(&mut self) -> RpcResult<Option<BlockId>> {
        Ok(self.optional()?.map(LenientBlockParam::id))
    }

    /// Reads the next parameter: a block by number or tag.
    ///
    /// # Errors
    /// As [`required`](Self::required).
    pub fn block_number(&mut self) -> RpcResult<BlockNumberOrTag> {
        self.required().map(|BlockNumberParam(number)| number)
    }

    /// Reads the next parameter; `None` if it is missing or null.
    ///
    /// # Errors
    /// [`RpcError::InvalidParams`] if it is not a `T`.
    pub fn optional<T: Deserialize<'a>>(&mut self) -> RpcResult<Option<T>> {
        let index = self.taken;
        self.taken += 1;
        let Some(item) = self.items.next() else { return Ok(None) };
        serde_json::from_str(item.get()).map_err(|error| {
            let reason = reason(&error);
            RpcError::InvalidParams(format!("invalid argument {index}: {reason}"))
        })
    }

    /// Reads the next parameter, which must be an object: serde would also accept a list of the
    /// fields.
    ///
    /// # Errors
    /// As [`required`](Self::required).
    pub fn object<T: Deserialize<'a>>(&mut self) -> RpcResult<T> {
        let index = self.taken;
        self.optional_object()?.ok_or_else(|| {
            RpcError::InvalidParams(format!("missing value for required argument {index}"))
        })
    }

    /// Reads the next parameter, an object; `None` if it is missing or null.
    ///
    /// # Errors
    /// As [`optional`](Self::optional).
    pub fn optional_object<T: Deserialize<'a>>(&mut self) -> RpcResult<Option<T>> {
        let next = self.items.as_slice().first();
        if next.is_some_and(|item| item.get().starts_with('[')) {
            let message =
                format!("invalid argument {}: it is a list, expected an object", self.taken);
            return Err(RpcError::InvalidParams(message));
        }
        self.optional()
    }

    /// Reads the next parameter: an object in which null means that the field is absent. Encoders
    /// in Go write null for absent fields.
    ///
    /// # Errors
    /// As [`required`](Self::required).
    pub fn object_with_nulls<T: DeserializeOwned>(&mut self) -> RpcResult<T> {
        let (index, item) = (self.taken, self.items.as_slice().first().copied());
        // Most objects have no nulls, and some types accept null themselves.
        let error = match self.required() {
            Err(error) => error,
            taken => return taken,
        };
        let Some(object) = item.and_then(without_nulls) else { return Err(error) };
        serde_json::from_str(&object).map_err(|error| {
            RpcError::InvalidParams(format!("invalid argument {index}: {}", reason(&error)))
        })
    }

    /// Checks that no parameter is left. A method that changes something calls this before the
    /// change; for other methods the registering function calls it.
    ///
    /// # Errors
    /// [`RpcError::InvalidParams`] if there are more.
    pub fn end(&self) -> RpcResult<()> {
        if self.items.len() == 0 {
            return Ok(());
        }
        let most = self.taken;
        Err(RpcError::InvalidParams(format!("too many arguments, want at most {most}")))
    }
}

/// Removes the fields that are null; `None` if no field is null, or if this is no object.
fn without_nulls(object: &RawValue) -> Option<String> {
    let mut fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(object.get()).ok()?;
    let count = fields.len();
    fields.retain(|_, value| value.get() != "null");
    if fields.len() == count { None } else { serde_json::to_string(&fields).ok() }
}

/// The reason from a decoder's error, without the position in the text and without Rust type names.
pub(crate) fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    if text.starts_with("data did not match any variant") {
        return "it has none of the accepted forms".into();
    }
    let Some((wrong, expected)) = text.split_once(", expected ") else { return text.into() };
    let wrong = match wrong {
        "invalid type: sequence" => "invalid type: list",
        "invalid type: map" => "invalid type: object",
        _ => wrong,
    };
    let expected = match expected {
        "f64" => "a number",
        "u8" | "u64" | "usize" | "i64" => "a whole number",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if ["struct ", "enum ", "tuple "].iter().any(|kind| expected.starts_with(kind)) => {
            "an object"
        }
        _ => expected.split(", an array of u8").next().unwrap_or(expected),
    };
    format!("{wrong}, expected {expected}")
}

/// Registers a method that runs on the server's own thread.
pub(crate) fn register_quick<C, T>(
    module: &mut RpcModule<C>,
    name: &'static str,
    method: impl Fn(&C, &mut MethodParams<'_>) -> RpcResult<T> + Send + Sync + 'static,
) where
    C: Send + Sync + 'static,
    T: Serialize + Clone + 'static,
{
    let registered = module.register_method(name, move |params, context, _| {
        let mut args = MethodParams::new(&params)?;
        let answer = method(context, &mut args)?;
        args.end().map(|()| answer)
    });
    registered.expect("a namespace names each of its methods once");
}

/// Registers a method that reads a few rows of the block or state that parameter `index` names. For
/// the head, whose rows are in memory or were just read, the method runs on the server's own
/// thread. For older blocks, whose rows may have to come from disk, it runs on a thread that may
/// block.
pub(crate) fn register_at_block<T>(
    module: &mut RpcModule<RpcContext>,
    name: &'static str,
    index: usize,
    method: impl Fn(&RpcContext, LiveView, &mut MethodParams<'_>) -> RpcResult<T>
    + Clone
    + Send
    + Sync
    + 'static,
) where
    T: Serialize + Clone + Send + 'static,
{
    let registered =
        module.register_async_method(name, move |params, context: Arc<RpcContext>, _| {
            let method = method.clone();
            async move {
                let rpc = (*context).clone();
                let at_head = is_at_head(&rpc, &params, index);
                let answer = move |view| {
                    let mut args = MethodParams::new(&params)?;
                    let answer = method(&context, view, &mut args)?;
                    args.end().map(|()| answer)
                };
                if !at_head {
                    return rpc.run_read(answer).await;
                }
                match answer(rpc.view()?) {
                    // The next head is about to be published; this thread must not wait for it.
                    Err(error) if error.lacks_state() => rpc.run_read(answer).await,
                    outcome => outcome,
                }
            }
        });
    registered.expect("a namespace names each of its methods once");
}

/// Whether parameter `index` names the head, or is invalid in a way that needs no read to detect.
fn is_at_head(rpc: &RpcContext, params: &Params<'_>, index: usize) -> bool {
    let named =
        MethodParams::new(params).ok().and_then(|args| args.items.as_slice().get(index).copied());
    let Some(named) = named else { return true };
    let Ok(id) = serde_json::from_str::<Option<BlockIdParam>>(named.get()) else { return true };
    match id.map_or_else(BlockId::latest, |BlockIdParam(id)| id) {
        BlockId::Hash(hash) => hash.block_hash == rpc.live.head().hash(),
        BlockId::Number(BlockNumberOrTag::Latest | BlockNumberOrTag::Pending) => true,
        BlockId::Number(BlockNumberOrTag::Number(number)) => number >= rpc.live.head().number,
        BlockId::Number(_) => false,
    }
}

/// Registers a method that reads its parameters at once and then may wait.
pub(crate) fn register_async<C, A, T, F>(
    module: &mut RpcModule<C>,
    name: &'static str,
    take: impl Fn(&mut MethodParams<'_>) -> RpcResult<A> + Clone + Send + Sync + 'static,
    method: impl Fn(Arc<C>, A) -> F + Clone + Send + Sync + 'static,
) where
    C: Send + Sync + 'static,
    A: Send + 'static,
    T: Serialize + Clone + Send + 'static,
    F: Future<Output = RpcResult<T>> + Send + 'static,
{
    let registered = module.register_async_method(name, move |params, context, _| {
        let waiting = MethodParams::new(&params).and_then(|mut args| {
            let taken = take(&mut args)?;
            args.end().map(|()| method(context, taken))
        });
        async move { waiting?.await }
    });
    registered.expect("a namespace names each of its methods once");
}

/// Registers a method that executes transactions or walks over blocks, on a thread that may block.
pub(crate) fn register_heavy<C, T>(
    module: &mut RpcModule<C>,
    name: &'static str,
    method: impl Fn(&C, LiveView, &mut MethodParams<'_>) -> RpcResult<T> + Clone + Send + Sync + 'static,
) where
    C: AsRef<RpcContext> + Send + Sync + 'static,
    T: Serialize + Clone + Send + 'static,
{
    blocking(module, name, PermitKind::Heavy, method);
}

/// Registers a method that serves chunks of a state, on a thread that may block.
pub(crate) fn register_state_chunks<C, T>(
    module: &mut RpcModule<C>,
    name: &'static str,
    method: impl Fn(&C, LiveView, &mut MethodParams<'_>) -> RpcResult<T> + Clone + Send + Sync + 'static,
) where
    C: AsRef<RpcContext> + Send + Sync + 'static,
    T: Serialize + Clone + Send + 'static,
{
    blocking(module, name, PermitKind::StateChunks, method);
}

/// Registers a method that reads rows of a few blocks, on a thread that may block.
pub(crate) fn register_read<C, T>(
    module: &mut RpcModule<C>,
    name: &'static str,
    method: impl Fn(&C, LiveView, &mut MethodParams<'_>) -> RpcResult<T> + Clone + Send + Sync + 'static,
) where
    C: AsRef<RpcContext> + Send + Sync + 'static,
    T: Serialize + Clone + Send + 'static,
{
    blocking(module, name, PermitKind::Read, method);
}

/// The kind of permit that a method needs before it runs on a blocking thread.
#[derive(Clone, Copy)]
enum PermitKind {
    Heavy,
    Read,
    StateChunks,
}

fn blocking<C, T>(
    module: &mut RpcModule<C>,
    name: &'static str,
    permits: PermitKind,
    method: impl Fn(&C, LiveView, &mut MethodParams<'_>) -> RpcResult<T> + Clone + Send + Sync + 'static,
) where
    C: AsRef<RpcContext> + Send + Sync + 'static,
    T: Serialize + Clone + Send + 'static,
{
    let registered = module.register_async_method(name, move |params, context: Arc<C>, _| {
        let method = method.clone();
        async move {
            let rpc = (*context).as_ref().clone();
            let answer = move |view| {
                let mut args = MethodParams::new(&params)?;
                let answer = method(&context, view, &mut args)?;
                args.end().map(|()| answer)
            };
            match permits {
                PermitKind::Heavy => rpc.run_heavy(answer).await,
                PermitKind::Read => rpc.run_read(answer).await,
                PermitKind::StateChunks => rpc.run_state_chunks(answer).await,
            }
        }
    });
    registered.expect("a namespace names each of its methods once");
}
