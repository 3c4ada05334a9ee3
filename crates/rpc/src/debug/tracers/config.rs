//! Parses which tracer a request selects.

use super::{
    EventInspector, TraceJson, TracerHooks, TracerNeeds, TransactionEnd, calls::CallTracer,
    erc7562::Erc7562Tracer, events::json, flat::FlatCallTracer, four_byte::FourByteTracer,
    preimages::PreimageTracer, prestate::PrestateTracer, struct_logger::StructLogger,
};
use crate::{RpcError, RpcResult, args::reason};
use alloy_rpc_types_trace::geth::{
    GethDebugBuiltInTracerType, GethDebugTracerType, GethDebugTracingOptions,
    GethDefaultTracingOptions, StateGasTrace,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json as value};

/// A tracer as a request describes it, or several of them in a mux.
#[derive(Clone, Debug)]
pub(crate) enum TracerConfig {
    Steps(GethDefaultTracingOptions),
    BuiltIn(GethDebugBuiltInTracerType, Value),
    /// geth's `keccak256PreimageTracer`.
    Preimages,
    Mux(Vec<(String, Self)>),
}

/// A tracer of geth that alloy's request types lack.
const PREIMAGE_TRACER: &str = "keccak256PreimageTracer";

impl TracerConfig {
    /// Parses tracer options; `None` for a tracer in JavaScript.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub(crate) fn new(options: &GethDebugTracingOptions) -> RpcResult<Option<Self>> {
        let config = options.tracer_config.0.clone();
        match &options.tracer {
            None => Ok(Some(Self::Steps(options.config))),
            Some(GethDebugTracerType::JsTracer(code)) if code.is_empty() => {
                Ok(Some(Self::Steps(options.config)))
            }
            Some(tracer) => Self::named(tracer, config),
        }
    }

    fn named(tracer: &GethDebugTracerType, config: Value) -> RpcResult<Option<Self>> {
        if tracer.as_str() == PREIMAGE_TRACER {
            return Ok(Some(Self::Preimages));
        }
        let GethDebugTracerType::BuiltInTracer(kind) = tracer else { return Ok(None) };
        if !matches!(kind, GethDebugBuiltInTracerType::MuxTracer) {
            let tracer = Self::BuiltIn(*kind, config);
            tracer.hooks()?;
            return Ok(Some(tracer));
        }
        let tracers: std::collections::BTreeMap<String, Value> = parsed(config)?;
        let mut inner = Vec::with_capacity(tracers.len());
        for (name, config) in tracers {
            let tracer = serde_json::from_value(Value::String(name.clone()));
            let tracer = tracer.map_err(|error| RpcError::Rejected(error.to_string()))?;
            let Some(tracer) = Self::named(&tracer, config)? else {
                let refused = format!("there is no native tracer {name:?} for a mux");
                return Err(RpcError::Rejected(refused));
            };
            inner.push((name, tracer));
        }
        Ok(Some(Self::Mux(inner)))
    }

    /// An inspector for one transaction.
    ///
    /// # Errors
    /// If a configuration is invalid.
    pub(crate) fn inspector(&self) -> RpcResult<EventInspector> {
        Ok(match self {
            Self::Mux(tracers) => {
                let hooks = tracers.iter().map(|(_, tracer)| tracer.hooks());
                let names = tracers.iter().map(|(name, _)| name.clone()).collect();
                EventInspector::new(hooks.collect::<RpcResult<_>>()?, Some(names))
            }
            tracer => EventInspector::new(vec![tracer.hooks()?], None),
        })
    }

    fn hooks(&self) -> RpcResult<Box<dyn TracerHooks>> {
        use GethDebugBuiltInTracerType as BuiltIn;
        let (kind, config) = match self {
            Self::Steps(options) => return Ok(Box::new(StructLogger::new(*options))),
            Self::Preimages => return Ok(Box::new(PreimageTracer::default())),
            Self::Mux(_) => {
                return Err(RpcError::Rejected("a mux cannot contain another mux".into()));
            }
            Self::BuiltIn(kind, config) => (kind, config.clone()),
        };
        Ok(match kind {
            BuiltIn::CallTracer => Box::new(CallTracer::new(parsed(config)?)),
            BuiltIn::FlatCallTracer => Box::new(FlatCallTracer::new(parsed(config)?)),
            BuiltIn::PreStateTracer => Box::new(PrestateTracer::new(parsed(config)?)?),
            BuiltIn::Erc7562Tracer => Box::new(Erc7562Tracer::new(parsed(config)?)),
            BuiltIn::FourByteTracer => Box::new(FourByteTracer::default()),
            BuiltIn::NoopTracer => Box::new(NoopTracer),
            BuiltIn::StateGasTracer => Box::new(StateGasTracer),
            other => return Err(RpcError::Rejected(format!("there is no tracer {other:?}"))),
        })
    }
}

/// Parses a tracer's configuration; null is the default configuration.
fn parsed<T: DeserializeOwned>(config: Value) -> RpcResult<T> {
    let config = if config.is_null() { value!({}) } else { config };
    serde_json::from_value(config).map_err(|error| {
        RpcError::Rejected(format!("invalid tracer configuration: {}", reason(&error)))
    })
}

/// `noopTracer`: an empty trace.
struct NoopTracer;

impl TracerHooks for NoopTracer {
    fn needs(&self) -> TracerNeeds {
        TracerNeeds::default()
    }

    fn result(&mut self, _: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        json(&value!({}))
    }
}

/// reth's `stateGasTracer`: gas in two dimensions (EIP-8037).
struct StateGasTracer;

impl TracerHooks for StateGasTracer {
    fn needs(&self) -> TracerNeeds {
        TracerNeeds::default()
    }

    fn result(&mut self, end: &TransactionEnd<'_, '_>) -> RpcResult<TraceJson> {
        let gas = end.outcome.result.gas();
        json(&StateGasTrace {
            gas_used: gas.tx_gas_used(),
            execution_gas_used: gas.block_regular_gas_used(),
            state_gas_used: gas.block_state_gas_used(),
            gas_refund: gas.final_refunded(),
        })
    }
}
