//! What the API asks of bans: make, lift and list them, and what to do with them when the daemon starts, when a policy
//! changes and when time has passed.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use limiter_common::abi::{BAN_LIFELINE, Ban, FOREVER};

use super::bans::{By, KeptBans, Ledger, Record};
use super::core::Core;
use super::lifeline::{Lifeline, MAPPED, carriers, overlap};
use super::lockout;
use super::prepare;
use super::refusal::{Kind, Refusal};
use super::safelist::Safelist;
use super::sealed::format_time;
use super::sources::show_network;
use crate::cli::session::Session;
use crate::control::api::{BanEntry, BanRequest, BanWish, Banned, Bans, Reset, Unbanned};
use crate::datapath::{Datapath, Refill};
use crate::policy::{Policy, Widths};

/// How long a ban lasts when nothing is said.
const USUAL: Duration = Duration::from_secs(600);

/// Bans that an answer repeats.
const ANSWERED: usize = 100;

/// The longest that is not forever.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A source as it was written, and the key it means.
pub struct Named {
    pub written: String,
    pub key: IpNet,
}

/// From what somebody wrote to the prefix a ban acts on: a lone address is the source the policy would charge, IPv4
/// carried in IPv6 is IPv4.
pub fn key_of(written: &str, policy: Option<&Policy>) -> Result<IpNet, Refusal> {
    let bad = |why: String, hint: String| Refusal::new(Kind::BadRequest, why, hint);
    let widths = policy.map_or(Widths { ipv4: 32, ipv6: 64 }, |policy| policy.default.source);
    let carriers = policy.map_or_else(|| vec![MAPPED], carriers);
    let address = written.parse::<IpAddr>().ok();
    let net = match address {
        Some(address) => IpNet::from(address),
        None => written.parse::<IpNet>().map_err(|_| {
            bad(
                format!("`{written}` is not an address or a prefix"),
                "write `203.0.113.9`, `203.0.113.0/24` or `2001:db8::/48`".to_owned(),
            )
        })?,
    };
    if net != net.trunc() {
        let lone = net.addr();
        let hint = format!("write `{}`, or `{lone}` for the one source", net.trunc());
        return Err(bad(format!("`{written}` has bits set behind its length"), hint));
    }
    let net = match net {
        IpNet::V4(_) => net,
        IpNet::V6(inner) => match carriers.iter().find(|carrier| carrier.contains(&inner)) {
            Some(_) => {
                let low = u128::from(inner.network()) as u32;
                let carried = Ipv4Net::new(Ipv4Addr::from(low), inner.prefix_len() - 96);
                carried.map_or(net, IpNet::V4)
            }
            None if inner.contains(&MAPPED) => {
                let why = format!("`{written}` holds all IPv4 carried in IPv6");
                let hint = "write `2000::/3` for the IPv6 internet, `0.0.0.0/0` for IPv4";
                return Err(bad(why, hint.to_owned()));
            }
            None => net,
        },
    };
    if address.is_none() {
        return Ok(net);
    }
    let width = match net {
        IpNet::V4(_) => widths.ipv4,
        IpNet::V6(net) if net.network().is_unicast_link_local() => 128,
        IpNet::V6(_) => widths.ipv6,
    };
    Ok(IpNet::new(net.addr(), width).map_or(net, |net| net.trunc()))
}

impl Core {
    /// Takes up the bans there are: those in the kernel, or where it has none left, those of the state directory.
    pub fn take_up_bans(&mut self) -> Result<(), Refusal> {
        let Some(datapath) = &mut self.datapath else { return Ok(()) };
        let capacity = datapath.ban_capacity()?;
        self.bans.capacity = capacity as usize;
        if capacity != self.settings.bans {
            let notice = format!(
                "there is room for {capacity} bans, the settings say {}: maps keep their size until `limiterctl detach --direct --all` removes them",
                self.settings.bans
            );
            tracing::warn!(notice, "bans");
            self.notices.push(notice);
        }
        let kept = self.state.kept_bans();
        let held = datapath.bans()?;
        // Maps that never had a policy were made just now: those before them are gone, with the bans they held.
        let fresh = datapath.sealed().is_none();
        let now = datapath.now();
        let ended = self.bans.take_up(held, kept, fresh, now);
        datapath.lift_bans(&ended)?;
        if self.bans.len() > 0 {
            tracing::info!(bans = self.bans.len(), from_state = fresh, "bans taken up");
        }
        self.settle_bans()
    }

    /// Tells the datapath what it does not hold yet, marked for the policy in force.
    pub fn settle_bans(&mut self) -> Result<(), Refusal> {
        let lifeline = match self.in_force.as_ref().map(|in_force| &in_force.reading) {
            // The kernel may fall back to the policy before by itself, whose lifeline has to hold then.
            _ if self.state.by_hand().pending.is_some() => Lifeline::of_all(),
            // What is judged beside has a lifeline of its own.
            _ if self.observed.is_some() => Lifeline::of_all(),
            Some(Some(reading)) => Lifeline::of(&reading.policy),
            Some(None) => Lifeline::of_all(),
            None => Lifeline::default(),
        };
        let put = self.bans.settle(&lifeline);
        let Some(datapath) = &mut self.datapath else { return Ok(()) };
        if !put.is_empty()
            && let Err(error) = datapath.put_bans(&put)
        {
            self.bans.unsettle();
            return Err(error.into());
        }
        Ok(())
    }

    /// Marks every ban for classification, while the policy changes: a mark too many costs time, one too few a
    /// lifeline.
    pub fn mark_all_bans(&mut self) -> Result<(), Refusal> {
        let put = self.bans.settle(&Lifeline::of_all());
        match &mut self.datapath {
            Some(datapath) if !put.is_empty() => {
                datapath.put_bans(&put).inspect_err(|_| self.bans.unsettle()).map_err(Refusal::from)
            }
            _ => Ok(()),
        }
    }

    /// Lifts what has ended. The kernel judges by time itself; this makes room.
    pub fn sweep_bans(&mut self) {
        self.peers.look();
        let Some(datapath) = &mut self.datapath else { return };
        let ended = self.bans.sweep(datapath.now());
        if ended.is_empty() {
            return;
        }
        if let Err(error) = datapath.lift_bans(&ended) {
            tracing::warn!(%error, "bans that have ended were not lifted");
        }
        tracing::info!(ended = ended.len(), left = self.bans.len(), "bans ended");
    }

    /// Lifts what nobody's hand made against sources that are on the safelist by now.
    pub(super) fn lift_bans_of_the_safelist(&mut self) {
        if self.bans.len() == self.bans.count(By::Hand) {
            return;
        }
        self.peers.look();
        let safelist = Safelist::look(self.reading().map(|reading| &reading.policy), self.peers.iter());
        let lifted: Vec<IpNet> = self.bans.automatic_against(&safelist).into_iter().collect();
        let Some(datapath) = self.datapath.as_mut().filter(|_| !lifted.is_empty()) else { return };
        if let Err(error) = datapath.lift_bans(&lifted) {
            tracing::error!(%error, "automatic bans of sources on the safelist are not lifted");
            return;
        }
        lifted.iter().for_each(|prefix| drop(self.bans.remove(prefix)));
        tracing::warn!(bans = lifted.len(), "automatic bans lifted: their sources are on the safelist now");
        // Narrower ones need no longer answer for them.
        self.mend_bans();
        self.keep_bans();
    }

    /// Bans all of them or none.
    pub fn ban(&mut self, request: &BanRequest, made_by: &str) -> Result<Banned, Refusal> {
        let by = request.by;
        let now = self.tier()?.now();
        let policy = self.in_force.as_ref().and_then(|in_force| in_force.reading.as_ref()).map(|r| &r.policy);
        let mut wishes = Vec::with_capacity(request.bans.len());
        for wish in &request.bans {
            let key = key_of(&wish.source, policy)?;
            wishes.push((Named { written: wish.source.clone(), key }, lasts(wish)?, wish));
        }
        if wishes.is_empty() {
            return Err(Refusal::new(
                Kind::BadRequest,
                "there is nobody to ban",
                "name a source or a prefix",
            ));
        }
        if by != By::Hand || !request.force {
            let safelist = Safelist::look(policy, self.peers.iter());
            let mut hits = wishes.iter().filter_map(|(named, ..)| Some((named, safelist.hit(&named.key)?)));
            if let Some((named, who)) = hits.next() {
                return Err(safelisted(named, &who, hits.count()));
            }
        }
        if !request.force {
            self.keep_sessions(wishes.iter().map(|(named, ..)| named.key), &request.sessions)?;
        }
        let mut keys: Vec<IpNet> = wishes.iter().map(|(named, ..)| named.key).collect();
        keys.sort_unstable();
        keys.dedup();
        if let Some(capacity) = self.bans.lacks_room(keys.iter().copied(), by) {
            return Err(full(&self.bans, keys.len(), capacity, by));
        }
        let mut before = Vec::with_capacity(keys.len());
        let mut replaced = 0;
        let mut answer = Banned { banned: keys.len(), replaced: 0, bans: Vec::new() };
        for (named, lasts, wish) in wishes {
            let record = Record::new(lasts, now, by, made_by, wish.reason.as_deref().unwrap_or_default());
            let old = self.bans.insert(named.key, record);
            replaced += usize::from(old.is_some());
            before.push((named.key, old));
            if answer.bans.len() < ANSWERED
                && let Some(record) = self.bans.get(&named.key)
            {
                answer.bans.push(BanEntry { written: Some(named.written), ..entry(&named.key, record) });
            }
        }
        answer.replaced = replaced;
        if let Err(refusal) = self.settle_bans() {
            self.take_back(before);
            return Err(refusal);
        }
        self.keep_bans();
        let first = answer.bans.first().map(|ban| ban.source.clone()).unwrap_or_default();
        tracing::info!(
            by = made_by,
            kind = by.name(),
            bans = answer.banned,
            first,
            force = request.force,
            "banned"
        );
        Ok(answer)
    }

    /// Refuses bans that would cut one of these ssh sessions.
    fn keep_sessions(&self, keys: impl Iterator<Item = IpNet>, sessions: &[Session]) -> Result<(), Refusal> {
        let policy = self.reading().map(|reading| &reading.policy);
        let sources: Vec<IpNet> =
            sessions.iter().filter_map(|session| key_of(&session.client.to_string(), policy).ok()).collect();
        let hits: Vec<IpNet> = keys.filter(|key| sources.iter().any(|source| overlap(key, source))).collect();
        let (Some(in_force), false) = (&self.in_force, hits.is_empty()) else { return Ok(()) };
        let sealed = &in_force.sealed;
        let adjustments = self.state.adjustments();
        let read = prepare::read(&sealed.bundle, &sealed.slots, self.facts(), sealed.generation, adjustments);
        // A policy that is not understood has no lifeline that could be relied on.
        let Ok((compiled, _)) = read else { return Ok(()) };
        let ban = Ban { until: FOREVER, own_until: FOREVER, flags: BAN_LIFELINE, by: 0 };
        let bans: Vec<(IpNet, Ban)> = hits.into_iter().map(|key| (key, ban)).collect();
        lockout::check_with_bans(&compiled, &bans, sessions)
    }

    /// After a ban that the datapath did not take: what was before.
    fn take_back(&mut self, before: Vec<(IpNet, Option<Record>)>) {
        let mut lift = Vec::new();
        for (key, old) in before.into_iter().rev() {
            self.bans.remove(&key);
            match old {
                Some(old) => drop(self.bans.insert(key, old)),
                None => lift.push(key),
            }
        }
        if let Some(datapath) = &mut self.datapath {
            let _ = datapath.lift_bans(&lift);
        }
        self.bans.unsettle();
        let _ = self.settle_bans();
    }

    /// Lifts the ban of a source or a prefix, and says which wider one still covers it.
    pub fn unban(&mut self, source: &str, by: &str) -> Result<Unbanned, Refusal> {
        self.tier()?;
        let key = key_of(source, self.reading().map(|reading| &reading.policy))?;
        let covered_by = self.bans.wider(&key).map(|wider| show(&wider));
        let penalties = match &mut self.datapath {
            Some(datapath) => datapath.refill(&key, Refill::Penalties)?,
            None => 0,
        };
        if self.bans.remove(&key).is_none() && penalties == 0 {
            let name = show(&key);
            return Err(match covered_by {
                Some(wider) => Refusal::new(
                    Kind::Conflict,
                    format!("`{name}` has no ban of its own: that of `{wider}` covers it"),
                    format!("`limiterctl unban {wider}` lifts that, for everybody in it"),
                ),
                None => Refusal::new(
                    Kind::NotFound,
                    format!("`{name}` is not banned"),
                    "`limiterctl bans` lists the bans",
                ),
            });
        }
        if let Some(datapath) = &mut self.datapath {
            datapath.lift_bans(&[key])?;
        }
        // Narrower ones need no longer answer for it.
        self.settle_bans()?;
        self.keep_bans();
        let source_key = show(&key);
        tracing::info!(by, source = source_key, penalties, "unbanned");
        Ok(Unbanned { source: source_key, written: source.to_owned(), covered_by, penalties })
    }

    /// Fills the buckets of a source, or of all in a prefix.
    pub fn reset(&mut self, source: &str, by: &str) -> Result<Reset, Refusal> {
        self.tier()?;
        let key = key_of(source, self.reading().map(|reading| &reading.policy))?;
        let buckets = match &mut self.datapath {
            Some(datapath) => datapath.refill(&key, Refill::All)?,
            None => 0,
        };
        let key = show(&key);
        tracing::info!(by, source = key, buckets, "buckets filled");
        Ok(Reset { source: key, written: source.to_owned(), buckets })
    }

    /// All bans in force, by prefix.
    pub fn list_bans(&self) -> Bans {
        Bans { bans: self.bans_in_force().map(|(prefix, record)| entry(prefix, record)).collect() }
    }

    pub fn count_bans(&self) -> usize {
        self.bans_in_force().count()
    }

    fn bans_in_force(&self) -> impl Iterator<Item = (&IpNet, &Record)> {
        let now = self.datapath.as_ref().map_or(0, |datapath| datapath.now());
        self.bans.iter().filter(move |(_, record)| !record.has_ended(now))
    }

    fn keep_bans(&mut self) {
        let kept: KeptBans = self.bans.to_keep();
        self.state.keep_bans(&kept);
    }

    fn tier(&self) -> Result<&dyn Datapath, Refusal> {
        self.datapath.as_deref().ok_or_else(|| {
            let hint = "name interfaces in limiterd.toml, or leave `interfaces` out";
            Refusal::new(Kind::Conflict, "this host has no packet tier", hint)
        })
    }
}

fn lasts(wish: &BanWish) -> Result<Option<Duration>, Refusal> {
    let bad = |why: &str| {
        let error = format!("the ban of `{}` {why}", wish.source);
        Refusal::new(Kind::BadRequest, error, "write `10m`, `1h`, `7d` or `forever`")
    };
    match (wish.forever, wish.for_s) {
        (true, None) => Ok(None),
        (true, Some(_)) => Err(bad("cannot last forever and some time")),
        (false, Some(0)) => Err(bad("would end at once")),
        (false, Some(seconds)) if seconds > LONGEST.as_secs() => Err(bad("would last longer than ten years")),
        (false, Some(seconds)) => Ok(Some(Duration::from_secs(seconds))),
        (false, None) => Ok(Some(USUAL)),
    }
}

pub(super) fn entry(prefix: &IpNet, record: &Record) -> BanEntry {
    BanEntry {
        source: show(prefix),
        written: None,
        expires_at: record.expires_at.map(format_time),
        by: record.by,
        made_by: record.made_by.clone(),
        reason: record.reason.clone(),
    }
}

/// A ban's key as it is shown.
pub(super) fn show(prefix: &IpNet) -> String {
    show_network(prefix.addr(), prefix.prefix_len())
}

fn safelisted(named: &Named, who: &str, more: usize) -> Refusal {
    let mut error = format!("`{}` is not banned: it would hit {who}", named.written);
    if more > 0 {
        let _ = write!(error, "; {more} more of the list hit such sources too");
    }
    Refusal::new(Kind::NeedsForce, error, "if that is meant, `--force` bans it all the same")
}

fn full(ledger: &Ledger, wanted: usize, capacity: usize, by: By) -> Refusal {
    let room = match by {
        By::Hand => format!("there is room for {capacity} bans, {} are in force", ledger.len()),
        _ => format!(
            "there is room for {capacity} automatic bans, the rest is kept for those made by hand, and {} are in force",
            ledger.len() - ledger.count(By::Hand)
        ),
    };
    let more = if wanted == 1 { "one more does".to_owned() } else { format!("{wanted} more do") };
    Refusal::new(
        Kind::Conflict,
        format!("{room}: {more} not fit"),
        "lift some with `limiterctl unban`, ban a wider prefix instead, or raise `bans` in limiterd.toml",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Bundle;

    #[test]
    fn a_source_is_the_key_it_is_charged_by() {
        let text = "version = 1\n[default]\nipv4-in-ipv6 = [\"64:ff9b::/96\"]\n";
        let policy = crate::policy::check(&Bundle::from_text("policy.toml", text)).unwrap().policy;
        let key = |written: &str| key_of(written, Some(&policy)).map(|key| key.to_string());
        for (written, expected) in [
            ("203.0.113.9", "203.0.113.9/32"),
            ("203.0.113.0/24", "203.0.113.0/24"),
            ("2001:db8::1", "2001:db8::/64"),
            ("2001:db8::1/128", "2001:db8::1/128"),
            ("2001:db8::/48", "2001:db8::/48"),
            ("fe80::1", "fe80::1/128"),
            ("::ffff:203.0.113.9", "203.0.113.9/32"),
            ("64:ff9b::203.0.113.9", "203.0.113.9/32"),
            ("64:ff9b::203.0.113.0/120", "203.0.113.0/24"),
            ("64:ff9b::/32", "64:ff9b::/32"),
        ] {
            assert_eq!(key(written).unwrap(), expected, "{written}");
        }
        for (written, error) in [
            ("203.0.113.9/24", "`203.0.113.9/24` has bits set behind its length"),
            ("office", "`office` is not an address or a prefix"),
            ("::/0", "`::/0` holds all IPv4 carried in IPv6"),
        ] {
            assert_eq!(key_of(written, Some(&policy)).unwrap_err().failure.error, error);
        }
    }
}
