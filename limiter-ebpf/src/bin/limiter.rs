//! What guards a NIC: the verdict table.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod program {
    use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
    use limiter_common::verdict::Verdict;
    use limiter_ebpf::guard::{guard, is_paused};

    /// For kernels and drivers without multi-buffer XDP.
    #[xdp]
    pub fn limiter(context: XdpContext) -> u32 {
        act::<false>(&context)
    }

    /// For frames of several buffers (kernel ≥ 5.18).
    #[xdp(frags)]
    pub fn limiter_frags(context: XdpContext) -> u32 {
        act::<true>(&context)
    }

    #[inline(always)]
    fn act<const MULTI_BUFFER: bool>(context: &XdpContext) -> u32 {
        match guard::<MULTI_BUFFER>(context.ctx).map(|ruling| ruling.outcome.verdict()) {
            // Judged and counted as ever.
            Some(Verdict::Drop) if is_paused() => xdp_action::XDP_PASS,
            Some(Verdict::Drop) => xdp_action::XDP_DROP,
            // An observing rule's opinion is counted, never acted on.
            Some(Verdict::Pass | Verdict::WouldDrop) => xdp_action::XDP_PASS,
            // No policy yet: nothing may be cut off by it.
            None => xdp_action::XDP_PASS,
        }
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
