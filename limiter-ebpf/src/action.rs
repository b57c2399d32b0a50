//! The verdict table: from what was ruled to an XDP action.

use aya_ebpf::bindings::xdp_action;
use limiter_common::{judge::Ruling, verdict::Verdict};

use crate::guard::is_paused;

#[inline(always)]
pub fn act(ruling: Option<Ruling>) -> u32 {
    match ruling.map(|ruling| ruling.outcome.verdict()) {
        // Judged and counted as ever.
        Some(Verdict::Drop) if is_paused() => xdp_action::XDP_PASS,
        Some(Verdict::Drop) => xdp_action::XDP_DROP,
        // An observing rule's opinion is counted, never acted on.
        Some(Verdict::Pass | Verdict::WouldDrop) => xdp_action::XDP_PASS,
        // No policy yet: nothing may be cut off by it.
        None => xdp_action::XDP_PASS,
    }
}
