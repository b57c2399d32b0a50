//! What the daemon holds: the datapath, the policy in force, the state directory, and who guards what.
//!
//! The policy in force lives in the kernel; this is the hand on it. It changes only here, whole or not at all.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use limiter_common::abi::{HAS_PENALTIES, PolicyTables};

use super::audit::Audit;
use super::bans::Ledger;
use super::confirm::Pending;
use super::guards::Guards;
use super::observing::Observed;
use super::prepare::{self, Basis, Demands, InForce, Prepared, Reading};
use super::refusal::{Kind, Refusal};
use super::safelist::{Peers, Safelist};
use super::sealed::{Sealed, format_time};
use super::settings::Settings;
use super::state::StateDirectory;
use crate::control::api::{Observation, SetPolicy};
use crate::datapath::{Datapath, Facts, Image};
use crate::policy::{Bundle, Diagnostic, Policy, Rule, Severity, Widths};
use crate::requests::publish::Occasion;
use crate::requests::tier::Tier;

/// Without a policy everything passes, and is counted.
const BUILT_IN: &str = "version = 1\n";

/// Who applied it, then.
pub const BUILT_IN_BY: &str = "built in";

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// The file of the settings: at start, by `reload`, by SIGHUP, by a change of the file.
    File { by: String },
    /// Sent over the socket. `is_file`: it is what the policy file holds, hence as good as read from it.
    Sent { by: String, is_file: bool },
    /// Brought back from the state directory.
    Rollback { by: String, generation: u64 },
}

pub struct Core {
    pub settings: Arc<Settings>,
    /// `None` without a packet tier.
    pub datapath: Option<Box<dyn Datapath>>,
    pub state: StateDirectory,
    pub guards: Guards,
    pub bans: Ledger,
    /// Whom the daemon connects to: nobody bans them by accident.
    pub peers: Peers,
    pub in_force: Option<Arc<InForce>>,
    /// Generation of the policy packets are judged by: that of `in_force` once the start is over.
    enforced: Option<u64>,
    /// Why the policy file was not applied when it last should have been.
    pub file_refused: Option<Refusal>,
    pub last_reload: Option<SystemTime>,
    /// What comes back if the policy in force is not confirmed; `None` also when that is not known yet.
    pub(super) before_pending: Option<Arc<InForce>>,
    /// Said until the next policy: one was not confirmed.
    pub(super) fell_back: Option<String>,
    pub(super) observed: Option<Observed>,
    /// What the last one found, once it has ended.
    pub(super) last_observation: Option<Observation>,
    pub audit: Audit,
    /// Other things the operator should know.
    pub notices: Vec<String>,
    /// `None` without a request tier.
    pub requests: Option<Arc<Tier>>,
}

impl Core {
    /// Takes up what is in force (in the kernel, else in the state directory), then applies the file if its
    /// content is not what was last read from it. Guards nothing yet.
    pub fn start(
        settings: Arc<Settings>,
        datapath: Option<Box<dyn Datapath>>,
        file: Result<Bundle, Vec<Diagnostic>>,
    ) -> Result<Self, Refusal> {
        let state = StateDirectory::open(&settings.state);
        let mut core = Self {
            settings,
            datapath,
            state,
            guards: Guards::default(),
            bans: Ledger::default(),
            peers: Peers::default(),
            in_force: None,
            enforced: None,
            file_refused: None,
            last_reload: None,
            before_pending: None,
            fell_back: None,
            observed: None,
            last_observation: None,
            audit: Audit::default(),
            notices: Vec::new(),
            requests: None,
        };
        core.note_table_size();
        core.adopt();
        // Before the first policy is published, so that nothing is judged without them: also before that which comes
        // back because another was not confirmed.
        core.take_up_bans()?;
        core.take_up_pending();
        let remembered = if core.enforced.is_none() { core.state.latest() } else { None };
        let last_read = core
            .in_force
            .as_ref()
            .map(|in_force| &in_force.sealed)
            .or(remembered.as_ref())
            .and_then(|sealed| sealed.file_hash.clone());
        let changed = match &file {
            Ok(bundle) => last_read != Some(bundle.hash()),
            Err(_) => true,
        };
        if changed {
            // A file is applied over what it would replace, so that a shrunk set is noticed after a reboot too.
            core.remember(remembered.as_ref());
            core.apply_file(file, "file at start");
        }
        if core.enforced.is_none() {
            core.restore(remembered)?;
        }
        core.take_up_adjustments();
        core.take_up_pause();
        Ok(core)
    }

    /// What a policy is prepared against now.
    pub fn basis(&self) -> Basis {
        let known = self.state.entries().map(|entry| entry.generation).max().unwrap_or(0);
        let current = self.in_force.as_ref().map_or(0, |in_force| in_force.sealed.generation);
        Basis {
            facts: self.facts(),
            generation: known.max(current) + 1,
            in_force: self.in_force.clone(),
            adjustments: Arc::clone(self.state.adjustments()),
            shares_store: self.settings.shares_store(),
        }
    }

    /// Puts a prepared policy in force. `basis` is what it was prepared against: nothing else may have been
    /// applied in between.
    pub fn commit(
        &mut self,
        prepared: Prepared,
        basis: &Basis,
        origin: &Origin,
        confirm_within: Option<Duration>,
    ) -> Result<SetPolicy, Refusal> {
        let Prepared { bundle, hash, reading, compiled, changes } = prepared;
        let before = self.in_force.as_ref().map(|in_force| Arc::clone(&in_force.sealed));
        let mut answer = SetPolicy {
            applied: false,
            unchanged: false,
            generation: basis.generation,
            hash: hash.clone(),
            rules: reading.policy.rules.len(),
            warnings: reading.warnings.clone(),
            changes,
            confirm_until: None,
            observed_until: None,
            live: None,
        };
        if let Some(before) = &before
            && before.hash == hash
            && self.enforced == Some(before.generation)
        {
            answer.unchanged = true;
            answer.generation = before.generation;
            return Ok(answer);
        }
        let (applied_by, restores) = match origin {
            Origin::File { by } | Origin::Sent { by, .. } => (by.clone(), None),
            Origin::Rollback { by, generation } => (by.clone(), Some(*generation)),
        };
        let file_hash = match origin {
            Origin::File { .. } | Origin::Sent { is_file: true, .. } => Some(hash.clone()),
            _ => before.as_ref().and_then(|before| before.file_hash.clone()),
        };
        let sealed = Arc::new(Sealed {
            bundle,
            hash,
            generation: basis.generation,
            loaded_at: SystemTime::now(),
            applied_by,
            file_hash,
            restores,
            unconfirmed: false,
            adjusted: reading.fingerprint.clone(),
            slots: compiled.slots.clone(),
            rules: reading.policy.rules.len(),
        });
        if let Some(time) = confirm_within {
            // On disk first: a crash in between leaves a wait for what is not in force, which the next start sees.
            let until = SystemTime::now() + time;
            let by = sealed.applied_by.clone();
            let pending = Pending { generation: sealed.generation, until, by };
            self.state.change_by_hand(|by_hand| by_hand.pending = Some(pending));
            answer.confirm_until = Some(format_time(until));
        }
        if let Err(refusal) = self.publish(prepare::image(&compiled), &sealed, confirm_within) {
            self.state.change_by_hand(|by_hand| by_hand.pending = None);
            return Err(refusal);
        }
        self.end_observation("another policy was put in force");
        self.before_pending = confirm_within.and(self.in_force.clone());
        self.fell_back = None;
        self.state.keep(&sealed);
        tracing::info!(
            generation = sealed.generation,
            hash = sealed.hash,
            by = sealed.applied_by,
            rules = sealed.rules,
            confirm_until = answer.confirm_until,
            changes = answer.changes.len(),
            "policy applied"
        );
        if let Some(requests) = &self.requests {
            requests.apply(&reading.policy.requests, &sealed.hash, Occasion::Applied);
        }
        answer.warnings.extend(self.absent_interfaces(&reading.policy));
        self.in_force = Some(Arc::new(InForce { sealed, reading: Some(reading) }));
        self.mend_bans();
        self.lift_bans_of_the_safelist();
        answer.applied = true;
        Ok(answer)
    }

    /// The policy file was not applied: what is in force stays.
    pub fn refuse_file(&mut self, refusal: Refusal) {
        for diagnostic in &refusal.failure.diagnostics {
            tracing::error!(%diagnostic, "policy file");
        }
        tracing::error!(reason = refusal.line(), "policy file not applied, the policy in force stays");
        self.file_refused = Some(refusal);
        self.last_reload = Some(SystemTime::now());
    }

    /// The policy file is what is in force.
    pub fn accept_file(&mut self) {
        self.file_refused = None;
        self.last_reload = Some(SystemTime::now());
    }

    /// Takes up the request tier, which from now on has the policy in force.
    pub fn take_requests(&mut self, tier: Arc<Tier>) {
        if let Some(in_force) = &self.in_force
            && let Some(reading) = &in_force.reading
        {
            tier.apply(&reading.policy.requests, &in_force.sealed.hash, Occasion::Started);
        }
        self.requests = Some(tier);
    }

    pub fn reading(&self) -> Option<&Reading> {
        self.in_force.as_ref()?.reading.as_ref()
    }

    pub(super) fn facts(&self) -> Facts {
        // Without a packet tier nothing is published; the numbers only serve to check.
        self.datapath
            .as_ref()
            .map_or(Facts { tick_ns: 4_000_000, buckets: self.settings.buckets }, |datapath| datapath.facts())
    }

    /// See [`Datapath::tidy`].
    pub fn tidy(&mut self) {
        if let Some(datapath) = &mut self.datapath {
            datapath.tidy();
        }
    }

    fn note_table_size(&mut self) {
        let wanted = self.settings.buckets.next_power_of_two();
        if let Some(datapath) = &self.datapath
            && datapath.facts().buckets != wanted
        {
            let has = datapath.facts().buckets;
            let notice = format!(
                "the table has {has} buckets, the settings say {}: a table keeps its size until `limiterctl detach --direct --all` removes it",
                self.settings.buckets
            );
            tracing::warn!(notice, "table");
            self.notices.push(notice);
        }
    }

    /// Takes up the policy the kernel enforces.
    fn adopt(&mut self) {
        let Some(text) = self.datapath.as_ref().and_then(|datapath| datapath.sealed()) else { return };
        let sealed: Sealed = match serde_json::from_slice(&text) {
            Ok(sealed) => sealed,
            Err(error) => {
                tracing::error!(%error, "the kernel enforces a policy whose text cannot be read");
                return;
            }
        };
        let sealed = Arc::new(sealed);
        let reading = match prepare::read(
            &sealed.bundle,
            &sealed.slots,
            self.facts(),
            sealed.generation,
            self.state.adjustments(),
        ) {
            Ok((_, reading)) => Some(reading),
            Err(diagnostics) => {
                tracing::error!(
                    reason = Refusal::bad_policy(&sealed.bundle.policy, diagnostics).line(),
                    "this version cannot read the policy the kernel enforces"
                );
                None
            }
        };
        if !self.state.entries().any(|entry| entry.generation == sealed.generation) {
            self.state.keep(&sealed);
        }
        tracing::info!(
            generation = sealed.generation,
            hash = sealed.hash,
            by = sealed.applied_by,
            "policy adopted from the kernel"
        );
        self.enforced = Some(sealed.generation);
        self.in_force = Some(Arc::new(InForce { sealed, reading }));
    }

    /// Makes the last policy known the one a file is compared with, though the kernel does not enforce it.
    fn remember(&mut self, remembered: Option<&Arc<Sealed>>) {
        if let Some(sealed) = remembered
            && let Ok((_, reading)) = prepare::read(
                &sealed.bundle,
                &sealed.slots,
                self.facts(),
                sealed.generation,
                self.state.adjustments(),
            )
        {
            self.in_force = Some(Arc::new(InForce { sealed: Arc::clone(sealed), reading: Some(reading) }));
        }
    }

    fn apply_file(&mut self, file: Result<Bundle, Vec<Diagnostic>>, by: &str) {
        let name = self.settings.policy.display().to_string();
        let basis = self.basis();
        let result = file
            .map_err(|diagnostics| Refusal::bad_policy(&name, diagnostics))
            .and_then(|bundle| prepare::prepare(bundle, &basis, Demands::default()))
            .and_then(|prepared| self.commit(prepared, &basis, &Origin::File { by: by.to_owned() }, None));
        match result {
            Ok(_) => self.accept_file(),
            Err(refusal) => self.refuse_file(refusal),
        }
    }

    /// Enforces the last policy known, else the built-in one.
    fn restore(&mut self, remembered: Option<Arc<Sealed>>) -> Result<(), Refusal> {
        if let Some(sealed) = remembered {
            match prepare::read(
                &sealed.bundle,
                &sealed.slots,
                self.facts(),
                sealed.generation,
                self.state.adjustments(),
            ) {
                Ok((compiled, reading)) => {
                    self.publish(prepare::image(&compiled), &sealed, None)?;
                    tracing::info!(
                        generation = sealed.generation,
                        hash = sealed.hash,
                        "policy restored from the state directory"
                    );
                    self.in_force = Some(Arc::new(InForce { sealed, reading: Some(reading) }));
                    self.mend_bans();
                    return Ok(());
                }
                Err(diagnostics) => tracing::error!(
                    reason = Refusal::bad_policy(&sealed.bundle.policy, diagnostics).line(),
                    "the last policy cannot be restored"
                ),
            }
        }
        self.in_force = None;
        tracing::error!("no policy could be applied: everything passes");
        let bundle = Bundle::from_text("policy.toml", BUILT_IN);
        let basis = self.basis();
        let prepared = prepare::prepare(bundle, &basis, Demands::default())?;
        self.commit(prepared, &basis, &Origin::Sent { by: BUILT_IN_BY.to_owned(), is_file: false }, None)?;
        Ok(())
    }

    /// Warnings of rules that name an interface there is not: it may come later.
    fn absent_interfaces(&self, policy: &Policy) -> Vec<Diagnostic> {
        let absent = self.guards.absent();
        let names =
            |rule: &Rule| rule.interfaces.iter().flatten().find(|name| absent.contains(name)).cloned();
        let warnings = policy.rules.iter().filter_map(|rule| {
            let name = names(rule)?;
            Some(Diagnostic {
                severity: Severity::Warning,
                file: rule.place.file.to_string(),
                line: rule.place.line,
                column: rule.place.column,
                message: format!("rule `{}` names `{name}`, and there is no such interface now", rule.name),
                help: Some("the rule means it as soon as it appears".to_owned()),
            })
        });
        warnings.collect()
    }

    /// Tells the kernel whom no penalty of this policy may hit.
    fn keep_safe(&mut self, tables: &PolicyTables) {
        if tables.header.flags & HAS_PENALTIES == 0 {
            return;
        }
        let meter = &tables.meters[usize::from(tables.penalties[1].meter)];
        let widths = Widths { ipv4: meter.width_v4, ipv6: meter.width_v6 };
        if let Some(datapath) = &mut self.datapath {
            keep_safe_as_wide(datapath.as_mut(), &mut self.peers, widths);
        }
    }

    /// The same, as addresses and routes are now.
    pub(super) fn follow_safelist(&mut self) {
        let policy = self.reading().map(|reading| &reading.policy);
        if let Some(policy) = policy.filter(|policy| policy.rules.iter().any(|rule| rule.penalty.is_some())) {
            let widths = policy.default.source;
            if let Some(datapath) = &mut self.datapath {
                keep_safe_as_wide(datapath.as_mut(), &mut self.peers, widths);
            }
        }
        self.keep_shadow_safe();
        self.lift_bans_of_the_safelist();
    }

    /// Marks the bans for the policy that is in force now.
    pub(super) fn mend_bans(&mut self) {
        if let Err(refusal) = self.settle_bans() {
            tracing::error!(reason = refusal.line(), "bans are not marked for the lifeline of the policy");
        }
    }

    pub(super) fn publish(
        &mut self,
        image: Image<'_>,
        sealed: &Sealed,
        confirm_within: Option<Duration>,
    ) -> Result<(), Refusal> {
        self.mark_all_bans()?;
        self.keep_safe(image.tables);
        if let Some(datapath) = &mut self.datapath {
            let text = serde_json::to_vec(sealed).map_err(|error| {
                let error = format!("cannot write the policy down: {error}");
                Refusal::new(Kind::Failed, error, "this is a defect of limiterd")
            })?;
            datapath.publish(image, &text, confirm_within)?;
        }
        self.follow_interfaces();
        self.enforced = Some(sealed.generation);
        Ok(())
    }
}

/// Tells a datapath whom no penalty may hit. `peers` learns whom the daemon is connected to now.
pub(super) fn keep_safe_as_wide(datapath: &mut dyn Datapath, peers: &mut Peers, widths: Widths) {
    peers.look();
    let safelist = Safelist::look(None, peers.iter());
    if let Err(error) = datapath.keep_safe(&safelist.sources(widths)) {
        tracing::error!(%error, "the safelist of penalties is not what it should be");
    }
}
