//! One spelling per path, so that an endpoint cannot be walked around by writing its path another way.
//!
//! The query and fragment are cut, unreserved characters are decoded once (RFC 3986 §6.2.2.2), other
//! escapes are written in capitals, bytes outside ASCII are escaped, `//` and dot segments are removed
//! (§5.2.4). Reserved characters stay as they were sent: `%2F` is not a separator.
//! The result is a fixed point: normalising it again changes nothing.

use std::borrow::Cow;

/// The longest target that is looked at. Servers refuse longer ones (nginx at 8 KiB a line).
const LONGEST: usize = 16 * 1024;

/// The path of a request target in normal form, always starting with `/`.
///
/// `target` is what stands in the request line (`/a/b?c`, `http://host/a/b`) or in `:path`.
/// `None` when it is no path: `*`, an authority, a broken escape, a control byte or a space.
pub fn normalise(target: &[u8]) -> Option<Cow<'_, str>> {
    if target.len() > LONGEST {
        return None;
    }
    let path = path_of(target)?;
    if is_normal(path) {
        // Only ASCII passes `is_normal`.
        return std::str::from_utf8(path).ok().map(Cow::Borrowed);
    }
    let decoded = decode(path)?;
    Some(Cow::Owned(remove_segments(&decoded)))
}

/// The path part of a request target: behind scheme and authority, before query and fragment.
fn path_of(target: &[u8]) -> Option<&[u8]> {
    let end = target.iter().position(|&b| b == b'?' || b == b'#').unwrap_or(target.len());
    let target = &target[..end];
    if target.first() == Some(&b'/') {
        return Some(target);
    }
    let scheme = target.windows(3).position(|w| w == b"://")?;
    let well_formed = scheme > 0
        && target[0].is_ascii_alphabetic()
        && target[..scheme].iter().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b));
    if !well_formed {
        return None;
    }
    let rest = &target[scheme + 3..];
    match rest.iter().position(|&b| b == b'/') {
        Some(slash) => Some(&rest[slash..]),
        None if rest.is_empty() => None,
        None => Some(b"/"),
    }
}

/// Whether nothing would change; most requests end here without an allocation.
fn is_normal(path: &[u8]) -> bool {
    path.iter().all(|&b| b > 0x20 && b < 0x7f && b != b'%')
        && !path.windows(2).any(|w| w == b"//" || w == b"/.")
}

/// RFC 3986 §2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn decode(path: &[u8]) -> Option<String> {
    let mut out = String::with_capacity(path.len() + 8);
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                let value = hex(digits[0])? << 4 | hex(digits[1])?;
                rest = tail;
                if is_unreserved(value) { out.push(char::from(value)) } else { escape(&mut out, value) }
            }
            0x21..=0x7e => out.push(char::from(byte)),
            0x80.. => escape(&mut out, byte),
            _ => return None,
        }
    }
    Some(out)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

fn escape(out: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// Removes empty and dot segments; `..` above the root stays at the root, as in RFC 3986 §5.2.4.
fn remove_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut directory = false;
    for segment in path.split('/') {
        directory = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            _ => kept.push(segment),
        }
    }
    let mut out = String::with_capacity(path.len());
    for segment in &kept {
        out.push('/');
        out.push_str(segment);
    }
    if directory || kept.is_empty() {
        out.push('/');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_spellings() {
        // what is sent, what it means
        let table: &[(&str, Option<&str>)] = &[
            ("/v1/login", Some("/v1/login")),
            ("/v1/login?next=/admin", Some("/v1/login")),
            ("/v1/login#top", Some("/v1/login")),
            ("//v1///login", Some("/v1/login")),
            ("/v1/./login", Some("/v1/login")),
            ("/v1/x/../login", Some("/v1/login")),
            ("/v1/x/%2e%2E/login", Some("/v1/login")),
            ("/../../v1/login", Some("/v1/login")),
            ("/%76%31/%6Cogin", Some("/v1/login")),
            ("/v1/%256Cogin", Some("/v1/%256Cogin")), // decoded once, never twice
            ("/v1%2flogin", Some("/v1%2Flogin")),     // an escaped separator is none
            ("/v1/login/", Some("/v1/login/")),
            ("/v1/login/.", Some("/v1/login/")),
            ("/v1/login/..", Some("/v1/")),
            ("/", Some("/")),
            ("/..", Some("/")),
            ("/...", Some("/...")),
            ("/.well-known/x", Some("/.well-known/x")),
            ("http://example.org/v1/login", Some("/v1/login")),
            ("http://example.org", Some("/")),
            ("http://example.org?x", Some("/")),
            ("/caf\u{e9}", Some("/caf%C3%A9")),
            ("/caf%c3%a9", Some("/caf%C3%A9")),
            ("/~user", Some("/~user")),
            ("/%7euser", Some("/~user")),
            ("*", None),
            ("", None),
            ("?x", None),
            ("example.org:443", None),
            ("http://", None),
            ("://x/y", None),
            ("/a%", None),
            ("/a%2", None),
            ("/a%zz", None),
            ("/a b", None),
            ("/a\tb", None),
            ("/a\u{7f}", None),
            ("/a\0", None),
        ];
        for (sent, meant) in table {
            assert_eq!(normalise(sent.as_bytes()).as_deref(), *meant, "{sent:?}");
        }
        assert_eq!(normalise(&vec![b'/'; LONGEST + 1]), None);
    }

    /// A path of plain segments and the ways it can be written.
    fn spelled() -> impl Strategy<Value = (String, String)> {
        let segment = "[a-z0-9_~-]{1,6}";
        let noise =
            prop_oneof![Just(""), Just("/."), Just("/"), Just("/gone/.."), Just("/%2E"), Just("/g/%2e.")];
        proptest::collection::vec((segment, noise, proptest::collection::vec(any::<bool>(), 6)), 1..6)
            .prop_map(|parts| {
                let mut plain = String::new();
                let mut sent = String::new();
                for (segment, noise, escaped) in parts {
                    plain = format!("{plain}/{segment}");
                    sent.push_str(noise);
                    sent.push('/');
                    for (c, escape) in segment.chars().zip(escaped) {
                        if escape { sent.push_str(&format!("%{:02x}", c as u32)) } else { sent.push(c) }
                    }
                }
                (plain, sent)
            })
    }

    proptest! {
        #[test]
        fn every_spelling_means_the_plain_path((plain, sent) in spelled(), query in "[?#].{0,8}|") {
            let sent = format!("{sent}{query}");
            let meant = normalise(sent.as_bytes());
            prop_assert_eq!(meant.as_deref(), Some(plain.as_str()));
        }

        #[test]
        fn normal_form_is_a_fixed_point(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut sent = b"/".to_vec();
            sent.extend(bytes);
            if let Some(once) = normalise(&sent) {
                prop_assert!(once.starts_with('/'));
                prop_assert!(once.bytes().all(|b| (0x21..0x7f).contains(&b)));
                prop_assert!(!once.contains("//"));
                prop_assert!(!once.split('/').any(|s| s == "." || s == ".."));
                let twice = normalise(once.as_bytes()).map(Cow::into_owned);
                prop_assert_eq!(twice.as_deref(), Some(&*once));
            }
        }

        #[test]
        fn dots_slashes_and_escapes_never_panic(sent in "[/.%25eEfF2?#a]{0,24}") {
            let _ = normalise(sent.as_bytes());
        }
    }
}
