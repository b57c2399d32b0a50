//! `cargo xtask setup`: brings a fresh Debian or Ubuntu to where everything builds and every test runs. It looks
//! before it acts, so a second run is quick and changes nothing.

mod host;
mod packages;
mod toolchain;

use anyhow::{Result, bail};

pub fn run() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "set-up, demo and tests attach programs to the kernel and make network namespaces, which needs root\n\n\
             hint: run it as root, for example with `sudo env PATH=\"$PATH\" HOME=\"$HOME\" cargo xtask …`"
        );
    }
    done(&host::check()?);
    done(&packages::install()?);
    done(&toolchain::install()?);
    done(&host::mount_bpffs()?);
    Ok(())
}

fn done(what: &str) {
    println!("  ok  {what}");
}
