//! `doctor [IFACE]`: whether this host can be guarded, and guarded well; each finding with what mends it.
//!
//! Works without a daemon, and as far as possible without root: what cannot be seen is `unknown`, never guessed.

mod host;
mod interface;
mod tunnels;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::Format;
use super::output::{Problem, Style, count, print_as};
use crate::control::api::Status;
use crate::control::client::{Client, ClientError};
use crate::daemon::settings::DEFAULT_PIN;
use crate::nic::{self, Nic};

#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Only this one [default: those limiterd guards; without limiterd those that look like a NIC in use]
    interface: Option<String>,

    /// Where maps and links are to be pinned
    #[arg(long, env = "LIMITER_PIN", default_value = DEFAULT_PIN, value_name = "DIRECTORY")]
    pin: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    /// It works, but less well than it could.
    Warning,
    /// It does not work.
    Error,
    /// It cannot be seen from here.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    /// `null` for what concerns the host.
    interface: Option<String>,
    status: Level,
    message: String,
    /// What to do; `null` when there is nothing to do.
    fix: Option<String>,
}

impl Finding {
    fn new(check: &'static str, status: Level, message: impl Into<String>) -> Self {
        Self { check, interface: None, status, message: message.into(), fix: None }
    }

    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, message)
    }

    fn warning(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(check, Level::Warning, message).fixed_by(fix)
    }

    fn error(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(check, Level::Error, message).fixed_by(fix)
    }

    fn unknown(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(check, Level::Unknown, message).fixed_by(fix)
    }

    fn fixed_by(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into()).filter(|fix| !fix.is_empty());
        self
    }

    fn on(mut self, interface: &str) -> Self {
        self.interface = Some(interface.to_owned());
        self
    }
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Report {
    findings: Vec<Finding>,
}

/// What every check may look at.
struct Surroundings {
    /// The daemon's status, or why there is none.
    daemon: Result<Status, ClientError>,
    /// The process that answers at the socket, where it can be told.
    daemon_process: Option<u32>,
    nics: Vec<Nic>,
}

pub async fn run(client: &Client, arguments: DoctorArguments, format: Format) -> Result<ExitCode, Problem> {
    let nics = nic::list()
        .await
        .map_err(|error| Problem::failed(format!("cannot list the interfaces: {error}"), None))?;
    let surroundings =
        Surroundings { daemon: client.get("/v1/status").await, daemon_process: client.process().await, nics };
    let chosen = choose(&surroundings, arguments.interface.as_deref())?;
    let mut findings = host::check(&surroundings, &arguments.pin);
    if chosen.is_empty() {
        findings.push(
            Finding::new("interface", Level::Unknown, "no interface to look at")
                .fixed_by("name one: `limiterctl doctor IFACE`"),
        );
    }
    for nic in chosen {
        findings
            .extend(interface::check(nic, &surroundings).into_iter().map(|finding| finding.on(&nic.name)));
    }
    let failed = findings.iter().any(|finding| finding.status == Level::Error);
    let code =
        print_as(format, &Report { findings }, |report| show(&report.findings, Style::of(&io::stdout())));
    Ok(if failed { ExitCode::from(1) } else { code })
}

/// The interfaces to look at.
fn choose<'a>(surroundings: &'a Surroundings, asked: Option<&str>) -> Result<Vec<&'a Nic>, Problem> {
    let nics = &surroundings.nics;
    if let Some(name) = asked {
        let nic = nics.iter().find(|nic| nic.name == name).ok_or_else(|| {
            let hint = "`ip -br link` lists the interfaces there are".to_owned();
            Problem::failed(format!("there is no interface `{name}`"), Some(hint))
        })?;
        return Ok(vec![nic]);
    }
    if let Ok(status) = &surroundings.daemon {
        let guarded = status.interfaces.iter().map(|interface| interface.name.as_str());
        let wanted = status.unguarded.iter().map(|interface| interface.name.as_str());
        let names: Vec<&str> = guarded.chain(wanted).collect();
        if !names.is_empty() {
            return Ok(nics.iter().filter(|nic| names.contains(&nic.name.as_str())).collect());
        }
    }
    let usable = |nic: &&Nic| nic.is_up && !nic.is_loopback;
    let hardware: Vec<&Nic> = nics.iter().filter(usable).filter(|nic| nic.kind.is_none()).collect();
    Ok(if hardware.is_empty() { nics.iter().filter(usable).take(8).collect() } else { hardware })
}

fn show(findings: &[Finding], style: Style) -> String {
    let label = |finding: &Finding| match &finding.interface {
        Some(interface) => format!("{interface} {}", finding.check),
        None => finding.check.to_owned(),
    };
    let width = findings.iter().map(|finding| label(finding).chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let (word, colour) = match finding.status {
            Level::Ok => ("ok", "32"),
            Level::Warning => ("warning", "33;1"),
            Level::Error => ("error", "31;1"),
            Level::Unknown => ("unknown", "36"),
        };
        let word = style.paint(colour, &format!("{word:<7}"));
        text += &format!("{word}  {:<width$}  {}\n", label(finding), finding.message);
        if let Some(fix) = &finding.fix {
            text += &format!("{:9}{:width$}  fix: {fix}\n", "", "");
        }
    }
    let number = |level| findings.iter().filter(|finding| finding.status == level).count();
    text + &format!(
        "\n{}, {}, {} unknown\n",
        count(number(Level::Error), "error"),
        count(number(Level::Warning), "warning"),
        number(Level::Unknown)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_aligned_with_their_fixes_below() {
        let findings = [
            Finding::ok("kernel", "Linux 6.1"),
            Finding::warning("lro", "it is on", "`ethtool -K eth0 lro off`").on("eth0"),
            Finding::error("bpffs", "none", "mount it"),
        ];
        let expected = "ok       kernel    Linux 6.1
warning  eth0 lro  it is on
                   fix: `ethtool -K eth0 lro off`
error    bpffs     none
                   fix: mount it

1 error, 1 warning, 0 unknown
";
        let style = Style::of(&std::fs::File::open("/dev/null").unwrap());
        assert_eq!(show(&findings, style), expected);
    }
}
