//! limiter in user space.

pub mod datapath;
pub mod policy;
pub mod requests;
