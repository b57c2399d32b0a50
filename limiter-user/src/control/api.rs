//! What the control API answers, shared by server and client. Fields are only ever added.
//!
//! Times are RFC 3339, durations end in `_s`, addresses are canonical.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::cli::session::Session;
use crate::daemon::BannedBy;
use crate::datapath::Mode;
use crate::policy::{Change, Diagnostic, OverrideMode};
use crate::requests::tier::StoreStatus;

/// Largest body of `PUT /v1/policy`, in bytes.
pub const MAX_BUNDLE_BYTES: usize = 64 << 20;

/// Any answer that is not a success.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub error: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Mistakes in a policy, each with its position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<Diagnostic>,
}

/// `GET /v1/status`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub uptime_s: u64,
    /// Something that must be guarded or in force is not: `problems` says what.
    pub degraded: bool,
    pub problems: Vec<String>,
    pub interfaces: Vec<GuardedInterface>,
    /// Interfaces that should be guarded and are not.
    pub unguarded: Vec<UnguardedInterface>,
    /// `null` without a packet tier.
    pub policy: Option<PolicyStatus>,
    /// The policy in force falls back unless it is confirmed; `null` when it stays.
    #[serde(default)]
    pub pending_confirm: Option<PendingConfirm>,
    /// Nothing is dropped; `null` when what is to be dropped is.
    #[serde(default)]
    pub paused: Option<Pause>,
    #[serde(default)]
    pub overrides: Vec<Override>,
    /// `null` without a packet tier.
    pub table: Option<Table>,
    /// Bans in force.
    #[serde(default)]
    pub bans: usize,
    /// `null` without a request tier.
    #[serde(default)]
    pub store: Option<StoreStatus>,
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedInterface {
    pub name: String,
    pub index: u32,
    pub mode: Mode,
    pub attached_s: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnguardedInterface {
    pub name: String,
    /// Detached by hand: holds until `attach`.
    pub detached: bool,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    pub hash: String,
    pub generation: u64,
    pub rules: usize,
    pub loaded_at: String,
    pub age_s: u64,
    pub applied_by: String,
    /// The file this host reads its policy from.
    pub file: String,
    /// How the policy in force differs from the file; `null` when it does not.
    pub drift: Option<String>,
}

/// Load of the bucket table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub entries: u64,
    pub used: u64,
    /// Live buckets evicted since the table was made.
    pub pressure: u64,
}

/// A rule that judges otherwise than the policy says, for a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    pub rule: String,
    /// Per cent of its rates and bursts.
    pub scale: Option<u32>,
    pub mode: Option<OverrideMode>,
    pub until: String,
    pub left_s: u64,
    pub by: String,
}

/// `GET /v1/overrides`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrides {
    pub overrides: Vec<Override>,
}

/// Body of `POST /v1/overrides`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverrideRequest {
    pub rule: String,
    #[serde(default)]
    pub scale: Option<u32>,
    #[serde(default)]
    pub mode: Option<OverrideMode>,
    pub for_s: u64,
    /// Sessions whose packets must pass, else it is refused.
    #[serde(default)]
    pub sessions: Vec<Session>,
    /// They need not.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/overrides`, `DELETE /v1/overrides/{rule}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overridden {
    pub rule: String,
    /// What holds now.
    pub overridden: Option<Override>,
    /// Of a `DELETE`: there was one.
    pub was_overridden: bool,
    pub warnings: Vec<String>,
}

/// Body of `POST /v1/sets/{set}/members`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddRequest {
    /// Prefixes and addresses.
    pub members: Vec<String>,
    pub for_s: u64,
    /// Sessions whose packets must pass, else it is refused.
    #[serde(default)]
    pub sessions: Vec<Session>,
    /// They need not.
    #[serde(default)]
    pub force: bool,
}

/// Body of `POST /v1/sets/{set}/remove`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveRequest {
    pub members: Vec<String>,
    /// Sessions whose packets must pass, else it is refused.
    #[serde(default)]
    pub sessions: Vec<Session>,
    /// They need not.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/sets/{set}/members`, `POST /v1/sets/{set}/remove`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetMembers {
    pub set: String,
    /// Members it has now.
    pub entries: usize,
    pub max: usize,
    /// Members that were named and added, given another time, or removed.
    pub changed: usize,
    pub warnings: Vec<String>,
}

/// A policy that waits to be confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingConfirm {
    pub generation: u64,
    pub by: String,
    pub until: String,
    pub left_s: u64,
}

/// `POST /v1/policy/confirm`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmed {
    pub generation: u64,
    pub hash: String,
    pub warnings: Vec<String>,
}

/// A time in which packets are judged and counted, and none is dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub until: String,
    pub left_s: u64,
    pub by: String,
}

/// Body of `POST /v1/pause`; an empty body takes the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// `None`: a quarter of an hour.
    #[serde(default)]
    pub for_s: Option<u64>,
}

/// `POST /v1/pause`, `POST /v1/resume`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// The pause that holds now.
    pub paused: Option<Pause>,
    /// It holds now, or did until now.
    pub was_paused: bool,
    pub warnings: Vec<String>,
}

/// `PUT /v1/policy`, `POST /v1/reload`, `POST /v1/policy/rollback`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetPolicy {
    pub applied: bool,
    /// It was in force already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    pub generation: u64,
    pub hash: String,
    pub rules: usize,
    pub warnings: Vec<Diagnostic>,
    pub changes: Vec<Change>,
    /// When the policy before comes back, unless this one is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_until: Option<String>,
    /// It is judged beside the policy in force until then, and decides nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_until: Option<String>,
    /// Of a dry run: what it would do to the sources of this moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
}

/// Sources with a bucket that is not full, under a policy that is not in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    pub sources: usize,
    /// The next packet of these would be dropped.
    pub limited: usize,
    /// Of these, have room under the policy in force.
    pub newly: usize,
    /// Some of the newly limited.
    pub examples: Vec<String>,
}

/// `GET /v1/observation`, `DELETE /v1/observation`: a policy that is judged beside the one in force, or was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    pub hash: String,
    pub by: String,
    pub began: String,
    /// How long it has been, or was, judged.
    pub seconds: u64,
    /// When it ends, or ended.
    pub until: String,
    /// Why it ended; `null` while it is judged.
    pub ended: Option<String>,
    pub all: Compared,
    /// By the rule that decides in the policy observed; `""` for none. Rules without a packet are left out.
    pub rules: Vec<RuleCompared>,
    /// Whom it refuses most, at most ten: `dropped` is what it would have.
    pub sources: Vec<Source>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCompared {
    pub rule: String,
    #[serde(flatten)]
    pub compared: Compared,
}

/// Packets by what became of them under the policy in force, and would have under the one observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Passed, and would pass.
    pub still_passed: Amount,
    /// Passed, and would be dropped.
    pub newly_dropped: Amount,
    /// Was dropped, and would pass.
    pub newly_passed: Amount,
    /// Was dropped, and would be.
    pub still_dropped: Amount,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    pub packets: u64,
    pub bytes: u64,
}

impl Compared {
    pub fn add(&mut self, other: &Self) {
        let add = |sum: &mut Amount, more: Amount| {
            sum.packets += more.packets;
            sum.bytes += more.bytes;
        };
        add(&mut self.still_passed, other.still_passed);
        add(&mut self.newly_dropped, other.newly_dropped);
        add(&mut self.newly_passed, other.newly_passed);
        add(&mut self.still_dropped, other.still_dropped);
    }
}

/// `GET /v1/policy`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InForce {
    pub hash: String,
    pub generation: u64,
    pub loaded_at: String,
    pub applied_by: String,
    pub policy: String,
    pub files: std::collections::BTreeMap<String, String>,
}

/// `GET /v1/stats`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    pub stats: Vec<Stat>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Empty for packets judged by no rule.
    pub rule: String,
    pub reason: String,
    pub verdict: String,
    /// `ipv4`, `ipv6` or `other`.
    pub family: String,
    pub packets: u64,
    pub bytes: u64,
}

/// `GET /v1/sources`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sources {
    pub sources: Vec<Source>,
}

/// One source, its buckets merged over the limits it is charged to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The key the limiter acts on: an address, or a prefix.
    pub source: String,
    /// The rule of the bucket that dropped most, then of the emptiest.
    pub rule: String,
    /// The named limit of that bucket, if it has a name.
    pub limit: Option<String>,
    /// Packets admitted since its buckets were claimed.
    pub passed: u64,
    /// Packets dropped, sampled: exact to about 32 per CPU.
    pub dropped: u64,
    /// 0 all of the burst is left … 1 nothing is.
    pub fill: f64,
    pub penalised_until: Option<String>,
    /// Buckets merged here.
    pub buckets: usize,
}

/// A message `drop` of `GET /v1/events`: one packet that was dropped, or that an observing rule would have. A message
/// `decision` of `GET /v1/trace`: any packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// To the nanosecond.
    pub time: String,
    /// The interface it came in by.
    pub interface: String,
    /// `ipv4`, `ipv6` or `other`.
    pub family: String,
    /// As it was judged: IPv4 also when it came carried in IPv6. `null` for what is not IP.
    pub source: Option<IpAddr>,
    /// `tcp`, `tcp-syn`, `udp`, `sctp`, `icmp`, `icmpv6`, `fragment` or `other`.
    pub protocol: String,
    pub source_port: Option<u16>,
    pub destination_port: Option<u16>,
    pub icmp_type: Option<u16>,
    /// Bytes from the L3 header to the end of the frame.
    pub length: u32,
    /// The rule that decided, or that would have dropped it; empty for none.
    pub rule: String,
    /// `drop` or `would-drop`; of a trace `pass` or `drop`.
    pub verdict: String,
    pub reason: String,
    /// The observing rule that would have dropped it before, where `rule` is not that.
    pub observed: Option<Observed>,
    /// The packet itself, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<Frame>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    pub rule: String,
    pub reason: String,
}

/// The beginning of a frame, from its first Ethernet byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Bytes of the whole frame.
    pub length: u32,
    /// Its first bytes, at most 128, in base64.
    pub bytes: String,
}

/// A message `lost` of `GET /v1/events` and `GET /v1/trace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// What was not told of since the last such message, whatever was asked for.
    pub lost: u64,
}

/// `GET /v1/drops`: what was dropped in the last seconds, by what is in the packets, the most first. Estimated from
/// samples and exact counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drops {
    /// `port`, `source-port` or `size`.
    pub by: String,
    /// The seconds looked at.
    pub window_s: f64,
    /// Packets that were looked into.
    pub samples: u64,
    /// Packets dropped in that time; of an observing rule those it would have dropped.
    pub dropped: u64,
    pub drops: Vec<DropGroup>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DropGroup {
    /// `udp/53`, `icmp/8`, `fragment`; of sizes the bytes from the L3 header, `64-127`.
    pub key: String,
    /// The rule that dropped most of them; empty for none.
    pub rule: String,
    /// Estimated.
    pub packets: u64,
    pub bytes: u64,
    /// Of all that was dropped: 0…1.
    pub share: f64,
    /// Packets that were looked into.
    pub samples: u64,
}

/// `GET /v1/history`, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    pub history: Vec<HistoryEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub generation: u64,
    pub hash: String,
    pub loaded_at: String,
    pub applied_by: String,
    pub rules: usize,
    pub in_force: bool,
    /// The generation a rollback brought back.
    pub restores: Option<u64>,
    /// It was not confirmed in time, and fell back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
}

/// Body of `PUT /v1/interfaces/{name}`; an empty body takes the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachRequest {
    /// `None`: what limiterd.toml says.
    #[serde(default)]
    pub mode: Option<Mode>,
    #[serde(default)]
    pub replace: bool,
}

/// Answer to `PUT /v1/interfaces/{name}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    pub name: String,
    pub index: u32,
    pub mode: Mode,
    /// What the operator should know: a fall back to generic mode, a gap while the mode changed.
    pub warnings: Vec<String>,
}

/// Answer to `DELETE /v1/interfaces/{name}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    pub name: String,
    /// It was guarded until now.
    pub was_attached: bool,
    pub warnings: Vec<String>,
}

/// `GET /v1/rules`: the policy in force with every name resolved and every default filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    pub default: DefaultRule,
    /// In file order.
    pub rules: Vec<Rule>,
    /// Of the request tier, in file order.
    #[serde(default)]
    pub endpoints: Vec<super::request_api::EndpointRules>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultRule {
    pub verdict: String,
    pub malformed: String,
    /// Prefix lengths that make a source.
    pub source: SourceWidths,
    pub limits: Vec<Limit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceWidths {
    pub ipv4: u8,
    pub ipv6: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    pub name: String,
    /// `enforce` or `observe`.
    pub mode: String,
    /// Sets and prefixes; `null` is every source.
    pub from: Option<Vec<String>>,
    /// Services and terms; `null` is all traffic.
    pub to: Option<Vec<String>>,
    /// `pass`, `drop` or `limit`.
    pub action: String,
    pub limits: Vec<Limit>,
    /// How many packets of sources without a bucket it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newcomers: Option<String>,
    /// Interfaces packets come in by; left out: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Vec<String>>,
    /// Destinations; left out: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dest: Option<Vec<String>>,
    /// What sources over the rule's own limit come to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub penalty: Option<Penalty>,
    /// From when on it is skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    pub before_bans: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Penalty {
    /// So many drops…
    pub after: u64,
    /// …within so long…
    pub within_s: u64,
    /// …and the source is refused for so long.
    pub for_s: u64,
    /// Only packets of an established TCP connection count.
    pub proof: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub name: Option<String>,
    /// Scope: what has a bucket each.
    pub per: String,
    pub rate: String,
    /// In `unit`.
    pub burst: u64,
    /// `packets` or `bytes`.
    pub unit: String,
}

/// Body of `POST /v1/bans`: all of them, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BanRequest {
    pub bans: Vec<BanWish>,
    /// Ban also who is on the safelist. Only of bans made by hand.
    #[serde(default)]
    pub force: bool,
    /// What kind of hand makes them.
    #[serde(default)]
    pub by: BannedBy,
    /// The ssh sessions that must go on, unless `force`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<Session>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BanWish {
    /// An address or a prefix.
    pub source: String,
    /// How long; left out: ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
    /// Until it is lifted. Has to be written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forever: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answer to `POST /v1/bans`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Banned {
    /// Prefixes that are banned now.
    pub banned: usize,
    /// Those of them that were banned before, which took the new time.
    pub replaced: usize,
    /// The first hundred.
    pub bans: Vec<BanEntry>,
}

/// `GET /v1/bans`, by prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bans {
    pub bans: Vec<BanEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BanEntry {
    /// The key the ban acts on: an address, or a prefix.
    pub source: String,
    /// What was written for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// `null` is forever.
    pub expires_at: Option<String>,
    /// `hand`, `penalty` or `requests`.
    pub by: BannedBy,
    /// Who it was.
    pub made_by: String,
    pub reason: String,
}

/// Answer to `DELETE /v1/bans`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unbanned {
    /// The key that was banned.
    pub source: String,
    pub written: String,
    /// A wider ban that still covers it.
    pub covered_by: Option<String>,
    /// Buckets that were freed of a penalty.
    pub penalties: u64,
}

/// Answer to `POST /v1/reset`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// The key whose buckets are full again.
    pub source: String,
    pub written: String,
    /// Buckets that were not full.
    pub buckets: u64,
}

/// `GET /v1/why/{ip}`: what the next packet of a source would get, and why. Nothing is charged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// The key the limits act on.
    pub source: String,
    /// What was asked for.
    pub written: String,
    /// Sets that hold the source.
    pub sets: Vec<String>,
    /// The traffic that was judged, as a term: `tcp/443`.
    pub service: String,
    /// Services of the policy it belongs to.
    pub services: Vec<String>,
    /// The rule that decides; empty for `[default]`, or when none was asked.
    pub rule: String,
    /// `pass` or `drop`; a pause is not looked at.
    pub verdict: String,
    pub reason: String,
    /// An observing rule that would drop it.
    pub observed_by: Option<WhyObserved>,
    /// The limits of the rule.
    pub limits: Vec<WhyLimit>,
    pub ban: Option<BanEntry>,
    /// Nothing is dropped until then, whatever the verdict.
    pub paused_until: Option<String>,
    /// What the other kinds of traffic the policy knows would get, when none was asked for.
    pub traffic: Vec<WhyTraffic>,
    /// Commands that change it, the closest first.
    pub commands: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyObserved {
    pub rule: String,
    pub reason: String,
}

/// One limit, in one unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhyLimit {
    /// Its name under `[limits]`.
    pub name: Option<String>,
    pub per: String,
    pub rate: String,
    /// `packets` or `bytes`.
    pub unit: String,
    /// In `unit`.
    pub burst: u64,
    /// 0 all of the burst is left … 1 nothing is.
    pub fill: f64,
    /// What is left of the burst.
    pub tokens: u64,
    /// Until it is full again.
    pub full_in_s: f64,
    /// It is this one that refuses.
    pub refuses: bool,
    pub penalised_until: Option<String>,
    /// Packets this bucket admitted since it was claimed.
    pub passed: u64,
    /// Packets it dropped, sampled: exact to about 32 per CPU.
    pub dropped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyTraffic {
    pub service: String,
    pub rule: String,
    pub verdict: String,
    pub reason: String,
}
