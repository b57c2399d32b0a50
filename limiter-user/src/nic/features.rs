//! Which kinds of XDP a driver can do, as kernels from 6.3 tell it in the generic netlink family `netdev`.

use std::io;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

/// What the driver of an interface can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Programs run in the driver.
    pub native: bool,
    /// Frames of several buffers are handed to programs that take them.
    pub multi_buffer: bool,
}

/// Linux 6.3 and later; older kernels do not know the family.
pub fn features(index: u32) -> io::Result<Features> {
    const GET_FAMILY: (u16, u8) = (16, 3);
    const FAMILY_NAME: u16 = 2;
    const FAMILY_ID: u16 = 1;
    const DEVICE_GET: u8 = 1;
    const INTERFACE: u16 = 1;
    const XDP_FEATURES: u16 = 3;
    const BASIC: u64 = 1 << 0;
    const RECEIVE_SCATTERED: u64 = 1 << 5;

    let family = ask(GET_FAMILY.0, GET_FAMILY.1, FAMILY_NAME, b"netdev\0")?;
    let family = family.get(FAMILY_ID).and_then(|value| Some(u16::from_ne_bytes(value.try_into().ok()?)));
    let family = family.ok_or_else(|| io::Error::other("the kernel does not number the family"))?;
    let device = ask(family, DEVICE_GET, INTERFACE, &index.to_ne_bytes())?;
    let bits = device.get(XDP_FEATURES).and_then(|value| Some(u64::from_ne_bytes(value.try_into().ok()?)));
    let bits = bits.ok_or_else(|| io::Error::other("the kernel does not tell the features"))?;
    Ok(Features { native: bits & BASIC != 0, multi_buffer: bits & RECEIVE_SCATTERED != 0 })
}

/// `nlmsghdr`: length, type, flags, sequence, port. Behind it `genlmsghdr`: command, version, two bytes to spare.
const HEADERS: usize = 16 + 4;

/// The attributes of an answer.
struct Attributes(Vec<u8>);

impl Attributes {
    fn get(&self, kind: u16) -> Option<&[u8]> {
        let mut rest = self.0.as_slice();
        while let Some((header, _)) = rest.split_first_chunk::<4>() {
            let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
            // The two upper bits are flags.
            let found = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
            let value = rest.get(4..length)?;
            if found == kind {
                return Some(value);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
        None
    }
}

/// One request with one attribute, one answer.
fn ask(family: u16, command: u8, attribute: u16, value: &[u8]) -> io::Result<Attributes> {
    const REQUEST: u16 = 1;
    const ERROR: u16 = 2;
    let padded = value.len().next_multiple_of(4);
    let mut message = Vec::with_capacity(HEADERS + 4 + padded);
    message.extend(((HEADERS + 4 + padded) as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(((4 + value.len()) as u16).to_ne_bytes());
    message.extend(attribute.to_ne_bytes());
    message.extend(value);
    message.resize(HEADERS + 4 + padded, 0);

    let socket = Socket::new(NETLINK_GENERIC)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&message, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let short = || io::Error::other("the kernel's answer is cut short");
    let kind = answer.get(4..6).ok_or_else(short)?;
    if kind == ERROR.to_ne_bytes() {
        let code = answer.get(16..20).and_then(|code| code.try_into().ok()).ok_or_else(short)?;
        return Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(code)));
    }
    Ok(Attributes(answer.get(HEADERS..).ok_or_else(short)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_whatever_surrounds_them() {
        // Eight bytes of kind 2 with a flag, five of kind 7 padded to eight, four of kind 3.
        let mut bytes = vec![8, 0, 2, 0x80, 1, 2, 3, 4, 5, 0, 7, 0, 9, 0, 0, 0, 8, 0, 3, 0, 5, 6, 7, 8];
        let attributes = Attributes(bytes.clone());
        assert_eq!(attributes.get(2), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attributes.get(7), Some(&[9][..]));
        assert_eq!(attributes.get(3), Some(&[5, 6, 7, 8][..]));
        assert_eq!(attributes.get(4), None);
        // A length that is no length ends the search.
        bytes[0] = 0;
        assert_eq!(Attributes(bytes.clone()).get(3), None);
        bytes[0] = 255;
        assert_eq!(Attributes(bytes).get(3), None);
    }
}
