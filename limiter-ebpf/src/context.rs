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

    /// The address of `bytes` bytes at `offset`, when the first buffer holds them.
    #[inline(always)]
    fn within(self, offset: u32, bytes: usize) -> Option<usize> {
        if offset > FURTHEST {
            return None;
        }
        let (start, end) = self.linear();
        let at = start + offset as usize;
        if at + bytes <= end { Some(at) } else { None }
    }

    /// The same bytes wherever they are.
    #[inline(always)]
    fn far<T: Copy>(self, offset: u32) -> Option<T> {
        if offset > FURTHEST {
            return None;
        }
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the buffer is ours and as long as said.
        let failed =
            unsafe { bpf_xdp_load_bytes(self.0, offset, value.as_mut_ptr().cast(), size_of::<T>() as u32) };
        // SAFETY: filled by the helper, which says so by returning 0; any bytes are a number.
        if failed == 0 { Some(unsafe { value.assume_init() }) } else { None }
    }
}

/// Loads of whole words at any address, which every architecture that runs this allows. The compiler, which
/// is not told so, would load bytes.
mod packet_memory {
    use core::arch::asm;

    /// The caller has seen that the bytes are there.
    #[inline(always)]
    pub fn half(at: usize) -> u16 {
        let value: u64;
        // SAFETY: reads two bytes inside the packet.
        unsafe {
            asm!("{0} = *(u16 *)({1} + 0)", out(reg) value, in(reg) at as u64, options(pure, readonly, nostack, preserves_flags));
        }
        value as u16
    }

    /// The word `index` words behind `at`.
    #[inline(always)]
    pub fn word(at: usize, index: usize) -> u32 {
        let value: u64;
        macro_rules! load {
            ($offset:literal) => {
                // SAFETY: reads four bytes inside the packet.
                unsafe {
                    asm!(concat!("{0} = *(u32 *)({1} + ", $offset, ")"), out(reg) value, in(reg) at as u64,
                        options(pure, readonly, nostack, preserves_flags))
                }
            };
        }
        match index {
            0 => load!("0"),
            1 => load!("4"),
            2 => load!("8"),
            3 => load!("12"),
            4 => load!("16"),
            _ => load!("20"),
        }
        value as u32
    }
}

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
    fn half(&self, offset: u32) -> Option<u16> {
        if let Some(at) = self.within(offset, 2) {
            return Some(u16::from_be(packet_memory::half(at)));
        }
        if MULTI_BUFFER { self.far::<u16>(offset).map(u16::from_be) } else { None }
    }

    #[inline(always)]
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        let mut words = if let Some(at) = self.within(offset, 4 * N) {
            let mut words = [0; N];
            for (index, word) in words.iter_mut().enumerate() {
                *word = packet_memory::word(at, index);
            }
            words
        } else if MULTI_BUFFER {
            self.far::<[u32; N]>(offset)?
        } else {
            return None;
        };
        for word in &mut words {
            *word = u32::from_be(*word);
        }
        Some(words)
    }

    #[inline(always)]
    fn blur(&self, offset: u32) -> u32 {
        let (start, end) = self.linear();
        // The mask gives back the one bound that is needed; no chain of headers reaches it.
        verifier::blur(offset as usize, (end - start) as u32) as u32 & FURTHEST
    }

    #[inline(always)]
    fn parse_v6(&self, start: u32, packet: &mut Packet) {
        if MULTI_BUFFER {
            limiter_parse_v6_frags(self.0, start, packet);
        } else {
            limiter_parse_v6(self.0, start, packet);
        }
    }
}

// Global functions, see `steps`: without, the verifier follows the judgement behind every chain of extension headers.

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_parse_v6(context: *mut xdp_md, start: u32, packet: *mut Packet) -> u64 {
    // SAFETY: every caller passes a reference.
    if let Some(packet) = unsafe { packet.as_mut() } {
        parse::parse_v6(&XdpFrame::<false>(context), start & FURTHEST, packet);
    }
    0
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_parse_v6_frags(context: *mut xdp_md, start: u32, packet: *mut Packet) -> u64 {
    // SAFETY: every caller passes a reference.
    if let Some(packet) = unsafe { packet.as_mut() } {
        parse::parse_v6(&XdpFrame::<true>(context), start & FURTHEST, packet);
    }
    0
}
