//! Who a request comes from: its source, API key, account and plan, and the scopes that limits key by.
//!
//! An empty value is an absent one, and a scope whose value is absent falls to the next alternative and at
//! last to the source. An absent scope never means unlimited.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::reject_cache::Fingerprinting;
pub use super::source::{SourceRules, client_of};

/// What is known of one caller. Every text is non-empty; the API key is a known one.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The client's address, IPv4 where it is IPv4.
    pub address: IpAddr,
    pub api_key: Option<String>,
    pub account: Option<String>,
    pub user: Option<String>,
    pub plan: Option<String>,
    /// Values for `header:NAME`, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Values for `descriptor:KEY`.
    pub descriptors: Vec<(String, String)>,
}

impl Identity {
    pub fn of(address: IpAddr) -> Self {
        Self {
            address,
            api_key: None,
            account: None,
            user: None,
            plan: None,
            headers: Vec::new(),
            descriptors: Vec::new(),
        }
    }
}

/// A header's value without the white space around it; empty is absent.
pub fn present(value: &str) -> Option<&str> {
    let value = value.trim();
    (!value.is_empty()).then_some(value)
}

/// One thing a limit can be counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The packet tier's source.
    Source,
    /// `source/P4,P6`: the source at other widths.
    SourceAt {
        ipv4: u8,
        ipv6: u8,
    },
    ApiKey,
    Account,
    User,
    Endpoint,
    /// `header:NAME`, lower case.
    Header(String),
    /// `descriptor:KEY`.
    Descriptor(String),
}

impl Part {
    /// Reads one word of `per`; the error says what may stand there.
    pub fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "source" => Self::Source,
            "api-key" => Self::ApiKey,
            "account" => Self::Account,
            "user" => Self::User,
            "endpoint" => Self::Endpoint,
            _ => {
                if let Some(widths) = text.strip_prefix("source/") {
                    return Self::parse_widths(widths);
                }
                if let Some(name) = text.strip_prefix("header:") {
                    let name = name.trim().to_ascii_lowercase();
                    return if is_header_name(&name) {
                        Ok(Self::Header(name))
                    } else {
                        Err(format!("`{name}` is no header name"))
                    };
                }
                if let Some(key) = text.strip_prefix("descriptor:") {
                    return match present(key) {
                        Some(key) => Ok(Self::Descriptor(key.to_owned())),
                        None => Err("`descriptor:` lacks its key".to_owned()),
                    };
                }
                return Err(format!(
                    "unknown scope `{text}`; write source, source/P4,P6, api-key, account, user, endpoint, header:NAME or descriptor:KEY"
                ));
            }
        })
    }

    fn parse_widths(text: &str) -> Result<Self, String> {
        let both = text.split_once(',').map(|(a, b)| (a.trim().parse::<u8>(), b.trim().parse::<u8>()));
        match both {
            Some((Ok(ipv4 @ 1..=32), Ok(ipv6 @ 1..=128))) => Ok(Self::SourceAt { ipv4, ipv6 }),
            _ => Err(format!(
                "`source/{text}` lacks a width of 1 to 32 for IPv4 and one of 1 to 128 for IPv6, as in `source/24,48`"
            )),
        }
    }

    /// The value in one request, or `None` when it is absent. Sources and the endpoint are never absent.
    fn value<'a>(&self, identity: &'a Identity, endpoint: &'a str, rules: &SourceRules) -> Option<Value<'a>> {
        let pick = |pairs: &'a [(String, String)], name: &str| {
            pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
        };
        match self {
            Self::Source => return Some(Value::Network(rules.source(identity.address))),
            Self::SourceAt { ipv4, ipv6 } => {
                return Some(Value::Network(rules.at(identity.address, *ipv4, *ipv6)));
            }
            Self::ApiKey => identity.api_key.as_deref(),
            Self::Account => identity.account.as_deref(),
            Self::User => identity.user.as_deref(),
            Self::Endpoint => Some(endpoint),
            Self::Header(name) => pick(&identity.headers, name),
            Self::Descriptor(key) => pick(&identity.descriptors, key),
        }
        .map(Value::Text)
    }

    /// Whether a request can lack it.
    pub fn may_be_absent(&self) -> bool {
        !matches!(self, Self::Source | Self::SourceAt { .. } | Self::Endpoint)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source => f.write_str("source"),
            Self::SourceAt { ipv4, ipv6 } => write!(f, "source/{ipv4},{ipv6}"),
            Self::ApiKey => f.write_str("api-key"),
            Self::Account => f.write_str("account"),
            Self::User => f.write_str("user"),
            Self::Endpoint => f.write_str("endpoint"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Descriptor(key) => write!(f, "descriptor:{key}"),
        }
    }
}

fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Alternatives written `a | b`: the first that is present counts, else the source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Element {
    parts: Vec<Part>,
    /// How each part is written; part of every key, so that values of different kinds stay apart.
    labels: Vec<String>,
}

/// What one element is in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved<'a> {
    /// The part it came from: `source`, `api-key`, …
    pub kind: &'a str,
    pub value: Value<'a>,
}

/// A value to count by. Sources become text only where a store's key is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Text(&'a str),
    Network(IpNet),
}

impl Resolved<'_> {
    /// Adds kind and value to a bucket's identity in this process.
    pub fn add_to(&self, print: Fingerprinting) -> Fingerprinting {
        let print = print.part(self.kind.as_bytes());
        match self.value {
            Value::Text(text) => print.part(text.as_bytes()),
            Value::Network(IpNet::V4(net)) => print.part(&net.addr().octets()).part(&[net.prefix_len()]),
            Value::Network(IpNet::V6(net)) => print.part(&net.addr().octets()).part(&[net.prefix_len()]),
        }
    }
}

impl Value<'_> {
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Network(network) => Cow::Owned(network.to_string()),
        }
    }
}

impl Element {
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split('|').map(|word| Part::parse(word.trim())).collect::<Result<Vec<_>, _>>()?;
        let labels = parts.iter().map(Part::to_string).collect();
        Ok(Self { parts, labels })
    }

    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The value that counts; `absent` hears of every alternative that was passed over.
    pub fn resolve<'a>(
        &'a self,
        identity: &'a Identity,
        endpoint: &'a str,
        rules: &SourceRules,
        mut absent: impl FnMut(&'a str),
    ) -> Resolved<'a> {
        for (part, label) in self.parts.iter().zip(&self.labels) {
            match part.value(identity, endpoint, rules) {
                Some(value) => return Resolved { kind: label, value },
                None => absent(label),
            }
        }
        Resolved { kind: "source", value: Value::Network(rules.source(identity.address)) }
    }

    /// Whether its value is the endpoint's name in some request.
    pub fn names_endpoint(&self) -> bool {
        self.parts.contains(&Part::Endpoint)
    }

    /// Whether the source stands in when everything written is absent.
    pub fn falls_to_source(&self) -> bool {
        self.parts.iter().all(Part::may_be_absent)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.labels.join(" | "))
    }
}

/// What a limit is counted by: the elements together make one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(pub Vec<Element>);

impl Scope {
    /// For limit names: `source`, `account+source`, `source-24-48`.
    pub fn slug(&self) -> String {
        let words = self.0.iter().filter_map(|element| element.labels.first().map(String::as_str));
        let text = words.collect::<Vec<_>>().join("+");
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "-+._".contains(c) { c } else { '-' }).collect()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, element) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(" + ")?;
            }
            write!(f, "{element}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_scope_falls_to_the_next_and_at_last_to_the_source() {
        let rules = SourceRules::default();
        let mut identity = Identity::of("203.0.113.9".parse().unwrap());
        let element = Element::parse("api-key | account").unwrap();
        let mut passed_over = Vec::new();
        let resolved = element.resolve(&identity, "search", &rules, |part| passed_over.push(part));
        assert_eq!((resolved.kind, &*resolved.value.text()), ("source", "203.0.113.9/32"));
        assert_eq!(passed_over, ["api-key", "account"]);
        identity.account = Some("ada".into());
        let resolved = element.resolve(&identity, "search", &rules, |_| {});
        assert_eq!((resolved.kind, &*resolved.value.text()), ("account", "ada"));
        identity.api_key = Some("k1".into());
        let resolved = element.resolve(&identity, "search", &rules, |_| {});
        assert_eq!((resolved.kind, &*resolved.value.text()), ("api-key", "k1"));
        assert!(element.falls_to_source());
        assert!(!Element::parse("api-key | source").unwrap().falls_to_source());
    }

    #[test]
    fn scopes_read_back_as_written() {
        for text in
            ["source", "source/24,48", "api-key | source", "header:x-tenant", "descriptor:tenant", "user"]
        {
            assert_eq!(Element::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Part::parse("header:X-Tenant").unwrap(), Part::Header("x-tenant".into()));
        for text in
            ["ip", "source/24", "source/33,64", "source/0,64", "header:", "header:a b", "descriptor: ", ""]
        {
            assert!(Part::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn empty_is_absent() {
        assert_eq!(present(" \t"), None);
        assert_eq!(present(" x "), Some("x"));
    }
}
