//! The panic switch: packets are judged and counted, and none is dropped.
//!
//! The deadline is on the kernel's clock and judged there, so a pause ends without the daemon. A copy on the wall
//! clock is in the state directory, from which it is taken up again after a reboot.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::core::Core;
use super::refusal::{Kind, Refusal};
use super::sealed::{format_time, rfc3339};
use crate::control::api;

/// How long a pause lasts when nobody says, in seconds.
pub const PAUSE_SECONDS: u64 = 15 * 60;

/// Longest pause: what lasts longer is a policy.
const LONGEST_SECONDS: u64 = 7 * 86_400;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    #[serde(with = "rfc3339")]
    pub until: SystemTime,
    pub by: String,
}

impl Core {
    /// Starts a pause, or moves its end.
    pub fn pause(&mut self, seconds: u64, by: &str) -> Result<api::Paused, Refusal> {
        if seconds == 0 || seconds > LONGEST_SECONDS {
            return Err(Refusal::new(
                Kind::Conflict,
                format!("a pause lasts from one second to {} days", LONGEST_SECONDS / 86_400),
                "`mode = \"observe\"` in the policy is for longer",
            ));
        }
        let time = Duration::from_secs(seconds);
        let pause = Pause { until: SystemTime::now() + time, by: by.to_owned() };
        let Some(datapath) = &mut self.datapath else { return Err(super::guards::no_packet_tier()) };
        // On disk first: a crash in between leaves a pause nobody feels, never one nobody knows of.
        self.state.change_by_hand(|by_hand| by_hand.paused = Some(pause.clone()));
        datapath.pause(time);
        tracing::warn!(by, until = format_time(pause.until), "paused: nothing is dropped");
        let mut warnings = Vec::new();
        self.warn_of_state(&mut warnings);
        Ok(api::Paused { paused: Some(self.describe_pause(time, &pause)), was_paused: true, warnings })
    }

    /// Ends a pause.
    pub fn resume(&mut self, by: &str) -> Result<api::Paused, Refusal> {
        let Some(datapath) = &mut self.datapath else { return Err(super::guards::no_packet_tier()) };
        let was_paused = datapath.paused().is_some();
        datapath.pause(Duration::ZERO);
        self.state.change_by_hand(|by_hand| by_hand.paused = None);
        if was_paused {
            tracing::info!(by, "resumed: what is to be dropped is dropped");
        }
        let mut warnings = Vec::new();
        self.warn_of_state(&mut warnings);
        Ok(api::Paused { paused: None, was_paused, warnings })
    }

    /// The pause that holds now.
    pub fn paused(&self) -> Option<api::Pause> {
        let left = self.datapath.as_ref()?.paused()?;
        let unknown = Pause { until: SystemTime::now() + left, by: "nobody this host remembers".to_owned() };
        Some(self.describe_pause(left, self.state.by_hand().paused.as_ref().unwrap_or(&unknown)))
    }

    fn describe_pause(&self, left: Duration, pause: &Pause) -> api::Pause {
        // The kernel's clock decides, so the end is told by it.
        let until = SystemTime::now() + left;
        api::Pause { until: format_time(until), left_s: left.as_secs(), by: pause.by.clone() }
    }

    /// At a start: a kernel that forgot the pause is told of it again.
    pub(super) fn take_up_pause(&mut self) {
        let Some(datapath) = &mut self.datapath else { return };
        let Some(pause) = self.state.by_hand().paused.clone() else { return };
        let left = pause.until.duration_since(SystemTime::now()).unwrap_or_default();
        if datapath.paused().is_none() && !left.is_zero() {
            datapath.pause(left);
        }
        match datapath.paused() {
            Some(left) => tracing::warn!(by = pause.by, left_s = left.as_secs(), "still paused"),
            None => self.state.change_by_hand(|by_hand| by_hand.paused = None),
        }
    }

    /// Forgets a pause that has ended, and says so once.
    pub(super) fn note_end_of_pause(&mut self) {
        let is_over = self.datapath.as_ref().is_some_and(|datapath| datapath.paused().is_none());
        if is_over && self.state.by_hand().paused.is_some() {
            tracing::info!("the pause is over: what is to be dropped is dropped");
            self.state.change_by_hand(|by_hand| by_hand.paused = None);
        }
    }
}
