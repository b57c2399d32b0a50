//! Ends what runs beside a test, also when the test panics.

use std::{
    process::Child,
    sync::atomic::{AtomicBool, Ordering},
};

/// Sets a flag when it goes: a thread that loops until then ends, and the panic that caused it is seen.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A process that is killed, and waited for, when it goes.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl KillOnDrop {
    /// SIGKILL, and no zombie.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.kill();
    }
}
