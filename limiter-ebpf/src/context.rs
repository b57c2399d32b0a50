//! The only place that touches packet memory.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::xdp_md,
    helpers::generated::{bpf_xdp_get_buff_len, bpf_xdp_load_bytes},
};
use limiter_common::{
    packet::Packet,
    parse::{self, Frame},
};

use crate::verifier;

/// Offsets beyond this are never read: Ethernet, two tags, IPv6 and eight extension headers end before it.
const FURTHEST: u32 = 0x7fff;

/// A frame under an XDP program. With `MULTI_BUFFER` the helpers of kernel 5.18 reach what lies behind the
/// first buffer; without, the object names no helper a 5.15 kernel does not know.
#[derive(Clone, Copy)]
pub struct XdpFrame<const MULTI_BUFFER: bool>(pub *mut xdp_md);

impl<const MULTI_BUFFER: bool> XdpFrame<MULTI_BUFFER> {
    #[inline(always)]
    fn linear(self) -> (usize, usize) {
        // Volatile: a loaded pointer that is passed on as 32 bits is no pointer to the verifier any more.
        // SAFETY: the context is the kernel's.
        unsafe {
            (
                core::ptr::read_volatile(&raw const (*self.0).data) as usize,
                core::ptr::read_volatile(&raw const (*self.0).data_end) as usize,
            )
        }
    }
}

/// Bytes at an even address: fields of two bytes are loaded at once.
#[repr(C, align(2))]
#[derive(Clone, Copy)]
struct Even<const N: usize>([u8; N]);

impl<const MULTI_BUFFER: bool> Frame for XdpFrame<MULTI_BUFFER> {
    #[inline(always)]
    fn length(&self) -> u32 {
        if MULTI_BUFFER {
            // SAFETY: the context is the kernel's.
            return unsafe { bpf_xdp_get_buff_len(self.0) } as u32;
        }
        let (start, end) = self.linear();
        // Opaque: arithmetic on the difference must not become 32-bit arithmetic on the pointers.
        verifier::opaque((end - start) as u64) as u32
    }

    #[inline(always)]
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        if offset > FURTHEST {
            return None;
        }
        let (start, end) = self.linear();
        let at = start + offset as usize;
        if at + N <= end {
            // SAFETY: the verifier has just seen the bound; frames begin at even addresses, headers at even offsets.
            return Some(unsafe { (*(at as *const Even<N>)).0 });
        }
        if MULTI_BUFFER {
            let mut bytes = MaybeUninit::<[u8; N]>::uninit();
            // SAFETY: the buffer is ours and N bytes long.
            let failed = unsafe { bpf_xdp_load_bytes(self.0, offset, bytes.as_mut_ptr().cast(), N as u32) };
            // SAFETY: filled by the helper, which says so by returning 0.
            return if failed == 0 { Some(unsafe { bytes.assume_init() }) } else { None };
        }
        None
    }

    #[inline(always)]
    fn blur(&self, offset: u32) -> u32 {
        let (start, end) = self.linear();
        // The mask gives back the one bound that is needed; no chain of headers reaches it.
        verifier::blur(offset as usize, (end - start) as u32) as u32 & FURTHEST
    }
}

/// Describes the frame.
#[inline(always)]
pub fn describe<const MULTI_BUFFER: bool>(context: *mut xdp_md, packet: &mut Packet) {
    if MULTI_BUFFER {
        limiter_describe_frags(context, packet);
    } else {
        limiter_describe(context, packet);
    }
}

// Global functions, see `steps`: without, the verifier follows the judgement behind every way through the parser.

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_describe(context: *mut xdp_md, packet: *mut Packet) -> u64 {
    // SAFETY: every caller passes a reference.
    if let Some(packet) = unsafe { packet.as_mut() } {
        *packet = parse::parse(&XdpFrame::<false>(context));
    }
    0
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_describe_frags(context: *mut xdp_md, packet: *mut Packet) -> u64 {
    // SAFETY: every caller passes a reference.
    if let Some(packet) = unsafe { packet.as_mut() } {
        *packet = parse::parse(&XdpFrame::<true>(context));
    }
    0
}
