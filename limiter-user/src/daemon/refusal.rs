//! Why something was not done.

use crate::control::api::Failure;
use crate::datapath;
use crate::policy::Diagnostic;

/// What kind of no it is; the API makes an HTTP status of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What was asked makes no sense.
    BadRequest,
    /// The policy has mistakes.
    BadPolicy,
    /// The policy in force is not the one the caller thinks.
    Stale,
    /// Sound, but dangerous enough to need `--force`.
    NeedsForce,
    NotFound,
    /// The state of the host does not permit it.
    Conflict,
    /// The kernel or the disk failed.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: Kind,
    pub failure: Failure,
}

impl Refusal {
    pub fn new(kind: Kind, error: impl Into<String>, hint: impl Into<String>) -> Self {
        let failure = Failure { error: error.into(), hint: Some(hint.into()), diagnostics: Vec::new() };
        Self { kind, failure }
    }

    /// `name` is the file the mistakes are in.
    pub fn bad_policy(name: &str, diagnostics: Vec<Diagnostic>) -> Self {
        let count = diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
        let error = match count {
            0 => format!("`{name}` has warnings, and warnings are not accepted here"),
            1 => format!("`{name}` has a mistake"),
            _ => format!("`{name}` has {count} mistakes"),
        };
        let hint = if count == 0 {
            "mend them, or leave `--strict` away"
        } else {
            "the policy in force was not touched; `limiterctl check-policy FILE` checks without applying"
        };
        let failure = Failure { error, hint: Some(hint.to_owned()), diagnostics };
        Self { kind: Kind::BadPolicy, failure }
    }

    /// One line for logs and `status`.
    pub fn line(&self) -> String {
        match self.failure.diagnostics.as_slice() {
            [] => self.failure.error.clone(),
            [only] => format!("{}: {only}", self.failure.error),
            [first, ..] => format!("{}, the first: {first}", self.failure.error),
        }
    }
}

impl From<datapath::Error> for Refusal {
    fn from(error: datapath::Error) -> Self {
        use datapath::Error as E;
        let kind = match &error {
            E::NoSuchInterface { .. } | E::NotAttached { .. } => Kind::NotFound,
            E::ForeignProgram { .. } | E::MtuTooLarge { .. } | E::NativeUnsupported { .. } => Kind::Conflict,
            E::PolicyTooLarge { .. } => Kind::BadPolicy,
            _ => Kind::Failed,
        };
        let failure = Failure { error: error.to_string(), hint: error.hint(), diagnostics: Vec::new() };
        Self { kind, failure }
    }
}

/// The system's words for an error, without its number.
pub fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words).to_lowercase()
}
