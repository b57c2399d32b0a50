//! Bans in the kernel: a hash of those of one source, a trie of all others.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap, Map, MapData, MapError};
use ipnet::IpNet;
use limiter_common::abi::{BANS_OF_PREFIXES, BANS_OF_SOURCES, Ban};
use limiter_common::ban;

use super::Kernel;
use super::load::refused;
use super::sys::Plain;
use crate::datapath::Error;

const SOURCES: &str = "BANS";
const PREFIXES: &str = "BAN_PREFIXES";

type Sources<M> = HashMap<M, [u64; 2], Plain<Ban>>;
type Prefixes<M> = LpmTrie<M, [u8; 16], Plain<Ban>>;

/// Under what a ban is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// An IPv4 address or an IPv6 /64, by [`ban::source_key`].
    Source([u64; 2]),
    /// Length and address of any other prefix.
    Prefix(u32, [u8; 16]),
}

impl Place {
    fn of(prefix: IpNet) -> Self {
        let (bits, length) = match prefix.trunc() {
            IpNet::V4(net) => (net.network().to_ipv6_mapped(), net.prefix_len() + 96),
            IpNet::V6(net) => (net.network(), net.prefix_len()),
        };
        let is_source = match prefix {
            IpNet::V4(net) => net.prefix_len() == 32,
            IpNet::V6(net) => net.prefix_len() == 64,
        };
        if is_source {
            let bits = u128::from(bits);
            Self::Source(ban::source_key((bits >> 64) as u64, bits as u64))
        } else {
            Self::Prefix(u32::from(length), bits.octets())
        }
    }

    fn prefix(self) -> Option<IpNet> {
        let (address, length) = match self {
            Self::Source([high, low]) => {
                let bits = u128::from(high) << 64 | u128::from(low);
                let address = Ipv6Addr::from(bits);
                (address, if address.to_ipv4_mapped().is_some() { 128 } else { 64 })
            }
            Self::Prefix(length, octets) => (Ipv6Addr::from(octets), u8::try_from(length).ok()?),
        };
        match address.to_ipv4_mapped() {
            Some(address) if length >= 96 => IpNet::new(IpAddr::V4(address), length - 96).ok(),
            _ => IpNet::new(IpAddr::V6(address), length).ok(),
        }
    }
}

/// The maps of bans, to be asked as the program asks them.
pub(super) struct BanMaps<'a> {
    sources: Sources<&'a MapData>,
    prefixes: Prefixes<&'a MapData>,
}

impl BanMaps<'_> {
    pub fn of_source(&self, key: [u64; 2]) -> Option<Ban> {
        self.sources.get(&key, 0).ok().map(|Plain(ban)| ban)
    }

    /// The ban of the longest prefix.
    pub fn of_prefix(&self, high: u64, low: u64) -> Option<Ban> {
        let octets = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        self.prefixes.get(&Key::new(128, octets), 0).ok().map(|Plain(ban)| ban)
    }
}

impl Kernel {
    pub(super) fn ban_maps(&self) -> Result<BanMaps<'_>, Error> {
        Ok(BanMaps {
            sources: Sources::try_from(self.map(SOURCES)?).map_err(refused)?,
            prefixes: Prefixes::try_from(self.map(PREFIXES)?).map_err(refused)?,
        })
    }

    pub(super) fn count_of_bans(&self) -> Result<u32, Error> {
        match self.map(SOURCES)? {
            Map::HashMap(map) => Ok(map.info().map_err(refused)?.max_entries()),
            _ => Err(Error::Refused { reason: format!("`{SOURCES}` is no hash") }),
        }
    }

    pub(super) fn held_bans(&self) -> Result<Vec<(IpNet, Ban)>, Error> {
        let mut held = Vec::new();
        let sources = Sources::try_from(self.map(SOURCES)?).map_err(refused)?;
        for entry in sources.iter() {
            let (key, Plain(ban)) = entry.map_err(cannot("read the bans"))?;
            held.extend(Place::Source(key).prefix().map(|prefix| (prefix, ban)));
        }
        let prefixes = Prefixes::try_from(self.map(PREFIXES)?).map_err(refused)?;
        for entry in prefixes.iter() {
            let (key, Plain(ban)) = entry.map_err(cannot("read the bans"))?;
            held.extend(Place::Prefix(key.prefix_len(), key.data()).prefix().map(|prefix| (prefix, ban)));
        }
        Ok(held)
    }

    pub(super) fn insert_bans(&mut self, bans: &[(IpNet, Ban)]) -> Result<(), Error> {
        for (prefix, ban) in bans {
            let put = match Place::of(*prefix) {
                Place::Source(key) => self.ban_sources()?.insert(key, Plain(*ban), 0),
                Place::Prefix(length, octets) => {
                    self.ban_prefixes()?.insert(&Key::new(length, octets), Plain(*ban), 0)
                }
            };
            put.map_err(cannot(&format!("ban `{prefix}`")))?;
        }
        Ok(())
    }

    pub(super) fn remove_bans(&mut self, prefixes: &[IpNet]) -> Result<(), Error> {
        for prefix in prefixes {
            let lifted = match Place::of(*prefix) {
                Place::Source(key) => self.ban_sources()?.remove(&key),
                Place::Prefix(length, octets) => self.ban_prefixes()?.remove(&Key::new(length, octets)),
            };
            match lifted {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(cannot(&format!("lift the ban of `{prefix}`"))(error)),
            }
        }
        Ok(())
    }

    /// Tells the program which maps have anything in them: it looks into no other.
    pub(super) fn tell_of_bans(&self) -> Result<(), Error> {
        let sources = Sources::try_from(self.map(SOURCES)?).map_err(refused)?;
        let prefixes = Prefixes::try_from(self.map(PREFIXES)?).map_err(refused)?;
        let mut kinds = 0;
        if sources.keys().next().is_some() {
            kinds |= BANS_OF_SOURCES;
        }
        if prefixes.keys().next().is_some() {
            kinds |= BANS_OF_PREFIXES;
        }
        self.selector.set_bans(kinds);
        if let Some(observation) = &self.observation {
            observation.set_bans(kinds);
        }
        Ok(())
    }

    fn ban_sources(&mut self) -> Result<Sources<&mut MapData>, Error> {
        let map = self.ebpf.map_mut(SOURCES).ok_or_else(|| missing(SOURCES))?;
        Sources::try_from(map).map_err(refused)
    }

    fn ban_prefixes(&mut self) -> Result<Prefixes<&mut MapData>, Error> {
        let map = self.ebpf.map_mut(PREFIXES).ok_or_else(|| missing(PREFIXES))?;
        Prefixes::try_from(map).map_err(refused)
    }
}

fn missing(name: &str) -> Error {
    Error::Refused { reason: format!("the object has no map `{name}`") }
}

fn is_absent(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(call) if call.io_error.kind() == io::ErrorKind::NotFound)
}

/// An error of a map's, as one of the system's. `doing` completes "cannot …".
fn cannot(doing: &str) -> impl FnOnce(MapError) -> Error {
    move |error| match error {
        MapError::SyscallError(call) => Error::io(doing, call.io_error),
        other => refused(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_is_found_again_by_its_prefix() {
        let prefix = |text: &str| text.parse::<IpNet>().unwrap();
        let v4 = 0x0000_ffff_cb00_7109; // ::ffff:203.0.113.9
        assert_eq!(Place::of(prefix("203.0.113.9/32")), Place::Source([0, v4]));
        assert_eq!(Place::of(prefix("2001:db8:1:2::/64")), Place::Source([0x2001_0db8_0001_0002, 0]));
        let wider = Place::of(prefix("203.0.113.0/24"));
        assert_eq!(wider, Place::Prefix(120, *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xcb\0\x71\0"));
        for text in
            ["203.0.113.9/32", "203.0.113.0/24", "0.0.0.0/0", "2001:db8::/64", "::/64", "2001:db8::1/128"]
        {
            assert_eq!(Place::of(prefix(text)).prefix(), Some(prefix(text)), "{text}");
        }
    }
}
