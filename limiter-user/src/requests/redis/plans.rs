//! Plan records in Redis, and the list of what changed.
//!
//! A record is a string at `<ns>:meta:{plans}:<hash>`; the last thousand changes are a sorted set of hashes by
//! version, so that a host learns which entries of its cache are out of date without reading all.

use std::sync::LazyLock;

use async_trait::async_trait;

use super::RedisStore;
use super::script::Script;
use crate::requests::key::KeyHash;
use crate::requests::store::{PlanChanges, PlanRecord, PlanStore, StoreError};

static SET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/set_plan.lua").into()));
static CHANGES: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/plan_changes.lua").into()));

/// Plan names are preceded by a letter, so that none can be taken for another record.
const PLAN: char = 'p';
const REVOKED: &str = "revoked";

impl RedisStore {
    fn plan_key(&self, key: &KeyHash) -> String {
        format!("{}:meta:{{plans}}:{key}", self.namespace)
    }

    fn plan_changes_key(&self) -> String {
        format!("{}:meta:{{plans}}", self.namespace)
    }
}

#[async_trait]
impl PlanStore for RedisStore {
    async fn plan(&self, key: &KeyHash) -> Result<Option<PlanRecord>, StoreError> {
        // A request waits for this: it has a decision's deadline.
        let text: Option<String> =
            self.command_within(redis::cmd("GET").arg(self.plan_key(key)), self.deadline).await?;
        let record = text.map(|text| match (text.strip_prefix(PLAN), text.as_str()) {
            (_, REVOKED) => Ok(PlanRecord::Revoked),
            (Some(plan), _) => Ok(PlanRecord::Plan(plan.to_owned())),
            _ => Err(StoreError::Malformed(format!("the plan record of {key}"))),
        });
        record.transpose()
    }

    async fn set_plan(&self, key: &KeyHash, record: Option<&PlanRecord>) -> Result<(), StoreError> {
        let text = match record {
            Some(PlanRecord::Plan(plan)) => format!("{PLAN}{plan}"),
            Some(PlanRecord::Revoked) => REVOKED.to_owned(),
            None => String::new(),
        };
        let keys = [&*self.plan_key(key), &*self.plan_changes_key()];
        self.background_script::<i64>(&SET, &keys, &[&text, &key.text()]).await.map(drop)
    }

    async fn plan_changes(&self, since: u64) -> Result<PlanChanges, StoreError> {
        let reply: (u64, i64, Vec<String>) =
            self.background_script(&CHANGES, &[&self.plan_changes_key()], &[&since.to_string()]).await?;
        let (version, complete, hashes) = reply;
        let keys = (complete == 1).then(|| hashes.iter().filter_map(|hash| KeyHash::parse(hash)).collect());
        Ok(PlanChanges { version, keys })
    }
}
