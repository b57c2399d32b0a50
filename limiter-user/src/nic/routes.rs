//! The next hops of this network namespace's routes, in every table.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Every gateway of every route, one of several ways included. Each is there once, however many routes it has.
pub fn next_hops() -> io::Result<BTreeSet<IpAddr>> {
    let mut hops = BTreeSet::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        dump(family, |route| collect(&route.attributes, &mut hops))?;
    }
    hops.retain(|hop| !hop.is_unspecified());
    Ok(hops)
}

fn collect(attributes: &[RouteAttribute], hops: &mut BTreeSet<IpAddr>) {
    for attribute in attributes {
        match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(hop)) | RouteAttribute::Via(RouteVia::Inet(hop)) => {
                hops.insert(IpAddr::V4(*hop));
            }
            RouteAttribute::Gateway(RouteAddress::Inet6(hop)) | RouteAttribute::Via(RouteVia::Inet6(hop)) => {
                hops.insert(IpAddr::V6(*hop));
            }
            RouteAttribute::MultiPath(ways) => {
                ways.iter().for_each(|way| collect(&way.attributes, hops));
            }
            _ => {}
        }
    }
}

/// Visits every route of a family.
fn dump(family: AddressFamily, mut visit: impl FnMut(RouteMessage)) -> io::Result<()> {
    let mut request = RouteMessage::default();
    request.header.address_family = family;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let payload = NetlinkPayload::from(RouteNetlinkMessage::GetRoute(request));
    let mut packet = NetlinkMessage::new(header, payload);
    packet.finalize();
    let mut buffer = vec![0; packet.buffer_len()];
    packet.serialize(&mut buffer);

    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&buffer, 0)?;
    loop {
        let (answer, _) = socket.recv_from_full()?;
        let mut rest = answer.as_slice();
        while !rest.is_empty() {
            let message =
                NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
            let length = (message.header.length as usize).next_multiple_of(4);
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => visit(route),
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                _ => {}
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}
