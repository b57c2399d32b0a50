//! The only place that touches packet memory.

use aya_ebpf::{
    bindings::xdp_md,
    helpers::generated::{bpf_xdp_get_buff_len, bpf_xdp_load_bytes},
};
use limiter_common::{
    abi::POLICY_SLOTS,
    event::FRAME_BYTES,
    packet::Packet,
    parse::{self, Frame},
    place,
};

use crate::{maps, verifier};

/// Offsets beyond this are never read: Ethernet, two tags, IPv6 and eight extension headers end before it.
const FURTHEST: u32 = 0x7fff;

/// A frame under an XDP program. With `MULTI_BUFFER` the helpers of kernel 5.18 reach what lies behind the
/// first buffer; without, the object names no helper a 5.15 kernel does not know.
#[derive(Clone, Copy)]
pub struct XdpFrame<const MULTI_BUFFER: bool>(pub *mut xdp_md);

impl<const MULTI_BUFFER: bool> XdpFrame<MULTI_BUFFER> {
    /// Place class under the policy of a slot, see [`place`].
    #[inline(always)]
    pub fn place(self, slot: u32) -> u8 {
        let class =
            if MULTI_BUFFER { limiter_place_frags(self.0, slot) } else { limiter_place(self.0, slot) };
        verifier::opaque(class) as u8
    }

    #[inline(always)]
    fn place_under(self, slot: u32) -> u64 {
        let Some(tables) = maps::POLICIES.get(slot & (POLICY_SLOTS as u32 - 1)) else { return 0 };
        // SAFETY: the context is the kernel's.
        let interface = unsafe { core::ptr::read_volatile(&raw const (*self.0).ingress_ifindex) };
        let blur = |number| verifier::blur(number, interface);
        let indexes = (&raw const tables.places.interfaces).cast::<u32>();
        // SAFETY: a live map value, and positions are inside the array. It may change at any time.
        let index_of = |position| unsafe { core::ptr::read_volatile(indexes.add(position)) };
        u64::from(place::class(
            &tables.header,
            &tables.places,
            || place::interface_class(interface, index_of, blur),
            || parse::destination(&self),
            blur,
        ))
    }

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

    /// Whether the whole frame holds `bytes` bytes at `offset`, wherever they are.
    #[inline(always)]
    fn holds(self, offset: u32, bytes: u32) -> bool {
        offset <= FURTHEST && offset + bytes <= self.length()
    }
}

impl<const MULTI_BUFFER: bool> XdpFrame<MULTI_BUFFER> {
    /// The index of the interface it came in by.
    #[inline(always)]
    pub fn interface(self) -> u32 {
        // SAFETY: the context is the kernel's.
        unsafe { core::ptr::read_volatile(&raw const (*self.0).ingress_ifindex) }
    }

    /// Copies the frame's first bytes to `to`, which has room for `FRAME_BYTES`, and tells how many. Without
    /// `MULTI_BUFFER` an even number.
    ///
    /// # Safety
    /// `to` is writable for so many bytes, and aligned to 2.
    #[inline(always)]
    pub unsafe fn copy_start(self, to: *mut u8) -> u8 {
        if MULTI_BUFFER {
            let length = self.length();
            let length = if length < FRAME_BYTES as u32 { length } else { FRAME_BYTES as u32 };
            // No frame is empty; the mask says so in a way that verifiers of old follow.
            let last = verifier::opaque(u64::from(length.wrapping_sub(1))) as u32 & (FRAME_BYTES as u32 - 1);
            let length = last + 1;
            // SAFETY: no more than there is room for.
            let failed = unsafe { bpf_xdp_load_bytes(self.0, 0, to.cast(), length) };
            return if failed == 0 { length as u8 } else { 0 };
        }
        let mut copied = 0;
        while copied < FRAME_BYTES {
            let Some(at) = self.within(copied as u32, 2) else { break };
            // SAFETY: below the room there is.
            unsafe { to.add(copied).cast::<u16>().write(packet_memory::half(at)) };
            copied += 2;
        }
        copied as u8
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
        if MULTI_BUFFER && self.holds(offset, 2) {
            return Some(u16::from_be(limiter_far(self.0, offset, 2) as u16));
        }
        None
    }

    #[inline(always)]
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        let mut words = [0; N];
        if let Some(at) = self.within(offset, 4 * N) {
            for (index, word) in words.iter_mut().enumerate() {
                *word = packet_memory::word(at, index);
            }
        } else if MULTI_BUFFER && self.holds(offset, 4 * N as u32) {
            for (index, pair) in words.chunks_mut(2).enumerate() {
                let bytes = 4 * pair.len() as u32;
                let loaded = limiter_far(self.0, offset + 8 * index as u32, bytes);
                for (index, word) in pair.iter_mut().enumerate() {
                    *word = (loaded >> (32 * index)) as u32;
                }
            }
        } else {
            return None;
        }
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

/// Two, four or eight bytes behind the first buffer, whose frame holds them. A function of its own, with its own place
/// on the stack: judgement's frames fill what there is.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_far(context: *mut xdp_md, offset: u32, bytes: u32) -> u64 {
    let mut value = 0u64;
    let bytes = if bytes > 4 {
        8
    } else if bytes > 2 {
        4
    } else {
        2
    };
    // SAFETY: the buffer is ours and as long as said.
    unsafe { bpf_xdp_load_bytes(context, offset, (&raw mut value).cast(), bytes) };
    value
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

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_place(context: *mut xdp_md, slot: u32) -> u64 {
    XdpFrame::<false>(context).place_under(slot)
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn limiter_place_frags(context: *mut xdp_md, slot: u32) -> u64 {
    XdpFrame::<true>(context).place_under(slot)
}
