//! Positional parameters, and methods that take them.

mod block;

pub(crate) use block::BlockNumber;

use crate::{RpcContext, RpcError, RpcResult};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::B256;
use block::BlockName;
use jsonrpsee::{RpcModule, types::Params};
use retrie_engine::View;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// The positional parameters of one request, taken one after the other. Errors are worded as geth
/// words them.
#[derive(Debug)]
pub struct Args<'a> {
    items: std::vec::IntoIter<&'a RawValue>,
    taken: usize,
}

impl<'a> Args<'a> {
    /// The parameters of a request.
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

    /// The next parameter.
    ///
    /// # Errors
    /// [`RpcError::InvalidParams`] if it is missing or not a `T`.
    pub fn required<T: Deserialize<'a>>(&mut self) -> RpcResult<T> {
        let index = self.taken;
        self.optional()?.ok_or_else(|| {
            RpcError::InvalidParams(format!("missing value for required argument {index}"))
        })
    }

    /// The next parameter, 32 bytes in hexadecimal. Digits without `0x` are no hash, as in geth.
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

    /// The next parameter, a block by number, tag or hash.
    ///
    /// # Errors
    /// As [`required`](Self::required).
    pub fn block(&mut self) -> RpcResult<BlockId> {
        self.required().map(|BlockName(id)| id)
    }

    /// The next parameter, a block; the head if it is missing or null.
    ///
    /// # Errors
    /// As [`optional`](Self::optional).
    pub fn block_or_latest(&mut self) -> RpcResult<BlockId> {
        Ok(self.optional_block()?.unwrap_or_default())
    }

    /// The next parameter, a block; `None` if it is missing or null.
    ///
    /// # Errors
    /// As [`optional`](Self::optional).
    pub fn optional_block(&mut self) -> RpcResult<Option<BlockId>> {
        Ok(self.optional()?.map(|BlockName(id)| id))
    }

    /// The next parameter, a block by number or tag.
    ///
    /// # Errors
    /// As [`required`](Self::required).
    pub fn block_number(&mut self) -> RpcResult<BlockNumberOrTag> {
        self.required().map(|BlockNumber(number)| number)
    }

    /// The next parameter; `None` if it is missing or null.
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

    /// The next parameter, an object: structures would take a list of their fields too.
    ///
    /// # Errors
    /// As [`required`](Self::required).
    pub fn object<T: Deserialize<'a>>(&mut self) -> RpcResult<T> {
        let index = self.taken;
        self.optional_object()?.ok_or_else(|| {
            RpcError::InvalidParams(format!("missing value for required argument {index}"))
        })
    }

    /// The next parameter, an object; `None` if it is missing or null.
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

    /// The next parameter, an object in which null may stand for any field that is not there: encoders
    /// in Go write so.
    ///
    /// # Errors
    /// As [`required`](Self::required).
    pub fn object_with_nulls<T: DeserializeOwned>(&mut self) -> RpcResult<T> {
        let (index, item) = (self.taken, self.items.as_slice().first().copied());
        // Most have none, and some types take them.
        let error = match self.required() {
            Err(error) => error,
            taken => return taken,
        };
        let Some(object) = item.and_then(without_nulls) else { return Err(error) };
        serde_json::from_str(&object).map_err(|error| {
            RpcError::InvalidParams(format!("invalid argument {index}: {}", reason(&error)))
        })
    }

    /// Ends the parameters. A method that changes something asks before it does, others are asked
    /// after them.
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

/// The object without its fields that are null; `None` if it has none, or is no object.
fn without_nulls(object: &RawValue) -> Option<String> {
    let mut fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(object.get()).ok()?;
    let count = fields.len();
    fields.retain(|_, value| value.get() != "null");
    if fields.len() == count { None } else { serde_json::to_string(&fields).ok() }
}

/// What is wrong with a parameter, without what only its decoder knows: where in the text it gave up,
/// and the names of its types.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    if text.starts_with("data did not match any variant") {
        return "it has none of the forms that are taken here".into();
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

/// A method that is answered on the server's own thread.
pub(crate) fn quick<C, T>(
    module: &mut RpcModule<C>,
    name: &'static str,
    method: impl Fn(&C, &mut Args<'_>) -> RpcResult<T> + Send + Sync + 'static,
) where
    C: Send + Sync + 'static,
    T: Serialize + Clone + 'static,
{
    let registered = module.register_method(name, move |params, context, _| {
        let mut args = Args::new(&params)?;
        let answer = method(context, &mut args)?;
        args.end().map(|()| answer)
    });
    registered.expect("a namespace names each of its methods once");
}

/// A method that reads a few rows of the block or state that its parameter `index` names. At the head,
/// which is in memory or was just read by others, it is answered on the server's own thread; older
/// ones may have to come from disk, on a thread that may block.
pub(crate) fn at_block<T>(
    module: &mut RpcModule<RpcContext>,
    name: &'static str,
    index: usize,
    method: impl Fn(&RpcContext, View, &mut Args<'_>) -> RpcResult<T> + Clone + Send + Sync + 'static,
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
                    let mut args = Args::new(&params)?;
                    let answer = method(&context, view, &mut args)?;
                    args.end().map(|()| answer)
                };
                if at_head { answer(rpc.view()?) } else { rpc.read(answer).await }
            }
        });
    registered.expect("a namespace names each of its methods once");
}

/// Whether the block that parameter `index` names is the head, or wrong in a way that takes no reading
/// to tell.
fn is_at_head(rpc: &RpcContext, params: &Params<'_>, index: usize) -> bool {
    let named = Args::new(params).ok().and_then(|args| args.items.as_slice().get(index).copied());
    let Some(named) = named else { return true };
    let Ok(id) = serde_json::from_str::<Option<BlockName>>(named.get()) else { return true };
    match id.map_or_else(BlockId::latest, |BlockName(id)| id) {
        BlockId::Hash(hash) => hash.block_hash == rpc.live.head().hash(),
        BlockId::Number(BlockNumberOrTag::Latest | BlockNumberOrTag::Pending) => true,
        BlockId::Number(BlockNumberOrTag::Number(number)) => number >= rpc.live.head().number,
        BlockId::Number(_) => false,
    }
}

/// A method whose parameters are taken at once, and which then may wait.
pub(crate) fn waiting<C, A, T, F>(
    module: &mut RpcModule<C>,
    name: &'static str,
    take: impl Fn(&mut Args<'_>) -> RpcResult<A> + Clone + Send + Sync + 'static,
    method: impl Fn(Arc<C>, A) -> F + Clone + Send + Sync + 'static,
) where
    C: Send + Sync + 'static,
    A: Send + 'static,
    T: Serialize + Clone + Send + 'static,
    F: Future<Output = RpcResult<T>> + Send + 'static,
{
    let registered = module.register_async_method(name, move |params, context, _| {
        let waiting = Args::new(&params).and_then(|mut args| {
            let taken = take(&mut args)?;
            args.end().map(|()| method(context, taken))
        });
        async move { waiting?.await }
    });
    registered.expect("a namespace names each of its methods once");
}

/// A method that executes or walks over blocks, from a view of the chain, on a thread that may block.
pub(crate) fn heavy<C, T>(
    module: &mut RpcModule<C>,
    name: &'static str,
    method: impl Fn(&C, View, &mut Args<'_>) -> RpcResult<T> + Clone + Send + Sync + 'static,
) where
    C: AsRef<RpcContext> + Send + Sync + 'static,
    T: Serialize + Clone + Send + 'static,
{
    blocking(module, name, Permits::Heavy, method);
}

/// A method that hands out parts of a state, from a view of the chain, on a thread that may block.
pub(crate) fn part_of_state<C, T>(
    module: &mut RpcModule<C>,
    name: &'static str,
    method: impl Fn(&C, View, &mut Args<'_>) -> RpcResult<T> + Clone + Send + Sync + 'static,
) where
    C: AsRef<RpcContext> + Send + Sync + 'static,
    T: Serialize + Clone + Send + 'static,
{
    blocking(module, name, Permits::States, method);
}

/// A method that reads rows of a few blocks, from a view of the chain, on a thread that may block.
pub(crate) fn read<C, T>(
    module: &mut RpcModule<C>,
    name: &'static str,
    method: impl Fn(&C, View, &mut Args<'_>) -> RpcResult<T> + Clone + Send + Sync + 'static,
) where
    C: AsRef<RpcContext> + Send + Sync + 'static,
    T: Serialize + Clone + Send + 'static,
{
    blocking(module, name, Permits::Reading, method);
}

/// What a method waits for before it takes a thread.
#[derive(Clone, Copy)]
enum Permits {
    Heavy,
    Reading,
    States,
}

fn blocking<C, T>(
    module: &mut RpcModule<C>,
    name: &'static str,
    permits: Permits,
    method: impl Fn(&C, View, &mut Args<'_>) -> RpcResult<T> + Clone + Send + Sync + 'static,
) where
    C: AsRef<RpcContext> + Send + Sync + 'static,
    T: Serialize + Clone + Send + 'static,
{
    let registered = module.register_async_method(name, move |params, context: Arc<C>, _| {
        let method = method.clone();
        async move {
            let rpc = (*context).as_ref().clone();
            let answer = move |view| {
                let mut args = Args::new(&params)?;
                let answer = method(&context, view, &mut args)?;
                args.end().map(|()| answer)
            };
            match permits {
                Permits::Heavy => rpc.run(answer).await,
                Permits::Reading => rpc.read(answer).await,
                Permits::States => rpc.hand_out(answer).await,
            }
        }
    });
    registered.expect("a namespace names each of its methods once");
}
