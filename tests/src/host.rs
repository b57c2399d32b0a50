//! Judgement's machine in memory: that of the daemon.

pub use limiter_user::datapath::Host;
