//! limiter in user space.

pub mod datapath;
pub mod requests;
