//! The request tier: limits for traffic that carries an identity.
//!
//! A decision names the limits of one endpoint and, for each, whose bucket pays how much. The store makes
//! it in one atomic step: all limits must have room, or none is charged.

pub mod algorithm;
mod case;
pub mod config;
pub mod embedded;
pub mod engine;
pub mod failure;
pub mod grouping;
pub mod headers;
pub mod heartbeat;
pub mod http;
pub mod identity;
pub mod key;
mod layers;
pub mod limit;
pub mod local_plans;
pub mod matching;
pub mod metrics;
pub mod normalise;
pub mod outage;
pub mod outcome;
pub mod plans;
pub mod policy;
pub(crate) mod policy_difference;
mod policy_limits;
pub(crate) mod policy_read;
mod policy_warnings;
pub mod publication;
pub mod publish;
pub mod question;
pub mod rate;
pub mod redis;
pub mod reject_cache;
pub mod serve;
mod settle;
mod source;
pub mod store;
pub mod tier;
pub mod tower;

#[cfg(test)]
mod engine_tests;
#[cfg(test)]
mod outage_tests;
#[cfg(test)]
mod policy_tests;

#[cfg(test)]
mod tower_tests;
