//! The same bucket with a word that is not atomic: what a limiter that checks and then acts admits. For tests,
//! which must be able to fail.

use aya_ebpf::bindings::xdp_md;
use limiter_common::{
    abi::{PACKETS, POLICY_SLOTS},
    hash,
    judge::{Engine, Key, network_key},
    packet::Packet,
    parse,
    table::{self, Charge, Set, Word},
};

use crate::{atomic::Shared, context::XdpFrame, engine::Kernel, maps};

/// Loads, compares, and stores: between the two another CPU may have stored.
struct Racy(Shared);

impl Word for Racy {
    #[inline(always)]
    fn load(&self) -> u64 {
        self.0.load()
    }

    #[inline(always)]
    fn swap(&self, old: u64, new: u64) -> bool {
        if self.0.load() != old {
            return false;
        }
        self.0.store(new);
        true
    }

    #[inline(always)]
    fn insert(&self, bits: u64) {
        self.0.store(self.0.load() | bits);
    }
}

/// Whether meter 0 of the policy in force, by its limit in packets, has room for the packet.
#[inline(always)]
pub fn admits(context: *mut xdp_md) -> bool {
    judge(context).unwrap_or(false)
}

#[inline(always)]
fn judge(context: *mut xdp_md) -> Option<bool> {
    let mut packet = Packet::UNKNOWN;
    parse::parse_into(&XdpFrame::<false>(context), &mut packet);
    let control = maps::CONTROL.get_ptr(0)?;
    // SAFETY: a live map value.
    let slot = unsafe { core::ptr::read_volatile(&raw const (*control).active) } & (POLICY_SLOTS as u32 - 1);
    let tables = maps::POLICIES.get(slot)?;
    let engine = Kernel { slot, bans: 0, unknown: packet.length };
    let meter = &tables.meters[0];
    let (high, low, _) = network_key(meter, &packet);
    let tag = hash::tag(hash::network(engine, high, low), meter.id);
    let set = engine.set(hash::set_index(engine, tag))?;
    let now = engine.now(false);
    let Some(way) = table::find(set, tag, PACKETS, |way| engine.blur(way)) else {
        let key = Key { meter: 0, unit: PACKETS, tag };
        return Some(!engine.claim(tables, &packet, now, key).is_refused());
    };
    let rate = &meter.rates[PACKETS];
    Some(
        table::charge(Racy(set.word(PACKETS, way)), now, rate.cost(1)?, rate, || (), || true) == Charge::Done,
    )
}
