//! Plan records of a host without Redis: in memory, and in a file that outlives the process.
//!
//! A revoked key stays revoked across a restart, or `revoke-key` would promise what it does not hold. The file is
//! written anew as a whole and put in place by renaming, so it is never half there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::key::KeyHash;
use super::store::{PlanChanges, PlanRecord, PlanStore, StoreError};

/// See the module.
#[derive(Debug)]
pub struct LocalPlans {
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<KeyHash, PlanRecord>,
    /// One more with every change; the host that asks is the host that changes, so it needs no list.
    version: u64,
}

/// A record as the file has it.
#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    /// Absent for a revoked key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
}

impl LocalPlans {
    /// Reads the records of `file`, if there is one; without a file, records end with the process. An unreadable
    /// file is an error: it may hold revocations.
    pub fn open(file: Option<PathBuf>) -> Result<Self, StoreError> {
        let records = match &file {
            Some(file) => read(file)?,
            None => BTreeMap::new(),
        };
        let version = u64::from(!records.is_empty());
        Ok(Self { file, state: Mutex::new(State { records, version }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(file: &Path) -> Result<BTreeMap<KeyHash, PlanRecord>, StoreError> {
    let wrong = |what: String| StoreError::Malformed(format!("`{}`: {what}", file.display()));
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let lines: Vec<Line> = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let record = |line: Line| {
        let key =
            KeyHash::parse(&line.key).ok_or_else(|| wrong(format!("`{}` is no key's hash", line.key)))?;
        Ok((key, line.plan.map_or(PlanRecord::Revoked, PlanRecord::Plan)))
    };
    lines.into_iter().map(record).collect()
}

fn write(file: &Path, records: &BTreeMap<KeyHash, PlanRecord>) -> std::io::Result<()> {
    let line = |(key, record): (&KeyHash, &PlanRecord)| {
        let plan = match record {
            PlanRecord::Plan(plan) => Some(plan.clone()),
            PlanRecord::Revoked => None,
        };
        Line { key: key.text(), plan }
    };
    let lines: Vec<Line> = records.iter().map(line).collect();
    let new = file.with_extension("new");
    let mut written = File::create(&new)?;
    serde_json::to_writer(&mut written, &lines)?;
    written.write_all(b"\n")?;
    written.sync_all()?;
    fs::rename(new, file)
}

#[async_trait]
impl PlanStore for LocalPlans {
    async fn plan(&self, key: &KeyHash) -> Result<Option<PlanRecord>, StoreError> {
        Ok(self.state().records.get(key).cloned())
    }

    async fn set_plan(&self, key: &KeyHash, record: Option<&PlanRecord>) -> Result<(), StoreError> {
        let mut state = self.state();
        let mut records = state.records.clone();
        match record {
            Some(record) => drop(records.insert(*key, record.clone())),
            None => drop(records.remove(key)),
        }
        if let Some(file) = &self.file {
            let failed = |error| StoreError::NotReady(format!("`{}`: {error}", file.display()));
            write(file, &records).map_err(failed)?;
        }
        state.records = records;
        state.version += 1;
        Ok(())
    }

    async fn plan_changes(&self, since: u64) -> Result<PlanChanges, StoreError> {
        let version = self.state().version;
        Ok(PlanChanges { version, keys: (version == since).then(Vec::new) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn records_outlive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("plans.json");
        let (paying, revoked) = (KeyHash([1; 16]), KeyHash([2; 16]));
        let plans = LocalPlans::open(Some(file.clone())).unwrap();
        assert_eq!(plans.plan_changes(0).await.unwrap().version, 0);
        let pro = PlanRecord::Plan("pro".into());
        plans.set_plan(&paying, Some(&pro)).await.unwrap();
        plans.set_plan(&revoked, Some(&PlanRecord::Revoked)).await.unwrap();
        assert_eq!(plans.plan_changes(1).await.unwrap(), PlanChanges { version: 2, keys: None });
        assert_eq!(plans.plan_changes(2).await.unwrap().keys, Some(vec![]));
        drop(plans);

        let plans = LocalPlans::open(Some(file.clone())).unwrap();
        assert_eq!(plans.plan(&paying).await.unwrap(), Some(pro));
        assert_eq!(plans.plan(&revoked).await.unwrap(), Some(PlanRecord::Revoked));
        assert_ne!(plans.plan_changes(0).await.unwrap().version, 0);
        plans.set_plan(&paying, None).await.unwrap();
        assert_eq!(LocalPlans::open(Some(file.clone())).unwrap().plan(&paying).await.unwrap(), None);

        fs::write(&file, "[{\"key\":\"short\"}]").unwrap();
        assert_eq!(LocalPlans::open(Some(file)).unwrap_err().kind(), "malformed");
    }
}
