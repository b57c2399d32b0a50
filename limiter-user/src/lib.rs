//! limiter in user space.

pub mod cli;
pub mod control;
pub mod daemon;
pub mod datapath;
pub mod metrics;
pub mod nic;
pub mod policy;
pub mod requests;
