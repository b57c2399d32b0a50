//! The kernel half of limiter. It decides nothing: it loads bytes, touches maps, reads clocks, swaps words
//! and counts, and gives all that to `limiter-common`, which judges.
//!
//! On the host this crate is empty, so that `cargo check --workspace` just works.
#![cfg_attr(target_arch = "bpf", no_std)]
#![cfg_attr(
    target_arch = "bpf",
    allow(internal_features, reason = "the bpf target has no core::sync::atomic read-modify-write"),
    feature(core_intrinsics, asm_experimental_arch)
)]

#[cfg(target_arch = "bpf")]
pub mod action;
#[cfg(target_arch = "bpf")]
pub mod atomic;
#[cfg(target_arch = "bpf")]
pub mod context;
#[cfg(target_arch = "bpf")]
pub mod engine;
#[cfg(target_arch = "bpf")]
pub mod events;
#[cfg(target_arch = "bpf")]
pub mod guard;
#[cfg(target_arch = "bpf")]
pub mod maps;
#[cfg(target_arch = "bpf")]
pub mod proof;
#[cfg(target_arch = "bpf")]
pub mod racy;
#[cfg(target_arch = "bpf")]
pub mod steps;
#[cfg(target_arch = "bpf")]
pub mod verifier;
