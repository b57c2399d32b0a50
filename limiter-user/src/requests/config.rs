//! The request tier's settings: what follows from what is written, with every file read.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::key::Secret;
pub use super::layers::{RedisLayer, RequestsLayer, StoreKind};
use super::redis::{Address, Password, RedisConfig, Tls};

/// A setting that cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadSetting {
    pub message: String,
    pub hint: String,
}

fn bad(message: impl Into<String>, hint: impl Into<String>) -> BadSetting {
    BadSetting { message: message.into(), hint: hint.into() }
}

/// The request tier's settings with every file read.
#[derive(Debug)]
pub struct TierSettings {
    pub store: StoreSettings,
    pub secret: Secret,
    /// It is the same after a restart, and so are the hashes of keys.
    pub secret_is_kept: bool,
    pub http: Option<Listen>,
}

#[derive(Debug)]
pub enum StoreSettings {
    Embedded { buckets: usize },
    Redis(Box<RedisConfig>),
}

/// Where callers ask, and who may.
#[derive(Debug)]
pub struct Listen {
    pub at: ListenAddress,
    pub token: Option<Token>,
    pub tls: Option<ServerTls>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// PEM texts.
#[derive(Clone)]
pub struct ServerTls {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// Callers must show a certificate of these authorities.
    pub client_ca: Option<Vec<u8>>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerTls(..)")
    }
}

/// What callers show. Never shown by us.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Whether this is the token; takes the same time wherever they differ.
    pub fn is(&self, shown: &str) -> bool {
        let (ours, shown) = (self.0.as_bytes(), shown.as_bytes());
        let differ = ours.iter().zip(shown).fold(0, |differ, (a, b)| differ | (a ^ b));
        ours.len() == shown.len() && std::hint::black_box(differ) == 0
    }
}

/// Buckets of the embedded store unless told otherwise, at about 100 bytes each.
const DEFAULT_BUCKETS: usize = 1 << 20;

/// The tier's settings, or `None` when there is no request tier.
pub fn resolve(redis: &RedisLayer, requests: &RequestsLayer) -> Result<Option<TierSettings>, BadSetting> {
    let has_redis = redis.url.is_some();
    if !has_redis && *redis != RedisLayer::default() {
        return Err(bad("`[redis]` lacks its `url`", "write `url = \"redis://127.0.0.1:6379\"`"));
    }
    if *requests == RequestsLayer::default() && !has_redis {
        return Ok(None);
    }
    let store = match (requests.store, has_redis) {
        (Some(StoreKind::Redis), false) => {
            return Err(bad("`store = \"redis\"` without `[redis]`", "write `[redis]` and its `url`"));
        }
        (None, false) => {
            return Err(bad(
                "`[requests]` does not say where buckets live",
                "write `[redis]` with its `url`, or `store = \"embedded\"`: limits are then per host, and N hosts admit N times",
            ));
        }
        (Some(StoreKind::Embedded), _) => StoreKind::Embedded,
        (Some(StoreKind::Redis) | None, true) => StoreKind::Redis,
    };
    let secret = match &requests.secret_file {
        Some(file) => Secret::new(&read(file, "secret-file")?).map_err(|error| {
            bad(format!("`{}`: {error}", file.display()), "`openssl rand -hex 32` writes a good one")
        })?,
        None if store == StoreKind::Redis => {
            return Err(bad(
                "`secret-file` is required with Redis",
                "write 32 random bytes to a file that every host of the fleet has: `openssl rand -hex 32`",
            ));
        }
        None => random_secret()?,
    };
    let store = match store {
        StoreKind::Embedded => {
            StoreSettings::Embedded { buckets: requests.buckets.unwrap_or(DEFAULT_BUCKETS) }
        }
        StoreKind::Redis => StoreSettings::Redis(Box::new(redis_config(redis, &secret)?)),
    };
    let http = requests.http.as_deref().map(|text| listen(text, requests)).transpose()?;
    let secret_is_kept = requests.secret_file.is_some();
    Ok(Some(TierSettings { store, secret, secret_is_kept, http }))
}

/// Buckets in this process need no secret that outlives it.
fn random_secret() -> Result<Secret, BadSetting> {
    let mut bytes = [0_u8; 32];
    let random = std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    random.map_err(|error| bad(format!("cannot read random bytes: {error}"), "write a `secret-file`"))?;
    Secret::new(hex::encode(bytes).as_bytes()).map_err(|error| bad(error.to_string(), ""))
}

fn redis_config(layer: &RedisLayer, secret: &Secret) -> Result<RedisConfig, BadSetting> {
    let url = layer.url.as_deref().unwrap_or_default();
    let address = Address::parse(url)
        .map_err(|error| bad(error.to_string(), "user and password have keys of their own"))?;
    let namespace = layer.namespace.as_deref().unwrap_or("limiter");
    let mut config = RedisConfig::new(address, namespace, secret.clone());
    config.user.clone_from(&layer.username);
    if let Some(file) = &layer.password_file {
        config.password = Some(Password(text(file, "password-file")?));
    }
    config.database = layer.database.unwrap_or(0);
    if let Some(deadline) = &layer.deadline {
        config.deadline = duration(deadline)?;
    }
    let authority = layer.ca_file.as_deref().map(|file| read(file, "ca-file")).transpose()?;
    let client = match (&layer.certificate_file, &layer.key_file) {
        (Some(certificate), Some(key)) => {
            Some((read(certificate, "certificate-file")?, read(key, "key-file")?))
        }
        (None, None) => None,
        _ => return Err(bad("`certificate-file` and `key-file` belong together", "write both or none")),
    };
    if authority.is_some() || client.is_some() {
        if !matches!(config.address, Address::Tls { .. }) {
            return Err(bad(
                format!("certificates for `{url}`, which is no TLS"),
                "write the address as `rediss://host:port`",
            ));
        }
        config.tls = Some(Tls { authority, client });
    }
    Ok(config)
}

/// `5ms`, `20ms`, `1s`: from 1 ms to 1 s.
fn duration(text: &str) -> Result<Duration, BadSetting> {
    let read = humantime::parse_duration(text).ok();
    let good = read.filter(|time| (Duration::from_millis(1)..=Duration::from_secs(1)).contains(time));
    good.ok_or_else(|| bad(format!("`deadline` is `{text}`"), "write a time from `1ms` to `1s`"))
}

fn listen(text_: &str, requests: &RequestsLayer) -> Result<Listen, BadSetting> {
    let at = match text_.strip_prefix("unix:") {
        Some(path) if path.starts_with('/') => ListenAddress::Unix(path.into()),
        _ => ListenAddress::Tcp(text_.parse().map_err(|_| {
            bad(
                format!("`http` is `{text_}`"),
                "write `unix:/run/limiter/requests-http.sock` or `127.0.0.1:8081`",
            )
        })?),
    };
    let token = requests.token_file.as_deref().map(|file| text(file, "token-file").map(Token)).transpose()?;
    if token.as_ref().is_some_and(|token| token.0.len() < 16) {
        return Err(bad(
            "the token in `token-file` is shorter than 16 bytes",
            "`openssl rand -hex 32` writes a good one",
        ));
    }
    let client_ca =
        requests.client_ca_file.as_deref().map(|file| read(file, "client-ca-file")).transpose()?;
    let tls = match (&requests.certificate_file, &requests.key_file) {
        (Some(certificate), Some(key)) => Some(ServerTls {
            certificate: read(certificate, "certificate-file")?,
            key: read(key, "key-file")?,
            client_ca,
        }),
        (None, None) if client_ca.is_none() => None,
        _ => {
            return Err(bad(
                "`certificate-file`, `key-file` and `client-ca-file` belong together",
                "write all of them",
            ));
        }
    };
    if let ListenAddress::Tcp(address) = &at
        && !address.ip().is_loopback()
        && token.is_none()
        && tls.as_ref().is_none_or(|tls| tls.client_ca.is_none())
    {
        return Err(bad(
            format!(
                "`http = \"{address}\"` can be reached from elsewhere, and anyone could ask and report in any name"
            ),
            "write `certificate-file`, `key-file` and `client-ca-file`, or a `token-file`",
        ));
    }
    Ok(Listen { at, token, tls })
}

fn read(file: &Path, what: &str) -> Result<Vec<u8>, BadSetting> {
    std::fs::read(file)
        .map_err(|error| bad(format!("cannot read `{}` ({what}): {error}", file.display()), ""))
}

fn text(file: &Path, what: &str) -> Result<String, BadSetting> {
    let bytes = read(file, what)?;
    let text =
        String::from_utf8(bytes).map_err(|_| bad(format!("`{}` ({what}) is no text", file.display()), ""))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(text: &str) -> (RedisLayer, RequestsLayer) {
        #[derive(serde::Deserialize)]
        struct File {
            #[serde(default)]
            redis: RedisLayer,
            #[serde(default)]
            requests: RequestsLayer,
        }
        let file: File = toml::from_str(text).unwrap();
        (file.redis, file.requests)
    }

    fn resolved(text: &str) -> Result<Option<TierSettings>, String> {
        let (redis, requests) = layers(text);
        resolve(&redis, &requests).map_err(|bad| bad.message)
    }

    #[test]
    fn nothing_written_is_no_tier() {
        assert!(resolved("").unwrap().is_none());
    }

    #[test]
    fn an_embedded_store_must_be_asked_for() {
        let error = resolved("[requests]\nhttp = \"unix:/tmp/x\"").unwrap_err();
        assert!(error.contains("where buckets live"), "{error}");
        let tier = resolved("[requests]\nstore = \"embedded\"\nhttp = \"unix:/tmp/x\"").unwrap().unwrap();
        assert!(matches!(tier.store, StoreSettings::Embedded { .. }));
        assert_eq!(tier.http.unwrap().at, ListenAddress::Unix("/tmp/x".into()));
    }

    #[test]
    fn redis_needs_the_fleets_secret() {
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        let redis = "[redis]\nurl = \"redis://127.0.0.1:6379\"\ndeadline = \"20ms\"\n";
        assert_eq!(resolved(redis).unwrap_err(), "`secret-file` is required with Redis");
        let text = format!("{redis}[requests]\nsecret-file = \"{}\"", secret.display());
        assert!(resolved(&text).unwrap_err().contains("cannot read"));
        std::fs::write(&secret, "short\n").unwrap();
        assert!(resolved(&text).unwrap_err().contains("at least 16 bytes"));
        std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
        let StoreSettings::Redis(config) = resolved(&text).unwrap().unwrap().store else {
            panic!("no Redis")
        };
        assert_eq!((config.deadline, config.namespace.as_str()), (Duration::from_millis(20), "limiter"));
    }

    #[test]
    fn what_can_be_reached_from_elsewhere_asks_who_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("token");
        std::fs::write(&token, "0123456789abcdef\n").unwrap();
        let open = "[requests]\nstore = \"embedded\"\nhttp = \"0.0.0.0:8081\"\n";
        assert!(resolved(open).unwrap_err().contains("from elsewhere"));
        let listen =
            resolved(&format!("{open}token-file = \"{}\"", token.display())).unwrap().unwrap().http.unwrap();
        let token = listen.token.unwrap();
        assert!(token.is("0123456789abcdef"));
        assert!(!token.is("0123456789abcdeX") && !token.is("0123456789abcdef0") && !token.is(""));
        assert!(resolved("[requests]\nstore = \"embedded\"\nhttp = \"127.0.0.1:8081\"").is_ok());
        assert!(resolved("[requests]\nstore = \"embedded\"\nhttp = \"localhost\"").is_err());
    }

    #[test]
    fn unknown_keys_are_mistakes() {
        assert!(toml::from_str::<RedisLayer>("ulr = \"x\"").is_err());
        assert!(toml::from_str::<RequestsLayer>("stroe = \"x\"").is_err());
    }
}
