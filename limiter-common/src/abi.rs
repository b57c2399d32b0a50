//! The memory shared by the kernel program and user space, byte for byte.
//!
//! Everything here is `repr(C)` plain data without padding that matters. A change of any layout or meaning
//! raises [`ABI_VERSION`]: a daemon refuses to adopt maps pinned by another version.

/// Version of everything in this file. Pinned beside the maps.
pub const ABI_VERSION: u32 = 2;

/// Policy slots. A swap fills a slot nobody reads, then moves [`Control::active`]; four slots leave room for
/// a candidate and a fallback beside the running policy.
pub const POLICY_SLOTS: usize = 4;

/// Rules a policy may have, slot 0 included, which stands for "no rule".
pub const MAX_RULES: usize = 512;

/// Meters (see [`Meter`]) a policy may have.
pub const MAX_METERS: usize = 256;

/// Meters one packet may be charged to: up to four of its rule, up to four of the `[default]` floor.
pub const MAX_METERS_PER_RULE: usize = 8;

/// Set classes and service classes, each: one byte names one.
pub const MAX_CLASSES: usize = 256;

/// Interfaces the rules of a policy may name.
pub const MAX_INTERFACES: usize = 8;

/// Bytes of an interface's name with the zero behind it: IFNAMSIZ of `linux/if.h`.
pub const INTERFACE_NAME: usize = 16;

/// Stretches of destination addresses that the rules of a policy tell apart.
pub const MAX_DESTINATIONS: usize = 256;

/// Place classes, see [`crate::place`].
pub const MAX_PLACES: usize = 128;

/// Penalties of a policy, the unused first one included.
pub const MAX_PENALTIES: usize = 64;

/// Sources there is room for in the safelist: addresses of this host and its surroundings.
pub const MAX_SAFE: usize = 4096;

/// Prefixes that carry IPv4 sources inside IPv6, `::ffff:0:0/96` included.
pub const MAX_EMBEDDED: usize = 8;

/// Crowd cells of one meter.
pub const CROWD_CELLS: usize = 4096;

/// Ways of one set of the bucket table: eight tags fill one 64-byte cache line.
pub const WAYS: usize = 8;

/// Bytes of a row of the prefix image, see [`crate::prefix`].
pub const ROW_BYTES: usize = 1024;

/// Units a limit counts in; also the index of the word in a way.
pub const PACKETS: usize = 0;
/// See [`PACKETS`].
pub const BYTES: usize = 1;

/// Port tables: rows of [`PolicyTables::services`] and [`PolicyTables::source_services`].
pub const PORT_TABLES: usize = 4;

/// One rate with its burst, ready for [`crate::bucket`].
///
/// The cost of `n` units is `ceil(n × multiplier / 2^shift)` ticks of 1/64 ns; `tolerance` is burst × 1/rate
/// in the same ticks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Ticks per unit × 2^shift, rounded up. 0 = this meter has no limit in this unit.
    pub multiplier: u64,
    /// Ticks a full bucket is worth. At most 30 days.
    pub tolerance: u64,
    /// The whole burst in units: a packet dearer than this is `oversize`.
    pub burst: u64,
    pub shift: u32,
    pub reserved: u32,
}

/// One key of the table that a rule charges: a scope, with a limit in packets, in bytes, or both.
///
/// Packets and bytes of one scope live in one way (two words), so a rule that limits both looks up once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// By [`PACKETS`] and [`BYTES`].
    pub rates: [Rate; 2],
    /// Budget of new buckets: claims per second as a cost of one claim, and its burst.
    pub claims: Rate,
    /// Hash of (limit or rule name, scope, observing): numbers are no part of it, so they may change.
    pub id: u32,
    /// Persistent place of the claim budget word, or of the one bucket there is, and the crowd cells: `0..MAX_METERS`.
    pub slot: u32,
    /// Prefix length of the key, for an IPv4 source.
    pub width_v4: u8,
    /// Prefix length of the key, for an IPv6 source.
    pub width_v6: u8,
    /// log2 of the larger tolerance: how long a bucket of this meter takes to fill, for eviction.
    pub scale: u8,
    /// [`METER_LONE`], [`METER_NEWCOMERS`].
    pub flags: u8,
    pub reserved: [u8; 4],
}

/// [`Meter::flags`]: one bucket for everybody, whose words are those of the meter's [`LoneWord`]: by unit.
pub const METER_LONE: u8 = 1;
/// [`Meter::flags`]: beside [`METER_LONE`], a rule's budget for newcomers: in packets, and an eighth of it in each of
/// the meter's crowd cells.
pub const METER_NEWCOMERS: u8 = 2;

/// What a rule does with a packet that matches.
pub mod action {
    pub const PASS: u8 = 0;
    pub const DROP: u8 = 1;
    pub const LIMIT: u8 = 2;
}

/// [`Rule::flags`]: every rate of the rule tolerates the coarse clock.
pub const RULE_COARSE: u8 = 1;
/// [`Rule::flags`]: sources without a bucket spend from [`Rule::newcomers`].
pub const RULE_NEWCOMERS: u8 = 1 << 6;
/// [`Rule::flags`]: part of the lifeline, which judges before bans do.
pub const RULE_BEFORE_BANS: u8 = 1 << 7;

/// One rule. Index 0 of [`PolicyTables::rules`] is the `[default]`: its action is PASS, DROP, or LIMIT when
/// there is a floor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Indices into [`PolicyTables::meters`], narrowest key first, the floor last.
    pub meters: [u16; MAX_METERS_PER_RULE],
    /// Index of this rule's counters: persistent, see [`Counter`].
    pub counter: u16,
    /// How many of `meters` are in use.
    pub meter_count: u8,
    /// One of [`action`].
    pub action: u8,
    /// [`RULE_COARSE`], [`RULE_NEWCOMERS`], [`RULE_BEFORE_BANS`].
    pub flags: u8,
    /// Index into [`PolicyTables::penalties`], 0 for none.
    pub penalty: u8,
    /// Index into [`PolicyTables::meters`], with [`RULE_NEWCOMERS`].
    pub newcomers: u8,
    pub reserved: [u8; 1],
}

/// When a rule penalises a source, and for how long, see [`crate::penalty`]. Times are ticks of 1/64 ns.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Penalty {
    /// What a strike costs, a multiple of 2^16.
    pub cost: u64,
    /// What strikes may cost at once: all but the last one.
    pub tolerance: u64,
    /// How long the source is refused.
    pub time: u64,
    /// The meter whose drops are strikes, an index into [`PolicyTables::meters`].
    pub meter: u16,
    /// [`PENALTY_PROOF`].
    pub flags: u16,
    pub reserved: [u16; 2],
}

/// [`Penalty::flags`]: only packets of a TCP connection this host has are strikes.
pub const PENALTY_PROOF: u16 = 1;

/// What happens to packets of one set class to one service class. Indices into [`PolicyTables::rules`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// The first enforcing rule in file order; 0 = none, `[default]` decides.
    pub enforcing: u16,
    /// The first observing rule before it; 0 = none.
    pub observing: u16,
}

/// A prefix under which the last 32 bits of an IPv6 address are an IPv4 source.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Embedded {
    /// Bits 127…64 of the prefix, host order.
    pub high: u64,
    /// Bits 63…32 of the prefix.
    pub middle: u32,
    pub reserved: u32,
}

/// [`Header::flags`]: the policy has sets, so a packet must be classified.
pub const HAS_SETS: u32 = 1;
/// [`Header::flags`]: the policy names source ports.
pub const HAS_SOURCE_PORTS: u32 = 2;
/// [`Header::flags`]: malformed packets pass.
pub const MALFORMED_PASSES: u32 = 4;
/// [`Header::flags`]: some limit counts bytes, so words in bytes mean something.
pub const HAS_BYTES: u32 = 16;
/// [`Header::flags`]: sets hold IPv6 prefixes.
pub const HAS_V6_PREFIXES: u32 = 8;
/// [`Header::flags`]: rules have penalties.
pub const HAS_PENALTIES: u32 = 1024;
/// [`Header::flags`]: rules name interfaces.
pub const HAS_INTERFACES: u32 = 256;
/// [`Header::flags`]: rules name destination addresses.
pub const HAS_DESTINATIONS: u32 = 512;
/// [`Header::flags`]: rules name either, so where a packet came in and went to must be known.
pub const HAS_PLACES: u32 = HAS_INTERFACES | HAS_DESTINATIONS;

/// [`Header::flags`]: some rule has a budget for newcomers, so a part of each claim budget is kept for proven sources.
pub const HAS_NEWCOMERS: u32 = 1 << 16;

/// Numbers of one policy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub abi: u32,
    pub flags: u32,
    /// Counts policies applied on this host. Local.
    pub generation: u64,
    /// Length in bytes of the sealed text behind the prefix rows.
    pub sealed_bytes: u64,
    /// First row of the sealed text in the prefix image.
    pub sealed_row: u32,
    /// First row of each level of the IPv6 tree, root first, see [`crate::prefix`].
    pub v6_levels: [u32; 4],
    /// Number of levels in use, 0…4.
    pub v6_depth: u32,
    /// First row of the classes of the IPv6 boundaries.
    pub v6_classes: u32,
    pub embedded_count: u32,
    pub embedded: [Embedded; MAX_EMBEDDED],
}

/// Where packets come in and go to, as far as rules ask, see [`crate::place`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// First address of each stretch of destinations, upper and lower 64 bits, sorted; the first is `::`. Unused ones
    /// are the highest address.
    pub destinations: [[u64; 2]; MAX_DESTINATIONS],
    /// Index on this host of the interface with each name, 0 where there is none. Kept true while in force.
    pub interfaces: [u32; MAX_INTERFACES],
    /// Names of interfaces, zeros behind each; the first unused one is empty. The program does not read them.
    pub interface_names: [[u8; INTERFACE_NAME]; MAX_INTERFACES],
    /// Destination class of each stretch; behind the last one, its class.
    pub destination_classes: [u8; MAX_DESTINATIONS],
    /// `[interface class][destination class]` → place class.
    pub classes: [[u8; MAX_CLASSES]; 2 * MAX_INTERFACES],
    /// `[place class][service class]` → service class of the cells. Used with [`HAS_PLACES`].
    pub services: [[u8; MAX_CLASSES]; MAX_PLACES],
}

/// One whole policy but for its prefixes: a single map value, read through one pointer.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct PolicyTables {
    pub header: Header,
    pub rules: [Rule; MAX_RULES],
    pub meters: [Meter; MAX_METERS],
    /// Service class by L4 kind, for the kinds without ports or types, see [`crate::packet::Kind`].
    pub kind_services: [u8; 8],
    /// Service class by ICMP type: `icmp`, then `icmpv6`.
    pub type_services: [[u8; 256]; 2],
    /// Service class by destination port: `tcp` without a fresh SYN, `tcp` with one, `udp`, `sctp`.
    pub services: [[u8; 65536]; PORT_TABLES],
    /// Source class by source port, in the same order. Used with [`HAS_SOURCE_PORTS`].
    pub source_services: [[u8; 65536]; PORT_TABLES],
    /// `[destination class][source class]` → service class. Used with [`HAS_SOURCE_PORTS`].
    pub service_pairs: [[u8; MAX_CLASSES]; MAX_CLASSES],
    /// `[set class][service class]`.
    pub cells: [[Cell; MAX_CLASSES]; MAX_CLASSES],
    /// IPv4 set classes by the upper 16 bits of the address, see [`crate::prefix`].
    pub v4_index: [u64; 65536],
    pub places: Places,
    pub penalties: [Penalty; MAX_PENALTIES],
    /// Set classes of sources that are never penalised, a bit each.
    pub safe_classes: [u64; MAX_CLASSES / 64],
    /// For spared packets (IGMP, DHCP reply, DHCPv6 reply): the first rule with `from` and a verdict, by place class
    /// and set class; 0 = none.
    pub spared: [[[u16; 3]; MAX_CLASSES]; MAX_PLACES],
}

/// One row of the prefix image.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct Row(pub [u8; ROW_BYTES]);

/// What the running program reads before anything else.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// The policy slot in force. Read once per packet.
    pub active: u32,
    /// The policy slot in force from `confirm_until` on.
    pub fallback: u32,
    /// When `active` falls back, in ticks of 1/64 ns since the epoch; 0 = it does not.
    pub confirm_until: u64,
    /// Until when packets that are to be dropped pass, in the same ticks; 0 = they are dropped.
    pub paused_until: u64,
    /// Until when somebody watches what is dropped, in the same ticks; 0 = nobody does.
    pub watched_until: u64,
    /// Which kinds of bans there are: [`BANS_OF_SOURCES`], [`BANS_OF_PREFIXES`].
    pub bans: u32,
    pub reserved: [u32; 7],
}

/// [`Control::bans`]: there are bans of an IPv4 address or an IPv6 /64.
pub const BANS_OF_SOURCES: u32 = 1;
/// [`Control::bans`]: there are bans of other prefixes.
pub const BANS_OF_PREFIXES: u32 = 2;

/// [`Ban::until`] of a ban that does not end.
pub const FOREVER: u64 = u64::MAX;

/// [`Ban::flags`]: a rule of the lifeline may be about its sources.
pub const BAN_LIFELINE: u32 = 1;

/// One ban. Times are ticks of 1/64 ns since the table's epoch, or [`FOREVER`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ban {
    /// The sources are refused before this: when the ban ends, or the last of those that cover it does. Of prefixes
    /// only the longest is found, so it answers for the wider ones too.
    pub until: u64,
    /// When this very ban ends. The program does not read it.
    pub own_until: u64,
    /// [`BAN_LIFELINE`].
    pub flags: u32,
    /// Who made it. The program does not read it.
    pub by: u32,
}

/// Describes who owns a way. Written after the first charge; a reader recomputes the tag and skips what does
/// not match.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The masked source, bits 127…64. An IPv4 source is `::ffff:a.b.c.d`.
    pub network_high: u64,
    /// The masked source, bits 63…0.
    pub network_low: u64,
    /// Packets dropped by this bucket: sampled, every 32nd drop of a CPU adds 32.
    pub dropped: u64,
    /// Packets admitted by this bucket since it was claimed.
    pub passed: u64,
    /// [`Meter::id`].
    pub meter: u32,
    /// [`Meter::scale`].
    pub scale: u8,
    /// Prefix length of the network, counted in 128 bits (an IPv4 /32 is 128).
    pub width: u8,
    pub reserved: [u8; 2],
}

/// Eight buckets. The tags fill the first cache line, the words in packets the second, in bytes the third.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketSet {
    /// Keyed hash of (network, meter id); 0 = never used.
    pub tags: [u64; WAYS],
    /// `[unit][way]` bucket words, see [`crate::bucket`].
    pub words: [[u64; WAYS]; 2],
    pub descriptions: [Description; WAYS],
}

/// Strikes against the owners of a set's ways, beside the set, see [`crate::penalty`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrikeLine(pub [u64; WAYS]);

/// Bits of one copy in a [`FilterLine`].
pub const FILTER_BITS: u32 = 256;

/// One cache line of the filter: in each word 32 bits of either copy, see [`crate::filter`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterLine(pub [u64; 8]);

/// A crowd cell: bucket words by unit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrowdCell {
    pub words: [u64; 2],
}

/// Bucket words alone on their cache line.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoneWord {
    /// A budget: the first. A claim budget: the reserve for proven sources too, see [`RESERVE`]. The bucket of a
    /// [`METER_LONE`]: by unit.
    pub words: [u64; 8],
}

/// Index of the reserve of a claim budget in [`LoneWord::words`].
pub const RESERVE: usize = 1;

/// log2 of the part of a budget that is a reserve's or a network's.
pub const EIGHTH: u32 = 3;

/// Sources that [`HAS_NEWCOMERS`] can know to be proven.
pub const MAX_PROVEN: usize = 1 << 16;

/// Places in the map of [`LoneWord`]s: the meters' claim budgets or lone buckets, then the host's own budgets.
pub mod lone {
    use super::MAX_METERS;
    /// Link survival: ARP, neighbour discovery, multicast listener discovery.
    pub const LINK: usize = MAX_METERS;
    /// Spared traffic: IGMP, DHCP replies.
    pub const SPARED: usize = MAX_METERS + 1;
    /// Events, see [`crate::event`].
    pub const EVENTS: usize = MAX_METERS + 2;
    pub const COUNT: usize = MAX_METERS + 3;
}

/// Packets and bytes, one CPU's share.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

/// Families of the L3 header, the innermost index of [`RuleCounters`].
pub const FAMILIES: usize = 3;

/// Counters of one rule on one CPU: `[outcome][family]`, see [`crate::verdict::Outcome`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RuleCounters(pub [[Counter; FAMILIES]; crate::verdict::OUTCOMES]);

/// Packets of one rule of a shadow policy on one CPU: `[dropped by the policy in force][dropped by the shadow]`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Compared(pub [[Counter; 2]; 2]);

/// Constants of the table, set when the program is loaded and pinned for the next daemon.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    pub abi: u32,
    /// Sets of the bucket table: a power of two.
    pub sets: u32,
    /// Keys of the hash, random.
    pub seed: [u64; 4],
    /// Kernel monotonic time in ns at which bucket words start.
    pub epoch: u64,
    /// The kernel's tick counter at that time.
    pub jiffies: u64,
    /// Period of that counter in 1/64 ns.
    pub jiffy: u64,
}
