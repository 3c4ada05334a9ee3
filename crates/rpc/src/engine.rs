//! The namespace `engine`, which consensus clients call on the authenticated port.

use crate::{MethodParams, RpcError, RpcResult};
use alloy_primitives::{B256, Bytes, FixedBytes, U64};
use alloy_rpc_types_engine::{
    ExecutionPayloadInputV2, ExecutionPayloadV1, ExecutionPayloadV3, ExecutionPayloadV4,
    PayloadStatus,
};
use jsonrpsee::{Methods, RpcModule};
use retrie_engine::{EngineApi, EngineApiError};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, future::Future, sync::Arc};

impl From<EngineApiError> for RpcError {
    fn from(error: EngineApiError) -> Self {
        Self::Coded { code: error.code(), message: error.to_string() }
    }
}

/// The methods of the Engine API.
pub(crate) fn engine_methods(api: EngineApi) -> Methods {
    let mut module = RpcModule::new(api);
    let own = &mut module;
    call(own, "engine_exchangeCapabilities", |api, args| {
        args.required::<Vec<String>>()?;
        Ok(async move { api.capabilities().await })
    });
    call(own, "engine_getClientVersionV1", |_, args| {
        args.required::<ClientVersion>()?;
        Ok(async { Ok(vec![THIS_CLIENT]) })
    });
    new_payload(own);
    new_payload_with_witness(own);
    forkchoice_updated(own);
    get_payload(own);
    bodies_and_blobs(own);
    module.into()
}

/// Registers a method of the API, which reads its parameters at once and then runs.
fn call<T, F>(
    module: &mut RpcModule<EngineApi>,
    name: &'static str,
    method: impl Fn(Arc<EngineApi>, &mut MethodParams<'_>) -> RpcResult<F>
    + Clone
    + Send
    + Sync
    + 'static,
) where
    T: Serialize + Clone + Send + 'static,
    F: Future<Output = Result<T, EngineApiError>> + Send,
{
    let registered = module.register_async_method(name, move |params, api, _| {
        let taken = MethodParams::new(&params).and_then(|mut args| {
            let running = method(api, &mut args)?;
            args.end().map(|()| running)
        });
        async move { RpcResult::<T>::Ok(taken?.await?) }
    });
    registered.expect("a namespace names each of its methods once");
}

fn new_payload(own: &mut RpcModule<EngineApi>) {
    call(own, "engine_newPayloadV1", |api, args| {
        let payload = args.object_with_nulls()?;
        Ok(async move { api.new_payload_v1(payload).await })
    });
    call(own, "engine_newPayloadV2", |api, args| {
        let payload = args.object_with_nulls()?;
        Ok(async move { api.new_payload_v2(payload).await })
    });
    call(own, "engine_newPayloadV3", |api, args| {
        let payload = args.object_with_nulls()?;
        let (hashes, root) = (args.required()?, args.required()?);
        Ok(async move { api.new_payload_v3(payload, hashes, root).await })
    });
    call(own, "engine_newPayloadV4", |api, args| {
        let payload = args.object_with_nulls()?;
        let (hashes, root) = (args.required()?, args.required()?);
        let requests: Vec<Bytes> = args.required()?;
        Ok(async move { api.new_payload_v4(payload, hashes, root, requests).await })
    });
    call(own, "engine_newPayloadV5", |api, args| {
        let payload = args.object_with_nulls()?;
        let (hashes, root) = (args.required()?, args.required()?);
        let requests: Vec<Bytes> = args.required()?;
        Ok(async move { api.new_payload_v5(payload, hashes, root, requests).await })
    });
}

/// Beyond the specification, as geth has them.
fn new_payload_with_witness(own: &mut RpcModule<EngineApi>) {
    call(own, "engine_newPayloadWithWitnessV1", |api, args| {
        let payload: ExecutionPayloadV1 = args.object_with_nulls()?;
        let block = named(&payload);
        Ok(async move { with_witness(&api, block, api.new_payload_v1(payload)).await })
    });
    call(own, "engine_newPayloadWithWitnessV2", |api, args| {
        let payload: ExecutionPayloadInputV2 = args.object_with_nulls()?;
        let block = named(&payload.execution_payload);
        Ok(async move { with_witness(&api, block, api.new_payload_v2(payload)).await })
    });
    call(own, "engine_newPayloadWithWitnessV3", |api, args| {
        let payload: ExecutionPayloadV3 = args.object_with_nulls()?;
        let (hashes, root) = (args.required()?, args.required()?);
        let block = named(&payload.payload_inner.payload_inner);
        Ok(async move {
            let sent = api.new_payload_v3(payload, hashes, root);
            with_witness(&api, block, sent).await
        })
    });
    call(own, "engine_newPayloadWithWitnessV4", |api, args| {
        let payload: ExecutionPayloadV3 = args.object_with_nulls()?;
        let (hashes, root) = (args.required()?, args.required()?);
        let requests: Vec<Bytes> = args.required()?;
        let block = named(&payload.payload_inner.payload_inner);
        Ok(async move {
            let sent = api.new_payload_v4(payload, hashes, root, requests);
            with_witness(&api, block, sent).await
        })
    });
    call(own, "engine_newPayloadWithWitnessV5", |api, args| {
        let payload: ExecutionPayloadV4 = args.object_with_nulls()?;
        let (hashes, root) = (args.required()?, args.required()?);
        let requests: Vec<Bytes> = args.required()?;
        let block = named(&payload.payload_inner.payload_inner.payload_inner);
        Ok(async move {
            let sent = api.new_payload_v5(payload, hashes, root, requests);
            with_witness(&api, block, sent).await
        })
    });
}

/// Hash and time of a payload's block.
const fn named(payload: &ExecutionPayloadV1) -> (B256, u64) {
    (payload.block_hash, payload.timestamp)
}

async fn with_witness(
    api: &EngineApi,
    block: (B256, u64),
    sent: impl Future<Output = Result<PayloadStatus, EngineApiError>>,
) -> Result<WitnessedStatus, EngineApiError> {
    let (status, witness) = api.with_witness(block, sent).await?;
    Ok(WitnessedStatus { status, witness })
}

/// The answer of `engine_newPayloadWithWitness`.
#[derive(Clone, Debug, Serialize)]
struct WitnessedStatus {
    #[serde(flatten)]
    status: PayloadStatus,
    /// RLP of the witness, of a valid block.
    #[serde(skip_serializing_if = "Option::is_none")]
    witness: Option<Bytes>,
}

fn forkchoice_updated(own: &mut RpcModule<EngineApi>) {
    let names = [
        "engine_forkchoiceUpdatedV1",
        "engine_forkchoiceUpdatedV2",
        "engine_forkchoiceUpdatedV3",
        "engine_forkchoiceUpdatedV4",
    ];
    for (version, name) in (1..).zip(names) {
        call(own, name, move |api, args| {
            let (state, attributes) = (args.required()?, args.optional()?);
            if version == 4 {
                // The custody columns of the consensus client (EIP-8070) select the cells that a
                // node samples. This node fetches whole blobs, which have the cells of all columns.
                args.optional::<FixedBytes<16>>()?;
            }
            Ok(async move { api.fork_choice_updated(version, state, attributes).await })
        });
    }
}

fn get_payload(own: &mut RpcModule<EngineApi>) {
    call(own, "engine_getPayloadV1", |api, args| {
        let id = args.required()?;
        Ok(async move { api.get_payload_v1(id).await })
    });
    call(own, "engine_getPayloadV2", |api, args| {
        let id = args.required()?;
        Ok(async move { api.get_payload_v2(id).await })
    });
    call(own, "engine_getPayloadV3", |api, args| {
        let id = args.required()?;
        Ok(async move { api.get_payload_v3(id).await })
    });
    call(own, "engine_getPayloadV4", |api, args| {
        let id = args.required()?;
        Ok(async move { api.get_payload_v4(id).await })
    });
    call(own, "engine_getPayloadV5", |api, args| {
        let id = args.required()?;
        Ok(async move { api.get_payload_v5(id).await })
    });
    call(own, "engine_getPayloadV6", |api, args| {
        let id = args.required()?;
        Ok(async move { api.get_payload_v6(id).await })
    });
}

fn bodies_and_blobs(own: &mut RpcModule<EngineApi>) {
    call(own, "engine_getPayloadBodiesByHashV1", |api, args| {
        let hashes = args.required()?;
        Ok(async move { api.bodies_by_hash(hashes).await })
    });
    call(own, "engine_getPayloadBodiesByHashV2", |api, args| {
        let hashes = args.required()?;
        Ok(async move { api.bodies_by_hash_v2(hashes).await })
    });
    call(own, "engine_getPayloadBodiesByRangeV1", |api, args| {
        let (start, count) = (args.required::<U64>()?, args.required::<U64>()?);
        Ok(async move { api.bodies_by_range(start.to(), count.to()).await })
    });
    call(own, "engine_getPayloadBodiesByRangeV2", |api, args| {
        let (start, count) = (args.required::<U64>()?, args.required::<U64>()?);
        Ok(async move { api.bodies_by_range_v2(start.to(), count.to()).await })
    });
    call(own, "engine_getBlobsV1", |api, args| {
        let hashes: Vec<B256> = args.required()?;
        Ok(async move { api.blobs_v1(&hashes) })
    });
    call(own, "engine_getBlobsV2", |api, args| {
        let hashes: Vec<B256> = args.required()?;
        Ok(async move { api.blobs_v2(&hashes) })
    });
    call(own, "engine_getBlobsV3", |api, args| {
        let hashes: Vec<B256> = args.required()?;
        Ok(async move { api.blobs_v3(&hashes) })
    });
    call(own, "engine_getBlobsV4", |api, args| {
        let (hashes, mask) = (args.required()?, args.required::<FixedBytes<16>>()?);
        Ok(async move { api.blobs_v4(hashes, mask.into()).await })
    });
}

/// A client version, as in `engine_getClientVersionV1`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ClientVersion {
    /// Two letters; a client without an assigned code chooses its own.
    code: Cow<'static, str>,
    name: Cow<'static, str>,
    version: Cow<'static, str>,
    /// First four bytes of the commit; zero if the build does not know it.
    commit: Cow<'static, str>,
}

pub(crate) const THIS_CLIENT: ClientVersion = ClientVersion {
    code: Cow::Borrowed("RI"),
    name: Cow::Borrowed("retrie"),
    version: Cow::Borrowed(concat!("v", env!("CARGO_PKG_VERSION"))),
    commit: Cow::Borrowed("0x00000000"),
};
