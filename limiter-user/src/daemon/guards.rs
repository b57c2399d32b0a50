//! Who is guarded: what the settings and the operator want, held against what the kernel has.
//!
//! Interfaces come late, go away, come back and are renamed; each pass of [`reconcile`] attaches what is wanted
//! and missing, and says once what changed.

use std::collections::BTreeMap;

use super::core::Core;
use super::refusal::{Kind, Refusal};
use crate::control::api::{Attached, Detached};
use crate::datapath::{Error, Interface, Mode};

/// What the last pass saw.
#[derive(Default)]
pub struct Guards {
    /// Names of guarded interfaces by index.
    known: BTreeMap<u32, String>,
    /// Wanted interfaces that are not guarded, and why.
    missing: BTreeMap<String, Missing>,
    /// Interfaces that rules name and that there are not.
    absent: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub reason: String,
    /// There is no such interface now; it is attached when it appears.
    pub absent: bool,
}

impl Guards {
    pub fn missing(&self) -> &BTreeMap<String, Missing> {
        &self.missing
    }

    pub fn absent(&self) -> &[String] {
        &self.absent
    }
}

impl Core {
    /// Interfaces to guard, with the mode asked for.
    pub fn wanted(&self) -> BTreeMap<String, Mode> {
        let by_hand = self.state.by_hand();
        let configured = self.settings.interfaces.iter().flatten();
        let mut wanted: BTreeMap<String, Mode> =
            configured.map(|name| (name.clone(), self.settings.mode)).collect();
        wanted.extend(by_hand.attached.iter().map(|(name, mode)| (name.clone(), *mode)));
        wanted.retain(|name, _| !by_hand.detached.contains(name));
        wanted
    }

    /// Guarded interfaces that neither the settings nor the operator ask for: left by an older configuration.
    pub fn unasked(&self) -> Vec<String> {
        let wanted = self.wanted();
        let guarded = self.guarded();
        guarded.into_iter().map(|guard| guard.name).filter(|name| !wanted.contains_key(name)).collect()
    }

    /// By name.
    pub fn guarded(&self) -> Vec<Interface> {
        let mut guarded = self.datapath.as_ref().map(|datapath| datapath.interfaces()).unwrap_or_default();
        guarded.sort_by(|a, b| a.name.cmp(&b.name));
        guarded
    }

    /// Attaches what is wanted and not guarded. `first` also brings guards found at start to the mode asked for.
    pub fn reconcile(&mut self, first: bool) {
        self.note_changes();
        self.follow_interfaces();
        self.follow_safelist();
        let wanted = self.wanted();
        let guarded: Vec<String> = self.guarded().into_iter().map(|guard| guard.name).collect();
        self.guards.missing.retain(|name, _| wanted.contains_key(name) && !guarded.contains(name));
        for (name, mode) in wanted {
            let is_guarded = guarded.contains(&name);
            if is_guarded && !first {
                continue;
            }
            let Some(datapath) = &mut self.datapath else { return };
            match datapath.attach(&name, mode, false) {
                Ok(guard) => {
                    self.guards.missing.remove(&name);
                    if is_guarded {
                        tracing::info!(interface = name, mode = %guard.mode, "guard adopted");
                    } else {
                        tracing::info!(interface = name, mode = %guard.mode, "interface guarded");
                    }
                    if mode == Mode::Auto && guard.mode == Mode::Generic {
                        tracing::warn!(interface = name, "{}", GENERIC);
                    }
                    self.guards.known.insert(guard.index, guard.name);
                }
                Err(error) => self.miss(&name, &error, is_guarded),
            }
        }
    }

    /// Makes rules with `interface` mean the interfaces of now. Before any of them is guarded: a packet is judged by what
    /// is said of the interface it came in by.
    pub(super) fn follow_interfaces(&mut self) {
        let Some(datapath) = &mut self.datapath else { return };
        let absent = datapath.follow_interfaces();
        for name in absent.iter().filter(|name| !self.guards.absent.contains(name)) {
            tracing::warn!(interface = name, "rules name an interface that is absent");
        }
        self.guards.absent = absent;
    }

    fn miss(&mut self, name: &str, error: &Error, is_guarded: bool) {
        let absent = matches!(error, Error::NoSuchInterface { .. });
        // What it is about stands before the reason wherever it is shown.
        let reason = error.to_string();
        let reason = reason.strip_prefix(&format!("cannot attach to `{name}`: ")).unwrap_or(&reason);
        let missing = Missing { reason: if absent { "absent" } else { reason }.to_owned(), absent };
        if is_guarded {
            // It keeps the guard it has, only not in the mode asked for.
            tracing::warn!(interface = name, reason = missing.reason, "mode not changed");
            return;
        }
        if self.guards.missing.get(name) != Some(&missing) {
            if missing.absent {
                tracing::warn!(interface = name, "interface absent, attached when it appears");
            } else {
                tracing::error!(interface = name, reason = missing.reason, "interface not guarded");
            }
            self.guards.missing.insert(name.to_owned(), missing);
        }
    }

    /// Says what became of guarded interfaces since the last pass.
    fn note_changes(&mut self) {
        let now: BTreeMap<u32, String> =
            self.guarded().into_iter().map(|guard| (guard.index, guard.name)).collect();
        for (index, name) in &self.guards.known {
            match now.get(index) {
                None => tracing::warn!(interface = name, "guarded interface went away"),
                Some(new) if new != name => {
                    tracing::warn!(
                        interface = name,
                        renamed_to = new,
                        "guarded interface renamed, it stays guarded"
                    );
                }
                Some(_) => {}
            }
        }
        self.guards.known = now;
    }

    /// Attaches by hand: undoes a detach, and holds over restarts.
    pub fn attach(&mut self, name: &str, mode: Option<Mode>, replace: bool) -> Result<Attached, Refusal> {
        let asked = mode.unwrap_or(self.settings.mode);
        let before = self.guarded().into_iter().find(|guard| guard.name == name);
        let Some(datapath) = &mut self.datapath else { return Err(no_packet_tier()) };
        let guard = datapath.attach(name, asked, replace)?;
        let configured = self.settings.interfaces.iter().flatten().any(|configured| configured == name);
        self.state.change_by_hand(|by_hand| {
            by_hand.detached.remove(name);
            if !configured || mode.is_some() {
                by_hand.attached.insert(name.to_owned(), asked);
            }
        });
        self.guards.missing.remove(name);
        self.guards.known.insert(guard.index, guard.name.clone());
        let mut warnings = Vec::new();
        if asked == Mode::Auto && guard.mode == Mode::Generic {
            warnings.push(GENERIC.to_owned());
        }
        if let Some(before) = before.filter(|before| before.mode != guard.mode) {
            warnings.push(format!(
                "the mode changed from {} to {}: packets in between were not judged",
                before.mode, guard.mode
            ));
        }
        self.warn_of_state(&mut warnings);
        tracing::info!(interface = name, mode = %guard.mode, "interface guarded, by hand");
        Ok(Attached { name: guard.name, index: guard.index, mode: guard.mode, warnings })
    }

    /// Detaches by hand: holds over restarts until undone.
    pub fn detach(&mut self, name: &str) -> Result<Detached, Refusal> {
        let known = self.wanted().contains_key(name) || self.state.by_hand().detached.contains(name);
        let Some(datapath) = &mut self.datapath else { return Err(no_packet_tier()) };
        let was_attached = match datapath.detach(name) {
            Ok(()) => true,
            Err(Error::NotAttached { .. } | Error::NoSuchInterface { .. }) if known => false,
            Err(Error::NoSuchInterface { interface }) => return Err(Error::NotAttached { interface }.into()),
            Err(error) => return Err(error.into()),
        };
        let configured = self.settings.interfaces.iter().flatten().any(|configured| configured == name);
        self.state.change_by_hand(|by_hand| {
            by_hand.attached.remove(name);
            if configured {
                by_hand.detached.insert(name.to_owned());
            }
        });
        self.guards.missing.remove(name);
        self.guards.known.retain(|_, known| known != name);
        let mut warnings = Vec::new();
        self.warn_of_state(&mut warnings);
        tracing::info!(interface = name, was_attached, "interface detached, by hand");
        Ok(Detached { name: name.to_owned(), was_attached, warnings })
    }

    pub(super) fn warn_of_state(&self, warnings: &mut Vec<String>) {
        if let Some(trouble) = self.state.trouble() {
            warnings.push(format!("this does not hold over a restart: {trouble}"));
        }
    }
}

const GENERIC: &str = "the driver has no native mode: guarded in generic mode, which is slower";

pub(super) fn no_packet_tier() -> Refusal {
    Refusal::new(
        Kind::Conflict,
        "this limiterd has no packet tier: `interfaces` is empty",
        "take `interfaces = []` out of limiterd.toml and restart limiterd",
    )
}
