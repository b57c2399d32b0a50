//! What is wrong with a policy, and where.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

/// Whether a policy is refused for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    /// Does not refuse, unless warnings are asked to.
    Warning,
}

/// One mistake or doubt. Its `Display` is one line: `policy.toml:12:8: unknown key …`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    pub severity: Severity,
    /// The file's name inside the bundle.
    pub file: String,
    /// From 1; 0 = the file as a whole.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
    /// What is wrong: lower case, no full stop.
    pub message: String,
    /// What to write instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl Diagnostic {
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Where something was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub file: Arc<str>,
    /// From 1; 0 = the file as a whole.
    pub line: u32,
    pub column: u32,
}

impl Place {
    pub fn whole(file: &str) -> Self {
        Self { file: Arc::from(file), line: 0, column: 0 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Errors one file may add before the rest are only counted.
const SHOWN_PER_FILE: usize = 50;

/// Collects diagnostics, so that all mistakes are reported together.
#[derive(Default)]
pub(crate) struct Report {
    found: Vec<Diagnostic>,
    errors: usize,
    /// Some text was no TOML: what seems to be missing may be in it.
    partial: bool,
}

impl Report {
    pub fn error(&mut self, place: &Place, message: impl Into<String>, help: impl Into<String>) {
        self.add(Severity::Error, place, message.into(), help.into());
    }

    /// Something is not there. Not said of a policy that could not be read whole.
    pub fn missing(&mut self, place: &Place, message: impl Into<String>, help: impl Into<String>) {
        if !self.partial {
            self.error(place, message, help);
        }
    }

    /// Text that could not be read at all.
    pub fn unreadable(&mut self, place: &Place, message: impl Into<String>, help: impl Into<String>) {
        self.partial = true;
        self.error(place, message, help);
    }

    pub fn warning(&mut self, place: &Place, message: impl Into<String>, help: impl Into<String>) {
        self.add(Severity::Warning, place, message.into(), help.into());
    }

    fn add(&mut self, severity: Severity, place: &Place, message: String, help: String) {
        self.errors += usize::from(severity == Severity::Error);
        self.found.push(Diagnostic {
            severity,
            file: place.file.to_string(),
            line: place.line,
            column: place.column,
            message,
            help: (!help.is_empty()).then_some(help),
        });
    }

    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Errors so far.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Everything found, file by file in order of place, the excess of a file counted. Stable: what was found
    /// at one place stays in the order it was found.
    pub fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.found.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
        self.found.dedup();
        let mut kept: Vec<Diagnostic> = Vec::new();
        let mut start = 0;
        while start < self.found.len() {
            let file = &self.found[start].file;
            let same = self.found[start..].iter().take_while(|d| d.file == *file).count();
            kept.extend_from_slice(&self.found[start..start + same.min(SHOWN_PER_FILE)]);
            if same > SHOWN_PER_FILE {
                kept.push(Diagnostic {
                    severity: self.found[start + SHOWN_PER_FILE..start + same]
                        .iter()
                        .map(|d| d.severity)
                        .find(|s| *s == Severity::Error)
                        .unwrap_or(Severity::Warning),
                    file: file.clone(),
                    line: 0,
                    column: 0,
                    message: format!("and {} more like these", same - SHOWN_PER_FILE),
                    help: None,
                });
            }
            start += same;
        }
        kept
    }
}
