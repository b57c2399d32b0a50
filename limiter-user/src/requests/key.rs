//! Whose bucket: the key recipe.
//!
//! `<ns>:{tag}:<limit>:<subject>`. Tag and subject are HMAC-SHA-256 with the fleet's secret over
//! length-prefixed parts, cut to 16 bytes, in base64url without padding. So the store holds no personal data,
//! two different subjects never share a text, and no caller can choose its own slot with braces. Any language
//! computes it in five lines; `docs/redis-protocol.md` has test vectors.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use ipnet::IpNet;
use sha2::{Digest, Sha256};

/// One part of a key: the scope it comes from (`source`, `api-key`, `account`, `header:x-tenant`, …) and its
/// value. The scope is part of the hash: an API key spelled like an address is not that address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    pub scope: &'a str,
    pub value: &'a [u8],
}

impl<'a> Part<'a> {
    pub fn new(scope: &'a str, value: &'a [u8]) -> Self {
        Self { scope, value }
    }
}

/// 16 bytes that stand for a subject; equal for equal parts under one secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 16]);

impl KeyHash {
    /// The 22 characters it has in a key.
    pub fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Where a fixed window of `window` units begins for this subject: the last six characters of its text, as
    /// a number of base 256, modulo the window. So not all callers' windows end at once.
    pub fn phase(&self, window: u64) -> u64 {
        let text = self.text();
        text.bytes().skip(text.len() - 6).fold(0, |number, byte| number << 8 | u64::from(byte)) % window
    }

    /// Reads what `text` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok().map(Self)
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// The fleet's secret, ready to hash. Its bytes are never shown.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a secret has at least 16 bytes, this one has {0}")]
pub struct SecretTooShort(usize);

impl Secret {
    /// `bytes`: the content of the secret file without its last line break.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretTooShort> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() < 16 {
            return Err(SecretTooShort(bytes.len()));
        }
        // HMAC takes a key of any length; the error type has no value to give.
        Hmac::new_from_slice(bytes).map(Self).map_err(|_| SecretTooShort(bytes.len()))
    }

    /// The hash of one subject.
    pub fn hash(&self, parts: &[Part<'_>]) -> KeyHash {
        parts.iter().fold(self.start(), Hashing::part).finish()
    }

    pub fn start(&self) -> Hashing {
        Hashing(self.0.clone())
    }

    /// Kept in the store so that a host with another secret is noticed.
    pub fn fingerprint(&self) -> String {
        self.hash(&[Part::new("fingerprint", b"limiter")]).text()
    }
}

/// The hash of one subject, under way.
pub struct Hashing(Hmac<Sha256>);

impl Hashing {
    #[must_use]
    pub fn part(mut self, part: &Part<'_>) -> Self {
        for text in [part.scope.as_bytes(), part.value] {
            self.0.update(&part_length(text));
            self.0.update(text);
        }
        self
    }

    pub fn finish(self) -> KeyHash {
        first_16(&self.0.finalize().into_bytes())
    }
}

/// The value of the scope `source` (and of `source/P4,P6`): the address cut to its prefix, with the prefix.
/// IPv4 in IPv6 is IPv4. Examples: `198.51.100.7/32`, `2001:db8:1:2::/64`.
pub fn source_text(address: IpAddr, v4_prefix: u8, v6_prefix: u8) -> String {
    let address = address.to_canonical();
    let prefix = if address.is_ipv4() { v4_prefix.min(32) } else { v6_prefix.min(128) };
    IpNet::new(address, prefix).map_or_else(|_| address.to_string(), |net| net.trunc().to_string())
}

/// The full key in the store. `namespace` is `[A-Za-z0-9_]+`.
pub fn full_key(namespace: &str, tag: &KeyHash, limit_id: &str, subject: &KeyHash) -> String {
    format!("{namespace}:{{{tag}}}:{limit_id}:{subject}")
}

fn part_length(text: &[u8]) -> [u8; 4] {
    // Header values and paths are far below 4 GiB.
    u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes()
}

fn first_16(digest: &[u8]) -> KeyHash {
    let mut hash = [0; 16];
    hash.copy_from_slice(&digest[..16]);
    KeyHash(hash)
}

pub(super) fn feed_part(hash: &mut Sha256, text: &[u8]) {
    hash.update(part_length(text));
    hash.update(text);
}

/// Eight characters of a digest.
pub(super) fn id_text(digest: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(&digest[..6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_not_ambiguous() {
        let secret = Secret::new(b"0123456789abcdef").unwrap();
        let hash = |parts: &[(&str, &str)]| {
            let parts: Vec<_> = parts.iter().map(|(s, v)| Part::new(s, v.as_bytes())).collect();
            secret.hash(&parts)
        };
        assert_eq!(hash(&[("a", "b"), ("c", "d")]), hash(&[("a", "b"), ("c", "d")]));
        assert_ne!(hash(&[("a", "b"), ("c", "d")]), hash(&[("a", "bcd")]));
        assert_ne!(hash(&[("a", "b_c_d")]), hash(&[("a", "b"), ("c", "d")]));
        assert_ne!(hash(&[("source", "198.51.100.7/32")]), hash(&[("api-key", "198.51.100.7/32")]));
    }

    #[test]
    fn a_line_break_ends_the_secret_file() {
        let plain = Secret::new(b"0123456789abcdef").unwrap();
        let line = Secret::new(b"0123456789abcdef\n").unwrap();
        assert_eq!(plain.fingerprint(), line.fingerprint());
        assert_eq!(Secret::new(b"short\n").unwrap_err(), SecretTooShort(5));
    }

    #[test]
    fn sources_are_cut_to_their_prefix() {
        let text = |address: &str| source_text(address.parse().unwrap(), 32, 64);
        assert_eq!(text("198.51.100.7"), "198.51.100.7/32");
        assert_eq!(text("::ffff:198.51.100.7"), "198.51.100.7/32");
        assert_eq!(text("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(source_text("198.51.100.7".parse().unwrap(), 24, 48), "198.51.100.0/24");
    }

    #[test]
    fn a_hash_reads_back() {
        let hash = KeyHash(*b"0123456789abcdef");
        assert_eq!(KeyHash::parse(&hash.text()), Some(hash));
        assert_eq!(KeyHash::parse("{evil}"), None);
    }
}
