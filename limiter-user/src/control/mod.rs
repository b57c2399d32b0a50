//! The control API: HTTP/1.1 and JSON on a unix socket. Types, server, client.

pub mod api;
pub mod client;
mod event_routes;
mod listen;
mod operator_routes;
mod peer;
pub mod request_api;
mod request_routes;
pub mod server;

pub use listen::Socket;
pub use peer::Peer;
