//! Watches the kernel's list of interfaces: whoever appears, goes away or is renamed starts a pass over the
//! guards.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use rtnetlink::MulticastGroup;

use super::Daemon;

/// Changes come in bursts; one pass answers all of them.
const SETTLE: Duration = Duration::from_millis(50);

/// A pass without a reason: messages may be lost, and what could not be attached may be possible now.
const PERIOD: Duration = Duration::from_secs(10);

/// Runs until dropped.
pub async fn watch(daemon: Arc<Daemon>) {
    let mut messages = match rtnetlink::new_multicast_connection(&[MulticastGroup::Link]) {
        Ok((connection, _handle, messages)) => {
            tokio::spawn(connection);
            Some(messages)
        }
        Err(error) => {
            tracing::warn!(%error, "cannot watch interfaces, looking every {} s", PERIOD.as_secs());
            None
        }
    };
    loop {
        let next = async {
            match &mut messages {
                Some(messages) => messages.next().await.is_some(),
                None => std::future::pending().await,
            }
        };
        match tokio::time::timeout(PERIOD, next).await {
            Ok(true) => tokio::time::sleep(SETTLE).await,
            Ok(false) => messages = None,
            Err(_) => {}
        }
        if let Some(messages) = &mut messages {
            while let Ok(Some(_)) = tokio::time::timeout(Duration::ZERO, messages.next()).await {}
        }
        let daemon = Arc::clone(&daemon);
        let _ = tokio::task::spawn_blocking(move || daemon.core().reconcile(false)).await;
    }
}
