//! The request tier's part of this host's settings, as written: `[redis]` and `[requests]` in `limiterd.toml`, each key
//! with a flag (`--redis-url`) and a variable (`LIMITER_REDIS_URL`).

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// Where request buckets live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// In this process: limits are per host.
    Embedded,
    /// In the Redis of `[redis]`: every host that shares it enforces one total.
    Redis,
}

/// A section of settings: a line of help, the key and its type, its flag, its variable, and what stands for its value.
/// Every key may be absent, and a layer can be laid over another.
macro_rules! layer {
    (
        $(#[doc = $about:literal])+
        $layer:ident {
            $(
                $(#[doc = $help:literal])+
                $key:ident: $type:ty = $flag:literal $variable:literal $value:literal;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
        pub struct $layer {
            $(
                $(#[doc = $help])+
                #[arg(id = $flag, long = $flag, env = $variable, value_name = $value)]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $key: Option<$type>,
            )+
        }

        impl $layer {
            /// Lays another layer over this one.
            pub fn lay(&mut self, over: Self) {
                $(
                    if over.$key.is_some() {
                        self.$key = over.$key;
                    }
                )+
            }
        }
    };
}

layer! {
    /// `[redis]` as written. Unknown keys are mistakes.
    RedisLayer {
        /// Redis for the request tier: redis://host:port, rediss://host:port (TLS) or unix:/path
        url: String = "redis-url" "LIMITER_REDIS_URL" "ADDRESS";
        /// ACL user at Redis; `limiterctl redis-acl` prints its rules
        username: String = "redis-username" "LIMITER_REDIS_USERNAME" "NAME";
        /// File that holds that user's password
        password_file: PathBuf = "redis-password-file" "LIMITER_REDIS_PASSWORD_FILE" "FILE";
        /// Number of the database
        database: u32 = "redis-database" "LIMITER_REDIS_DATABASE" "N";
        /// First part of every key: letters, digits and _
        namespace: String = "redis-namespace" "LIMITER_REDIS_NAMESPACE" "NAME";
        /// How long a decision may take before the endpoint's on-store-failure holds, as in 5ms
        deadline: String = "redis-deadline" "LIMITER_REDIS_DEADLINE" "TIME";
        /// PEM file of the authorities Redis' certificate is checked by, instead of the system's
        ca_file: PathBuf = "redis-ca-file" "LIMITER_REDIS_CA_FILE" "FILE";
        /// PEM file of the certificate shown to Redis
        certificate_file: PathBuf = "redis-certificate-file" "LIMITER_REDIS_CERTIFICATE_FILE" "FILE";
        /// PEM file of that certificate's key
        key_file: PathBuf = "redis-key-file" "LIMITER_REDIS_KEY_FILE" "FILE";
    }
}

layer! {
    /// `[requests]` as written. Unknown keys are mistakes.
    RequestsLayer {
        /// Where request buckets live; without [redis] it must be said
        store: StoreKind = "requests-store" "LIMITER_REQUESTS_STORE" "STORE";
        /// Where /v1/check is answered: unix:/path or address:port
        http: String = "requests-http" "LIMITER_REQUESTS_HTTP" "ADDRESS";
        /// The fleet's secret: who counts as whom in Redis is hashed with it
        secret_file: PathBuf = "requests-secret-file" "LIMITER_REQUESTS_SECRET_FILE" "FILE";
        /// Buckets of the embedded store at most
        buckets: usize = "requests-buckets" "LIMITER_REQUESTS_BUCKETS" "N";
        /// File with the token callers show in Limiter-Token
        token_file: PathBuf = "requests-token-file" "LIMITER_REQUESTS_TOKEN_FILE" "FILE";
        /// PEM file of the certificate shown to callers
        certificate_file: PathBuf = "requests-certificate-file" "LIMITER_REQUESTS_CERTIFICATE_FILE" "FILE";
        /// PEM file of that certificate's key
        key_file: PathBuf = "requests-key-file" "LIMITER_REQUESTS_KEY_FILE" "FILE";
        /// PEM file of the authorities callers' certificates are checked by
        client_ca_file: PathBuf = "requests-client-ca-file" "LIMITER_REQUESTS_CLIENT_CA_FILE" "FILE";
    }
}
