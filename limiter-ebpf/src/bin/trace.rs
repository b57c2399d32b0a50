//! What guards a NIC while somebody traces a source: the same judgement on the same maps, and then a word about every
//! decision of that source, by aya-log. Nothing of it is in the program that guards at other times.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod program {
    use aya_ebpf::{
        bindings::{BPF_F_MMAPABLE, xdp_md},
        btf_maps::{Array, PerCpuArray},
        helpers::generated::bpf_ktime_get_ns,
        macros::{btf_map, xdp},
        programs::XdpContext,
    };
    use aya_log_ebpf::info;
    use limiter_common::{
        event::{TraceTarget, is_traceable},
        packet::Packet,
    };
    use limiter_ebpf::{
        action::act, atomic::Shared, context::XdpFrame, engine::coarse_now, events::pack, guard::guard_then,
    };

    #[btf_map]
    static TRACE: Array<TraceTarget, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

    /// The word of the budget.
    #[btf_map]
    static TRACE_BUDGET: Array<u64, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

    /// Decisions about the prefix, those included that did not fit the budget or the log.
    #[btf_map]
    static TRACE_SEEN: PerCpuArray<u64, 1> = PerCpuArray::new();

    /// For kernels and drivers without multi-buffer XDP.
    #[xdp]
    pub fn trace(context: XdpContext) -> u32 {
        judge::<false>(&context)
    }

    /// For frames of several buffers (kernel ≥ 5.18).
    #[xdp(frags)]
    pub fn trace_frags(context: XdpContext) -> u32 {
        judge::<true>(&context)
    }

    #[inline(always)]
    fn judge<const MULTI_BUFFER: bool>(context: &XdpContext) -> u32 {
        let ruling = guard_then::<MULTI_BUFFER>(context.ctx, |tables, packet, ruling| {
            limiter_trace(context.ctx, packet, pack(tables, ruling));
        });
        act(ruling)
    }

    /// Six numbers in hexadecimal, see `limiter-user/src/datapath/kernel/trace.rs`. A global function: it has a frame of
    /// its own on the stack.
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn limiter_trace(context: *mut xdp_md, packet: *const Packet, ruling: u64) -> u64 {
        // SAFETY: every caller passes a reference.
        let Some(packet) = (unsafe { packet.as_ref() }) else { return 0 };
        let Some(target) = TRACE.get(0) else { return 0 };
        let is_other = (packet.source_high ^ target.high) & target.mask_high
            | (packet.source_low ^ target.low) & target.mask_low;
        let now = coarse_now();
        if is_other != 0 || now >= target.until {
            return 0;
        }
        if let Some(seen) = TRACE_SEEN.get_ptr_mut(0) {
            // SAFETY: a live per-CPU map value; nothing else runs on this CPU meanwhile.
            unsafe { *seen += 1 };
        }
        // SAFETY: a live map value.
        let budget = TRACE_BUDGET.get_ptr_mut(0).map(|word| unsafe { Shared::new(word) });
        if !budget.is_some_and(|budget| is_traceable(budget, now)) {
            return 0;
        }
        let ports = u64::from(packet.destination)
            | u64::from(packet.source_port) << 16
            | u64::from(packet.length) << 32;
        let place = u64::from(XdpFrame::<false>(context).interface())
            | u64::from(packet.family as u8) << 32
            | u64::from(packet.kind as u8) << 40;
        // SAFETY: a helper without arguments.
        let time = unsafe { bpf_ktime_get_ns() };
        info!(
            context,
            "{:x} {:x} {:x} {:x} {:x} {:x}",
            time,
            packet.source_high,
            packet.source_low,
            ruling,
            ports,
            place
        );
        0
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
