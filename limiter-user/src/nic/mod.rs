//! What the kernel and the driver say of the interfaces of this network namespace. Needs no privilege.

mod ethtool;
mod features;
mod routes;

use std::io;

use futures_util::TryStreamExt;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp, XdpAttached};

pub use ethtool::{Channels, Driver};
pub use features::{Features, features};
pub use routes::next_hops;

use crate::datapath::Mode;

/// One interface.
#[derive(Clone, Debug, Default)]
pub struct Nic {
    pub name: String,
    pub index: u32,
    pub mtu: u32,
    pub is_up: bool,
    pub is_loopback: bool,
    /// The kind of a software interface: `veth`, `bond`, `bridge`, `vlan`, `ipip`, …; `None` for hardware.
    pub kind: Option<String>,
    /// Index of the bond, bridge or the like it belongs to.
    pub master: Option<u32>,
    /// Packets received since it exists.
    pub received: u64,
    /// Ids of the XDP programs there, with their modes.
    pub programs: Vec<(Mode, u32)>,
}

/// Every interface.
pub async fn list() -> io::Result<Vec<Nic>> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let links: Result<Vec<LinkMessage>, _> = handle.link().get().execute().try_collect().await;
    connection.abort();
    Ok(links.map_err(io::Error::other)?.into_iter().map(read).collect())
}

/// Driver, features and queues of an interface. `None` where the driver says nothing.
pub fn driver(name: &str) -> Option<Driver> {
    ethtool::driver(name).ok()
}

fn read(message: LinkMessage) -> Nic {
    let flags = message.header.flags;
    let mut nic = Nic {
        index: message.header.index,
        is_up: flags.contains(LinkFlags::Up),
        is_loopback: flags.contains(LinkFlags::Loopback),
        ..Nic::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => nic.name = name,
            LinkAttribute::Mtu(mtu) => nic.mtu = mtu,
            LinkAttribute::Controller(master) => nic.master = Some(master),
            LinkAttribute::Stats64(stats) => nic.received = stats.rx_packets,
            LinkAttribute::LinkInfo(infos) => {
                nic.kind = infos.into_iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            LinkAttribute::Xdp(attributes) => nic.programs = programs(&attributes),
            _ => {}
        }
    }
    nic
}

/// One program has its id in `ProgId` and its mode in `Attached`; several have an id of their mode each.
fn programs(attributes: &[LinkXdp]) -> Vec<(Mode, u32)> {
    let mut only = None;
    let mut generic = false;
    let mut by_mode = Vec::new();
    for attribute in attributes {
        match attribute {
            LinkXdp::Attached(attached) => generic = *attached == XdpAttached::SocketBuffer,
            LinkXdp::ProgId(id) => only = Some(*id),
            LinkXdp::DrvProgId(id) | LinkXdp::HwProgId(id) => by_mode.push((Mode::Native, *id)),
            LinkXdp::SkbProgId(id) => by_mode.push((Mode::Generic, *id)),
            _ => {}
        }
    }
    match only {
        Some(id) if by_mode.is_empty() => vec![(if generic { Mode::Generic } else { Mode::Native }, id)],
        _ => by_mode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_has_a_loopback() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let nics = runtime.block_on(list()).unwrap();
        let loopback = nics.iter().find(|nic| nic.is_loopback).unwrap();
        assert_eq!((loopback.name.as_str(), loopback.index), ("lo", 1));
        assert!(loopback.mtu > 0 && loopback.kind.is_none());
    }

    #[test]
    fn several_programs_are_told_apart() {
        let one = [LinkXdp::Attached(XdpAttached::SocketBuffer), LinkXdp::ProgId(7), LinkXdp::SkbProgId(7)];
        assert_eq!(programs(&one), [(Mode::Generic, 7)]);
        let two = [LinkXdp::Attached(XdpAttached::Multiple), LinkXdp::DrvProgId(8), LinkXdp::SkbProgId(7)];
        assert_eq!(programs(&two), [(Mode::Native, 8), (Mode::Generic, 7)]);
        assert_eq!(programs(&[LinkXdp::Attached(XdpAttached::None)]), []);
    }
}
