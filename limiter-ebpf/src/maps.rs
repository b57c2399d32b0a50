//! Every map, by the name it is pinned under. BTF maps, so that libbpf's tools can read the object.
//! Sizes given as 1 are set when the program is loaded.

use aya_ebpf::{
    bindings::{BPF_F_INNER_MAP, BPF_F_MMAPABLE},
    btf_maps::{Array, ArrayOfMaps, HashMap, LpmTrie, LruHashMap, PerCpuArray, RingBuf, lpm_trie::Key},
    macros::btf_map,
};
use limiter_common::{
    abi::{
        Ban, BucketSet, Control, CrowdCell, FilterLine, LoneWord, MAX_PROVEN, MAX_RULES, MAX_SAFE,
        POLICY_SLOTS, PolicyTables, Row, RuleCounters, StrikeLine, lone,
    },
    event::SHARES,
};

const MAPPED: usize = BPF_F_MMAPABLE as usize;

/// One slot per policy; [`CONTROL`] says which is in force.
#[btf_map]
pub static POLICIES: Array<PolicyTables, POLICY_SLOTS, MAPPED> = Array::new();

/// The prefix image of each slot's policy, as large as it needs to be.
#[btf_map]
pub static PREFIXES: ArrayOfMaps<PrefixImage, POLICY_SLOTS> = ArrayOfMaps::new();

pub type PrefixImage = Array<Row, 1, { MAPPED | BPF_F_INNER_MAP as usize }>;

#[btf_map]
pub static CONTROL: Array<Control, 1, MAPPED> = Array::new();

/// The bucket table.
#[btf_map]
pub static BUCKETS: Array<BucketSet, 1, MAPPED> = Array::new();

/// Which tags may have a live bucket.
#[btf_map]
pub static FILTER: Array<FilterLine, 1, MAPPED> = Array::new();

/// Strikes, a line beside each set of the bucket table.
#[btf_map]
pub static STRIKES: Array<StrikeLine, 1, MAPPED> = Array::new();

/// Masked sources nothing penalises: this host and its surroundings.
#[btf_map]
pub static SAFE: HashMap<[u64; 2], u64, MAX_SAFE> = HashMap::new();

/// Crowd cells of every meter.
#[btf_map]
pub static CROWD: Array<CrowdCell, { 256 * 4096 }, MAPPED> = Array::new();

/// Claim budgets, buckets of rules, and the host's own budgets, each on its cache line.
#[btf_map]
pub static BUDGETS: Array<LoneWord, { lone::COUNT }, MAPPED> = Array::new();

/// Bans of one source each, by [`limiter_common::ban::source_key`].
#[btf_map]
pub static BANS: HashMap<[u64; 2], Ban, 1> = HashMap::new();

/// Bans of other prefixes: of addresses from their first bit to their last, IPv4 as `::ffff:a.b.c.d`.
#[btf_map]
pub static BAN_PREFIXES: LpmTrie<[u64; 2], Ban, 1> = LpmTrie::new();

pub type BanPrefix = Key<[u64; 2]>;

/// Sources that have completed a TCP handshake with this host, by [`limiter_common::ban::source_key`]. Only a handshake
/// adds to it: who forges addresses does not see the answers.
#[btf_map]
pub static PROVEN: LruHashMap<[u64; 2], u32, MAX_PROVEN> = LruHashMap::new();

/// Exact counters, one rule an entry.
#[btf_map]
pub static COUNTERS: PerCpuArray<RuleCounters, MAX_RULES> = PerCpuArray::new();

/// Live buckets evicted.
#[btf_map]
pub static PRESSURE: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Drops, for whoever watches: [`limiter_common::event::Event`]s, room for two seconds and a half of their budget. (To
/// libbpf a ring has no type.)
#[btf_map]
pub static EVENTS: RingBuf<(), { 1 << 20 }> = RingBuf::new();

/// The share of each row of the counters in them, see [`limiter_common::event`].
#[btf_map]
pub static EVENT_SHARES: Array<u64, SHARES, MAPPED> = Array::new();

/// Drops that were watched and not told of.
#[btf_map]
pub static EVENTS_LOST: PerCpuArray<u64, 1> = PerCpuArray::new();
