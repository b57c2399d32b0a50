//! Which endpoint a request belongs to: the first one in the file that matches.

use std::collections::BTreeMap;
use std::fmt;

use super::normalise::normalise;

/// The paths an endpoint covers, in normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// Exactly this path.
    Exact(String),
    /// Written `/a/b/*`: `/a/b`, `/a/b/` and everything below. Holds `/a/b`, and `` for `/*`.
    Below(String),
}

impl PathPattern {
    /// Reads a pattern of the policy file; the error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (path, below) = match text.strip_suffix("/*") {
            Some("") => return Ok(Self::Below(String::new())),
            Some(path) => (path, true),
            None => (text, false),
        };
        if path.contains('*') {
            return Err(format!(
                "`*` may only stand at the end, as in `{}/*`",
                path.split("/*").next().unwrap_or("")
            ));
        }
        if !path.starts_with('/') {
            return Err("a path starts with `/`".to_owned());
        }
        if below && path.ends_with('/') {
            return Err(format!(
                "requests never have this spelling; write `{}/*`",
                path.trim_end_matches('/')
            ));
        }
        match normalise(path.as_bytes()) {
            Some(normal) if normal != path => {
                let shown = if below { format!("{normal}/*") } else { normal.into_owned() };
                Err(format!("requests never have this spelling; write `{shown}`"))
            }
            Some(normal) if below => Ok(Self::Below(normal.into_owned())),
            Some(normal) => Ok(Self::Exact(normal.into_owned())),
            None => Err("this is not a path: write it percent-encoded, without spaces".to_owned()),
        }
    }

    /// Whether a path in normal form is covered.
    pub fn covers(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == path,
            Self::Below(base) => {
                path.strip_prefix(base.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }
}

/// The conditions of one endpoint; all that are present must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Methods, as sent (they are case-sensitive). Empty is every method.
    pub methods: Vec<String>,
    pub path: Option<PathPattern>,
    /// Envoy's domain. An endpoint with one is never met by a plain HTTP request.
    pub domain: Option<String>,
    /// Entries that one descriptor of the request must hold.
    pub descriptor: BTreeMap<String, String>,
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => f.write_str(path),
            Self::Below(path) => write!(f, "{path}/*"),
        }
    }
}

/// For people: `POST /v1/login`, `domain edge generic_key=login`, `every request`.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods = (!self.methods.is_empty()).then(|| self.methods.join("|"));
        let path = self.path.as_ref().map(PathPattern::to_string);
        let domain = self.domain.as_ref().map(|domain| format!("domain {domain}"));
        let entries = self.descriptor.iter().map(|(key, value)| format!("{key}={value}"));
        let words: Vec<String> = [methods, path, domain].into_iter().flatten().chain(entries).collect();
        f.write_str(if words.is_empty() { "every request" } else { "" })?;
        f.write_str(&words.join(" "))
    }
}

/// What matching looks at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Target<'a> {
    pub method: Option<&'a str>,
    /// In normal form; `None` when the request has no path that can be normalised.
    pub path: Option<&'a str>,
    pub domain: Option<&'a str>,
    /// The entries of one descriptor.
    pub descriptor: &'a [(String, String)],
}

impl Match {
    pub fn covers(&self, target: &Target<'_>) -> bool {
        let method = self.methods.is_empty()
            || target.method.is_some_and(|method| self.methods.iter().any(|covered| covered == method));
        let path = match (&self.path, target.path) {
            (None, _) => true,
            (Some(pattern), Some(path)) => pattern.covers(path),
            (Some(_), None) => false,
        };
        let domain = self.domain.as_deref().is_none_or(|domain| target.domain == Some(domain));
        method
            && path
            && domain
            && self
                .descriptor
                .iter()
                .all(|(key, value)| target.descriptor.iter().any(|(k, v)| k == key && v == value))
    }

    /// Whether every target this one covers is covered by `earlier` already, so that it is never reached.
    pub fn shadowed_by(&self, earlier: &Self) -> bool {
        let methods = earlier.methods.is_empty()
            || (!self.methods.is_empty()
                && self.methods.iter().all(|method| earlier.methods.contains(method)));
        let path = match (&earlier.path, &self.path) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(PathPattern::Exact(a)), Some(PathPattern::Exact(b))) => a == b,
            (Some(PathPattern::Exact(_)), Some(PathPattern::Below(_))) => false,
            (Some(wide @ PathPattern::Below(_)), Some(PathPattern::Exact(b) | PathPattern::Below(b))) => {
                wide.covers(b)
            }
        };
        let domain = earlier.domain.is_none() || earlier.domain == self.domain;
        methods
            && path
            && domain
            && earlier.descriptor.iter().all(|(key, value)| self.descriptor.get(key) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PathPattern {
        PathPattern::parse(text).unwrap()
    }

    #[test]
    fn patterns_cover_what_they_say() {
        let table: &[(&str, &str, bool)] = &[
            ("/v1/login", "/v1/login", true),
            ("/v1/login", "/v1/login/", false),
            ("/v1/login", "/v1/Login", false),
            ("/v1/search/*", "/v1/search", true),
            ("/v1/search/*", "/v1/search/", true),
            ("/v1/search/*", "/v1/search/a/b", true),
            ("/v1/search/*", "/v1/searching", false),
            ("/*", "/", true),
            ("/*", "/a", true),
            ("/", "/", true),
            ("/", "/a", false),
        ];
        for (pattern, sent, covered) in table {
            assert_eq!(path(pattern).covers(sent), *covered, "{pattern} {sent}");
        }
    }

    #[test]
    fn patterns_that_could_never_match_are_mistakes() {
        for (pattern, said) in [
            ("/v1//login", "/v1/login"),
            ("/v1/%6cogin", "/v1/login"),
            ("/v1/../login/*", "/login/*"),
            ("v1/login", "starts with `/`"),
            ("/v1/*/login", "/v1/*"),
            ("/v1 /login", "not a path"),
            ("/v1//*", "`/v1/*`"),
            ("/v1/login?x", "/v1/login"),
        ] {
            let error = PathPattern::parse(pattern).unwrap_err();
            assert!(error.contains(said), "{pattern}: {error}");
        }
    }

    #[test]
    fn every_condition_must_hold() {
        let login = Match { methods: vec!["POST".into()], path: Some(path("/v1/login")), ..Match::default() };
        let target = |method, path| Target { method: Some(method), path, ..Target::default() };
        assert!(login.covers(&target("POST", Some("/v1/login"))));
        assert!(!login.covers(&target("GET", Some("/v1/login"))));
        assert!(!login.covers(&target("post", Some("/v1/login"))));
        assert!(!login.covers(&target("POST", None)));

        let edge = Match {
            domain: Some("edge".into()),
            descriptor: BTreeMap::from([("generic_key".to_owned(), "login".to_owned())]),
            ..Match::default()
        };
        let entries = vec![("generic_key".to_owned(), "login".to_owned()), ("x".to_owned(), "y".to_owned())];
        assert!(edge.covers(&Target { domain: Some("edge"), descriptor: &entries, ..Target::default() }));
        assert!(!edge.covers(&Target {
            domain: Some("edge"),
            descriptor: &entries[1..],
            ..Target::default()
        }));
        assert!(!edge.covers(&target("POST", Some("/v1/login"))));
    }

    #[test]
    fn a_path_that_cannot_be_normalised_meets_only_endpoints_without_path() {
        let any = Match::default();
        let all_paths = Match { path: Some(path("/*")), ..Match::default() };
        assert!(any.covers(&Target::default()));
        assert!(!all_paths.covers(&Target::default()));
    }

    #[test]
    fn a_match_is_shown_in_a_few_words() {
        let descriptor = BTreeMap::from([("generic_key".to_owned(), "login".to_owned())]);
        let methods = vec!["GET".into(), "POST".into()];
        let web = Match { methods, path: Some(path("/v1/*")), ..Match::default() };
        let edge = Match { domain: Some("edge".into()), descriptor, ..Match::default() };
        assert_eq!(web.to_string(), "GET|POST /v1/*");
        assert_eq!(edge.to_string(), "domain edge generic_key=login");
        assert_eq!(Match { path: Some(path("/*")), ..Match::default() }.to_string(), "/*");
        assert_eq!(Match::default().to_string(), "every request");
    }

    #[test]
    fn shadowing_is_seen() {
        let of = |methods: &[&str], pattern: Option<&str>| Match {
            methods: methods.iter().map(|&m| m.to_owned()).collect(),
            path: pattern.map(path),
            ..Match::default()
        };
        assert!(of(&["GET"], Some("/a/b")).shadowed_by(&of(&[], Some("/a/*"))));
        assert!(of(&[], Some("/a/*")).shadowed_by(&of(&[], None)));
        assert!(of(&["GET"], None).shadowed_by(&of(&["GET", "POST"], None)));
        assert!(!of(&[], Some("/a/*")).shadowed_by(&of(&[], Some("/a/b"))));
        assert!(!of(&[], Some("/a")).shadowed_by(&of(&["GET"], Some("/a"))));
        assert!(!of(&[], None).shadowed_by(&of(&[], Some("/*"))));
    }
}
