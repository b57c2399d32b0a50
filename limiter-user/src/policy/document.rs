//! One TOML file, with the place of everything in it.

use std::{borrow::Cow, sync::Arc};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    bundle::resolve,
    diagnostic::{Place, Report},
    suggest::{listed, nearest},
};

/// Behind this many bytes of a line, columns are bytes.
const LONG_LINE: usize = 4096;

/// Turns byte offsets into lines and columns.
#[derive(Clone)]
pub(crate) struct Positions<'a> {
    file: Arc<str>,
    text: &'a str,
    /// Offset at which each line starts.
    lines: Vec<usize>,
}

impl<'a> Positions<'a> {
    pub fn new(file: &str, text: &'a str) -> Self {
        let starts = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { file: Arc::from(file), text, lines: std::iter::once(0).chain(starts).collect() }
    }

    pub fn at(&self, offset: usize) -> Place {
        let offset = offset.min(self.text.len());
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines[line - 1];
        // Nobody looks for a character in a line of this length; counting them for each would take for ever.
        let counted = self.text.get(start..offset).filter(|before| before.len() < LONG_LINE);
        let column = counted.map_or(offset - start, |before| before.chars().count());
        Place { file: self.file.clone(), line: line as u32, column: column as u32 + 1 }
    }
}

/// A parsed file.
pub(crate) struct Document<'a> {
    pub name: String,
    pub positions: Positions<'a>,
    root: DeTable<'a>,
    /// What the TOML parser found, as offset and message.
    syntax: Vec<(usize, String)>,
}

/// Files a document names, by their names in the bundle.
#[derive(Default)]
pub(crate) struct NamedFiles {
    /// Other parts of the policy; may be patterns.
    pub includes: Vec<String>,
    pub files: Vec<String>,
}

impl<'a> Document<'a> {
    /// Never fails: what is wrong is reported by [`Document::report_syntax`], the rest is read all the same.
    pub fn parse(name: &str, text: &'a str) -> Self {
        let (root, errors) = DeTable::parse_recoverable(text);
        let syntax = errors.iter().map(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            (offset, error.message().replace('\n', ", "))
        });
        Self {
            name: name.to_owned(),
            positions: Positions::new(name, text),
            syntax: syntax.collect(),
            root: root.into_inner(),
        }
    }

    pub fn report_syntax(&self, report: &mut Report) {
        for (offset, message) in &self.syntax {
            report.unreadable(&self.positions.at(*offset), format!("not TOML: {message}"), "");
        }
    }

    pub fn root(&self) -> Table<'_> {
        Table { document: self, offset: None, entries: &self.root }
    }

    /// What must be in the bundle for this file to be understood: includes and every `file = "…"`.
    pub fn named_files(&self) -> NamedFiles {
        let mut named = NamedFiles::default();
        if let Some(DeValue::Array(patterns)) = self.root.get("include").map(Spanned::get_ref) {
            let patterns = patterns.iter().filter_map(|pattern| pattern.get_ref().as_str());
            named.includes.extend(patterns.map(|pattern| resolve(&self.name, pattern)));
        }
        self.collect_files(&self.root, &mut named.files);
        named
    }

    fn collect_files(&self, table: &DeTable<'_>, files: &mut Vec<String>) {
        for (key, value) in table {
            match value.get_ref() {
                DeValue::String(name) if key.get_ref() == "file" => files.push(resolve(&self.name, name)),
                DeValue::Table(inner) => self.collect_files(inner, files),
                _ => {}
            }
        }
    }
}

/// A table of a document.
#[derive(Clone)]
pub(crate) struct Table<'d> {
    document: &'d Document<'d>,
    /// `None` = the whole file.
    offset: Option<usize>,
    entries: &'d DeTable<'d>,
}

/// A value of a document.
#[derive(Clone)]
pub(crate) struct Value<'d> {
    document: &'d Document<'d>,
    offset: usize,
    value: &'d DeValue<'d>,
}

/// A key with its value.
#[derive(Clone)]
pub(crate) struct Entry<'d> {
    pub key: &'d str,
    key_offset: usize,
    pub value: Value<'d>,
}

impl Entry<'_> {
    pub fn key_place(&self) -> Place {
        self.value.document.positions.at(self.key_offset)
    }
}

/// What a table may say.
pub(crate) struct Keys {
    /// What the table is, for messages: `a rule`.
    pub of: &'static str,
    pub known: &'static [&'static str],
    /// Keys a later version will know.
    pub later: &'static [&'static str],
}

pub(crate) const LATER: &str = "not supported by this version yet";

impl<'d> Table<'d> {
    pub fn place(&self) -> Place {
        match self.offset {
            Some(offset) => self.document.positions.at(offset),
            None => Place::whole(&self.document.name),
        }
    }

    /// Name of the file, as in the bundle.
    pub fn file(&self) -> &'d str {
        &self.document.name
    }

    /// All entries, in the order they are written.
    pub fn entries(&self) -> Vec<Entry<'d>> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        entries.into_iter().map(|(key, value)| self.entry(key, value)).collect()
    }

    pub fn get(&self, key: &str) -> Option<Entry<'d>> {
        self.entries.get_key_value(key).map(|(key, value)| self.entry(key, value))
    }

    fn entry(&self, key: &'d Spanned<Cow<'d, str>>, value: &'d Spanned<DeValue<'d>>) -> Entry<'d> {
        let document = self.document;
        Entry { key: key.get_ref(), key_offset: key.span().start, value: Value::new(document, value) }
    }

    /// Reports every key the table may not have.
    pub fn allow(&self, keys: &Keys, report: &mut Report) {
        for entry in self.entries() {
            let key = entry.key;
            if keys.known.contains(&key) {
                continue;
            }
            if keys.later.contains(&key) {
                report.error(&entry.key_place(), format!("`{key}` of {} is {LATER}", keys.of), "remove it");
                continue;
            }
            let help = match nearest(key, keys.known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("{} may have {}", keys.of, listed(keys.known)),
            };
            report.error(&entry.key_place(), format!("unknown key `{key}`"), help);
        }
    }
}

impl<'d> Value<'d> {
    fn new(document: &'d Document<'d>, value: &'d Spanned<DeValue<'d>>) -> Self {
        Self { document, offset: value.span().start, value: value.get_ref() }
    }

    pub fn place(&self) -> Place {
        self.document.positions.at(self.offset)
    }

    pub fn as_string(&self) -> Option<&'d str> {
        self.value.as_str()
    }

    pub fn as_table(&self) -> Option<Table<'d>> {
        let entries = self.value.as_table()?;
        Some(Table { document: self.document, offset: Some(self.offset), entries })
    }

    pub fn as_array(&self) -> Option<Vec<Value<'d>>> {
        Some(self.value.as_array()?.iter().map(|value| Value::new(self.document, value)).collect())
    }

    /// A whole number as TOML writes it, sign and radix included; the text when it is too large.
    pub fn as_integer(&self) -> Option<Result<i64, &'d str>> {
        let integer = self.value.as_integer()?;
        let text = integer.as_str();
        Some(i64::from_str_radix(text, integer.radix()).map_err(|_| text))
    }

    pub fn as_datetime(&self) -> Option<&'d toml::value::Datetime> {
        self.value.as_datetime()
    }

    pub fn as_bool(&self) -> Option<bool> {
        self.value.as_bool()
    }

    /// For messages: `a string`.
    pub fn kind(&self) -> &'static str {
        match self.value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        }
    }

    /// Reports that the value is of the wrong kind.
    pub fn wrong(&self, what: &str, help: &str, report: &mut Report) {
        report.error(&self.place(), format!("{what}, not {}", self.kind()), help);
    }

    /// A string, or a report that it is none: `what` is like "`name` is a string".
    pub fn string(&self, what: &str, help: &str, report: &mut Report) -> Option<&'d str> {
        if self.as_string().is_none() {
            self.wrong(what, help, report);
        }
        self.as_string()
    }

    pub fn table(&self, what: &str, help: &str, report: &mut Report) -> Option<Table<'d>> {
        if !self.value.is_table() {
            self.wrong(what, help, report);
        }
        self.as_table()
    }

    pub fn array(&self, what: &str, help: &str, report: &mut Report) -> Option<Vec<Value<'d>>> {
        if !self.value.is_array() {
            self.wrong(what, help, report);
        }
        self.as_array()
    }

    /// One of a few words.
    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)], report: &mut Report) -> Option<T> {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let help = format!(
            "write {}",
            names.iter().map(|name| format!("`\"{name}\"`")).collect::<Vec<_>>().join(" or ")
        );
        let text = self.string(&format!("`{key}` is a string"), &help, report)?;
        let found = words.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if found.is_none() {
            report.error(&self.place(), format!("`{key}` cannot be `{text}`"), help);
        }
        found
    }
}
