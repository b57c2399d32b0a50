//! The few questions of `ethtool` that matter to XDP, by the ioctl every kernel answers to everyone.
//!
//! The layouts are those of `linux/ethtool.h`; each structure is taken as 32-bit words.

use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

const SIOCETHTOOL: u64 = 0x8946;
const GET_DRIVER: u32 = 0x03;
const GET_STRINGS: u32 = 0x1b;
const GET_SET_SIZES: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const GET_CHANNELS: u32 = 0x3c;

/// `ETH_SS_FEATURES`
const FEATURE_NAMES: u32 = 4;
/// `ETH_GSTRING_LEN`
const NAME_BYTES: usize = 32;

/// What a driver says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    pub name: String,
    /// `None` where the driver has no queues to choose.
    pub channels: Option<Channels>,
    /// Names of the offloads that are on, as `ethtool -k` has them behind its own.
    pub active: Vec<String>,
}

impl Driver {
    pub fn is_on(&self, feature: &str) -> bool {
        self.active.iter().any(|active| active == feature)
    }
}

/// Receive queues: in use and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    pub receive: u32,
    pub most: u32,
    /// They receive and send: `ethtool -L NAME combined N`, else `rx N`.
    pub combined: bool,
}

pub fn driver(interface: &str) -> io::Result<Driver> {
    let mut words = [0; 49];
    words[0] = GET_DRIVER;
    ask(interface, &mut words)?;
    Ok(Driver {
        name: text(&words[1..9]),
        channels: channels(interface).ok(),
        active: active(interface).unwrap_or_default(),
    })
}

fn channels(interface: &str) -> io::Result<Channels> {
    let mut words = [0; 9];
    words[0] = GET_CHANNELS;
    ask(interface, &mut words)?;
    let [_, most_receive, _, _, most_combined, receive, _, _, combined] = words;
    Ok(Channels {
        receive: receive.saturating_add(combined),
        most: most_receive.max(most_combined),
        combined: most_combined > 0,
    })
}

fn active(interface: &str) -> io::Result<Vec<String>> {
    // Command, a hole, the mask of sets asked for in 64 bits, then a size for each.
    let mut sizes = [0; 5];
    sizes[0] = GET_SET_SIZES;
    let mask = (1_u64 << FEATURE_NAMES).to_ne_bytes();
    let (mask, _) = mask.as_chunks::<4>();
    [sizes[2], sizes[3]] = [u32::from_ne_bytes(mask[0]), u32::from_ne_bytes(mask[1])];
    ask(interface, &mut sizes)?;
    // A few dozen; the bound keeps a broken driver from asking for memory.
    let count = (sizes[4] as usize).min(4096);

    let mut names = vec![0; 3 + count * NAME_BYTES / 4];
    names[..3].copy_from_slice(&[GET_STRINGS, FEATURE_NAMES, count as u32]);
    ask(interface, &mut names)?;

    // A block is 32 features in four words: available, requested, active, never changed.
    let blocks = count.div_ceil(32);
    let mut features = vec![0; 2 + blocks * 4];
    features[..2].copy_from_slice(&[GET_FEATURES, blocks as u32]);
    ask(interface, &mut features)?;
    let is_active = |index: &usize| features[2 + index / 32 * 4 + 2] >> (index % 32) & 1 == 1;
    let name = |index: usize| text(&names[3 + index * NAME_BYTES / 4..][..NAME_BYTES / 4]);
    Ok((0..count).filter(is_active).map(name).collect())
}

/// A text of fixed length, ended by a zero.
fn text(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// One question; the answer comes in its place.
fn ask(interface: &str, words: &mut [u32]) -> io::Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut name: [libc::c_char; libc::IFNAMSIZ] = [0; libc::IFNAMSIZ];
    // The last one stays zero.
    if interface.len() >= name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    let data = words.as_mut_ptr().cast();
    let mut request =
        libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: data } };
    // SAFETY: the request lives through the call, and its words have the size its command and counts stand for.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_describes_its_offloads() {
        let active = active("lo").unwrap();
        assert!(
            active.iter().any(|name| name == "tx-lockless") || active.iter().any(|name| name == "loopback")
        );
        assert!(active.iter().all(|name| !name.is_empty()));
    }

    #[test]
    fn names_that_are_none_are_refused() {
        assert!(driver("limiter-no-such").is_err());
        assert!(driver(&"x".repeat(300)).is_err());
        assert!(driver("").is_err());
    }
}
