//! The ring of events. Nobody is woken by it: who wants events comes and looks.

use std::mem::size_of;
use std::path::Path;

use aya::maps::{Map, MapData, RingBuf};
use limiter_common::event::Event;

use super::load::{map_path, refused};
use crate::datapath::Error;

/// The ring under a pin path, read from where it was last read.
pub fn ring(pin: &Path) -> Result<RingBuf<MapData>, Error> {
    let map = MapData::from_pin(map_path(pin, "EVENTS")).map_err(refused)?;
    RingBuf::try_from(Map::RingBuf(map)).map_err(refused)
}

/// Takes what is in the ring now. What comes meanwhile is for the next call: a flood could be endless.
pub fn take(ring: &mut RingBuf<MapData>, visit: &mut dyn FnMut(&Event)) {
    // More than the ring has room for.
    for _ in 0..1 << 13 {
        let Some(item) = ring.next() else { return };
        if item.len() < size_of::<Event>() {
            continue;
        }
        // SAFETY: so many bytes are there, aligned to 8 as the kernel aligns them, and any bytes are an event.
        visit(unsafe { &*item.as_ptr().cast::<Event>() });
    }
}
