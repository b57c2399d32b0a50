//! A policy that waits to be confirmed.
//!
//! The kernel program itself goes back to the policy before when the time is up. What is here follows it: the
//! policy in force, the history, the text sealed beside the policy. What waits is in the state directory, so that
//! a daemon that starts knows what happened while there was none.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::core::Core;
use super::prepare::{self, InForce};
use super::refusal::{Kind, Refusal};
use super::sealed::{Sealed, format_time, rfc3339};
use crate::control::api;
use crate::requests::publish::Occasion;

/// Longest wait.
pub const LONGEST: Duration = Duration::from_secs(86_400);

/// What waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    pub generation: u64,
    /// By the wall clock, for people; the kernel's decides.
    #[serde(with = "rfc3339")]
    pub until: SystemTime,
    pub by: String,
}

impl Core {
    /// The policy in force waits to be confirmed.
    pub fn pending(&self) -> Option<api::PendingConfirm> {
        let pending = self.state.by_hand().pending.as_ref()?;
        let left = self.time_left(pending)?;
        Some(api::PendingConfirm {
            generation: pending.generation,
            by: pending.by.clone(),
            until: format_time(pending.until),
            left_s: left.as_secs(),
        })
    }

    fn time_left(&self, pending: &Pending) -> Option<Duration> {
        match &self.datapath {
            Some(datapath) => datapath.unconfirmed(),
            None => pending.until.duration_since(SystemTime::now()).ok(),
        }
    }

    /// While a policy waits, no other is put in force: what would come back then?
    pub(super) fn refuse_while_pending(&self) -> Result<(), Refusal> {
        match &self.state.by_hand().pending {
            None => Ok(()),
            Some(pending) => Err(Refusal::new(
                Kind::Conflict,
                format!(
                    "generation {}, set by {}, waits to be confirmed until {}",
                    pending.generation,
                    pending.by,
                    format_time(pending.until)
                ),
                "`limiterctl confirm` keeps it, `limiterctl rollback-policy` goes back at once",
            )),
        }
    }

    /// Keeps the policy that waits.
    pub(super) fn confirm(&mut self, by: &str) -> Result<api::Confirmed, Refusal> {
        let Some(pending) = self.state.by_hand().pending.clone() else {
            return Err(Refusal::new(
                Kind::NotFound,
                "no policy waits to be confirmed",
                "`limiterctl status` shows the policy in force",
            ));
        };
        let in_time = match &mut self.datapath {
            Some(datapath) => datapath.confirm(),
            None => pending.until > SystemTime::now(),
        };
        if !in_time {
            self.fall_back("not confirmed in time");
            return Err(Refusal::new(
                Kind::Conflict,
                format!(
                    "too late: generation {} fell back at {}",
                    pending.generation,
                    format_time(pending.until)
                ),
                "`limiterctl set-policy FILE --confirm 60s` applies it again",
            ));
        }
        self.state.change_by_hand(|by_hand| by_hand.pending = None);
        self.before_pending = None;
        self.mend_bans();
        tracing::info!(generation = pending.generation, by, "policy confirmed");
        let mut warnings = Vec::new();
        self.warn_of_state(&mut warnings);
        let hash = self.in_force.as_ref().map_or_else(String::new, |in_force| in_force.sealed.hash.clone());
        Ok(api::Confirmed { generation: pending.generation, hash, warnings })
    }

    /// Whether the time of what waits is up.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.state.by_hand().pending.as_ref().is_some_and(|pending| self.time_left(pending).is_none())
    }

    /// The policy before the one that waits is in force again: takes note of it, and makes it so where the kernel
    /// has not done it already.
    pub(super) fn fall_back(&mut self, why: &str) {
        let Some(pending) = self.state.by_hand().pending.clone() else { return };
        if let Some(datapath) = &mut self.datapath {
            datapath.fall_back();
        }
        let candidate = self.in_force.take().filter(|held| held.sealed.generation == pending.generation);
        let kernel = self.datapath.as_ref().and_then(|datapath| datapath.sealed());
        let before = match self.before_pending.take() {
            Some(before) => Some(Arc::clone(&before.sealed)),
            None => kernel.and_then(|text| serde_json::from_slice(&text).ok()).map(Arc::new),
        };
        self.state.mark_unconfirmed(pending.generation);
        let before = before.or_else(|| self.state.latest());
        self.reinstate(before, candidate.map(|candidate| Arc::clone(&candidate.sealed)), &pending, why);
    }

    /// At a start, once the policy the kernel enforces is known: what became of one that waited.
    pub(super) fn take_up_pending(&mut self) {
        let left = self.datapath.as_ref().and_then(|datapath| datapath.unconfirmed());
        let enforced = self.in_force.as_ref().map(|in_force| Arc::clone(&in_force.sealed));
        match (self.state.by_hand().pending.clone(), left) {
            (None, None) => {}
            (None, Some(left)) => {
                // The state directory was lost.
                let Some(sealed) = enforced else { return };
                let (generation, by) = (sealed.generation, sealed.applied_by.clone());
                let pending = Pending { generation, until: SystemTime::now() + left, by };
                self.state.change_by_hand(|by_hand| by_hand.pending = Some(pending));
                // The lifeline of the policy before has to hold when that comes back.
                self.mend_bans();
            }
            (Some(pending), left)
                if enforced.as_ref().map(|held| held.generation) == Some(pending.generation) =>
            {
                match left {
                    Some(left) => tracing::warn!(
                        generation = pending.generation,
                        by = pending.by,
                        left_s = left.as_secs(),
                        "the policy still waits to be confirmed"
                    ),
                    // Confirmed a moment before the last daemon ended.
                    None => self.state.change_by_hand(|by_hand| by_hand.pending = None),
                }
            }
            (Some(pending), _) => {
                let known = self.state.entries().any(|entry| entry.generation == pending.generation);
                let candidate = if known { self.state.load(pending.generation) } else { None };
                self.state.mark_unconfirmed(pending.generation);
                let before = enforced.or_else(|| self.state.latest());
                self.reinstate(before, candidate, &pending, "not confirmed in time");
            }
        }
    }

    /// Puts `before` in force as it was, but for what must not be forgotten of the candidate: the places of its
    /// counters and meters, and that the policy file was read.
    fn reinstate(
        &mut self,
        before: Option<Arc<Sealed>>,
        candidate: Option<Arc<Sealed>>,
        pending: &Pending,
        why: &str,
    ) {
        self.state.change_by_hand(|by_hand| by_hand.pending = None);
        self.end_observation("the policy in force fell back");
        tracing::warn!(
            generation = pending.generation,
            by = pending.by,
            back_to = before.as_ref().map(|before| before.generation),
            why,
            "the policy fell back"
        );
        self.fell_back = Some(format!(
            "generation {}, set by {}, was {why}: the policy before it is in force",
            pending.generation, pending.by
        ));
        let Some(before) = before else { return };
        let mut sealed = match candidate {
            Some(candidate) => Arc::new(Sealed {
                slots: candidate.slots.clone(),
                file_hash: candidate.file_hash.clone(),
                ..Sealed::clone(&before)
            }),
            None => before,
        };
        self.state.keep(&sealed);
        let read = prepare::read(
            &sealed.bundle,
            &sealed.slots,
            self.facts(),
            sealed.generation,
            self.state.adjustments(),
        );
        let reading = match read {
            Ok((compiled, reading)) => {
                let adjusted = reading.fingerprint.clone();
                sealed = Arc::new(Sealed { adjusted, ..Sealed::clone(&sealed) });
                // The kernel judges by it already; this seals what was learnt beside it.
                if let Err(refusal) = self.publish(prepare::image(&compiled), &sealed, None) {
                    tracing::error!(reason = refusal.line(), "the policy that came back was not sealed anew");
                }
                if let Some(requests) = &self.requests {
                    requests.apply(&reading.policy.requests, &sealed.hash, Occasion::Applied);
                }
                Some(reading)
            }
            Err(diagnostics) => {
                let refusal = Refusal::bad_policy(&sealed.bundle.policy, diagnostics);
                tracing::error!(
                    reason = refusal.line(),
                    "this version cannot read the policy that came back"
                );
                None
            }
        };
        self.in_force = Some(Arc::new(InForce { sealed, reading }));
        self.mend_bans();
    }
}
