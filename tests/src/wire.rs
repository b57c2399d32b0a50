//! Raw frames on an interface, counted one by one.

use std::{
    ffi::CString,
    io,
    mem::{self, MaybeUninit},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr,
    time::{Duration, Instant},
};

use crate::{
    frame::{EXPERIMENT, ethernet},
    namespace::{GUARDED, PEER, Pair},
};

/// How long a frame may take before the test says it will never come.
const PATIENCE: Duration = Duration::from_secs(20);
/// Frames sent before the other end must have seen them: well below the 256 places of a veth ring.
const BATCH: usize = 64;

/// An `AF_PACKET` socket on one interface: sends whole frames, receives what came in (not what went out).
#[derive(Debug)]
pub struct RawSocket {
    socket: OwnedFd,
}

impl RawSocket {
    /// On `interface` of the calling thread's network namespace.
    pub fn open(interface: &str) -> io::Result<Self> {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: socket has no memory operands.
        let raw = unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(protocol))
        };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and nobody else owns it.
        let socket = Self { socket: unsafe { OwnedFd::from_raw_fd(raw) } };
        let name = CString::new(interface)?;
        // SAFETY: the name is a terminated string that outlives the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol,
            sll_ifindex: index as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address is a whole sockaddr_ll and its size is told.
        let bound = unsafe {
            libc::bind(
                raw,
                ptr::from_ref(&address).cast(),
                mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        socket.option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        socket.option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20)?;
        Ok(socket)
    }

    fn option(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        let size = mem::size_of::<i32>() as libc::socklen_t;
        // SAFETY: the value is an i32 that outlives the call, and its size is told.
        let result = unsafe {
            libc::setsockopt(self.socket.as_raw_fd(), level, name, ptr::from_ref(&value).cast(), size)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        loop {
            // SAFETY: the frame is read for its length only.
            let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
            if sent >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            // The other end's ring is full for a moment.
            if !matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR)) {
                return Err(error);
            }
            std::thread::yield_now();
        }
    }

    /// Sends all in as few system calls as it takes; returns how many the interface took.
    pub fn send_batch(&self, frames: &[Vec<u8>]) -> io::Result<usize> {
        let mut vectors: Vec<libc::iovec> = frames
            .iter()
            .map(|frame| libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: a message header of zeros is valid: no name, no vectors, no control data.
                let mut message: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
                message.msg_hdr.msg_iov = vector;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        // SAFETY: the messages point to vectors and frames that outlive the call; frames are only read.
        let sent = unsafe {
            libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// The next frame, or `None` when none came within `patience`. The kernel has taken the outermost tag off.
    pub fn receive(&self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let mut wait = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd is told and given.
        let ready = unsafe { libc::poll(&raw mut wait, 1, patience.as_millis() as i32) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(None) } else { Err(error) };
        }
        if ready == 0 {
            return Ok(None);
        }
        let mut buffer = vec![0_u8; 65_600];
        // SAFETY: the buffer is writable for its whole length.
        let read = unsafe {
            libc::recv(self.socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
        };
        if read < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        buffer.truncate(read as usize);
        Ok(Some(buffer))
    }

    /// Frames the kernel threw away because the socket's buffer was full, since the last call.
    pub fn lost(&self) -> io::Result<u32> {
        let mut statistics = [0_u32; 2];
        let mut size = mem::size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the kernel writes two u32 into a place of that size.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(statistics[1]) }
    }
}

/// A sender on the peer's end and a receiver on the guarded one, behind whatever program is attached there.
#[derive(Debug)]
pub struct Wire {
    sender: RawSocket,
    receiver: RawSocket,
    fences: u64,
}

impl Wire {
    pub fn open(pair: &Pair) -> Self {
        Self::open_on(pair, GUARDED)
    }

    /// The same where the guarded interface has another name by now.
    pub fn open_on(pair: &Pair, guarded: &str) -> Self {
        let sender = pair.peer.run(|| RawSocket::open(PEER)).expect("a raw socket on the peer's end");
        let receiver =
            pair.guarded.run(|| RawSocket::open(guarded)).expect("a raw socket on the guarded end");
        Self { sender, receiver, fences: 0 }
    }

    /// Sends every frame and returns those that came through, in order.
    ///
    /// No ring overflows on the way: after each batch a frame that is not IP, which every policy passes,
    /// tells that the batch was judged. The link has one queue, so nothing overtakes.
    pub fn pass(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut passed = Vec::new();
        for batch in frames.chunks(BATCH) {
            for frame in batch {
                self.sender.send(frame).expect("the peer's interface takes a frame");
            }
            passed.extend(self.fence());
        }
        passed
    }

    /// Waits until all that was sent before was judged; returns what came through in the meantime.
    pub fn fence(&mut self) -> Vec<Vec<u8>> {
        self.fences += 1;
        let mut mark = b"fence".to_vec();
        mark.extend(self.fences.to_be_bytes());
        let fence = ethernet(&[], EXPERIMENT, &mark);
        self.sender.send(&fence).expect("the peer's interface takes a fence");
        let deadline = Instant::now() + PATIENCE;
        let mut passed = Vec::new();
        while Instant::now() < deadline {
            match self.receiver.receive(Duration::from_millis(100)).expect("the guarded interface is read") {
                Some(frame) if frame == fence => {
                    assert_eq!(
                        self.receiver.lost().expect("packet statistics"),
                        0,
                        "the receiver lost frames"
                    );
                    return passed;
                }
                Some(frame) => passed.push(frame),
                None => {}
            }
        }
        panic!("a fence did not come through: is something else dropping frames?");
    }

    /// Fences sent so far: each is one more packet that is not IP for the counters.
    pub fn fences(&self) -> u64 {
        self.fences
    }

    pub fn sender(&self) -> &RawSocket {
        &self.sender
    }

    pub fn receiver(&self) -> &RawSocket {
        &self.receiver
    }
}
