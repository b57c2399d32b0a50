//! The control socket: who may connect, how often and for how long.
//!
//! Every connection carries one request, within limits of time, and nobody may hold more than a few connections:
//! a hostile client cannot keep others out.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::Extension;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};

use super::Peer;

/// Group that may read.
const GROUP: &str = "limiter";

/// Connections of everybody, and of one user who is not root.
const CONNECTIONS: usize = 128;
const CONNECTIONS_OF_ONE: usize = 16;

/// A request's head has to come within this.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// A connection ends after this, unless its answer is [`Endless`].
const CONNECTION_DEADLINE: Duration = Duration::from_secs(180);

/// A bound socket, its file removed when this is dropped.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Binds with mode 0660 and the group `limiter`. A socket nobody answers is replaced; one that somebody
    /// answers is an error of kind `AddrInUse`.
    pub fn bind(path: &Path) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        if Self::is_answered(path) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        // Bound under another name, so that nobody connects before the mode is right.
        let beside = path.with_extension(format!("{}", std::process::id()));
        let _ = std::fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside)?;
        let group = group_id(GROUP);
        if group.is_none() {
            tracing::warn!(group = GROUP, "no such group, the control socket is root's alone");
        }
        let owned = nix::unistd::chown(&beside, None, group.map(nix::unistd::Gid::from_raw));
        let mode = if owned.is_ok() { 0o660 } else { 0o600 };
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(mode))?;
        std::fs::rename(&beside, path)?;
        Ok(Self { listener, path: path.to_owned() })
    }
}

impl Socket {
    /// Whether a daemon listens there.
    pub fn is_answered(path: &Path) -> bool {
        std::os::unix::net::UnixStream::connect(path).is_ok()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The id of a group, if there is one of that name.
pub fn group_id(name: &str) -> Option<u32> {
    nix::unistd::Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw())
}

/// Answers with `router` until `stop` resolves. Requests carry their [`Peer`] as an extension.
pub(super) async fn listen(socket: Socket, router: Router, stop: impl Future<Output = ()>) {
    let connections = Arc::new(Connections::default());
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted,
            () = &mut stop => return,
        };
        match accepted {
            Ok((stream, _)) => answer(stream, &router, &connections),
            Err(error) => {
                // Out of descriptors: waiting lets connections end.
                tracing::warn!(%error, "control socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn answer(stream: UnixStream, router: &Router, connections: &Arc<Connections>) {
    let peer = match Peer::of(&stream) {
        Ok(peer) => peer,
        Err(error) => {
            tracing::warn!(%error, "control client without credentials");
            return;
        }
    };
    let Some(place) = connections.enter(&peer) else {
        tracing::warn!(uid = peer.uid, pid = peer.pid, "too many control connections, closed");
        return;
    };
    let endless = Endless::default();
    let router = router.clone().layer(Extension(peer)).layer(Extension(endless.clone()));
    let service = TowerToHyperService::new(router);
    tokio::spawn(async move {
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_DEADLINE)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        // A client that goes away or sends nonsense is its own affair.
        let ended = tokio::time::timeout(CONNECTION_DEADLINE, &mut connection).await;
        if ended.is_err() && endless.is_set() {
            let _ = connection.await;
        }
        drop(place);
    });
}

/// Whether a connection's answer has no end, and so no deadline. Whoever sets it limits how many there are.
#[derive(Clone, Default)]
pub(super) struct Endless(Arc<AtomicBool>);

impl Endless {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Who is connected how often.
#[derive(Default)]
struct Connections(Mutex<HashMap<u32, usize>>);

/// One connection's place.
struct Place {
    connections: Arc<Connections>,
    uid: u32,
}

impl Connections {
    fn enter(self: &Arc<Self>, peer: &Peer) -> Option<Place> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = counts.values().sum();
        let own = counts.entry(peer.uid).or_default();
        if peer.uid != 0 && (*own >= CONNECTIONS_OF_ONE || all >= CONNECTIONS) {
            return None;
        }
        *own += 1;
        Some(Place { connections: Arc::clone(self), uid: peer.uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.connections.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}
