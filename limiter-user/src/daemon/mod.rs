//! limiterd: takes up what is in force, guards interfaces, answers the control socket, and leaves everything
//! in place when it ends.
//!
//! [`Daemon`] is what the outside talks to. Its methods block (system calls, compiling) and are called from
//! threads that may. Reading waits for nothing longer than a publish; checking and compiling take no lock.

mod adjust;
mod audit;
mod banning;
mod bans;
mod confirm;
mod core;
mod effective;
mod guards;
mod lifeline;
mod links;
mod live;
mod lockout;
mod observing;
mod pause;
mod prepare;
mod refusal;
mod run;
mod safelist;
mod samples;
pub mod sealed;
pub mod settings;
mod sources;
mod state;
mod traces;
mod view;
mod watching;
mod why;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::bans::By as BannedBy;
pub use self::core::Core;
pub use confirm::LONGEST as LONGEST_CONFIRM;
pub use observing::{LONGEST as LONGEST_OBSERVATION, USUAL as USUAL_OBSERVATION};
pub use pause::PAUSE_SECONDS;
pub use prepare::{Demands, InForce, Reading, read};
pub use refusal::{Kind, Refusal, words};
pub use run::run;
pub use samples::{FIRST_WINDOW, GroupBy, GroupQuery};
pub use settings::Settings;
pub use sources::{By, MOST, Query, Sort, show_network};
pub use traces::Traced;
pub use view::{FAMILY_NAMES, NamedCounter};
pub use watching::{Filter, Told};
pub use why::Question as WhyQuestion;

use self::core::Origin;
use crate::cli::session::Session;
use crate::control::api::{Attached, Confirmed, Detached, SetPolicy, Status};
use crate::datapath::{Datapath, Mode};
use crate::policy::{Bundle, Diagnostic};

/// How old the last look at the policy file may be.
const FILE_LOOK: Duration = Duration::from_secs(2);

/// How often the daemon looks for what has come to its end.
pub const TICK: Duration = Duration::from_millis(250);

/// How a policy is to be applied.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Only say what would happen.
    pub dry_run: bool,
    pub demands: Demands,
    /// The hash the policy in force must have.
    pub if_match: Option<String>,
    /// The policy before comes back unless this one is confirmed within that time.
    pub confirm_within: Option<Duration>,
    /// Whose packets must pass, unless that is forced or falls back by itself.
    pub sessions: Vec<Session>,
}

pub struct Daemon {
    core: Mutex<Core>,
    /// Held from the look at the policy in force to the end of a change: changes go one after the other.
    changing: Mutex<()>,
    /// What the policy file held when last looked at: its hash, or why it cannot be read.
    file: Mutex<Option<(Instant, Result<String, String>)>>,
    settings: Arc<Settings>,
    started: Instant,
    /// Changes beside the policy that wait for their turn.
    adjusting: Mutex<Vec<adjust::Waiting>>,
    /// When buckets were last audited.
    audited: Mutex<Instant>,
    watching: watching::Watching,
    samples: samples::Samples,
    traces: traces::Traces,
    /// When to try again to end what has come to its end.
    retry: Mutex<Option<Instant>>,
}

impl Daemon {
    /// Takes up what is in force, applies the policy file if it changed, guards every interface there is.
    pub fn start(settings: Settings, datapath: Option<Box<dyn Datapath>>) -> Result<Arc<Self>, Refusal> {
        let settings = Arc::new(settings);
        let file = read_file(&settings.policy);
        let mut core = Core::start(Arc::clone(&settings), datapath, file)?;
        core.reconcile(true);
        Ok(Arc::new(Self {
            core: Mutex::new(core),
            changing: Mutex::new(()),
            file: Mutex::new(None),
            settings,
            started: Instant::now(),
            adjusting: Mutex::new(Vec::new()),
            audited: Mutex::new(Instant::now()),
            watching: watching::Watching::default(),
            samples: samples::Samples::default(),
            traces: traces::Traces::default(),
            retry: Mutex::new(None),
        }))
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The core, for as long as the guard lives. Nothing slow is done with it.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn status(&self) -> Result<Status, Refusal> {
        let file = self.file_hash();
        self.core().status(self.started, &file)
    }

    /// Checks a policy and puts it in force. `by` is who asked.
    pub fn set_policy(&self, bundle: Bundle, wish: &Wish, by: String) -> Result<SetPolicy, Refusal> {
        let is_file =
            !wish.dry_run && read_file(&self.settings.policy).is_ok_and(|file| file.hash() == bundle.hash());
        let answer = self.change(bundle, wish, &Origin::Sent { by, is_file })?;
        if is_file {
            self.core().accept_file();
        }
        Ok(answer)
    }

    /// Back to the policy file.
    pub fn reload(&self, wish: &Wish, by: String) -> Result<SetPolicy, Refusal> {
        self.core().refuse_while_pending().inspect_err(|refusal| {
            tracing::warn!(reason = refusal.line(), by, "reload refused");
        })?;
        let name = self.settings.policy.display().to_string();
        let result = read_file(&self.settings.policy)
            .map_err(|diagnostics| Refusal::bad_policy(&name, diagnostics))
            .and_then(|bundle| self.change(bundle, wish, &Origin::File { by }));
        match &result {
            Ok(_) => self.core().accept_file(),
            Err(refusal) => self.core().refuse_file(refusal.clone()),
        }
        result
    }

    /// Keeps the policy that waits to be confirmed.
    pub fn confirm(&self, by: &str) -> Result<Confirmed, Refusal> {
        let _one_at_a_time = self.one_change();
        self.core().confirm(by)
    }

    /// Brings back the policy that was in force before. Again: the one before that. One that waits to be confirmed
    /// falls back at once, as it would at its deadline, whomever that cuts off. Else these sessions must go on.
    pub fn rollback(&self, sessions: Vec<Session>, by: String) -> Result<SetPolicy, Refusal> {
        if self.core().pending().is_some() {
            let _one_at_a_time = self.one_change();
            let mut core = self.core();
            core.fall_back(&format!("rolled back by {by}"));
            return core.describe_in_force().ok_or_else(nothing_before);
        }
        let previous = {
            let mut core = self.core();
            let current = core.in_force.as_ref().map(|in_force| Arc::clone(&in_force.sealed));
            let Some(current) = current else { return Err(nothing_before()) };
            let before = core.state.before(&current);
            before.and_then(|generation| core.state.load(generation)).ok_or_else(nothing_before)?
        };
        let wish = Wish { demands: Demands { force: true, strict: false }, sessions, ..Wish::default() };
        self.change(previous.bundle.clone(), &wish, &Origin::Rollback { by, generation: previous.generation })
    }

    pub fn attach(&self, interface: &str, mode: Option<Mode>, replace: bool) -> Result<Attached, Refusal> {
        self.core().attach(interface, mode, replace)
    }

    pub fn detach(&self, interface: &str) -> Result<Detached, Refusal> {
        self.core().detach(interface)
    }

    /// What time alone changes: called every [`TICK`].
    pub fn tick(&self) {
        self.core().note_end_of_pause();
        self.core().sweep_bans();
        self.core().end_observation_in_time();
        self.end_adjustments();
        self.audit_in_time();
        if self.core().is_unconfirmed() {
            let _one_at_a_time = self.one_change();
            let mut core = self.core();
            if core.is_unconfirmed() {
                core.fall_back("not confirmed in time");
            }
        }
    }

    fn audit_in_time(&self) {
        let mut audited = self.audited.lock().unwrap_or_else(PoisonError::into_inner);
        if audited.elapsed() >= audit::PERIOD {
            *audited = Instant::now();
            self.core().audit_buckets();
        }
    }

    /// Changes go one after the other.
    fn one_change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to do before the daemon ends: nobody listens to the program any more.
    pub fn stop_telling(&self) {
        let mut core = self.core();
        core.end_observation("limiterd ends");
        if let Some(datapath) = &mut core.datapath {
            datapath.stop_trace();
            datapath.watch(Duration::ZERO);
        }
    }

    /// What to do when the settings ask for nothing to stay.
    pub fn detach_all(&self) {
        let mut core = self.core();
        for guard in core.guarded() {
            let Some(datapath) = &mut core.datapath else { return };
            match datapath.detach(&guard.name) {
                Ok(()) => tracing::info!(interface = guard.name, "detached on exit"),
                Err(error) => tracing::error!(interface = guard.name, %error, "not detached"),
            }
        }
    }

    /// Applies the policy file if its content is not what it was at the last look. `seen` is that look.
    pub fn reload_if_changed(&self, seen: &mut Option<String>) {
        if self.core().refuse_while_pending().is_err() {
            // Looked at again when that is decided.
            return;
        }
        let Ok(bundle) = read_file(&self.settings.policy) else {
            // Files are moved into place: a file that is gone for a moment is no reason to say anything.
            return;
        };
        let hash = bundle.hash();
        let known = {
            let core = self.core();
            core.in_force.as_ref().and_then(|in_force| in_force.sealed.file_hash.clone())
        };
        if seen.as_ref() != Some(&hash) && known.as_ref() != Some(&hash) {
            let _ = self.reload(&Wish::default(), "file changed".to_owned());
        }
        *seen = Some(hash);
    }

    fn change(&self, bundle: Bundle, wish: &Wish, origin: &Origin) -> Result<SetPolicy, Refusal> {
        let _one_at_a_time = self.one_change();
        if !wish.dry_run {
            self.core().refuse_while_pending()?;
        }
        let basis = self.core().basis();
        basis.require(wish.if_match.as_deref())?;
        let prepared = prepare::prepare(bundle, &basis, wish.demands)?;
        if !wish.dry_run {
            if wish.confirm_within.is_none() {
                let hint = match origin {
                    Origin::Sent { .. } => lockout::CONFIRM_OR_FORCE,
                    _ => lockout::FORCE,
                };
                lockout::check(&prepared.compiled, &wish.sessions, hint)?;
            }
            return self.core().commit(prepared, &basis, origin, wish.confirm_within);
        }
        let live =
            basis.in_force.as_ref().and_then(|in_force| in_force.reading.as_ref()).and_then(|reading| {
                let (buckets, now) = self.core().live_buckets(live::MOST)?;
                let lone_words = |slot| self.core().lone_words(slot);
                Some(live::judge(&buckets, now, lone_words, reading, &prepared.compiled))
            });
        Ok(SetPolicy {
            applied: false,
            unchanged: basis.in_force.as_ref().is_some_and(|found| found.sealed.hash == prepared.hash),
            generation: basis.generation,
            rules: prepared.reading.policy.rules.len(),
            hash: prepared.hash,
            warnings: prepared.reading.warnings,
            changes: prepared.changes,
            confirm_until: None,
            observed_until: None,
            live,
        })
    }

    /// Hash of what the policy file holds now, or why it cannot be read.
    fn file_hash(&self) -> Result<String, String> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((looked, hash)) = file.as_ref()
            && looked.elapsed() < FILE_LOOK
        {
            return hash.clone();
        }
        let hash = read_file(&self.settings.policy).map(|bundle| bundle.hash()).map_err(|diagnostics| {
            diagnostics.first().map_or_else(|| "cannot be read".to_owned(), ToString::to_string)
        });
        *file = Some((Instant::now(), hash.clone()));
        hash
    }
}

fn read_file(path: &Path) -> Result<Bundle, Vec<Diagnostic>> {
    Bundle::read(path)
}

fn nothing_before() -> Refusal {
    Refusal::new(
        Kind::NotFound,
        "there is no earlier policy to go back to",
        "`limiterctl history` lists the policies this host has had",
    )
}
