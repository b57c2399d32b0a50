//! Random frames: whole ones, mutated ones, cut ones, noise.

use super::{PORTS, TYPES_V4, TYPES_V6, V4_DESTINATIONS, V4_SOURCES, V6_DESTINATIONS, V6_SOURCES};
use crate::{
    corpus::Case,
    frame::{
        ESP, EXTENSIONS, Extension, GRE, ICMP, ICMPV6, IGMP, IPV4, IPV6, SCTP, SERVICE_TAG, TAG, TCP, UDP,
        V4, V6, ethernet, icmp, sctp, tcp, udp,
    },
    random::Random,
};

/// Test runs of the kernel take no less than an Ethernet header.
pub const SHORTEST: usize = 14;

/// A frame of at least 14 bytes: often valid, often not. `corpus` is drawn from, too.
pub fn frame(random: &mut Random, corpus: &[Case]) -> Vec<u8> {
    let mut frame = match random.below(10) {
        0 => noise(random),
        1 => random.pick(corpus).frame.clone(),
        2..=5 => v4(random),
        _ => v6(random),
    };
    if random.one_in(4) {
        mutate(random, &mut frame);
    }
    if random.one_in(16) {
        frame.truncate(random.index(frame.len() + 1));
    }
    if random.one_in(8) {
        let more = 1 + random.index(40);
        frame.resize(frame.len() + more, random.word() as u8);
    }
    if frame.len() < SHORTEST {
        frame.resize(SHORTEST, 0);
    }
    frame
}

/// Random bytes under an EtherType that makes somebody read them.
fn noise(random: &mut Random) -> Vec<u8> {
    let mut payload = vec![0; random.index(120)];
    random.fill(&mut payload);
    let ether_type = *random.pick(&[IPV4, IPV6, TAG, SERVICE_TAG]);
    if let Some(first) = payload.first_mut()
        && random.one_in(2)
    {
        *first = if ether_type == IPV4 { 0x45 } else { 0x60 };
    }
    ethernet(tags(random), ether_type, &payload)
}

/// A few bits and bytes within the headers.
fn mutate(random: &mut Random, frame: &mut [u8]) {
    for _ in 0..=random.index(3) {
        if frame.is_empty() {
            return;
        }
        let place = random.index(frame.len().min(90));
        if random.one_in(2) {
            frame[place] ^= 1 << random.below(8);
        } else {
            frame[place] = random.word() as u8;
        }
    }
}

fn tags(random: &mut Random) -> &'static [u16] {
    const TAGS: [&[u16]; 4] = [&[TAG], &[SERVICE_TAG], &[SERVICE_TAG, TAG], &[TAG, TAG, TAG]];
    if random.one_in(4) { TAGS[random.index(TAGS.len())] } else { &[] }
}

fn v4(random: &mut Random) -> Vec<u8> {
    let mut header = V4::from(V4_SOURCES[random.index(V4_SOURCES.len())])
        .to(V4_DESTINATIONS[random.index(V4_DESTINATIONS.len())]);
    if random.one_in(6) {
        header = header.option_words(random.index(11));
    }
    if random.one_in(6) {
        header = header.fragment(*random.pick(&[0, 0, 1, 185]), random.one_in(2));
    }
    if random.one_in(6) {
        header = header.ttl(*random.pick(&[1, 2, 255]));
    }
    let (protocol, payload) = upper(random, ICMP, &TYPES_V4);
    ethernet(tags(random), IPV4, &header.packet(protocol, &payload))
}

fn v6(random: &mut Random) -> Vec<u8> {
    let mut header =
        V6::from(V6_SOURCES[random.index(V6_SOURCES.len())]).hop_limit(*random.pick(&[64, 64, 255, 1]));
    header = header.to(V6_DESTINATIONS[random.index(V6_DESTINATIONS.len())]);
    if random.one_in(2) {
        for _ in 0..random.index(5) {
            header = header.with(random.pick(&EXTENSIONS).1);
        }
    }
    if random.one_in(6) {
        header = header.with(Extension::Fragment(*random.pick(&[0, 0, 1, 185]), random.one_in(2)));
    }
    if random.one_in(20) {
        header = header.payload_length(*random.pick(&[0, 1, 8, 40]));
    }
    let (protocol, payload) = upper(random, ICMPV6, &TYPES_V6);
    ethernet(tags(random), IPV6, &header.packet(protocol, &payload))
}

/// A protocol with what lies under the IP header. `echo` is the family's ICMP.
fn upper(random: &mut Random, echo: u8, types: &[u8]) -> (u8, Vec<u8>) {
    let (source, destination) = (*random.pick(&PORTS), *random.pick(&PORTS));
    let longest = if random.one_in(6) { 300 } else { 60 };
    let mut payload = vec![0; random.index(longest)];
    random.fill(&mut payload);
    match random.below(12) {
        0..=2 => (TCP, tcp(source, destination, random.word() as u8)),
        3..=6 => (UDP, udp(source, destination, &payload)),
        7 => (SCTP, sctp(source, destination)),
        8 | 9 => (echo, icmp(*random.pick(types), random.below(8) as u8 / 7)),
        10 => (*random.pick(&[GRE, ESP, IGMP, ICMP, ICMPV6]), payload),
        _ => (random.word() as u8, payload),
    }
}
