//! On a kernel below the floor: one sentence says so, and nothing is left behind. `cargo xtask vm` runs it there.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

#[path = "../site/mod.rs"]
mod site;

use std::fs;
use std::process::Command;

use site::Site;

#[test]
fn an_old_kernel_is_refused_with_a_sentence() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let site = Site::new("floor");
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiterd"));
    site.configure(&mut command, "lo");
    let output = command.output().unwrap();
    let expected = format!("error: this kernel is {}: limiter needs 5.15 or newer\n", release.trim());
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
    assert_eq!(output.status.code(), Some(1));
    assert!(!site.pin.exists(), "nothing is pinned");
}
