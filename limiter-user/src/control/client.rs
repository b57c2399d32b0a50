//! A client of the control API: one request, one connection.

use std::io;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::api::Failure;
use crate::daemon::words;

/// How long an answer may take: applying a large policy takes seconds.
const DEADLINE: Duration = Duration::from_secs(120);

/// A stream that says nothing for so long is broken: the daemon sends a word every 15 s.
const SILENCE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot reach limiterd at `{socket}`: {}", why(source))]
    Unreachable { socket: String, source: io::Error },

    #[error("limiterd at `{socket}` did not answer: {reason}")]
    Broken { socket: String, reason: String },

    /// The daemon said no.
    #[error("{}", failure.error)]
    Refused { status: StatusCode, failure: Failure },
}

impl ClientError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { source, .. } => Some(match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    "only root and the group `limiter` may talk to limiterd: `usermod -aG limiter $USER`, then log in anew"
                        .to_owned()
                }
                io::ErrorKind::ConnectionRefused => {
                    "limiterd left this socket behind and is not running: `systemctl start limiterd`, or run `limiterd`"
                        .to_owned()
                }
                _ => "is limiterd running? `systemctl status limiterd`; `--socket` names another place".to_owned(),
            }),
            Self::Broken { .. } => Some("`journalctl -u limiterd` may say why".to_owned()),
            Self::Refused { failure, .. } => failure.hint.clone(),
        }
    }
}

/// The system's words, without its numbers.
fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such socket".to_owned(),
        io::ErrorKind::ConnectionRefused => "nobody answers".to_owned(),
        _ => words(error),
    }
}

/// Where the daemon listens.
#[derive(Clone, Debug)]
pub struct Client {
    socket: String,
}

impl Client {
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.display().to_string() }
    }

    /// The process that answers, where the kernel tells it.
    pub async fn process(&self) -> Option<u32> {
        let stream = UnixStream::connect(&self.socket).await.ok()?;
        stream.peer_cred().ok()?.pid().and_then(|process| u32::try_from(process).ok())
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::GET, path, None).await
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::POST, path, None).await
    }

    pub async fn post_body<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.broken(error))?;
        self.request(Method::POST, path, Some(body)).await
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::DELETE, path, None).await
    }

    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.broken(error))?;
        self.request(Method::PUT, path, Some(body)).await
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, ClientError> {
        let (status, bytes) = tokio::time::timeout(DEADLINE, self.exchange(method, path, body))
            .await
            .map_err(|_| self.broken(format!("no answer within {} s", DEADLINE.as_secs())))??;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| self.broken(error));
        }
        Err(refused(status, &bytes))
    }

    /// An answer without an end: its messages, as they come.
    pub async fn stream(&self, path: &str) -> Result<Messages, ClientError> {
        let response = tokio::time::timeout(DEADLINE, self.send(Method::GET, path, None))
            .await
            .map_err(|_| self.broken(format!("no answer within {} s", DEADLINE.as_secs())))??;
        let status = response.status();
        if !status.is_success() {
            let bytes = response.into_body().collect().await.map_err(|error| self.broken(error))?.to_bytes();
            return Err(refused(status, &bytes));
        }
        Ok(Messages { client: self.clone(), body: response.into_body(), text: Vec::new() })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|error| self.broken(error))?.to_bytes();
        Ok((status, bytes))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|source| ClientError::Unreachable { socket: self.socket.clone(), source })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(error))?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "limiterd");
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| self.broken(error))?;
        sender.send_request(request).await.map_err(|error| self.broken(error))
    }

    fn broken(&self, reason: impl ToString) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), reason: reason.to_string() }
    }
}

fn refused(status: StatusCode, body: &[u8]) -> ClientError {
    let failure = serde_json::from_slice(body)
        .unwrap_or_else(|_| Failure { error: format!("limiterd answered {status}"), ..Failure::default() });
    ClientError::Refused { status, failure }
}

/// Server-sent events.
pub struct Messages {
    client: Client,
    body: Incoming,
    /// What has come and is no whole message yet.
    text: Vec<u8>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub kind: String,
    pub data: String,
}

impl Messages {
    /// The next message; `None` when the daemon ends the stream.
    pub async fn next(&mut self) -> Result<Option<Message>, ClientError> {
        loop {
            if let Some(message) = take_message(&mut self.text) {
                return Ok(Some(message));
            }
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            let frame =
                frame.map_err(|_| self.client.broken(format!("silent for {} s", SILENCE.as_secs())))?;
            match frame {
                Some(Ok(frame)) => {
                    self.text.extend(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
                }
                Some(Err(error)) => return Err(self.client.broken(error)),
                None => return Ok(None),
            }
        }
    }
}

/// Takes the first whole message with data off the text; comments, which keep the stream alive, are skipped.
fn take_message(text: &mut Vec<u8>) -> Option<Message> {
    loop {
        let end = text.windows(2).position(|pair| pair == b"\n\n")?;
        let block: Vec<u8> = text.drain(..end + 2).collect();
        let block = String::from_utf8_lossy(&block).into_owned();
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_start);
        if let Some(data) = field("data:") {
            return Some(Message {
                kind: field("event:").unwrap_or_default().to_owned(),
                data: data.to_owned(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_one_by_one() {
        let mut text =
            b":\n\nevent: drop\ndata: {\"a\":1}\n\n: alive\n\nevent:lost\ndata:{}\n\nevent: dr".to_vec();
        let mut next = || take_message(&mut text).map(|message| (message.kind, message.data));
        assert_eq!(next(), Some(("drop".to_owned(), "{\"a\":1}".to_owned())));
        assert_eq!(next(), Some(("lost".to_owned(), "{}".to_owned())));
        assert_eq!(next(), None);
        assert_eq!(text, b"event: dr");
    }
}
