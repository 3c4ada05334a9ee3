//! Stands in for GraphQL in a program that is built without the cargo feature `graphql`.

use super::{
    ServerError, access::AllowedHosts, budget::ConnectionBudget, config::GraphqlConfig,
    connections::OpenConnection, service::MethodService,
};
use crate::RpcContext;
use http::{Request, Response};
use hyper::body::Incoming;
use jsonrpsee::server::HttpBody;
use std::sync::Arc;
use tower_http::cors::CorsLayer;

/// GraphQL, which this program does not have.
#[derive(Debug)]
pub(super) enum GraphqlEndpoint {}

impl GraphqlEndpoint {
    /// As with GraphQL.
    pub(super) const NAME: &'static str = "graphql";

    /// Refuses to make one.
    pub(super) fn new(_: &GraphqlConfig, _: &RpcContext) -> Result<Self, ServerError> {
        Err(ServerError::NoGraphql)
    }

    pub(super) fn hosts(&self) -> &AllowedHosts {
        match *self {}
    }

    pub(super) fn cors(&self) -> Option<CorsLayer> {
        match *self {}
    }

    pub(super) async fn answer(
        &self,
        _: &MethodService,
        _: &Arc<OpenConnection>,
        _: Arc<ConnectionBudget>,
        _: Request<Incoming>,
    ) -> Response<HttpBody> {
        match *self {}
    }
}
