//! What guards a NIC while another policy, the shadow, is judged beside the one in force: `observe` judges on the maps of
//! the guard and decides; then `shadow` judges the same packet on maps of its own and counts where it differs.
//! Nothing of it is in the program that guards at other times.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod program {
    use aya_ebpf::{
        bindings::xdp_action,
        btf_maps::{PerCpuArray, ProgramArray},
        macros::{btf_map, xdp},
        programs::XdpContext,
    };
    use limiter_common::{
        abi::{Compared, Counter, MAX_RULES},
        packet::Packet,
        verdict::Verdict,
    };
    use limiter_ebpf::{action::act, guard::guard, guard::guard_then, verifier::opaque};

    /// What `observe` decided about the packet at hand. Both programs have the same one.
    #[btf_map]
    static DECIDED: PerCpuArray<u32, 1> = PerCpuArray::new();

    /// `shadow`. The kernel empties it when the daemon that holds it ends: then `observe` is the guard and nothing else.
    #[btf_map]
    static SHADOW: ProgramArray<1> = ProgramArray::new();

    /// By the counter slot of the shadow's rule.
    #[btf_map]
    static COMPARED: PerCpuArray<Compared, MAX_RULES> = PerCpuArray::new();

    /// For kernels and drivers without multi-buffer XDP.
    #[xdp]
    pub fn observe(context: XdpContext) -> u32 {
        decide(&context, act(guard::<false>(context.ctx)))
    }

    /// For frames of several buffers (kernel ≥ 5.18).
    #[xdp(frags)]
    pub fn observe_frags(context: XdpContext) -> u32 {
        decide(&context, act(guard::<true>(context.ctx)))
    }

    #[inline(always)]
    fn decide(context: &XdpContext, action: u32) -> u32 {
        if let Some(decided) = DECIDED.get_ptr_mut(0) {
            // SAFETY: a live per-CPU map value; nothing else runs on this CPU before `shadow` has read it.
            unsafe { *decided = action };
            // SAFETY: nothing here has anything to drop.
            unsafe { SHADOW.tail_call(context, 0) };
        }
        action
    }

    #[xdp]
    pub fn shadow(context: XdpContext) -> u32 {
        compare::<false>(&context)
    }

    #[xdp(frags)]
    pub fn shadow_frags(context: XdpContext) -> u32 {
        compare::<true>(&context)
    }

    /// Returns what was decided, whatever the shadow says.
    #[inline(always)]
    fn compare<const MULTI_BUFFER: bool>(context: &XdpContext) -> u32 {
        // Passes when there is none, which cannot be: nothing may be cut off by it.
        // SAFETY: a live per-CPU map value.
        let decided = DECIDED.get_ptr(0).map_or(xdp_action::XDP_PASS, |decided| unsafe { *decided });
        guard_then::<MULTI_BUFFER>(context.ctx, |tables, packet, ruling| {
            let rule = &tables.rules[usize::from(ruling.rule) & (MAX_RULES - 1)];
            let would_drop = ruling.outcome.verdict() == Verdict::Drop;
            count(packet, u32::from(rule.counter), decided == xdp_action::XDP_DROP, would_drop);
        });
        decided
    }

    #[inline(always)]
    fn count(packet: &Packet, slot: u32, dropped: bool, would_drop: bool) {
        let Some(compared) = COMPARED.get_ptr_mut(slot) else { return };
        let index = opaque(u64::from(dropped) * 2 + u64::from(would_drop)) as usize & 3;
        // SAFETY: a live per-CPU map value, the index is inside it, and nothing else runs on this CPU meanwhile.
        unsafe {
            let counter = compared.cast::<Counter>().add(index);
            (*counter).packets += 1;
            (*counter).bytes += u64::from(packet.length);
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
