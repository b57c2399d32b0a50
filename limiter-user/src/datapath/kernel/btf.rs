//! What the running kernel says of its own structures: where in one a field is.
//!
//! Format: `Documentation/bpf/btf.rst` of Linux.

/// Where the kernel describes itself.
const PATH: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;

/// Byte offsets of what [`limiter_common::parse::Segment`] is held against, in `tcp_sock`; zeros where the kernel does
/// not say.
pub fn tcp_fields() -> [u32; 4] {
    let found = std::fs::read(PATH)
        .ok()
        .and_then(|bytes| fields(&bytes, "tcp_sock", ["rcv_nxt", "rcv_wnd", "snd_una", "snd_nxt"]));
    if found.is_none() {
        tracing::warn!(
            "the kernel does not describe its sockets: no packet can prove a handshake for a penalty"
        );
    }
    found.unwrap_or_default()
}

fn fields<const N: usize>(bytes: &[u8], structure: &str, names: [&str; N]) -> Option<[u32; N]> {
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?));
    if word(0)? as u16 != MAGIC {
        return None;
    }
    let header = word(4)? as usize;
    let (types, types_end) = (header + word(8)? as usize, word(12)? as usize);
    let strings = header + word(16)? as usize;
    let is_named = |offset: u32, name: &str| {
        let text = bytes.get(strings + offset as usize..).unwrap_or_default();
        text.starts_with(name.as_bytes()) && text.get(name.len()) == Some(&0)
    };
    let mut at = types;
    while at < types + types_end {
        let (name, info) = (word(at)?, word(at + 4)?);
        let (kind, count) = (info >> 24 & 0x1f, info as usize & 0xffff);
        at += 12;
        let members = match kind {
            // Integers, variables, tags of declarations.
            1 | 14 | 17 => 4,
            3 => 12,
            // Structures, unions, sections, enumerations of 64 bits.
            STRUCT | 5 | 15 | 19 => count * 12,
            // Enumerations, prototypes.
            6 | 13 => count * 8,
            _ => 0,
        };
        if kind == STRUCT && is_named(name, structure) {
            let has_bit_fields = info >> 31 == 1;
            let of = |name: &str| {
                let mut members = (0..count).map(|member| at + member * 12);
                let found = members.find(|at| word(*at).is_some_and(|offset| is_named(offset, name)))?;
                let bits = word(found + 8)?;
                Some(if has_bit_fields { bits & 0x00ff_ffff } else { bits } / 8)
            };
            let mut offsets = [0; N];
            for (offset, name) in offsets.iter_mut().zip(names) {
                *offset = of(name)?;
            }
            return Some(offsets);
        }
        at += members;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An integer, a union of the name looked for, and the structure, with and without bit fields.
    #[test]
    fn a_field_is_where_the_kernel_says() {
        let strings = b"\0int\0tcp_sock\0rcv_nxt\0rcv_nxt_more\0snd\0";
        for (flag, wrong_bits) in [(0u32, 0), (1 << 31, 5 << 24)] {
            let types: Vec<u32> = [
                vec![1, 1 << 24, 4, 32],
                vec![5, 5 << 24 | 1, 4, 14, 1, 8],
                vec![5, flag | 4 << 24 | 3, 64, 22, 1, 64, 14, 1, 96 | wrong_bits, 35, 1, 128],
            ]
            .concat();
            let header =
                [u32::from(MAGIC) | 1 << 16, 24, 0, types.len() as u32 * 4, types.len() as u32 * 4, 39];
            let mut bytes: Vec<u8> =
                header.iter().chain(&types).flat_map(|word| word.to_ne_bytes()).collect();
            bytes.extend(strings);
            assert_eq!(fields(&bytes, "tcp_sock", ["rcv_nxt", "snd"]), Some([12, 16]));
            assert_eq!(fields(&bytes, "tcp_sock", ["rcv_nxt", "gone"]), None);
            assert_eq!(fields(&bytes, "udp_sock", ["rcv_nxt"]), None);
            assert_eq!(fields(&bytes[..50], "tcp_sock", ["rcv_nxt"]), None);
        }
        assert_eq!(fields(b"", "tcp_sock", ["rcv_nxt"]), None);
    }
}
