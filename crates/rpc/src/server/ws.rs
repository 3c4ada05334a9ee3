//! JSON-RPC over WebSocket (RFC 6455).

use super::{
    answers::Answers,
    port::text,
    session::{self, Outbox, Session},
};
use futures::io::{BufReader, BufWriter};
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming as Body, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use jsonrpsee::{
    server::{HttpBody, StopHandle},
    types::error::reject_too_big_request,
};
use parking_lot::Mutex;
use soketto::{
    Incoming, Receiver, Sender, connection::Error, data::ByteSlice125, handshake::http::Server,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, interval_at},
};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

/// How often clients are asked whether they are there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long a client may be silent that is asked.
const MAX_SILENCE: Duration = Duration::from_secs(60);

type Io = BufReader<BufWriter<Compat<TokioIo<Upgraded>>>>;

/// When the client was last heard; `None` while nobody listens, as it has enough under way.
type Heard = Arc<Mutex<Option<Instant>>>;

/// Turns the connection of a handshake into a WebSocket that has this place; the answer to the
/// handshake.
pub(super) fn upgrade(
    request: Request<Body>,
    answers: Answers,
    place: OwnedSemaphorePermit,
    stop: StopHandle,
) -> Response<HttpBody> {
    let mut server = Server::new();
    let answer = match server.receive_request(&request) {
        Ok(answer) => answer.map(|()| HttpBody::empty()),
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
    };
    tokio::spawn(async move {
        let _place = place;
        let io = match hyper::upgrade::on(request).await {
            Ok(upgraded) => TokioIo::new(upgraded).compat(),
            Err(error) => return tracing::debug!(%error, "a connection became no WebSocket"),
        };
        let mut builder = server.into_builder(BufReader::new(BufWriter::new(io)));
        builder.set_max_message_size(answers.limits.max_request_size as usize);
        let (sender, receiver) = builder.finish();
        serve(sender, receiver, &answers, stop).await;
    });
    answer
}

/// Serves a connection until the client or the node ends it.
async fn serve(sender: Sender<Io>, receiver: Receiver<Io>, answers: &Answers, stop: StopHandle) {
    let _connected = answers.metrics.connected();
    let (session, outbox) = session::open(answers);
    let heard: Heard = Arc::new(Mutex::new(Some(Instant::now())));
    let writing = write(sender, outbox, heard.clone());
    tokio::pin!(writing);
    tokio::select! {
        () = &mut writing => return,
        ended = read(receiver, session, &heard) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a WebSocket has failed");
            }
            // Nobody is left to hear answers.
            return;
        }
        () = stop.clone().shutdown() => {}
    }
    // Answers to requests under way, then the end.
    writing.await;
}

async fn read(mut receiver: Receiver<Io>, session: Session, heard: &Heard) -> Result<(), Error> {
    loop {
        let mut message = Vec::new();
        match receiver.receive(&mut message).await {
            Ok(Incoming::Data(_)) => {
                *heard.lock() = None;
                session.take(message).await;
            }
            Ok(Incoming::Pong(_)) => {}
            Ok(Incoming::Closed(_)) | Err(Error::Closed) => return Ok(()),
            // Its bytes were read and dropped.
            Err(Error::MessageTooLarge { .. }) => {
                *heard.lock() = None;
                let most = session.client().limits().max_request_size;
                session.refuse(reject_too_big_request(most)).await;
            }
            Err(error) => return Err(error),
        }
        *heard.lock() = Some(Instant::now());
    }
}

/// Ends with the session, or when the client is gone.
async fn write(mut sender: Sender<Io>, mut outbox: Outbox, heard: Heard) {
    let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    loop {
        let sent = tokio::select! {
            next = outbox.next() => match next {
                Some(next) => sender.send_text(next.text()).await,
                None => break,
            },
            _ = pings.tick() => {
                if heard.lock().is_some_and(|heard| heard.elapsed() > MAX_SILENCE) {
                    tracing::debug!("a WebSocket client is gone");
                    break;
                }
                match ByteSlice125::try_from(&[][..]) {
                    Ok(nothing) => sender.send_ping(nothing).await,
                    Err(_) => Ok(()),
                }
            }
        };
        let flushed = match sent {
            Ok(()) => sender.flush().await,
            failed => failed,
        };
        if let Err(error) = flushed {
            tracing::debug!(%error, "a WebSocket client does not read");
            return;
        }
    }
    // A client that is gone does not miss it.
    let _ = sender.close().await;
}
