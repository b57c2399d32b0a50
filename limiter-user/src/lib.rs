//! limiter in user space.

pub mod datapath;
