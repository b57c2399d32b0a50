//! What the engine is asked and told, and what it explains.

use std::net::IpAddr;

use super::key::KeyHash;
use super::outcome::Outcome;

/// What is asked about one request. Texts are as they were sent; empty ones count as absent.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The client's address, found by whoever knows the connection.
    pub client: IpAddr,
    pub method: Option<&'a str>,
    /// Path and query, or the whole target.
    pub target: Option<&'a str>,
    pub domain: Option<&'a str>,
    /// One list of entries per descriptor.
    pub descriptors: &'a [Vec<(String, String)>],
    pub api_key: Option<&'a str>,
    pub account: Option<&'a str>,
    pub user: Option<&'a str>,
    pub plan: Option<&'a str>,
    /// For `header:NAME` scopes; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The cost header's value; absent: it is looked for among `headers`.
    pub cost: Option<&'a str>,
    /// The caller holds the request back for [`Outcome::delay`].
    pub can_wait: bool,
}

impl Request<'_> {
    pub fn from(client: IpAddr) -> Self {
        Self {
            client,
            method: None,
            target: None,
            domain: None,
            descriptors: &[],
            api_key: None,
            account: None,
            user: None,
            plan: None,
            headers: Vec::new(),
            cost: None,
            can_wait: false,
        }
    }
}

/// What became known of a request after its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Its cost after all; what was charged is the cost the request itself names.
    Cost(u32),
    Success,
    Failure,
}

/// Why a decision came out as it did, for a person.
#[derive(Clone, Debug)]
pub struct Explanation {
    pub outcome: Outcome,
    /// The path in normal form.
    pub path: Option<String>,
    pub plan: Option<String>,
    /// The API key's hash, as `set-plan` and `revoke-key` take it.
    pub api_key_hash: Option<KeyHash>,
    pub key: &'static str,
    pub cost: u32,
    /// Per limit: what it is counted by in this request, and its text in the store's keys.
    pub subjects: Vec<(String, KeyHash)>,
    pub tag: Option<KeyHash>,
}
