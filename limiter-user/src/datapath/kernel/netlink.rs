//! What the kernel says of an interface and of the XDP programs on it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp, XdpAttached};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::datapath::Mode;

/// One interface as the kernel has it now.
#[derive(Clone, Debug)]
pub struct State {
    pub name: String,
    pub mtu: u32,
    /// Mode and id of the XDP program there.
    pub program: Option<(Mode, u32)>,
}

/// Asks for the interface of that index.
pub fn state(index: u32) -> io::Result<State> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    let answer = request(RouteNetlinkMessage::GetLink(message), NLM_F_REQUEST)?
        .ok_or_else(|| io::Error::other("the kernel did not describe the interface"))?;
    let mut state = State { name: String::new(), mtu: 0, program: None };
    for attribute in answer.attributes {
        match attribute {
            LinkAttribute::IfName(name) => state.name = name,
            LinkAttribute::Mtu(mtu) => state.mtu = mtu,
            LinkAttribute::Xdp(attributes) => state.program = program(&attributes),
            _ => {}
        }
    }
    Ok(state)
}

fn program(attributes: &[LinkXdp]) -> Option<(Mode, u32)> {
    let mut mode = None;
    let mut id = None;
    for attribute in attributes {
        match attribute {
            LinkXdp::Attached(XdpAttached::SocketBuffer) => mode = Some(Mode::Generic),
            LinkXdp::Attached(XdpAttached::None) => return None,
            // Several at once are told apart by ids of their own; the driver's is the one that comes first.
            LinkXdp::Attached(_) => mode = Some(Mode::Native),
            LinkXdp::ProgId(program) | LinkXdp::DrvProgId(program) => id = Some(*program),
            LinkXdp::SkbProgId(program) => id = id.or(Some(*program)),
            _ => {}
        }
    }
    Some((mode?, id?))
}

/// Attaches a program through netlink, or takes away the one that is there by it.
pub fn set_program(index: u32, mode: Mode, program: Option<BorrowedFd<'_>>) -> io::Result<()> {
    const SKB_MODE: u32 = 1 << 1;
    const DRIVER_MODE: u32 = 1 << 2;
    let flags = if mode == Mode::Generic { SKB_MODE } else { DRIVER_MODE };
    let descriptor = program.map_or(-1, |program| program.as_raw_fd());
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::Xdp(vec![LinkXdp::Fd(descriptor), LinkXdp::Flags(flags)]));
    request(RouteNetlinkMessage::SetLink(message), NLM_F_REQUEST | NLM_F_ACK).map(drop)
}

/// One request, one answer: a link, or an acknowledgement.
fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<Option<LinkMessage>> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
    packet.finalize();
    let mut buffer = vec![0; packet.buffer_len()];
    packet.serialize(&mut buffer);

    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&buffer, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
    match answer.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => Ok(Some(link)),
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        _ => Ok(None),
    }
}
