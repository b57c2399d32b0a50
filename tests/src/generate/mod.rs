//! Random policies and random frames that meet: both draw from the same few sources, ports and types, so that
//! rules match, buckets run dry and sets overlap.

mod frames;
mod policies;

pub use frames::{SHORTEST, frame};
pub use policies::policy;

/// IPv4 sources. The sets' prefixes are cut from them.
const V4_SOURCES: [&str; 16] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.200",
    "10.0.1.1",
    "10.0.1.255",
    "10.0.128.7",
    "10.1.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "192.0.2.1",
    "192.0.2.77",
    "198.51.100.1",
    "203.0.113.5",
    "0.0.0.0",
    "127.0.0.1",
    "255.255.255.255",
];

/// IPv6 sources: two in one /64, neighbours of it, link-local ones, and IPv4 carried in IPv6.
const V6_SOURCES: [&str; 18] = [
    "2001:db8::1",
    "2001:db8::2",
    "2001:db8::ffff:ffff:ffff:ffff",
    "2001:db8:0:1::1",
    "2001:db8:0:2::1",
    "2001:db8:1::1",
    "2001:db8:8000::1",
    "2001:db9::1",
    "2a00::1",
    "fe80::1",
    "fe80::2",
    "::",
    "::1",
    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    "::ffff:10.0.0.1",
    "::ffff:192.0.2.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::10.1.0.1",
];

/// Where frames go; each is in one of the prefixes below or just beside it.
const V4_DESTINATIONS: [&str; 4] = ["198.51.100.1", "198.51.100.2", "198.51.101.0", "255.255.255.255"];
const V6_DESTINATIONS: [&str; 5] = [
    "2001:db8:ffff::1",
    "2001:db8:ffff::2",
    "ff02::1",
    "::ffff:198.51.100.1",
    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
];

/// What rules say of destinations.
const DESTINATION_PREFIXES: [&str; 8] = [
    "198.51.100.1",
    "198.51.100.0/24",
    "0.0.0.0/0",
    "255.255.255.255",
    "2001:db8:ffff::1",
    "2001:db8:ffff::/48",
    "ff00::/8",
    "2000::/3",
];

/// What rules say of interfaces: frames of a test run come in by `lo`.
const INTERFACES: [&str; 3] = ["\"lo\"", "\"absent0\"", "[\"lo\", \"absent1\"]"];

/// Prefixes to ban: of each kind, some within others, with and without their carriers.
pub const BANNED: [&str; 10] = [
    "10.0.0.2/32",
    "10.0.1.0/24",
    "10.0.0.0/15",
    "192.0.2.77/32",
    "2001:db8::/64",
    "2001:db8:0:1::1/128",
    "2001:db8:8000::/33",
    "64:ff9b::/32",
    "fe80::1/128",
    "203.0.113.0/24",
];

/// Sources that have completed a handshake.
pub const PROVEN: [&str; 4] = ["10.0.0.1", "192.0.2.1", "2001:db8::1", "2001:db8:8000::1"];

const PORTS: [u16; 12] = [1, 22, 53, 67, 68, 80, 123, 443, 546, 547, 1024, 65535];

const TYPES_V4: [u8; 5] = [0, 3, 8, 11, 255];
const TYPES_V6: [u8; 12] = [1, 2, 3, 128, 129, 130, 133, 135, 136, 137, 143, 255];
