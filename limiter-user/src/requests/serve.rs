//! The socket the HTTP interface is asked on: a unix socket or TCP, with TLS where settings say so.

use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto::ring};

use super::config::{Listen, ListenAddress, ServerTls, Token};
use super::engine::Engine;
use super::http::{self, refused_token};

/// Connections at one time; a proxy keeps a handful.
const CONNECTIONS: usize = 4096;
/// A caller that does not finish its question or its handshake is dropped.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest head of a question: proxies copy their clients' headers.
const LARGEST_HEAD: usize = 64 * 1024;

/// Why nothing can be asked.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen at `{at}`: {error}")]
    Listen { at: String, error: std::io::Error },
    #[error("cannot use the certificate for callers: {0}")]
    Certificate(String),
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A bound socket, ready to be served.
pub struct Bound {
    listener: Listener,
    tls: Option<TlsAcceptor>,
    token: Option<Arc<Token>>,
    /// How long a caller may be silent between questions; a proxy on this host may for ever.
    patience: Option<Duration>,
}

impl Bound {
    /// Binds. A unix socket is for its owner and the group `limiter`; one nobody answers at is replaced.
    pub async fn bind(listen: &Listen) -> Result<Self, ServeError> {
        let tls = listen.tls.as_ref().map(acceptor).transpose()?;
        let listener = match &listen.at {
            ListenAddress::Unix(path) => Listener::Unix(
                bind_unix(path)
                    .map_err(|error| ServeError::Listen { at: path.display().to_string(), error })?,
            ),
            ListenAddress::Tcp(address) => Listener::Tcp(
                TcpListener::bind(address)
                    .await
                    .map_err(|error| ServeError::Listen { at: address.to_string(), error })?,
            ),
        };
        let near = match &listen.at {
            ListenAddress::Unix(_) => true,
            ListenAddress::Tcp(address) => address.ip().is_loopback(),
        };
        let patience = (!near).then_some(PATIENCE);
        Ok(Self { listener, tls, token: listen.token.clone().map(Arc::new), patience })
    }

    /// The port, when it was left to the system.
    pub fn address(&self) -> Option<std::net::SocketAddr> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        }
    }

    /// Answers until dropped.
    pub async fn serve(self, engine: Arc<Engine>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (engine, token, tls) = (Arc::clone(&engine), self.token.clone(), self.tls.clone());
            let patience = self.patience;
            match &self.listener {
                Listener::Unix(listener) => {
                    let Ok((stream, _)) = listener.accept().await else {
                        pause().await;
                        continue;
                    };
                    tokio::spawn(async move {
                        converse(stream, engine, token, patience).await;
                        drop(place);
                    });
                }
                Listener::Tcp(listener) => {
                    let Ok((stream, _)) = listener.accept().await else {
                        pause().await;
                        continue;
                    };
                    // An answer is one small segment: it waits for nothing.
                    let _ = stream.set_nodelay(true);
                    tokio::spawn(async move {
                        match tls {
                            None => converse(stream, engine, token, patience).await,
                            Some(tls) => {
                                if let Ok(Ok(stream)) =
                                    tokio::time::timeout(PATIENCE, tls.accept(stream)).await
                                {
                                    converse(stream, engine, token, patience).await;
                                }
                            }
                        }
                        drop(place);
                    });
                }
            }
        }
    }
}

/// Out of descriptors, most likely: they come back as connections end.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    engine: Arc<Engine>,
    token: Option<Arc<Token>>,
    patience: Option<Duration>,
) {
    let service = service_fn(move |question: hyper::Request<Incoming>| {
        let (engine, token) = (Arc::clone(&engine), token.clone());
        async move {
            let known = token.as_ref().is_none_or(|token| {
                let shown = question.headers().get("limiter-token").and_then(|shown| shown.to_str().ok());
                shown.is_some_and(|shown| token.is(shown))
            });
            let answer = if known { http::answer(&engine, question).await } else { refused_token() };
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        // Headers are at most hyper's own 100: with another number it takes the room for them anew for every question.
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // A broken connection is the caller's affair.
    let _ = connection.await;
}

fn bind_unix(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    if path.exists() {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(std::io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    if let Ok(Some(group)) = nix::unistd::Group::from_name("limiter") {
        // Without the right to give it away it stays the owner's.
        let _ = nix::unistd::chown(path, None, Some(group.gid));
    }
    Ok(listener)
}

fn acceptor(tls: &ServerTls) -> Result<TlsAcceptor, ServeError> {
    let wrong = |error: &dyn std::fmt::Display| ServeError::Certificate(error.to_string());
    let certificates = |pem: &[u8]| {
        CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))
    };
    let chain = certificates(&tls.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&tls.key).map_err(|error| wrong(&error))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem)? {
                roots.add(certificate).map_err(|error| wrong(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| wrong(&error))?)
        }
    };
    let config = builder.with_single_cert(chain, key).map_err(|error| wrong(&error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
