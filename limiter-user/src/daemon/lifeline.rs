//! Which prefixes a policy names: those of the lifeline, and those that nothing automatic may punish.

use std::net::Ipv6Addr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::policy::{Policy, Prefixes, Sources};

/// Sources that rules of the lifeline are about.
#[derive(Default)]
pub struct Lifeline<'p> {
    /// A rule of the lifeline is about everybody.
    everybody: bool,
    lists: Vec<&'p Prefixes>,
    /// Prefixes that carry IPv4.
    carriers: Vec<Ipv6Net>,
}

impl<'p> Lifeline<'p> {
    pub fn of(policy: &'p Policy) -> Self {
        let mut lifeline = Self { carriers: carriers(policy), ..Self::default() };
        for rule in policy.rules.iter().filter(|rule| rule.before_bans) {
            match &rule.from {
                None => lifeline.everybody = true,
                Some(from) => lifeline.lists.extend(lists(policy, from)),
            }
        }
        lifeline
    }

    /// For a policy that is not understood, and for two at once.
    pub fn of_all() -> Self {
        Self { everybody: true, ..Self::default() }
    }

    /// Whether a rule may be about a source in this prefix.
    pub fn may_be_about(&self, prefix: &IpNet) -> bool {
        // What a carrier carries may be anybody of IPv4.
        let carries = |carrier: &Ipv6Net| overlap(&IpNet::V6(*carrier), prefix);
        self.everybody
            || self.lists.iter().any(|list| holds_some(list, prefix))
            || (!self.lists.is_empty() && self.carriers.iter().any(carries))
    }
}

/// `::ffff:0:0/96`.
pub const MAPPED: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96);

/// Every prefix whose last 32 bits are an IPv4 source.
pub fn carriers(policy: &Policy) -> Vec<Ipv6Net> {
    std::iter::once(MAPPED).chain(policy.default.embedded.iter().copied()).collect()
}

/// The lists of prefixes that make up sources.
pub fn lists<'p>(policy: &'p Policy, sources: &'p Sources) -> impl Iterator<Item = &'p Prefixes> {
    let sets = sources.sets.iter().filter_map(|set| policy.sets.get(*set)).map(|set| &set.prefixes);
    sets.chain(std::iter::once(&sources.prefixes))
}

/// Whether two prefixes share an address.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Whether any prefix of a list shares an address with `prefix`.
pub fn holds_some(list: &Prefixes, prefix: &IpNet) -> bool {
    match prefix {
        IpNet::V4(prefix) => {
            let span = |net: &Ipv4Net| (net.network(), net.broadcast());
            let first = list.v4.partition_point(|net| span(net).1 < prefix.network());
            list.v4.get(first).is_some_and(|net| span(net).0 <= prefix.broadcast())
        }
        IpNet::V6(prefix) => {
            let span = |net: &Ipv6Net| (net.network(), net.broadcast());
            let first = list.v6.partition_point(|net| span(net).1 < prefix.network());
            list.v6.get(first).is_some_and(|net| span(net).0 <= prefix.broadcast())
        }
    }
}
