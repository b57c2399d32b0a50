//! The daemon's life: start, ready, signals, end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use super::settings::OnExit;
use super::{Daemon, Kind, Refusal, Settings, TICK, Wish, links, words};
use crate::control::{Socket, server};
use crate::datapath::Datapath;
use crate::metrics;
use crate::requests::config;
use crate::requests::tier::{Tier, TierError};

/// How often the content of the policy file is looked at, when it is.
const FILE_PERIOD: Duration = Duration::from_secs(2);

/// Scrapes answered at one time, and how long one may take.
const SCRAPES: usize = 16;
const TIDY_PERIOD: Duration = Duration::from_secs(10);
const SCRAPE_DEADLINE: Duration = Duration::from_secs(10);

/// Runs until SIGTERM or SIGINT. Ready means: every interface there is is guarded, and the socket answers.
pub async fn run(settings: Settings, datapath: Option<Box<dyn Datapath>>) -> Result<(), Refusal> {
    let failed = |what: String| move |error: std::io::Error| cannot(&what, &error);
    // Taken first, so that a signal during a long start is not lost.
    let mut hangups = signal(SignalKind::hangup()).map_err(failed("listen for SIGHUP".to_owned()))?;
    let mut terminations =
        signal(SignalKind::terminate()).map_err(failed("listen for SIGTERM".to_owned()))?;
    let mut interrupts = signal(SignalKind::interrupt()).map_err(failed("listen for SIGINT".to_owned()))?;

    if Socket::is_answered(&settings.socket) {
        // Before anything is touched: two daemons would undo each other's work.
        return Err(socket_refusal(&settings, &std::io::ErrorKind::AddrInUse.into()));
    }
    let daemon = blocking(move || Daemon::start(settings, datapath)).await??;
    let settings = daemon.settings().clone();
    let requests = start_requests(&settings).await?;
    if let Some(tier) = &requests {
        daemon.core().take_requests(Arc::clone(tier));
    }
    let socket = Socket::bind(&settings.socket).map_err(|error| socket_refusal(&settings, &error))?;
    let (stop, stopped) = tokio::sync::watch::channel(());
    let until_stop = || {
        let mut stopped = stopped.clone();
        async move {
            let _ = stopped.changed().await;
        }
    };
    let control = tokio::spawn(server::serve(socket, Arc::clone(&daemon), until_stop()));
    if let Ok(address) = settings.metrics.parse::<SocketAddr>() {
        match TcpListener::bind(address).await {
            Ok(listener) => drop(tokio::spawn(scrape(listener, Arc::clone(&daemon)))),
            // Guarding matters more than being watched.
            Err(error) => tracing::error!(%address, %error, "metrics are not served"),
        }
    }
    if settings.guards_packets() {
        tokio::spawn(links::watch(Arc::clone(&daemon)));
    }
    if settings.reload_on_change {
        tokio::spawn(watch_file(Arc::clone(&daemon)));
    }
    tokio::spawn(tidy(Arc::clone(&daemon)));
    tokio::spawn(tick(Arc::clone(&daemon)));
    tokio::spawn(watchdog(Arc::clone(&daemon)));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %settings.socket.display(), "limiterd is ready");
    notify(&[NotifyState::Ready]);

    loop {
        tokio::select! {
            _ = hangups.recv() => {
                let daemon = Arc::clone(&daemon);
                // Refusals are logged where they happen.
                let _ = blocking(move || daemon.reload(&Wish::default(), "SIGHUP".to_owned())).await;
            }
            _ = terminations.recv() => break,
            _ = interrupts.recv() => break,
        }
    }
    notify(&[NotifyState::Stopping]);
    let _ = stop.send(());
    let _ = control.await;
    if let Some(tier) = requests {
        tier.stop().await;
    }
    let falling_silent = Arc::clone(&daemon);
    blocking(move || falling_silent.stop_telling()).await?;
    if settings.on_exit == OnExit::Detach {
        blocking(move || daemon.detach_all()).await?;
    }
    tracing::info!(on_exit = ?settings.on_exit, "limiterd ends");
    Ok(())
}

/// The request tier, if the settings ask for one.
async fn start_requests(settings: &Settings) -> Result<Option<Arc<Tier>>, Refusal> {
    let refuse = |error: TierError| {
        let hint = match &error {
            TierError::Setting(setting) => setting.hint.clone(),
            _ => "`limiterd --print-default-config` shows the keys of `[requests]` and `[redis]`".to_owned(),
        };
        Refusal::new(Kind::Failed, error.to_string(), hint)
    };
    let resolved = config::resolve(&settings.redis, &settings.requests);
    let Some(resolved) = resolved.map_err(|error| refuse(error.into()))? else { return Ok(None) };
    Ok(Some(Arc::new(Tier::start(resolved, &settings.state).await.map_err(refuse)?)))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        Refusal::new(Kind::Failed, format!("limiterd failed: {error}"), "this is a defect of limiterd")
    })
}

async fn watch_file(daemon: Arc<Daemon>) {
    let mut seen = None;
    loop {
        tokio::time::sleep(FILE_PERIOD).await;
        let daemon = Arc::clone(&daemon);
        let mut look = seen.take();
        let result = blocking(move || {
            daemon.reload_if_changed(&mut look);
            look
        });
        seen = result.await.unwrap_or_default();
    }
}

/// Keeps the datapath fast, see [`Datapath::tidy`].
async fn tidy(daemon: Arc<Daemon>) {
    loop {
        tokio::time::sleep(TIDY_PERIOD).await;
        let daemon = Arc::clone(&daemon);
        let _ = blocking(move || daemon.core().tidy()).await;
    }
}

/// Ends what has come to its end.
async fn tick(daemon: Arc<Daemon>) {
    loop {
        tokio::time::sleep(TICK).await;
        let daemon = Arc::clone(&daemon);
        let _ = blocking(move || daemon.tick()).await;
    }
}

/// Tells the service manager that the core still answers: a ping is sent only after its lock was had.
async fn watchdog(daemon: Arc<Daemon>) {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    loop {
        let daemon = Arc::clone(&daemon);
        if blocking(move || drop(daemon.core())).await.is_ok() {
            notify(&[NotifyState::Watchdog]);
        }
        tokio::time::sleep(period / 2).await;
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "service manager not notified");
    }
}

/// Serves `/metrics` until dropped.
async fn scrape(listener: TcpListener, daemon: Arc<Daemon>) {
    let router = Router::new().route("/metrics", get(move || render(Arc::clone(&daemon))));
    let places = Arc::new(Semaphore::new(SCRAPES));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(SCRAPE_DEADLINE)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(SCRAPE_DEADLINE, connection).await;
            drop(place);
        });
    }
}

async fn render(daemon: Arc<Daemon>) -> axum::response::Response {
    match blocking(move || metrics::render(&daemon)).await.and_then(|page| page) {
        Ok(page) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(refusal) => {
            tracing::error!(reason = refusal.line(), "metrics");
            (StatusCode::INTERNAL_SERVER_ERROR, refusal.failure.error).into_response()
        }
    }
}

fn cannot(what: &str, error: &std::io::Error) -> Refusal {
    Refusal::new(Kind::Failed, format!("cannot {what}: {}", words(error)), "")
}

fn socket_refusal(settings: &Settings, error: &std::io::Error) -> Refusal {
    let path = settings.socket.display();
    match error.kind() {
        std::io::ErrorKind::AddrInUse => Refusal::new(
            Kind::Conflict,
            format!("another limiterd answers at `{path}`"),
            "`limiterctl status` shows it; stop it first, or give this one another `--socket`, `--pin` and `--state`",
        ),
        std::io::ErrorKind::PermissionDenied => Refusal::new(
            Kind::Failed,
            format!("cannot listen at `{path}`: permission denied"),
            "run as root, or name a place that can be written with `--socket`",
        ),
        _ => Refusal::new(
            Kind::Failed,
            format!("cannot listen at `{path}`: {}", words(error)),
            "name another place with `--socket`",
        ),
    }
}
