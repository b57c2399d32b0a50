//! limiter in user space.
