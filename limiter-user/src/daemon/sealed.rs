//! A policy as it was applied: kept beside it in the kernel and in the state directory.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::policy::{Bundle, Slots};

/// Everything a starting daemon needs to take up where the last one ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sealed {
    pub bundle: Bundle,
    /// [`Bundle::hash`].
    pub hash: String,
    /// Counts the policies applied on this host.
    pub generation: u64,
    #[serde(with = "rfc3339")]
    pub loaded_at: SystemTime,
    pub applied_by: String,
    /// Hash of what was last read from the policy file and applied; `None` when none ever was.
    pub file_hash: Option<String>,
    /// The generation a rollback brought back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<u64>,
    /// It was set with `--confirm` and fell back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
    /// Which adjustments the kernel's image has: [`crate::policy::Adjusted::fingerprint`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub adjusted: String,
    /// Places of the counters and meters, so that names keep theirs.
    pub slots: Slots,
    /// How many rules it has, for lists that do not read it again.
    pub rules: usize,
}

impl Sealed {
    pub fn age(&self) -> Duration {
        self.loaded_at.elapsed().unwrap_or_default()
    }
}

/// `2026-12-24T06:00:00Z`
pub fn format_time(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

pub(super) mod rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&humantime::format_rfc3339_millis(*time).to_string())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map_err(D::Error::custom)
    }
}
