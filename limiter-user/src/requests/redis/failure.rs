//! From Redis' errors to ours.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::requests::store::StoreError;

/// Answers of a server that will work again without anyone changing its configuration.
const PASSING: [&str; 8] =
    ["LOADING", "READONLY", "OOM", "BUSY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN"];

pub(in crate::requests) fn store_error(error: &RedisError) -> StoreError {
    let text = describe(error);
    match error.kind() {
        ErrorKind::Io => StoreError::Broken(text),
        ErrorKind::AuthenticationFailed => StoreError::Refused(text),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType | ErrorKind::Client => StoreError::Malformed(text),
        _ if error.code() == Some("LIMITER") => StoreError::Invalid(text),
        // An old server puts the code of what a script's command answered into the text.
        _ if PASSING.iter().any(|code| text.contains(code)) => StoreError::NotReady(text),
        _ => StoreError::Refused(text),
    }
}

/// Whether the server does not know the script: the one error after which asking again is safe.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether another connection may lead to a server that can do this: the connection is broken, or the server
/// has become a replica or a stranger.
pub(super) fn wants_new_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || describe(error).contains("READONLY")
        || error.code() == Some("NOAUTH")
}

/// The server's words, with the code it began with.
fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}
