//! Marks sources that complete a TCP handshake with this host. Attached to the root cgroup, it is told of every one.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod program {
    use aya_ebpf::{
        bindings::{BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, bpf_sock_ops},
        macros::sock_ops,
        programs::SockOpsContext,
    };
    use limiter_common::{
        abi::POLICY_SLOTS,
        ban, judge,
        packet::{Packet, V4_PREFIX_LOW},
    };
    use limiter_ebpf::maps;

    const AF_INET: u32 = 2;
    const AF_INET6: u32 = 10;

    /// Another host opened a connection to this one, and has answered what only its address is told.
    #[sock_ops]
    pub fn proof(context: SockOpsContext) -> u32 {
        if context.op() == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB {
            mark(context.ops);
        }
        1
    }

    #[inline(always)]
    fn mark(ops: *mut bpf_sock_ops) {
        let word = |index: usize| {
            // SAFETY: the context is the kernel's. It translates loads of single words only, so none may be joined.
            let word =
                unsafe { core::ptr::read_volatile((&raw const (*ops).remote_ip6).cast::<u32>().add(index)) };
            u64::from(u32::from_be(word))
        };
        // SAFETY: as above.
        let (family, v4) = unsafe {
            (
                core::ptr::read_volatile(&raw const (*ops).family),
                core::ptr::read_volatile(&raw const (*ops).remote_ip4),
            )
        };
        let mut packet = Packet::UNKNOWN;
        match family {
            AF_INET => packet.source_low = V4_PREFIX_LOW | u64::from(u32::from_be(v4)),
            AF_INET6 => {
                packet.source_high = word(0) << 32 | word(1);
                packet.source_low = word(2) << 32 | word(3);
                uncover(&mut packet);
            }
            _ => return,
        }
        let key = ban::source_key(packet.source_high, packet.source_low);
        let _ = maps::PROVEN.insert(key, 1, 0);
    }

    /// An IPv4 source carried in IPv6 is known as what the policy in force says it is.
    #[inline(always)]
    fn uncover(packet: &mut Packet) {
        let Some(control) = maps::CONTROL.get_ptr(0) else { return };
        // SAFETY: a live map value.
        let slot = unsafe { core::ptr::read_volatile(&raw const (*control).active) };
        if let Some(tables) = maps::POLICIES.get(slot & (POLICY_SLOTS as u32 - 1)) {
            judge::uncover_source(tables, packet);
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
