//! The state directory: the policies applied last, and what was changed by hand.
//!
//! Files are replaced whole (written beside, synced, renamed), so a crash leaves the old or the new one. A full
//! disk or a directory that cannot be written is a warning: what could not be kept on disk is kept in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::bans::KeptBans;
use super::confirm::Pending;
use super::pause::Pause;
use super::refusal::words;
use super::sealed::Sealed;
use crate::datapath::Mode;
use crate::policy::Adjustments;

/// Policies kept.
const KEPT: usize = 10;

/// What an operator changed by hand; holds until undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByHand {
    /// Interfaces that stay unguarded.
    #[serde(default)]
    pub detached: BTreeSet<String>,
    /// Interfaces to guard besides, or in another mode than, those of the settings.
    #[serde(default)]
    pub attached: BTreeMap<String, Mode>,
    /// Nothing is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// The policy in force waits to be confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
}

/// One policy applied: what lists show of it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub generation: u64,
    pub hash: String,
    pub loaded_at: std::time::SystemTime,
    pub applied_by: String,
    pub rules: usize,
    pub restores: Option<u64>,
    /// It was never confirmed, so it is nothing to go back to.
    pub unconfirmed: bool,
    /// Only of one that could not be written.
    kept: Option<Arc<Sealed>>,
}

pub struct StateDirectory {
    path: PathBuf,
    /// Oldest first.
    entries: VecDeque<Entry>,
    by_hand: ByHand,
    adjustments: Arc<Adjustments>,
    /// The last thing that could not be read or written.
    trouble: Option<String>,
}

impl StateDirectory {
    /// Never fails: what cannot be read is told by [`Self::trouble`].
    pub fn open(path: &Path) -> Self {
        let mut state = Self {
            path: path.to_owned(),
            entries: VecDeque::new(),
            by_hand: ByHand::default(),
            adjustments: Arc::default(),
            trouble: None,
        };
        let policies = state.policies();
        if let Err(error) = make_directory(&policies) {
            state.note("create", &policies, &words(&error));
        }
        state.by_hand = state.read_json(&state.by_hand_file()).unwrap_or_default();
        let mut adjustments: Adjustments = state.read_json(&state.adjustments_file()).unwrap_or_default();
        adjustments.forget_over(SystemTime::now());
        state.adjustments = Arc::new(adjustments);
        let mut files: Vec<PathBuf> = match fs::read_dir(&policies) {
            Ok(listing) => listing.flatten().map(|entry| entry.path()).collect(),
            Err(_) => Vec::new(),
        };
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        for file in files {
            if let Some(sealed) = state.read_json::<Sealed>(&file) {
                state.entries.push_back(Entry::of(&sealed, None));
            }
        }
        state
    }

    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    pub fn by_hand(&self) -> &ByHand {
        &self.by_hand
    }

    pub fn change_by_hand(&mut self, change: impl FnOnce(&mut ByHand)) {
        let before = self.by_hand.clone();
        change(&mut self.by_hand);
        if self.by_hand != before {
            let by_hand = self.by_hand.clone();
            self.write_json(&self.by_hand_file(), &by_hand);
        }
    }

    /// Overrides and members of dynamic sets.
    pub fn adjustments(&self) -> &Arc<Adjustments> {
        &self.adjustments
    }

    pub fn set_adjustments(&mut self, adjustments: Arc<Adjustments>) {
        if self.adjustments != adjustments {
            self.write_json(&self.adjustments_file(), adjustments.as_ref());
            self.adjustments = adjustments;
        }
    }

    /// The bans kept; none when there is no file of them.
    pub fn kept_bans(&mut self) -> KeptBans {
        self.read_json(&self.bans_file()).unwrap_or_default()
    }

    pub fn keep_bans(&mut self, bans: &KeptBans) {
        self.write_json(&self.bans_file(), bans);
    }

    /// Policies applied, oldest first.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Keeps an applied policy, and forgets those beyond the last ten.
    pub fn keep(&mut self, sealed: &Arc<Sealed>) {
        // A generation that exists already is of a past that the kernel's pins have overtaken.
        self.entries.retain(|entry| entry.generation != sealed.generation);
        let written = self.write_json(&self.policy_file(sealed.generation), sealed.as_ref());
        self.entries.push_back(Entry::of(sealed, (!written).then(|| Arc::clone(sealed))));
        self.entries.make_contiguous().sort_by_key(|entry| entry.generation);
        while self.entries.len() > KEPT {
            if let Some(oldest) = self.entries.pop_front() {
                let _ = fs::remove_file(self.policy_file(oldest.generation));
            }
        }
    }

    /// Reads one of [`Self::entries`] back.
    pub fn load(&mut self, generation: u64) -> Option<Arc<Sealed>> {
        let entry = self.entries.iter().find(|entry| entry.generation == generation)?;
        match &entry.kept {
            Some(sealed) => Some(Arc::clone(sealed)),
            None => self.read_json(&self.policy_file(generation)).map(Arc::new),
        }
    }

    /// The generation to roll back to: what was in force before `current`, and where that was brought back by a
    /// rollback itself, before what it brought back.
    pub fn before(&self, current: &Sealed) -> Option<u64> {
        let mut from = current.restores.unwrap_or(current.generation);
        while let Some(earlier) =
            self.entries.iter().find(|entry| entry.generation == from).and_then(|entry| entry.restores)
        {
            from = earlier;
        }
        let mut before = self.entries.iter().rev().filter(|entry| entry.generation < from);
        before.find(|entry| entry.hash != current.hash && !entry.unconfirmed).map(|entry| entry.generation)
    }

    /// Notes that an applied policy fell back.
    pub fn mark_unconfirmed(&mut self, generation: u64) {
        if self.entries.iter().any(|entry| entry.generation == generation)
            && let Some(sealed) = self.load(generation)
        {
            self.keep(&Arc::new(Sealed { unconfirmed: true, ..Sealed::clone(&sealed) }));
        }
    }

    /// The newest policy that can be read and did not fall back.
    pub fn latest(&mut self) -> Option<Arc<Sealed>> {
        let confirmed = self.entries.iter().rev().filter(|entry| !entry.unconfirmed);
        let generations: Vec<u64> = confirmed.map(|entry| entry.generation).collect();
        generations.into_iter().find_map(|generation| self.load(generation))
    }

    fn policies(&self) -> PathBuf {
        self.path.join("policies")
    }

    fn policy_file(&self, generation: u64) -> PathBuf {
        self.policies().join(format!("{generation:010}.json"))
    }

    fn bans_file(&self) -> PathBuf {
        self.path.join("bans.json")
    }

    fn by_hand_file(&self) -> PathBuf {
        self.path.join("by-hand.json")
    }

    fn adjustments_file(&self) -> PathBuf {
        self.path.join("adjustments.json")
    }

    fn read_json<T: for<'de> Deserialize<'de>>(&mut self, path: &Path) -> Option<T> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.note("read", path, &words(&error));
                return None;
            }
        };
        serde_json::from_slice(&bytes).map_err(|error| self.note("read", path, &error.to_string())).ok()
    }

    fn write_json(&mut self, path: &Path, value: &impl Serialize) -> bool {
        let result = serde_json::to_vec(value).map_err(io::Error::other).and_then(|bytes| {
            if let Some(parent) = path.parent() {
                make_directory(parent)?;
            }
            replace(path, &bytes)
        });
        match result {
            Ok(()) => {
                self.trouble = None;
                true
            }
            Err(error) => {
                self.note("write", path, &words(&error));
                false
            }
        }
    }

    fn note(&mut self, verb: &str, path: &Path, error: &str) {
        let trouble = format!("cannot {verb} `{}`: {error}", path.display());
        tracing::warn!(trouble, "state directory");
        self.trouble = Some(trouble);
    }
}

impl Entry {
    fn of(sealed: &Sealed, kept: Option<Arc<Sealed>>) -> Self {
        Self {
            generation: sealed.generation,
            hash: sealed.hash.clone(),
            loaded_at: sealed.loaded_at,
            applied_by: sealed.applied_by.clone(),
            rules: sealed.rules,
            restores: sealed.restores,
            unconfirmed: sealed.unconfirmed,
            kept,
        }
    }
}

/// For its owner alone: a policy says whom this host trusts.
fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Replaces a file whole: after a crash it is the old or the new one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let result = (|| {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    })();
    if result.is_err() {
        let _ = fs::remove_file(&beside);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Bundle, Slots};

    fn sealed(generation: u64) -> Arc<Sealed> {
        let bundle = Bundle::from_text("policy.toml", &format!("version = 1 # {generation}"));
        Arc::new(Sealed {
            hash: bundle.hash(),
            bundle,
            generation,
            loaded_at: std::time::SystemTime::UNIX_EPOCH,
            applied_by: "file".to_owned(),
            file_hash: None,
            restores: None,
            unconfirmed: false,
            adjusted: String::new(),
            slots: Slots::default(),
            rules: 0,
        })
    }

    fn generations(state: &StateDirectory) -> Vec<u64> {
        state.entries().map(|entry| entry.generation).collect()
    }

    #[test]
    fn the_last_ten_are_kept_and_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateDirectory::open(directory.path());
        (1..=13).for_each(|generation| state.keep(&sealed(generation)));
        state.change_by_hand(|by_hand| {
            by_hand.detached.insert("eth0".to_owned());
        });
        let mut again = StateDirectory::open(directory.path());
        assert_eq!(generations(&again), (4..=13).collect::<Vec<_>>());
        assert_eq!(again.latest().unwrap().generation, 13);
        assert_eq!(again.load(7).unwrap().bundle.files["policy.toml"], "version = 1 # 7");
        assert!(again.load(3).is_none());
        assert!(again.by_hand().detached.contains("eth0"));
        assert_eq!(again.trouble(), None);
    }

    #[test]
    fn a_torn_file_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateDirectory::open(directory.path());
        state.keep(&sealed(1));
        state.keep(&sealed(2));
        fs::write(directory.path().join("policies/0000000002.json"), "{\"bundle\"").unwrap();
        let mut again = StateDirectory::open(directory.path());
        assert_eq!(again.latest().unwrap().generation, 1);
        assert!(again.trouble().unwrap().contains("0000000002.json"));
    }

    #[test]
    fn what_cannot_be_written_is_kept_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        // A file where the directory should be fails for root too.
        let path = directory.path().join("state");
        fs::write(&path, "").unwrap();
        let mut state = StateDirectory::open(&path);
        (1..=12).for_each(|generation| state.keep(&sealed(generation)));
        assert!(state.trouble().unwrap().starts_with("cannot write"));
        assert_eq!(generations(&state), (3..=12).collect::<Vec<_>>());
        assert_eq!(state.load(4).unwrap().generation, 4);
        fs::remove_file(&path).unwrap();
        state.keep(&sealed(13));
        assert_eq!(state.trouble(), None);
        assert_eq!(StateDirectory::open(&path).latest().unwrap().generation, 13);
    }
}
