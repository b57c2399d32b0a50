//! Tells how the kernel's tick counter stands to its clock: the guard's coarse clock is the counter, which costs a load
//! where the clock costs a call.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod program {
    use aya_ebpf::{
        bindings::xdp_action,
        helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns},
        macros::xdp,
        programs::XdpContext,
    };

    /// Writes the tick counter and the coarse monotonic clock in ns over the first 16 bytes of the frame.
    #[xdp]
    pub fn clock(context: XdpContext) -> u32 {
        let (start, end) = (context.data(), context.data_end());
        if start + 16 > end {
            return xdp_action::XDP_ABORTED;
        }
        // SAFETY: the verifier has just seen that the bytes are there; helpers without arguments.
        unsafe {
            (start as *mut u64).write_volatile(bpf_jiffies64());
            ((start + 8) as *mut u64).write_volatile(bpf_ktime_get_coarse_ns());
        }
        xdp_action::XDP_PASS
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
