//! What follows a decision: reports, what holds while the store is away, and what is made good afterwards.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::case::{Case, decided, denied, from_answer};
use super::engine::{Engine, Report, Request};
use super::outage::Admission;
use super::outcome::{Outcome, Reason, Via};
use super::policy::OnStoreFailure;
use super::store::{Decision, Mode, StoreError};

/// Settlements in a row after an outage, and the pause after them: a fleet that comes back does not fill the store's
/// queue with them.
const CHUNK: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);

impl Engine {
    /// Settles what [`Engine::decide`] charged once more is known: the cost after all, or the request succeeded and
    /// its endpoint charges failures only. Without an endpoint nothing happens.
    pub async fn report(&self, request: Request<'_>, report: Report) -> Result<(), StoreError> {
        let in_force = self.in_force();
        let Some(index) = in_force.find(&request) else { return Ok(()) };
        let (identity, known) = self.identify(&in_force.policy, &request).await;
        if denied(&identity, &known.standing) {
            return Ok(());
        }
        let mut case = self.case(&in_force, index, &identity, &request);
        let charged = case.cost;
        let (mode, cost) = match report {
            Report::Cost(actual) => {
                let actual = actual.min(case.endpoint.cost.most().max(charged));
                if actual < charged {
                    (Mode::Refund, charged - actual)
                } else {
                    (Mode::Settle, actual - charged)
                }
            }
            Report::Success if case.endpoint.charge_failures_only => (Mode::Refund, charged),
            Report::Success | Report::Failure => return Ok(()),
        };
        if cost == 0 {
            return Ok(());
        }
        case.cost = cost;
        let mut decision = self.decision(&case, mode);
        if mode == Mode::Refund {
            decision = self.give_back_locally(decision).await;
        }
        if decision.charges.is_empty() {
            return Ok(());
        }
        self.store.decide(&decision).await?;
        if mode == Mode::Refund {
            for bucket in &case.buckets {
                self.rejects.forget(bucket.print);
            }
        }
        Ok(())
    }

    /// Gives back what the store never charged. Returns what it did.
    async fn give_back_locally(&self, refund: Decision) -> Decision {
        if self.outage.is_empty() {
            return refund;
        }
        let (covered, remaining) = self.outage.give_back(&refund);
        if let (false, Some(instances)) = (covered.charges.is_empty(), self.instances.known()) {
            // Where it was not charged either, giving back changes nothing that is not used.
            let _ = self.local.decide(&share(covered, instances)).await;
        }
        remaining
    }

    /// The store gave no answer; `charged`: but may have made the decision.
    pub(super) async fn fail(&self, case: &Case<'_>, charged: bool) -> Outcome {
        let nothing_known = || case.outcomes(|_| None);
        let refuse = || decided(case.endpoint, false, Reason::Store, Via::Failure, nothing_known());
        let refundable = case.endpoint.charge_failures_only;
        match case.endpoint.on_store_failure.unwrap_or(OnStoreFailure::Deny) {
            OnStoreFailure::Allow => {
                if refundable {
                    let decision = self.decision(case, Mode::Consume);
                    self.outage.admitted(&decision, Admission { owed: false, refundable });
                }
                decided(case.endpoint, true, Reason::Store, Via::Failure, nothing_known())
            }
            OnStoreFailure::Deny => refuse(),
            OnStoreFailure::Local => match self.instances.known() {
                Some(instances) => {
                    let admission = Admission { owed: !charged, refundable };
                    self.decide_locally(case, instances, admission).await.unwrap_or_else(refuse)
                }
                // Nobody ever said how many share the limits: a share cannot be had.
                None => refuse(),
            },
        }
    }

    async fn decide_locally(
        &self,
        case: &Case<'_>,
        instances: NonZeroU32,
        admission: Admission,
    ) -> Option<Outcome> {
        let decision = self.decision(case, Mode::Consume);
        if decision.charges.is_empty() {
            return Some(decided(case.endpoint, true, Reason::Within, Via::Static, case.outcomes(|_| None)));
        }
        let answer = self.local.decide(&share(decision.clone(), instances)).await.ok()?;
        if answer.allowed {
            self.outage.admitted(&decision, admission);
        }
        Some(from_answer(case, &answer, Via::Local))
    }

    /// Buckets the store is owed something for, or was never charged for.
    pub fn open_accounts(&self) -> usize {
        self.outage.open_accounts()
    }

    /// Charges the store with what it is owed since an outage. Returns how many buckets were settled.
    pub async fn pay_back(&self) -> Result<usize, StoreError> {
        let mut settled = 0;
        while !self.outage.is_empty() {
            let mut due = self.outage.due(CHUNK).into_iter();
            let Some(first) = due.next() else { break };
            let mut next = Some(first);
            while let Some(settlement) = next {
                match self.store.decide(&settlement).await {
                    Ok(answer) => self.outage.settled(&settlement, Some(&answer)),
                    Err(error) => {
                        if error.may_have_charged() {
                            self.outage.settled(&settlement, None);
                        } else {
                            self.outage.still_owed(&settlement);
                        }
                        due.for_each(|settlement| self.outage.still_owed(&settlement));
                        return Err(error);
                    }
                }
                settled += 1;
                next = due.next();
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(settled)
    }
}

/// The same question about this host's part of every limit.
fn share(mut decision: Decision, instances: NonZeroU32) -> Decision {
    for charge in &mut decision.charges {
        charge.limit = Arc::new(charge.limit.share(instances));
    }
    decision
}
