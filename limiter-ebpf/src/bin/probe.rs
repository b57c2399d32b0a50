//! What tests and benches load beside the guard: the same judgement with its ruling as the return value, a
//! bucket that is deliberately not atomic, the floor of every bench, and a generator of packets.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod program {
    use aya_ebpf::{
        bindings::{BPF_F_MMAPABLE, xdp_action},
        btf_maps::Array,
        helpers::generated::{bpf_get_prandom_u32, bpf_redirect},
        macros::{btf_map, xdp},
        programs::XdpContext,
    };
    use limiter_common::{judge::Ruling, verdict::Verdict};
    use limiter_ebpf::{guard::guard, racy};

    /// `[0]`: bits of the source that the `random…` programs and `generate` draw anew for every packet;
    /// `[1]`: index of the interface `generate` sends from.
    #[btf_map]
    static PROBE: Array<u32, 2, { BPF_F_MMAPABLE as usize }> = Array::new();

    /// Returns `rule << 16 | observing rule << 8 | outcome`; the observing rule is cut to 8 bits.
    #[xdp(frags)]
    pub fn explain(context: XdpContext) -> u32 {
        said(guard::<true>(context.ctx))
    }

    /// The same for kernels without multi-buffer XDP.
    #[xdp]
    pub fn explain_linear(context: XdpContext) -> u32 {
        said(guard::<false>(context.ctx))
    }

    #[inline(always)]
    fn said(ruling: Option<Ruling>) -> u32 {
        match ruling {
            Some(ruling) => {
                u32::from(ruling.rule) << 16
                    | (u32::from(ruling.observing) & 0xff) << 8
                    | u32::from(ruling.outcome as u8)
            }
            None => u32::MAX,
        }
    }

    /// Charges meter 0 by the same steps, but with a word whose compare-and-swap is a check and then a
    /// store.
    #[xdp]
    pub fn check_then_act(context: XdpContext) -> u32 {
        if racy::admits(context.ctx) { xdp_action::XDP_PASS } else { xdp_action::XDP_DROP }
    }

    /// The floor of every bench.
    #[xdp]
    pub fn empty(_: XdpContext) -> u32 {
        xdp_action::XDP_DROP
    }

    /// The floor where sources are random.
    #[xdp]
    pub fn random_empty(context: XdpContext) -> u32 {
        randomize(&context);
        xdp_action::XDP_DROP
    }

    /// The guard behind a randomiser of sources.
    #[xdp(frags)]
    pub fn random_guard(context: XdpContext) -> u32 {
        randomize(&context);
        match guard::<true>(context.ctx).map(|ruling| ruling.outcome.verdict()) {
            Some(Verdict::Drop) => xdp_action::XDP_DROP,
            _ => xdp_action::XDP_PASS,
        }
    }

    /// Sends the packet out of an interface: with live frames, a generator of millions a second.
    #[xdp]
    pub fn generate(context: XdpContext) -> u32 {
        randomize(&context);
        let Some(interface) = PROBE.get(1) else { return xdp_action::XDP_ABORTED };
        // SAFETY: a helper of two numbers.
        unsafe { bpf_redirect(*interface, 0) as u32 }
    }

    /// Draws the masked bits of the source address.
    #[inline(always)]
    fn randomize(context: &XdpContext) {
        let Some(mask) = PROBE.get(0).copied() else { return };
        if mask == 0 {
            return;
        }
        let (start, end) = (context.data(), context.data_end());
        if start + 34 > end {
            return;
        }
        // Of IPv4 the whole source; of IPv6 its bits 32…63, so that every draw is another /64.
        let source = (start + 26) as *mut u32;
        // SAFETY: the verifier has just seen that the bytes are there.
        unsafe {
            let mask = mask.to_be();
            let old = source.read_unaligned();
            source.write_unaligned(old & !mask | bpf_get_prandom_u32() & mask);
        }
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
