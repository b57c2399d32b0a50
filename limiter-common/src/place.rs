//! Where a packet came in and where it goes: the interface and the destination address, for rules that name them.
//!
//! Both are put into classes like sources and services are: a packet's **place class** says which rules its interface
//! and its destination leave. It is folded into the service class by a table, so a rule that names a place costs the
//! packets of others nothing but two loads, and judgement never loops over rules. A policy without such rules pays a
//! branch.
//!
//! Destinations are the addresses of this host and its neighbours, so they are few: at most [`MAX_DESTINATIONS`]
//! stretches, found by eight halvings of one sorted list of 4 KiB. (The image of set prefixes, made for a million of
//! them, would cost as many loads and an index of its own.)

use crate::abi::{HAS_DESTINATIONS, HAS_INTERFACES, Header, MAX_DESTINATIONS, MAX_INTERFACES, Places};

/// Interface class: 0, or one more than the position among those the policy names. `index_of` gives the index of the
/// interface at a position; `blur` as in the engine.
#[inline(always)]
pub fn interface_class(
    interface: u32,
    index_of: impl Fn(usize) -> u32,
    blur: impl Fn(usize) -> usize,
) -> usize {
    let mut class = blur(0);
    for position in 0..MAX_INTERFACES {
        if index_of(position) == interface {
            class = blur(position + 1);
            break;
        }
    }
    class
}

/// Destination class of an address, its upper and its lower 64 bits; IPv4 is `::ffff:a.b.c.d`.
#[inline(always)]
pub fn destination_class(places: &Places, [high, low]: [u64; 2], blur: impl Fn(usize) -> usize) -> usize {
    let mut slot = 0;
    let mut step = MAX_DESTINATIONS / 2;
    // The first stretch begins at the lowest address, so eight halvings find the last one that begins at or below.
    for _ in 0..MAX_DESTINATIONS.ilog2() {
        let probe = (slot + step) & (MAX_DESTINATIONS - 1);
        let [first_high, first_low] = places.destinations[probe];
        if first_high < high || (first_high == high && first_low <= low) {
            slot = blur(probe);
        }
        step /= 2;
    }
    usize::from(places.destination_classes[slot & (MAX_DESTINATIONS - 1)])
}

/// Place class of a packet, of which only what the rules ask for is looked at.
#[inline(always)]
pub fn class(
    header: &Header,
    places: &Places,
    interface_class: impl FnOnce() -> usize,
    destination: impl FnOnce() -> [u64; 2],
    blur: impl Fn(usize) -> usize,
) -> u8 {
    let interface = if header.flags & HAS_INTERFACES != 0 { interface_class() } else { 0 };
    let destination =
        if header.flags & HAS_DESTINATIONS != 0 { destination_class(places, destination(), blur) } else { 0 };
    places.classes[interface & (2 * MAX_INTERFACES - 1)][destination & 255]
}
