//! Network namespaces with a veth pair between them, gone when the guard is dropped.
//!
//! Every test makes its own, so tests run side by side and never touch the host's links. What a killed run
//! left behind is removed by the next one: a name holds the process id of its maker.

use std::{
    fs::File,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

/// What every name starts with.
const PREFIX: &str = "limiter-test-";
/// The interface in the guarded namespace.
pub const GUARDED: &str = "guard0";
/// The interface of the peer that sends.
pub const PEER: &str = "peer0";

/// Addresses of a pair made with [`Pair::addressed`].
pub const GUARDED_V4: &str = "192.0.2.1";
pub const PEER_V4: &str = "192.0.2.2";
pub const GUARDED_V6: &str = "2001:db8::1";
pub const PEER_V6: &str = "2001:db8::2";

/// One network namespace under `/run/netns`.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// With nothing in it but a loopback interface, down.
    pub fn empty() -> Self {
        Self::create("e")
    }

    fn create(suffix: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}{suffix}", std::process::id());
        if path(&name).exists() {
            // A process of the same id left it half done.
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
        ip(&["netns", "add", &name]);
        let file = File::open(path(&name)).expect("the namespace just made opens");
        Self { name, file }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// For `nsenter --net=`.
    pub fn path(&self) -> PathBuf {
        path(&self.name)
    }

    /// Runs `work` on a thread of its own inside this network namespace. Mounts stay the caller's.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter();
                    work()
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into this network namespace, for good.
    pub fn enter(&self) {
        // SAFETY: setns reads an open descriptor and changes the calling thread alone.
        let result = unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "setns to `{}`: {}", self.name, std::io::Error::last_os_error());
    }

    /// `ip -n NAME …`
    pub fn ip(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.name], arguments].concat());
    }

    /// A command that runs inside this network namespace, with the caller's mounts.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program.as_ref());
        command
    }

    /// Moves an interface of the caller's namespace here, under another name. A real one goes back when this
    /// namespace ends.
    pub fn take(&self, interface: &str, name: &str) {
        ip(&["link", "set", interface, "down"]);
        ip(&["link", "set", interface, "netns", &self.name, "name", name]);
    }

    /// Writes a key below `/proc/sys/net`, which shows the namespace of whoever opens it.
    pub fn sysctl(&self, key: &str, value: &str) {
        self.run(|| std::fs::write(Path::new("/proc/sys/net").join(key), value))
            .unwrap_or_else(|error| panic!("set `{key}` to `{value}`: {error}"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

fn path(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("`ip` runs (package iproute2)");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {error}", arguments.join(" "));
}

/// Removes the namespaces of test processes that are gone.
fn remove_left_behind() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if maker.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

/// Two namespaces, joined by a veth pair with one queue each way, so that packets stay in order.
#[derive(Debug)]
pub struct Pair {
    pub guarded: Namespace,
    pub peer: Namespace,
}

impl Pair {
    /// No address, no IPv6 of the kernels' own: nothing but what a test sends is on the link.
    pub fn silent() -> Self {
        let pair = Self::down(1500);
        for namespace in [&pair.guarded, &pair.peer] {
            namespace.sysctl("ipv6/conf/all/disable_ipv6", "1");
            namespace.sysctl("ipv6/conf/default/disable_ipv6", "1");
        }
        pair.up();
        pair
    }

    /// Both kernels speak IPv4 and IPv6 and know each other's link address without asking.
    pub fn addressed() -> Self {
        let pair = Self::down(1500);
        pair.address();
        pair
    }

    /// The same of two interfaces that are there and joined already, and have the link addresses of such a pair.
    /// They go back to where they were when it is dropped.
    pub fn of_interfaces(guarded: &str, peer: &str) -> Self {
        remove_left_behind();
        let pair = Self { guarded: Namespace::create("g"), peer: Namespace::create("p") };
        pair.guarded.take(guarded, GUARDED);
        pair.peer.take(peer, PEER);
        pair.address();
        pair
    }

    fn address(&self) {
        self.guarded.ip(&["address", "add", &format!("{GUARDED_V4}/24"), "dev", GUARDED]);
        self.guarded.ip(&["address", "add", &format!("{GUARDED_V6}/32"), "dev", GUARDED, "nodad"]);
        self.peer.ip(&["address", "add", &format!("{PEER_V4}/24"), "dev", PEER]);
        self.peer.ip(&["address", "add", &format!("{PEER_V6}/32"), "dev", PEER, "nodad"]);
        self.up();
        let neighbours = [
            (&self.guarded, GUARDED, PEER_V4, PEER_V6, "02:00:00:00:00:02"),
            (&self.peer, PEER, GUARDED_V4, GUARDED_V6, "02:00:00:00:00:01"),
        ];
        for (namespace, interface, v4, v6, link) in neighbours {
            for address in [v4, v6] {
                namespace.ip(&[
                    "neighbour",
                    "replace",
                    address,
                    "lladdr",
                    link,
                    "dev",
                    interface,
                    "nud",
                    "permanent",
                ]);
            }
        }
    }

    fn down(mtu: u32) -> Self {
        remove_left_behind();
        let pair = Self { guarded: Namespace::create("g"), peer: Namespace::create("p") };
        let mtu = mtu.to_string();
        // Made inside: before Linux 6.2 the names must be free where the command runs, too.
        #[rustfmt::skip]
        pair.guarded.ip(&[
            "link", "add", GUARDED, "numtxqueues", "1", "numrxqueues", "1", "mtu", &mtu,
            "address", "02:00:00:00:00:01", "type", "veth",
            "peer", "name", PEER, "numtxqueues", "1", "numrxqueues", "1", "mtu", &mtu,
            "address", "02:00:00:00:00:02", "netns", pair.peer.name(),
        ]);
        pair
    }

    fn up(&self) {
        for (namespace, interface) in [(&self.guarded, GUARDED), (&self.peer, PEER)] {
            namespace.ip(&["link", "set", "lo", "up"]);
            namespace.ip(&["link", "set", interface, "up"]);
        }
    }
}
