//! How to reach Redis.

use std::path::PathBuf;
use std::time::Duration;

use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates,
    io::tcp::TcpSettings,
};

use crate::requests::key::Secret;

/// A standalone Redis.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    pub address: Address,
    /// Absent: the certificates of the system, where the address says TLS.
    pub tls: Option<Tls>,
    /// The ACL user; absent: `default`.
    pub user: Option<String>,
    pub password: Option<Password>,
    pub database: u32,
    /// `[A-Za-z0-9_]+`: the first part of every key, and the name of the function library.
    pub namespace: String,
    /// The fleet's secret.
    pub secret: Secret,
    /// How long a decision may take.
    pub deadline: Duration,
}

/// Never shown.
#[derive(Clone)]
pub struct Password(pub String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(..)")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16 },
    Unix(PathBuf),
}

/// PEM texts.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// Trust these authorities instead of the system's.
    pub authority: Option<Vec<u8>>,
    /// Show this certificate, with its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("`{0}` is not a Redis address: write `redis://host:port`, `rediss://host:port` or `unix:/path`")]
    Address(String),
    #[error("`{0}` is not a namespace: letters, digits and `_`, at most 32")]
    Namespace(String),
    #[error("{0}")]
    Client(String),
}

impl Address {
    /// `redis://host:port` (plain), `rediss://host:port` (TLS), `unix:/path`. A user, password or database in the
    /// address is an error: they have settings of their own.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::Address(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(wrong()) };
        }
        let (tls, rest) = match (text.strip_prefix("redis://"), text.strip_prefix("rediss://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(wrong()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let has_port = rest.rfind(':').is_some_and(|colon| !rest[colon..].contains(']'));
        let (host, port) = if has_port { rest.rsplit_once(':').ok_or_else(wrong)? } else { (rest, "6379") };
        let port = port.parse().map_err(|_| wrong())?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(['@', '/', '?', '#', '[', ']']) {
            return Err(wrong());
        }
        let host = host.to_owned();
        Ok(if tls { Self::Tls { host, port } } else { Self::Tcp { host, port } })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bracketed = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        match self {
            Self::Tcp { host, port } => write!(f, "redis://{}:{port}", bracketed(host)),
            Self::Tls { host, port } => write!(f, "rediss://{}:{port}", bracketed(host)),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl RedisConfig {
    pub fn new(address: Address, namespace: &str, secret: Secret) -> Self {
        Self {
            address,
            tls: None,
            user: None,
            password: None,
            database: 0,
            namespace: namespace.to_owned(),
            secret,
            deadline: DEFAULT_DEADLINE,
        }
    }

    pub(super) fn client(&self) -> Result<Client, ConfigError> {
        let name_ok = self.namespace.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !name_ok || self.namespace.is_empty() || self.namespace.len() > 32 {
            return Err(ConfigError::Namespace(self.namespace.clone()));
        }
        let client_error = |error: redis::RedisError| ConfigError::Client(error.to_string());
        let address = match &self.address {
            Address::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
            Address::Tls { host, port } => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        };
        let mut settings =
            RedisConnectionInfo::default().set_db(i64::from(self.database)).set_skip_set_lib_name();
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(Password(password)) = &self.password {
            settings = settings.set_password(password);
        }
        let info: ConnectionInfo =
            address.into_connection_info().map_err(client_error)?.set_redis_settings(settings);
        // A small request waits for nothing.
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        if matches!(self.address, Address::Tls { .. }) {
            // Fails only where the process has chosen one already, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        match (&self.address, &self.tls) {
            (Address::Tls { .. }, Some(tls)) => {
                let client_tls = tls
                    .client
                    .clone()
                    .map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
                let certificates = TlsCertificates { client_tls, root_cert: tls.authority.clone() };
                Client::build_with_tls(info, certificates).map_err(client_error)
            }
            _ => Client::open(info).map_err(client_error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let tcp = |host: &str, port| Ok(Address::Tcp { host: host.into(), port });
        assert_eq!(Address::parse("redis://10.0.0.5"), tcp("10.0.0.5", 6379));
        assert_eq!(Address::parse("redis://cache.example:7000/"), tcp("cache.example", 7000));
        assert_eq!(Address::parse("redis://[2001:db8::1]:7000"), tcp("2001:db8::1", 7000));
        assert_eq!(Address::parse("redis://[2001:db8::1]"), tcp("2001:db8::1", 6379));
        let tls = Address::Tls { host: "cache.example".into(), port: 6380 };
        assert_eq!(Address::parse("rediss://cache.example:6380"), Ok(tls.clone()));
        assert_eq!(tls.to_string(), "rediss://cache.example:6380");
        assert_eq!(Address::parse("unix:/run/redis.sock"), Ok(Address::Unix("/run/redis.sock".into())));
        for wrong in [
            "cache:6379",
            "redis://",
            "redis://u:p@cache",
            "redis://cache/2",
            "unix:redis.sock",
            "redis://h:x",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
