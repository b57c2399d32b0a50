//! A policy judged beside the one in force, its *shadow*: on maps of its own, so that nothing it does reaches the other.
//!
//! The shadow is a whole datapath in a directory under the guard's pins, without guards. For its time another program
//! is behind the links: it guards as ever, and hands each packet on to the shadow's, which judges and compares. Bans and
//! proven sources are the same for both: the maps have a pin in either directory. The way from one program to the other is
//! held by this process alone, so with the daemon the shadow ends, and what is left behind the links only guards.

use std::fs;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{PerCpuArray, ProgramArray};
use aya::programs::ProgramFd;
use limiter_common::abi::{Compared, Counter, MAX_RULES, WAYS};

use super::load::{self, refused, refused_program};
use super::sys::Plain;
use super::{Kernel, xdp};
use crate::datapath::{Comparison, Datapath as _, Error, Image, Options};

/// What the shadow has in common with the guard.
const COMMON: [&str; 3] = ["BANS", "BAN_PREFIXES", "PROVEN"];

/// A shadow, and what hands packets on to it.
pub struct Observation {
    shadow: Kernel,
    ebpf: Ebpf,
    program: &'static str,
}

fn directory(pin: &Path) -> PathBuf {
    pin.join("shadow")
}

/// Removes what an observation has pinned.
pub fn forget(pin: &Path) {
    let _ = fs::remove_dir_all(directory(pin));
    let _ = fs::remove_file(load::map_path(pin, load::DECIDED));
}

impl Observation {
    pub fn shadow(&mut self) -> &mut Kernel {
        &mut self.shadow
    }

    pub fn program(&mut self) -> Result<&ProgramFd, Error> {
        xdp(&mut self.ebpf, self.program)?.fd().map_err(refused)
    }

    /// See [`Kernel::tell_of_bans`].
    pub fn set_bans(&self, kinds: u32) {
        self.shadow.selector.set_bans(kinds);
    }

    /// See [`crate::datapath::Datapath::compared`].
    pub fn compared(&self) -> Result<Vec<(u16, Comparison)>, Error> {
        let compared =
            PerCpuArray::<_, Plain<Compared>>::try_from(self.shadow.map("COMPARED")?).map_err(refused)?;
        let mut rules = Vec::new();
        for slot in 0..MAX_RULES as u16 {
            let mut sum: Comparison = [[Counter::default(); 2]; 2];
            for Plain(Compared(part)) in compared.get(&u32::from(slot), 0).map_err(refused)?.iter() {
                for (sum, part) in sum.iter_mut().flatten().zip(part.iter().flatten()) {
                    sum.packets += part.packets;
                    sum.bytes += part.bytes;
                }
            }
            if sum.iter().flatten().any(|counter| counter.packets != 0) {
                rules.push((slot, sum));
            }
        }
        Ok(rules)
    }
}

impl Kernel {
    /// Puts the shadow of this policy beside the guard, in the place of one that there is.
    pub(super) fn begin_observation(&mut self, image: Image<'_>) -> Result<(), Error> {
        self.end_observation();
        self.ensure_pinned()?;
        let begun = self.make_observation(image).and_then(|observation| {
            self.observation = Some(Box::new(observation));
            self.tell_of_bans()?;
            self.renew_guards()
        });
        if begun.is_err() {
            self.end_observation();
            forget(&self.options.pin);
        }
        begun
    }

    fn make_observation(&mut self, image: Image<'_>) -> Result<Observation, Error> {
        let program = if load::has_multi_buffer() { "observe_frags" } else { "observe" };
        let (mut ebpf, _) = load::load(load::OBSERVE, &self.options)?;
        xdp(&mut ebpf, program)?.load().map_err(refused_program)?;

        let pin = directory(&self.options.pin);
        load::make_directory(&pin)?;
        for map in COMMON.into_iter().chain([load::DECIDED]) {
            let common = ebpf.map(map).ok_or_else(|| missing(map))?;
            common.pin(load::map_path(&pin, map)).map_err(refused)?;
        }
        let options = Options { pin, buckets: self.geometry.sets * WAYS as u32, ..self.options.clone() };
        let mut shadow = Self::load(load::OBSERVE, ["shadow", "shadow_frags"], &options)?;
        shadow.publish(image, &[], None)?;

        let way = ebpf.map_mut("SHADOW").ok_or_else(|| missing("SHADOW"))?;
        let mut way = ProgramArray::try_from(way).map_err(refused)?;
        way.set(0, shadow.program()?.fd().map_err(refused)?, 0).map_err(refused)?;
        Ok(Observation { shadow, ebpf, program })
    }

    /// Puts the program behind the links that was there before.
    pub(super) fn end_observation(&mut self) {
        let Some(observation) = self.observation.take() else { return };
        if let Err(error) = self.renew_guards() {
            tracing::warn!(%error, "after an observation");
        }
        let Observation { shadow, .. } = *observation;
        if let Ok(Some(proof)) = shadow.proof {
            proof.end(&shadow.options.pin);
        }
        forget(&self.options.pin);
    }
}

fn missing(map: &str) -> Error {
    Error::Refused { reason: format!("the object has no map `{map}`") }
}
