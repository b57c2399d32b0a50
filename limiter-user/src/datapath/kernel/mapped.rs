//! Maps in our own address space: reading a million buckets costs no system call per bucket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// `entries` values of a mappable array map. The kernel's program writes there at the same time, so what is
/// shared is read and written through atomics, or copied whole where nobody reads it.
pub struct Mapped<T> {
    start: NonNull<T>,
    entries: usize,
    bytes: usize,
}

// SAFETY: the mapping is shared memory whose words are accessed atomically or by its one owner.
unsafe impl<T> Send for Mapped<T> {}

impl<T> Mapped<T> {
    /// Maps all of `map`, whose values have the size of `T`, a multiple of 8.
    pub fn new(map: &impl AsFd, entries: u32) -> io::Result<Self> {
        let entries = entries as usize;
        let page = 4096;
        let bytes = (size_of::<T>() * entries).next_multiple_of(page);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, entries, bytes })
    }

    pub fn len(&self) -> usize {
        self.entries
    }

    /// The value at `index`, below [`Self::len`].
    pub fn get(&self, index: usize) -> *mut T {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        // SAFETY: inside the mapping, as just asserted.
        unsafe { self.start.as_ptr().add(index) }
    }

    /// The 64-bit word `word` of the value at `index`.
    pub fn word(&self, index: usize, word: usize) -> &AtomicU64 {
        assert!(word < size_of::<T>() / 8, "word {word} of a value of {} bytes", size_of::<T>());
        // SAFETY: inside the value, aligned to 8 as map values are, and alive as long as the mapping.
        unsafe { AtomicU64::from_ptr(self.get(index).cast::<u64>().add(word)) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, no longer borrowed.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
