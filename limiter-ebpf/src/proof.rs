//! Whether a packet belongs to a TCP connection that this host has.
//!
//! Whoever is off the path of a connection cannot send such a packet: besides addresses and ports it takes a sequence
//! number that the receiver waits for and an acknowledgement of what it has sent.

use aya_ebpf::{
    bindings::xdp_md,
    helpers::generated::{bpf_sk_lookup_tcp, bpf_sk_release, bpf_skc_to_tcp_sock},
};
use limiter_common::parse;

use crate::{context::XdpFrame, engine::loaded, verifier};

/// Where in the kernel's `tcp_sock` are `rcv_nxt`, `rcv_wnd`, `snd_una` and `snd_nxt`: set when the program is loaded, 0
/// where that is not known. The verifier reads them as constants, and leaves out all that follows where they are 0.
#[unsafe(no_mangle)]
pub static TCP_FIELDS: [u32; 4] = [0; 4];

/// `TCP_ESTABLISHED` of `net/tcp_states.h`.
const ESTABLISHED: u32 = 1;

/// Sockets of the namespace the packet came into.
const CURRENT_NAMESPACE: u64 = u64::MAX;

#[inline(always)]
pub fn proves<const MULTI_BUFFER: bool>(context: *mut xdp_md) -> bool {
    let said = if MULTI_BUFFER { limiter_proves_frags(context) } else { limiter_proves(context) };
    verifier::opaque(said) != 0
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_proves(context: *mut xdp_md) -> u64 {
    u64::from(is_of_a_connection::<false>(context))
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_proves_frags(context: *mut xdp_md) -> u64 {
    u64::from(is_of_a_connection::<true>(context))
}

#[inline(always)]
fn is_of_a_connection<const MULTI_BUFFER: bool>(context: *mut xdp_md) -> bool {
    let fields =
        [loaded(&TCP_FIELDS[0]), loaded(&TCP_FIELDS[1]), loaded(&TCP_FIELDS[2]), loaded(&TCP_FIELDS[3])];
    if fields[3] == 0 {
        return false;
    }
    let mut tuple = [0u32; 9];
    let Some(segment) = parse::segment(&XdpFrame::<MULTI_BUFFER>(context), &mut tuple) else { return false };
    // SAFETY: the tuple is as long as said, or longer.
    let socket = unsafe {
        bpf_sk_lookup_tcp(
            context.cast(),
            tuple.as_mut_ptr().cast(),
            segment.tuple_bytes,
            CURRENT_NAMESPACE,
            0,
        )
    };
    if socket.is_null() {
        return false;
    }
    // SAFETY: a socket that is held until it is released below.
    let (state, tcp) = unsafe { ((*socket).state, bpf_skc_to_tcp_sock(socket.cast())) };
    let mut proves = false;
    if state == ESTABLISHED && !tcp.is_null() {
        let field = |offset: u32| {
            // SAFETY: a field of a live `tcp_sock`, where the kernel itself says it is.
            unsafe { tcp.cast::<u8>().add(offset as usize).cast::<u32>().read_volatile() }
        };
        let [received, window, unacknowledged, next] = fields.map(field);
        proves = segment.sequence.wrapping_sub(received) <= window
            && segment.acknowledged.wrapping_sub(unacknowledged) <= next.wrapping_sub(unacknowledged);
    }
    // SAFETY: held since the look-up, and not used any more.
    unsafe { bpf_sk_release(socket.cast()) };
    proves
}
