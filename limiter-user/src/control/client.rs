//! A client of the control API: one request, one connection.

use std::io;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::api::Failure;
use crate::daemon::words;

/// How long an answer may take: applying a large policy takes seconds.
const DEADLINE: Duration = Duration::from_secs(120);

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
        let failure = serde_json::from_slice(&bytes).unwrap_or_else(|_| Failure {
            error: format!("limiterd answered {status}"),
            ..Failure::default()
        });
        Err(ClientError::Refused { status, failure })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
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
        let response = sender.send_request(request).await.map_err(|error| self.broken(error))?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|error| self.broken(error))?.to_bytes();
        Ok((status, bytes))
    }

    fn broken(&self, reason: impl ToString) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), reason: reason.to_string() }
    }
}
