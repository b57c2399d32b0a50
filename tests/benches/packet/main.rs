//! The packet tier measured: `cargo xtask bench packet [SECTION…]`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench stops where its set-up fails"
)]

mod cost;
mod frames;
mod goodput;
mod policies;
mod state;
mod veth;

fn main() {
    let sections: [(&str, fn()); 6] = [
        ("cost", cost::one_cpu),
        ("cpus", cost::two_cpus),
        ("veth", veth::beside_nftables),
        ("goodput", goodput::polite_client),
        ("table", state::read_table),
        ("swap", state::swap_policy),
    ];
    // Cargo adds `--bench`.
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    for (name, run) in sections {
        if asked.is_empty() || asked.iter().any(|word| word == name) {
            run();
        }
    }
}
