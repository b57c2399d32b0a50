//! What the compiler knows and the verifier does not, and the other way round.

/// Hides a value's range from the compiler, which would drop a mask or a bound check that the verifier still
/// needs.
#[inline(always)]
pub fn opaque(value: u64) -> u64 {
    let mut value = value;
    // A real instruction: an empty one leaves two line records at one place, which the kernel refuses.
    // SAFETY: moves a register to itself.
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) value, options(pure, nomem, nostack, preserves_flags));
    };
    value
}

/// Hides a value from the verifier, which would follow each constant as a case of its own. `unknown` is
/// anything it knows nothing of.
#[inline(always)]
pub fn blur(value: usize, unknown: u32) -> usize {
    let mut value = value as u64;
    // SAFETY: two exclusive-ors with the same number leave the value as it was.
    unsafe {
        core::arch::asm!("{0} ^= {1}", "{0} ^= {1}", inout(reg) value, in(reg) u64::from(unknown),
            options(pure, nomem, nostack, preserves_flags));
    }
    value as usize
}
