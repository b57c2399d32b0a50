//! This host's settings: built-in values, then `limiterd.toml`, then `LIMITER_*` variables, then flags.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::refusal::words;
use crate::datapath::Mode;
use crate::policy::suggest::nearest;
use crate::requests::config::{RedisLayer, RequestsLayer, StoreKind};

/// Where the file is looked for when none is named.
pub const DEFAULT_FILE: &str = "/etc/limiter/limiterd.toml";

/// The socket both programs use unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/limiter/limiterd.sock";

/// Where maps and links are pinned unless told otherwise.
pub const DEFAULT_PIN: &str = "/sys/fs/bpf/limiter";

/// What stays when the daemon ends in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OnExit {
    /// Every interface stays guarded by the policy in force.
    #[default]
    Keep,
    /// Every interface is detached.
    Detach,
}

/// Settings with every key decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    /// `None`: no interface until one is attached by hand. Empty: no packet tier at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interfaces: Option<Vec<String>>,
    pub mode: Mode,
    pub policy: PathBuf,
    pub pin: PathBuf,
    pub state: PathBuf,
    pub socket: PathBuf,
    pub admin_group: String,
    /// Empty: no metrics.
    pub metrics: String,
    pub buckets: u32,
    pub bans: u32,
    pub on_exit: OnExit,
    pub reload_on_change: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub redis: RedisLayer,
    #[serde(skip_serializing_if = "is_default")]
    pub requests: RequestsLayer,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interfaces: None,
            mode: Mode::Auto,
            policy: "/etc/limiter/policy.toml".into(),
            pin: DEFAULT_PIN.into(),
            state: "/var/lib/limiter".into(),
            socket: DEFAULT_SOCKET.into(),
            admin_group: "limiter-admin".to_owned(),
            metrics: "127.0.0.1:9464".to_owned(),
            buckets: 1 << 20,
            bans: 1 << 18,
            on_exit: OnExit::Keep,
            reload_on_change: false,
            redis: RedisLayer::default(),
            requests: RequestsLayer::default(),
        }
    }
}

/// One layer of settings: a file's keys, or flags and variables. Unknown keys are mistakes.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Layer {
    /// Interfaces to guard, separated by commas; an empty list turns the packet tier off
    #[arg(long, env = "LIMITER_INTERFACES", value_delimiter = ',', value_name = "NAME,…")]
    interfaces: Option<Vec<String>>,

    /// How to attach: in the driver, in the stack, or the best there is
    #[arg(long, env = "LIMITER_MODE", value_name = "MODE")]
    mode: Option<Mode>,

    /// The policy file
    #[arg(long, env = "LIMITER_POLICY", value_name = "FILE")]
    policy: Option<PathBuf>,

    /// Directory in a bpf file system for maps and links
    #[arg(long, env = "LIMITER_PIN", value_name = "DIRECTORY")]
    pin: Option<PathBuf>,

    /// Directory for the policies applied and what was changed by hand
    #[arg(long, env = "LIMITER_STATE", value_name = "DIRECTORY")]
    state: Option<PathBuf>,

    /// The control socket
    #[arg(long, env = "LIMITER_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Group that may change things, beside root
    #[arg(long, env = "LIMITER_ADMIN_GROUP", value_name = "GROUP")]
    admin_group: Option<String>,

    /// Address of /metrics; "" turns it off
    #[arg(long, env = "LIMITER_METRICS", value_name = "ADDRESS")]
    metrics: Option<String>,

    /// Buckets the table has room for, when it is made anew
    #[arg(long, env = "LIMITER_BUCKETS", value_name = "N")]
    buckets: Option<u32>,

    /// Bans there is room for, when the maps are made anew
    #[arg(long, env = "LIMITER_BANS", value_name = "N")]
    bans: Option<u32>,

    /// Whether interfaces stay guarded when limiterd ends
    #[arg(long, env = "LIMITER_ON_EXIT", value_name = "WHAT")]
    on_exit: Option<OnExit>,

    /// Apply the policy file whenever its content changes
    #[arg(
        long,
        env = "LIMITER_RELOAD_ON_CHANGE",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    reload_on_change: Option<bool>,

    #[command(flatten)]
    #[serde(default)]
    redis: RedisLayer,

    #[command(flatten)]
    #[serde(default)]
    requests: RequestsLayer,
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read `{}`: {}", path.display(), words(source))]
    Unreadable { path: PathBuf, source: std::io::Error },

    /// `position` is `line:column`, or empty.
    #[error("{}{position}: {message}", path.display())]
    Mistake { path: PathBuf, position: String, message: String },

    #[error("{message}")]
    Value { message: String, hint: String },
}

impl SettingsError {
    pub fn hint(&self) -> String {
        match self {
            Self::Unreadable { .. } => {
                "name the file with `--config FILE`, or leave `--config` away for built-in values".to_owned()
            }
            Self::Mistake { .. } => {
                "`limiterd --print-default-config` shows every key with its default".to_owned()
            }
            Self::Value { hint, .. } => hint.clone(),
        }
    }
}

impl Settings {
    /// Reads `file` (or the default place, where a missing file is no mistake) and lays `flags` over it.
    pub fn read(file: Option<&Path>, flags: Layer) -> Result<Self, SettingsError> {
        let path = file.unwrap_or(Path::new(DEFAULT_FILE));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(SettingsError::Unreadable { path: path.to_owned(), source }),
        };
        let mut settings = Self::default();
        settings.lay(parse(path, &text)?);
        settings.lay(flags);
        settings.check()?;
        Ok(settings)
    }

    /// Whether there is a packet tier.
    pub fn guards_packets(&self) -> bool {
        self.interfaces.as_ref().is_none_or(|interfaces| !interfaces.is_empty())
    }

    /// Whether request buckets live in a store that can be away.
    pub fn shares_store(&self) -> bool {
        self.redis.url.is_some() && self.requests.store != Some(StoreKind::Embedded)
    }

    fn lay(&mut self, layer: Layer) {
        fn put<T>(place: &mut T, given: Option<T>) {
            if let Some(given) = given {
                *place = given;
            }
        }
        if let Some(interfaces) = layer.interfaces {
            let named = interfaces.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
            self.interfaces = Some(named.collect());
        }
        put(&mut self.mode, layer.mode);
        put(&mut self.policy, layer.policy);
        put(&mut self.pin, layer.pin);
        put(&mut self.state, layer.state);
        put(&mut self.socket, layer.socket);
        put(&mut self.admin_group, layer.admin_group);
        put(&mut self.metrics, layer.metrics);
        put(&mut self.buckets, layer.buckets);
        put(&mut self.bans, layer.bans);
        put(&mut self.on_exit, layer.on_exit);
        put(&mut self.reload_on_change, layer.reload_on_change);
        self.redis.lay(layer.redis);
        self.requests.lay(layer.requests);
    }

    fn check(&self) -> Result<(), SettingsError> {
        let value = |message: String, hint: &str| SettingsError::Value { message, hint: hint.to_owned() };
        if !self.metrics.is_empty() && self.metrics.parse::<std::net::SocketAddr>().is_err() {
            return Err(value(
                format!("`metrics` is `{}`, which is no address with a port", self.metrics),
                "write it like `metrics = \"127.0.0.1:9464\"`, or \"\" to turn it off",
            ));
        }
        if !(1 << 4..=1 << 24).contains(&self.bans) {
            return Err(value(
                format!("`bans` is {}", self.bans),
                "write a number from 16 to 16_777_216; a ban takes about 100 bytes",
            ));
        }
        if !(1 << 10..=1 << 28).contains(&self.buckets) {
            return Err(value(
                format!("`buckets` is {}", self.buckets),
                "write a number from 1_024 to 268_435_456; a bucket takes 64 bytes",
            ));
        }
        for name in self.interfaces.iter().flatten() {
            if name.len() > 15 || name.contains(['/', ' ', '%']) {
                return Err(value(
                    format!("`{name}` in `interfaces` cannot be the name of an interface"),
                    "`ip -br link` lists the interfaces there are",
                ));
            }
        }
        Ok(())
    }
}

fn parse(path: &Path, text: &str) -> Result<Layer, SettingsError> {
    toml::from_str(text).map_err(|error| {
        let position = error.span().map(|span| {
            let before = &text[..span.start.min(text.len())];
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
            format!(":{line}:{column}")
        });
        SettingsError::Mistake {
            path: path.to_owned(),
            position: position.unwrap_or_default(),
            message: plain(error.message()),
        }
    })
}

/// The parser's words, made ours: it lists every key there is for one that is not.
fn plain(message: &str) -> String {
    let message = message.lines().next().unwrap_or("not TOML");
    let Some(rest) = message.strip_prefix("unknown field ") else { return message.to_owned() };
    let mut words = rest.split('`').skip(1).step_by(2);
    let unknown = words.next().unwrap_or_default();
    match nearest(unknown, words) {
        Some(known) => format!("unknown key `{unknown}`: did you mean `{known}`?"),
        None => format!("unknown key `{unknown}`"),
    }
}

/// What `--print-default-config` prints: every key, its default and its meaning.
pub const DEFAULT_TEXT: &str = include_str!("limiterd.toml");

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limiterd.toml");
        std::fs::write(&path, text).unwrap();
        Settings::read(Some(&path), Layer::default())
            .map_err(|error| error.to_string().replace(&format!("{}/", directory.path().display()), ""))
    }

    #[test]
    fn the_printed_defaults_are_the_defaults() {
        assert_eq!(read(DEFAULT_TEXT).unwrap(), Settings::default());
    }

    #[test]
    fn every_key_is_in_the_printed_defaults() {
        let all = Settings { interfaces: Some(vec!["eth0".to_owned()]), ..Settings::default() };
        let table = toml::Table::try_from(all).unwrap();
        for key in table.keys() {
            assert!(DEFAULT_TEXT.contains(&format!("{key} ")), "{key}");
        }
    }

    #[test]
    fn mistakes_have_a_position() {
        assert_eq!(
            read("mode = \"auto\"\n  colour = 1\n").unwrap_err(),
            "limiterd.toml:2:3: unknown key `colour`"
        );
        assert_eq!(
            read("admingroup = \"wheel\"").unwrap_err(),
            "limiterd.toml:1:1: unknown key `admingroup`: did you mean `admin-group`?"
        );
        assert_eq!(
            read("mode = \"fast\"").unwrap_err(),
            "limiterd.toml:1:8: unknown variant `fast`, expected one of `native`, `generic`, `auto`"
        );
    }

    #[test]
    fn absent_and_empty_interfaces_differ() {
        assert!(read("").unwrap().guards_packets());
        assert!(!read("interfaces = []").unwrap().guards_packets());
        assert!(read("interfaces = [\"eth0\"]").unwrap().guards_packets());
    }

    #[test]
    fn flags_go_over_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limiterd.toml");
        std::fs::write(&path, "buckets = 4096\nmetrics = \"\"\n").unwrap();
        let flags = Layer { buckets: Some(8192), ..Layer::default() };
        let settings = Settings::read(Some(&path), flags).unwrap();
        assert_eq!((settings.buckets, settings.metrics.as_str()), (8192, ""));
    }
}
