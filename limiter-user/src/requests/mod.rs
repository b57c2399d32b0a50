//! The request tier: limits for traffic that carries an identity.
//!
//! A decision names the limits of one endpoint and, for each, whose bucket pays how much. The store makes
//! it in one atomic step: all limits must have room, or none is charged.

pub mod algorithm;
pub mod embedded;
pub mod key;
pub mod limit;
pub mod store;
