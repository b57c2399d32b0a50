//! The decision scripts, put together from the fragments in `lua/`.
//!
//! A decision with one limit runs a script of that algorithm alone, which costs Redis least; one with several
//! runs a script with the algorithms it needs. The function library holds the same fragments, so that a client
//! that asks it gets the answers this host gives.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, PoisonError, RwLock};

use crate::requests::limit::Algorithm;

const COMMON: &str = include_str!("lua/common.lua");
const BUCKET: &str = include_str!("lua/bucket.lua");
const WINDOW: &str = include_str!("lua/window.lua");
const LOG: &str = include_str!("lua/log.lua");
const SINGLE: &str = include_str!("lua/single.lua");
const SEVERAL: &str = include_str!("lua/several.lua");
const LIBRARY: &str = include_str!("lua/library.lua");

/// The first item of `ARGV` that belongs to a limit.
const FIRST_RULE: usize = 3;

/// The fragment of an algorithm, and the prefix of its two functions.
fn fragment(algorithm: Algorithm) -> (&'static str, &'static str) {
    match algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => (BUCKET, "bucket"),
        Algorithm::FixedWindow | Algorithm::SlidingWindow => (WINDOW, "window"),
        Algorithm::SlidingWindowLog => (LOG, "log"),
    }
}

/// The script for one limit of `algorithm`, with a count above 0.
fn single(algorithm: Algorithm) -> String {
    let (fragment, prefix) = fragment(algorithm);
    let main = SINGLE
        .replace("JUDGE", &format!("{prefix}_judge"))
        .replace("CONCLUDE", &format!("{prefix}_conclude"));
    format!("{COMMON}{fragment}{main}")
}

/// The fragments of all of `algorithms` and the function `decide` that charges all or none.
fn decide_with(algorithms: &[Algorithm]) -> String {
    let mut text = String::from(COMMON);
    let mut fragments: Vec<&str> = algorithms.iter().map(|a| fragment(*a).0).collect();
    fragments.sort_unstable();
    fragments.dedup();
    fragments.iter().for_each(|fragment| text.push_str(fragment));
    for part in ["judge", "conclude"] {
        let entries = algorithms.iter().map(|a| format!("{} = {}_{part}", a.letter(), fragment(*a).1));
        let _ = writeln!(text, "local {part} = {{{}}}", entries.collect::<Vec<_>>().join(", "));
    }
    text.push_str(SEVERAL);
    text
}

fn several(algorithms: &[Algorithm]) -> String {
    let mut text = decide_with(algorithms);
    let _ = writeln!(text, "return decide(KEYS, ARGV[1], ARGV[2] == '1', ARGV, {FIRST_RULE})");
    text
}

/// The library `namespace` with the functions that answer for `tables`: Lua that defines the locals `policy` (the
/// policy's hash) and `endpoints`. Redis 7.0 hides Lua's own libraries while it loads a library, so everything is
/// made at the first question.
pub(in crate::requests) fn library(namespace: &str, tables: &str) -> String {
    let decide = decide_with(&Algorithm::ALL);
    format!(
        "#!lua name={namespace}\nlocal namespace, prefix = '{namespace}', '{namespace}:{{'\n{tables}\
         local function start()\n{decide}{LIBRARY}"
    )
}

/// A script and the name it is called by.
#[derive(Debug)]
pub(in crate::requests) struct Script {
    pub text: String,
    pub sha: String,
}

impl Script {
    pub fn new(text: String) -> Self {
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }
}

/// Scripts, made when first needed: there are at most 5 for single limits and one per set of algorithms.
#[derive(Debug, Default)]
pub struct Scripts(RwLock<HashMap<Shape, Arc<Script>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Shape {
    Single(Algorithm),
    /// A bit per algorithm.
    Several(u8),
}

impl Scripts {
    /// The script for a decision over limits of these algorithms. A limit of 0 is for the general script.
    pub fn get(&self, algorithms: impl Iterator<Item = Algorithm>, any_closed: bool) -> Arc<Script> {
        let (mut bits, mut count, mut last) = (0, 0, Algorithm::TokenBucket);
        for algorithm in algorithms {
            bits |= 1 << algorithm as u8;
            count += 1;
            last = algorithm;
        }
        let shape = if count == 1 && !any_closed { Shape::Single(last) } else { Shape::Several(bits) };
        if let Some(script) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&shape) {
            return Arc::clone(script);
        }
        let script = Arc::new(Script::new(match shape {
            Shape::Single(algorithm) => single(algorithm),
            Shape::Several(bits) => several(&in_bits(bits)),
        }));
        let mut scripts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(scripts.entry(shape).or_insert(script))
    }
}

fn in_bits(bits: u8) -> Vec<Algorithm> {
    Algorithm::ALL.into_iter().filter(|algorithm| bits & (1 << *algorithm as u8) != 0).collect()
}

/// `text` as a Lua string literal.
pub(in crate::requests) fn lua_string(text: &str) -> String {
    let mut literal = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | 0..=31 | 127.. => {
                let _ = write!(literal, "\\{byte:03}");
            }
            _ => literal.push(char::from(byte)),
        }
    }
    literal.push('"');
    literal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_literal() {
        assert_eq!(lua_string("a\"] = 1 --\n"), "\"a\\034] = 1 --\\010\"");
        assert_eq!(lua_string("ü"), "\"\\195\\188\"");
    }

    #[test]
    fn a_script_has_only_what_it_needs() {
        let scripts = Scripts::default();
        let log = scripts.get([Algorithm::SlidingWindowLog].into_iter(), false);
        assert!(log.text.contains("log_judge") && !log.text.contains("bucket_judge"));
        let both = scripts.get([Algorithm::TokenBucket, Algorithm::FixedWindow].into_iter(), false);
        assert!(both.text.contains("window_judge") && !both.text.contains("log_judge"));
        let again = scripts.get([Algorithm::FixedWindow, Algorithm::TokenBucket].into_iter(), false);
        assert!(Arc::ptr_eq(&both, &again));
    }
}
