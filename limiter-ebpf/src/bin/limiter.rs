//! What guards a NIC.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod program {
    use aya_ebpf::{macros::xdp, programs::XdpContext};
    use limiter_ebpf::{action::act, guard::guard};

    /// For kernels and drivers without multi-buffer XDP.
    #[xdp]
    pub fn limiter(context: XdpContext) -> u32 {
        act(guard::<false>(context.ctx))
    }

    /// For frames of several buffers (kernel ≥ 5.18).
    #[xdp(frags)]
    pub fn limiter_frags(context: XdpContext) -> u32 {
        act(guard::<true>(context.ctx))
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo) -> ! {
        // SAFETY: nothing in this object panics; were it so, this would not pass the verifier.
        unsafe { core::hint::unreachable_unchecked() }
    }

    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
}
