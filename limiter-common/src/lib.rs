//! Every decision of limiter's packet tier, pure and without dependencies.
//!
//! The kernel program and the host run this same code: the kernel gives it packets and maps, tests and tools
//! give it bytes and vectors. It never allocates, never panics and holds no state.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

pub mod abi;
pub mod ban;
pub mod bucket;
pub mod event;
pub mod filter;
pub mod hash;
pub mod judge;
pub mod packet;
pub mod parse;
pub mod penalty;
pub mod place;
pub mod prefix;
pub mod table;
pub mod verdict;
