//! How many instances share the store, which decides this host's share of every limit while the store is
//! away (`on-store-failure = "local"`).
//!
//! Each instance writes a heartbeat every two seconds and reads how many there are. When the store is away
//! the last number stays: an instance never believes to be alone because it can see nobody. Across a
//! restart the number is kept in the state directory.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often an instance says that it is there.
pub const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(2);
/// An instance not heard of for so long is gone.
pub const GONE_AFTER: std::time::Duration = std::time::Duration::from_secs(10);

/// The number of instances; 0 while nobody ever said.
#[derive(Debug, Default)]
pub struct Instances {
    count: AtomicU32,
    file: Option<PathBuf>,
}

impl Instances {
    /// `file` keeps the number across restarts.
    pub fn new(file: Option<PathBuf>) -> Self {
        let kept = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        let kept = kept.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Self { count: AtomicU32::new(kept), file }
    }

    /// The last number the store told, or `None` if it never did.
    pub fn known(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.count.load(Ordering::Relaxed))
    }

    /// The store says so many are there, this one included.
    pub fn heard(&self, count: u32) {
        let count = count.max(1);
        if self.count.swap(count, Ordering::Relaxed) == count {
            return;
        }
        if let Some(file) = &self.file
            && let Err(error) = std::fs::write(file, format!("{count}\n"))
        {
            tracing::warn!(file = %file.display(), %error, "the number of instances cannot be kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_survives_a_restart_and_is_never_guessed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("instances");
        let instances = Instances::new(Some(file.clone()));
        assert_eq!(instances.known(), None);
        instances.heard(3);
        assert_eq!(instances.known(), NonZeroU32::new(3));
        assert_eq!(Instances::new(Some(file)).known(), NonZeroU32::new(3));
        instances.heard(0);
        assert_eq!(instances.known(), NonZeroU32::new(1), "whoever asks is one");
    }
}
