//! Rules name interfaces, packets come with an index: the names of a policy are held against those of this host.

use std::sync::atomic::{AtomicU32, Ordering};

use limiter_common::abi::{POLICY_SLOTS, Places};

use super::{Kernel, links};
use crate::datapath::interface_names;

impl Kernel {
    /// Writes the indexes of today into every policy there is: one that fell back may be in force again.
    pub(super) fn write_interfaces(&self) {
        for slot in 0..POLICY_SLOTS {
            let places = self.places(slot);
            // SAFETY: inside the mapping. Names are only written where no packet reads, and by this owner.
            let names = interface_names(unsafe { &(*places).interface_names });
            for (position, name) in names.iter().enumerate() {
                // SAFETY: as many names as indexes; aligned as map values are, and alive as long as the mapping.
                let index = unsafe {
                    AtomicU32::from_ptr((&raw mut (*places).interfaces).cast::<u32>().add(position))
                };
                index.store(links::index_of(name).unwrap_or(0), Ordering::Relaxed);
            }
        }
    }

    /// Interfaces named by the policy in force that there are not.
    pub(super) fn absent(&self) -> Vec<String> {
        // SAFETY: as above.
        let names = interface_names(unsafe { &(*self.places(self.slot() as usize)).interface_names });
        names.into_iter().filter(|name| links::index_of(name).is_err()).collect()
    }

    fn places(&self, slot: usize) -> *mut Places {
        // SAFETY: a field of a value inside the mapping.
        unsafe { &raw mut (*self.policies.get(slot)).places }
    }
}
