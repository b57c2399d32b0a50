//! The request tier: limits for traffic that carries an identity.
//!
//! A decision names the limits of one endpoint and, for each, whose bucket pays how much. The store makes
//! it in one atomic step: all limits must have room, or none is charged.

pub mod algorithm;
pub mod embedded;
pub mod engine;
pub mod failure;
pub mod grouping;
pub mod headers;
pub mod heartbeat;
pub mod http;
pub mod identity;
pub mod key;
pub mod limit;
pub mod matching;
pub mod metrics;
pub mod normalise;
pub mod outcome;
pub mod plans;
pub mod policy;
pub mod publish;
pub mod redis;
pub mod reject_cache;
pub mod store;
