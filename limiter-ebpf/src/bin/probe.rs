//! What tests and benches load beside the guard: the same judgement with its ruling as the return value.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod program {
    use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
    use limiter_ebpf::guard::guard;

    /// Returns `observing rule << 24 | rule << 8 | outcome` (rules truncated to 8 and 16 bits).
    #[xdp(frags)]
    pub fn explain(context: XdpContext) -> u32 {
        match guard::<true>(context.ctx) {
            Some(ruling) => {
                (u32::from(ruling.observing) & 0xff) << 24
                    | u32::from(ruling.rule) << 8
                    | u32::from(ruling.outcome as u8)
            }
            None => u32::MAX,
        }
    }

    /// The floor of every bench.
    #[xdp]
    pub fn empty(_: XdpContext) -> u32 {
        xdp_action::XDP_DROP
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo) -> ! {
        // SAFETY: as in the guard's object.
        unsafe { core::hint::unreachable_unchecked() }
    }

    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
}
