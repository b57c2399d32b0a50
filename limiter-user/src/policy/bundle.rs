//! A policy together with every file it names.
//!
//! Files are opened once, by whoever has them; from then on a policy is text. Names inside a bundle are relative
//! to the directory of the main file, so the same files make the same bundle on every host.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use glob::{MatchOptions, Pattern};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    diagnostic::{Diagnostic, Severity},
    document::Document,
};

/// Largest bundle, in bytes of text.
pub const LARGEST: u64 = 64 << 20;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// Name of the main file, a key of `files`.
    pub policy: String,
    /// Text by name.
    pub files: BTreeMap<String, String>,
    /// Files that are named but could not be read, and why: a mistake of the policy like any other.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unreadable: BTreeMap<String, String>,
}

impl Bundle {
    /// A policy that names no other file.
    pub fn from_text(name: &str, text: &str) -> Self {
        Self {
            policy: name.to_owned(),
            files: BTreeMap::from([(name.to_owned(), text.to_owned())]),
            unreadable: BTreeMap::new(),
        }
    }

    /// Adds a file by its name.
    #[must_use]
    pub fn with_file(mut self, name: &str, text: &str) -> Self {
        self.files.insert(name.to_owned(), text.to_owned());
        self
    }

    /// Reads a policy with its included files and set files. Fails only when the main file cannot be read or
    /// all is too large: what else is wrong is for [`super::check`] to say, together with every other mistake.
    pub fn read(path: &Path) -> Result<Self, Vec<Diagnostic>> {
        let refuse = |name: &str, message: String| {
            vec![Diagnostic {
                severity: Severity::Error,
                file: name.to_owned(),
                line: 0,
                column: 0,
                message,
                help: None,
            }]
        };
        let shown = path.display().to_string();
        let Some(name) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else {
            return Err(refuse(&shown, "not the name of a file".to_owned()));
        };
        let base = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let text =
            read_text(path, LARGEST).map_err(|why| refuse(&shown, format!("cannot read it: {why}")))?;
        let mut bundle = Self::from_text(&name, &text);
        let mut left = LARGEST - text.len() as u64;
        let mut waiting = vec![name];
        while let Some(name) = waiting.pop() {
            let Some(text) = bundle.files.get(&name) else { continue };
            let named = Document::parse(&name, text).named_files();
            let included = named.includes.iter().flat_map(|pattern| expand(&base, pattern));
            let included: Vec<String> = included.collect();
            for (name, is_policy) in included
                .into_iter()
                .map(|name| (name, true))
                .chain(named.files.into_iter().map(|name| (name, false)))
            {
                if bundle.files.contains_key(&name) || bundle.unreadable.contains_key(&name) {
                    continue;
                }
                match read_text(&base.join(&name), left) {
                    Ok(text) => {
                        left -= text.len() as u64;
                        bundle.files.insert(name.clone(), text);
                        if is_policy {
                            waiting.push(name);
                        }
                    }
                    Err(why) => {
                        bundle.unreadable.insert(name, why);
                    }
                }
            }
        }
        Ok(bundle)
    }

    /// The policy's identity: hex SHA-256 of its content. The main file's own name is no part of it.
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |part: &str| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        };
        add(self.files.get(&self.policy).map_or("", String::as_str));
        for (name, text) in self.files.iter().filter(|(name, _)| **name != self.policy) {
            add(name);
            add(text);
        }
        hex::encode(hash.finalize())
    }

    /// Names of the files an include pattern means, sorted.
    pub(super) fn matching(&self, pattern: &str) -> Vec<String> {
        match Pattern::new(pattern) {
            Ok(glob) if is_pattern(pattern) => {
                let named = self.files.keys().chain(self.unreadable.keys());
                let mut names: Vec<String> = named.filter(|n| glob.matches_with(n, GLOB)).cloned().collect();
                names.sort();
                names
            }
            _ => vec![pattern.to_owned()],
        }
    }
}

/// A star stays inside one directory and leaves hidden files alone.
const GLOB: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// Whether an include may mean any number of files.
pub(super) fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// Names, relative to `base`, of the files a pattern means. One without wildcards means itself.
fn expand(base: &Path, pattern: &str) -> Vec<String> {
    if !is_pattern(pattern) {
        return vec![pattern.to_owned()];
    }
    let whole = if Path::new(pattern).is_absolute() {
        pattern.to_owned()
    } else {
        format!("{}/{pattern}", Pattern::escape(&base.to_string_lossy()))
    };
    let Ok(paths) = glob::glob_with(&whole, GLOB) else { return Vec::new() };
    let names = paths.flatten().filter(|path| !path.is_dir()).map(|path| {
        let name = path.strip_prefix(base).unwrap_or(&path);
        name.to_string_lossy().into_owned()
    });
    names.collect()
}

fn read_text(path: &Path, left: u64) -> Result<String, String> {
    let explain = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    };
    let metadata = fs::metadata(path).map_err(explain)?;
    if !metadata.is_file() {
        return Err("not a regular file".to_owned());
    }
    if metadata.len() > left {
        return Err("the policy and its files are larger than 64 MiB".to_owned());
    }
    let bytes = fs::read(path).map_err(explain)?;
    if bytes.len() as u64 > left {
        return Err("the policy and its files are larger than 64 MiB".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        format!("not UTF-8 text: byte {} is not part of a character", error.utf8_error().valid_up_to())
    })
}

/// The name of a file that is named inside another: relative to that one's directory, without `.` and `..`
/// where they can be resolved by name alone.
pub(crate) fn resolve(inside: &str, name: &str) -> String {
    let directory = inside.rsplit_once('/').map_or("", |(directory, _)| directory);
    let joined = if name.starts_with('/') || directory.is_empty() {
        name.to_owned()
    } else {
        format!("{directory}/{name}")
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in joined.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    let root = if joined.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_relative_to_the_naming_file() {
        for (inside, name, expected) in [
            ("policy.toml", "scanners.txt", "scanners.txt"),
            ("policy.toml", "./lists/../scanners.txt", "scanners.txt"),
            ("policy.d/a.toml", "scanners.txt", "policy.d/scanners.txt"),
            ("policy.d/a.toml", "../scanners.txt", "scanners.txt"),
            ("policy.toml", "../shared/x.txt", "../shared/x.txt"),
            ("policy.d/a.toml", "/srv/lists/./x.txt", "/srv/lists/x.txt"),
        ] {
            assert_eq!(resolve(inside, name), expected, "{name} inside {inside}");
        }
    }

    #[test]
    fn identity_is_the_content() {
        let one = Bundle::from_text("policy.toml", "version = 1").with_file("a.txt", "10.0.0.0/8\n");
        let renamed = Bundle::from_text("other.toml", "version = 1").with_file("a.txt", "10.0.0.0/8\n");
        assert_eq!(one.hash(), renamed.hash());
        assert_eq!(one.hash().len(), 64);
        assert_ne!(one.hash(), Bundle::from_text("policy.toml", "version = 1").hash());
        assert_ne!(one.hash(), one.clone().with_file("a.txt", "10.0.0.0/9\n").hash());
    }

    #[test]
    fn reads_every_file_it_names() {
        let base = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = base.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "policy.toml",
            "include = [\"policy.d/*.toml\", \"gone.toml\"]\n[sets]\na = { file = \"a.txt\" }\n",
        );
        write("policy.d/2.toml", "[sets]\nb = { file = \"../b.txt\" }\n");
        write("policy.d/1.toml", "");
        write("policy.d/.hidden.toml", "");
        write("policy.d/note.md", "");
        write("a.txt", "");
        write("b.txt", "");
        let bundle = Bundle::read(&base.path().join("policy.toml")).unwrap();
        let names: Vec<&str> = bundle.files.keys().map(String::as_str).collect();
        assert_eq!(names, ["a.txt", "b.txt", "policy.d/1.toml", "policy.d/2.toml", "policy.toml"]);
        assert_eq!(bundle.unreadable, BTreeMap::from([("gone.toml".to_owned(), "no such file".to_owned())]));
        assert_eq!(bundle.matching("policy.d/*.toml"), ["policy.d/1.toml", "policy.d/2.toml"]);
    }

    #[test]
    fn a_main_file_that_cannot_be_read_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let errors = Bundle::read(&base.path().join("none.toml")).unwrap_err();
        assert!(errors[0].to_string().ends_with("none.toml: cannot read it: no such file"), "{}", errors[0]);
        let errors = Bundle::read(base.path()).unwrap_err();
        assert!(errors[0].message.contains("not a regular file"), "{}", errors[0]);
    }
}
