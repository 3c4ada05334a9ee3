//! Answers in geth's words where jsonrpsee has its own.

use jsonrpsee::{
    MethodCallback, MethodResponse, Methods,
    core::middleware::{Batch, BatchEntry, BatchEntryErr, Notification, RpcServiceT},
    types::{ErrorObjectOwned, Request},
};
use std::future::Future;
use tower::Layer;

/// Code of subscriptions where there can be none.
const NO_NOTIFICATIONS: i32 = -32001;

/// Marks requests that came by HTTP, which has no way to notify.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneAnswer;

/// Why a request cannot be answered at all, if so.
pub(super) fn refusal(methods: &Methods, request: &Request<'_>) -> Option<ErrorObjectOwned> {
    let name = request.method_name();
    match methods.method(name) {
        None => Some(ErrorObjectOwned::owned(
            crate::RpcError::METHOD_NOT_FOUND,
            format!("the method {name} does not exist/is not available"),
            None::<()>,
        )),
        Some(MethodCallback::Subscription(_) | MethodCallback::Unsubscription(_))
            if request.extensions().get::<OneAnswer>().is_some() =>
        {
            let message = "notifications not supported";
            Some(ErrorObjectOwned::owned(NO_NOTIFICATIONS, message, None::<()>))
        }
        Some(_) => None,
    }
}

/// Puts [`Words`] before a service.
#[derive(Clone, Debug)]
pub(super) struct WordsLayer(pub(super) Methods);

impl<S> Layer<S> for WordsLayer {
    type Service = Words<S>;

    fn layer(&self, inner: S) -> Words<S> {
        Words { methods: self.0.clone(), inner }
    }
}

/// Refuses what is not served before jsonrpsee does.
#[derive(Clone, Debug)]
pub(super) struct Words<S> {
    methods: Methods,
    inner: S,
}

impl<S> RpcServiceT for Words<S>
where
    S: RpcServiceT<
            MethodResponse = MethodResponse,
            BatchResponse = MethodResponse,
            NotificationResponse = MethodResponse,
        > + Send
        + Sync
        + Clone
        + 'static,
{
    type MethodResponse = MethodResponse;
    type NotificationResponse = MethodResponse;
    type BatchResponse = MethodResponse;

    fn call<'a>(&self, request: Request<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let answer = match refusal(&self.methods, &request) {
            Some(error) => Err(MethodResponse::error(request.id, error)),
            None => Ok(self.inner.call(request)),
        };
        async move {
            match answer {
                Ok(answer) => answer.await,
                Err(refusal) => refusal,
            }
        }
    }

    fn batch<'a>(&self, batch: Batch<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let entries = batch.into_iter().map(|entry| match entry {
            Ok(BatchEntry::Call(request)) => match refusal(&self.methods, &request) {
                Some(error) => Err(BatchEntryErr::new(request.id, error)),
                None => Ok(BatchEntry::Call(request)),
            },
            entry => entry,
        });
        self.inner.batch(Batch::from(entries.collect()))
    }

    fn notification<'a>(
        &self,
        notification: Notification<'a>,
    ) -> impl Future<Output = MethodResponse> + Send + 'a {
        self.inner.notification(notification)
    }
}
