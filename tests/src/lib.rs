//! Harness shared by the tests in `tests/tests`: frames, network namespaces, raw sockets, corpus tables, stores.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test harness stops at once where its set-up fails"
)]

pub mod bench;
pub mod clock;
pub mod corpus;
pub mod frame;
pub mod generate;
pub mod host;
pub mod kernel;
pub mod namespace;
pub mod nginx;
pub mod random;
pub mod stop;
pub mod stores;
pub mod tier;
pub mod wire;
