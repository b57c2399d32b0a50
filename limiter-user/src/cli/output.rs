//! How limiterctl speaks: data on stdout, errors and hints on stderr, tables without borders.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use super::Format;
use crate::control::client::ClientError;
use crate::policy::Diagnostic;

/// Why a verb was not done, with its exit code.
pub struct Problem {
    error: String,
    hint: Option<String>,
    diagnostics: Vec<Diagnostic>,
    code: u8,
}

impl Problem {
    pub fn failed(error: impl Into<String>, hint: Option<String>) -> Self {
        Self { error: error.into(), hint, diagnostics: Vec::new(), code: 1 }
    }

    pub fn bad_policy(error: impl Into<String>, diagnostics: Vec<Diagnostic>) -> Self {
        Self { error: error.into(), hint: None, diagnostics, code: 2 }
    }

    /// The file itself cannot be read; `diagnostics` says why.
    pub fn unreadable(diagnostics: &[Diagnostic]) -> Self {
        let error =
            diagnostics.first().map_or_else(|| "cannot read the file".to_owned(), ToString::to_string);
        Self { error, hint: None, diagnostics: Vec::new(), code: 2 }
    }

    /// Prints it; errors go to stderr also when the output is JSON.
    pub fn report(&self) -> ExitCode {
        let mut text = show_diagnostics(&self.diagnostics);
        if !text.is_empty() {
            text.push('\n');
        }
        text += &error_text(&self.error, self.hint.as_deref());
        say(&text);
        ExitCode::from(self.code)
    }
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Self {
        let hint = error.hint();
        let text = error.to_string();
        match error {
            ClientError::Unreachable { .. } | ClientError::Broken { .. } => {
                Self { error: text, hint, diagnostics: Vec::new(), code: 3 }
            }
            ClientError::Refused { status, failure } => Self {
                error: text,
                hint,
                diagnostics: failure.diagnostics,
                code: if status == hyper::StatusCode::UNPROCESSABLE_ENTITY { 2 } else { 1 },
            },
        }
    }
}

/// `error: …`, an empty line, `hint: …`.
pub fn error_text(error: &str, hint: Option<&str>) -> String {
    let style = Style::of(&io::stderr());
    let mut text = format!("{}: {error}\n", style.paint("31;1", "error"));
    if let Some(hint) = hint.filter(|hint| !hint.is_empty()) {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{}: {hint}\n", style.paint("36;1", "hint"));
    }
    text
}

/// One line each, and what to write below it.
pub fn show_diagnostics(diagnostics: &[Diagnostic]) -> String {
    let mut text = String::new();
    for diagnostic in diagnostics {
        let kind = if diagnostic.is_error() { "" } else { "warning: " };
        let _ = writeln!(text, "{kind}{diagnostic}");
        if let Some(help) = &diagnostic.help {
            let _ = writeln!(text, "    {help}");
        }
    }
    text
}

/// Talk: to stderr.
pub fn say(text: &str) {
    // Nobody listens: nothing to do about it.
    let _ = io::stderr().write_all(text.as_bytes());
}

pub fn warn(warnings: &[String]) {
    for warning in warnings {
        say(&format!("{}: {warning}\n", Style::of(&io::stderr()).paint("33;1", "warning")));
    }
}

/// Data: to stdout. A reader that has seen enough is no failure.
pub fn print(text: &str) -> ExitCode {
    match write_out(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => Problem::failed(format!("cannot write: {error}"), None).report(),
    }
}

/// Like [`print()`], for those who go on while somebody reads.
pub fn write_out(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// The answer as one line of JSON, or as `text` makes it.
pub fn print_as<T: Serialize>(format: Format, answer: &T, text: impl FnOnce(&T) -> String) -> ExitCode {
    match format {
        Format::Json => print(&json_line(answer)),
        Format::Text => print(&text(answer)),
    }
}

pub fn json_line(answer: &impl Serialize) -> String {
    // Our own types always have a JSON form.
    serde_json::to_string(answer).unwrap_or_default() + "\n"
}

/// Colours, where somebody looks and does not mind.
#[derive(Clone, Copy)]
pub struct Style {
    on: bool,
}

impl Style {
    pub fn of(stream: &impl IsTerminal) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: stream.is_terminal() && !unwanted && !dumb }
    }

    pub fn is_on(self) -> bool {
        self.on
    }

    /// `code`: SGR parameters.
    pub fn paint(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Columns, aligned: numbers to the right. No borders, two spaces between.
pub struct Table {
    /// Name, and whether it holds numbers.
    columns: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A name that begins with `>` is a column of numbers.
    pub fn new(columns: &[&'static str]) -> Self {
        let columns = columns.iter().map(|name| match name.strip_prefix('>') {
            Some(name) => (name, true),
            None => (*name, false),
        });
        Self { columns: columns.collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn show(&self) -> String {
        let width = |index: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(index)).map(|cell| cell.chars().count());
            cells.chain([self.columns[index].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[String]| {
            let mut line = String::new();
            for ((cell, (_, numbers)), width) in cells.iter().zip(&self.columns).zip(&widths) {
                let _ = match numbers {
                    true => write!(line, "{cell:>width$}  "),
                    false => write!(line, "{cell:<width$}  "),
                };
            }
            line.trim_end().to_owned()
        };
        let names: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut text = Style::of(&io::stdout()).paint("1", &line(&names)) + "\n";
        for row in &self.rows {
            text += &line(row);
            text.push('\n');
        }
        text
    }
}

/// The first digits of a hash: enough for people.
pub fn short_hash(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// `3d 4h`, `5m 12s`: the two largest units.
pub fn show_duration(seconds: u64) -> String {
    let text = humantime::format_duration(Duration::from_secs(seconds)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ").replace("days", "d").replace("day", "d")
}

/// `1 rule`, `3 rules`.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_borderless() {
        let mut table = Table::new(&["SOURCE", ">DROPPED"]);
        table.row(vec!["203.0.113.9".to_owned(), "7".to_owned()]);
        table.row(vec!["2001:db8::/64".to_owned(), "123456".to_owned()]);
        assert_eq!(table.show(), "SOURCE         DROPPED\n203.0.113.9          7\n2001:db8::/64   123456\n");
    }

    #[test]
    fn durations_show_two_units() {
        assert_eq!(show_duration(0), "0s");
        assert_eq!(show_duration(59), "59s");
        assert_eq!(show_duration(3_725), "1h 2m");
        assert_eq!(show_duration(86_400 * 3 + 4 * 3600 + 5), "3d 4h");
    }
}
