//! One TOML file, with the place of everything in it.

use std::{ops::Range, sync::Arc};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    bundle::resolve,
    diagnostic::{Place, Report},
};

/// Turns byte offsets into lines and columns.
#[derive(Clone)]
pub(super) struct Positions<'a> {
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
        let column = self.text.get(start..offset).map_or(offset - start, |before| before.chars().count());
        Place { file: self.file.clone(), line: line as u32, column: column as u32 + 1 }
    }
}

/// A parsed file.
pub(super) struct Document<'a> {
    pub name: String,
    pub positions: Positions<'a>,
    root: DeTable<'a>,
    /// What the TOML parser found, as offset and message.
    syntax: Vec<(usize, String)>,
}

/// Files a document names, by their names in the bundle.
#[derive(Default)]
pub(super) struct NamedFiles {
    /// Other parts of the policy; may be patterns.
    pub includes: Vec<String>,
    pub files: Vec<String>,
}

impl<'a> Document<'a> {
    /// Never fails: what is wrong is reported by [`Document::report_syntax`], the rest is read all the same.
    pub fn parse(name: &str, text: &'a str) -> Self {
        // A byte order mark is not part of the first key.
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
            report.error(&self.positions.at(*offset), format!("not TOML: {message}"), "");
        }
    }

    pub fn root(&self) -> Table<'_> {
        Table { document: self, place: Place::whole(&self.name), entries: &self.root }
    }

    pub fn place(&self, span: Range<usize>) -> Place {
        self.positions.at(span.start)
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
pub(super) struct Table<'d> {
    pub document: &'d Document<'d>,
    pub place: Place,
    entries: &'d DeTable<'d>,
}

/// A value of a document.
#[derive(Clone)]
pub(super) struct Value<'d> {
    pub document: &'d Document<'d>,
    pub place: Place,
    pub value: &'d DeValue<'d>,
}

/// A key with its value.
#[derive(Clone)]
pub(super) struct Entry<'d> {
    pub key: &'d str,
    pub key_place: Place,
    pub value: Value<'d>,
}
