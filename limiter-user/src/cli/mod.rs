//! limiterctl: one file per verb. Data goes to stdout, talk to stderr.
//!
//! Exit codes: 0 done, 1 refused or failed, 2 usage or a bad policy, 3 the daemon is not reachable.

mod attach;
mod ban;
pub mod check_policy;
mod check_request;
mod confirm;
mod detach;
mod doctor;
mod get_policy;
mod history;
mod observed;
pub mod output;
mod overrides;
mod pause;
mod plans;
mod redis_acl;
pub mod session;
mod set_policy;
mod sets;
mod shell;
mod stats;
mod status;
mod top;
mod trace;
mod watch;
mod why;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::control::client::Client;
use crate::daemon::settings::DEFAULT_SOCKET;
use crate::datapath::Mode;
use output::Problem;

/// The hand on limiterd: who is hurting us, and what stops it
#[derive(Debug, Parser)]
#[command(name = "limiterctl", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Arguments {
    #[command(flatten)]
    global: Global,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Args)]
struct Global {
    /// How to print
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    output: Format,

    /// The control socket of limiterd
    #[arg(long, global = true, env = "LIMITER_SOCKET", default_value = DEFAULT_SOCKET, value_name = "PATH")]
    socket: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Text,
    /// One JSON object on one line
    Json,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Check a policy, show what changes, put it in force
    SetPolicy(set_policy::SetPolicyArguments),
    /// Print the policy in force
    GetPolicy {
        /// Every name resolved and every default filled in
        #[arg(long)]
        effective: bool,
    },
    /// Check a policy file, without a daemon
    CheckPolicy {
        file: PathBuf,
        /// Refuse warnings too
        #[arg(long)]
        strict: bool,
    },
    /// Show what a policy would change
    DiffPolicy { file: PathBuf },
    /// Go back to the policy file
    Reload {
        /// Though a set file lost more than half of its entries, or your own ssh session would be cut off
        #[arg(long)]
        force: bool,
    },
    /// Bring back the policy that was in force before
    RollbackPolicy {
        /// Though your own ssh session would be cut off
        #[arg(long)]
        force: bool,
    },
    /// Keep a policy that was set with --confirm
    Confirm,
    /// Show what a policy set with --observe would have done
    Observed {
        /// End the observation
        #[arg(long)]
        stop: bool,
    },
    /// List the last policies of this host
    History,
    /// Guard an interface
    Attach {
        interface: String,
        /// In the driver, in the stack, or the best there is [default: as limiterd.toml says]
        #[arg(long)]
        mode: Option<Mode>,
        /// Take the place of somebody else's XDP program
        #[arg(long)]
        replace: bool,
    },
    /// End the guard of an interface, until it is attached again
    Detach(detach::DetachArguments),
    /// Change how a rule judges, for a time, without editing the policy
    Override(overrides::OverrideArguments),
    /// List what is overridden
    Overrides,
    /// Let a rule judge as the policy says again
    ClearOverride {
        rule: String,
        /// Though your own ssh session would be cut off
        #[arg(long)]
        force: bool,
    },
    /// Put prefixes into a dynamic set, for a time
    AddTo {
        set: String,
        #[arg(required = true, value_name = "CIDR")]
        members: Vec<String>,
        /// How long they stay, like 10m or 1h
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        time: u64,
        /// Though your own ssh session would be cut off
        #[arg(long)]
        force: bool,
    },
    /// Take prefixes out of a dynamic set
    RemoveFrom {
        set: String,
        #[arg(required = true, value_name = "CIDR")]
        members: Vec<String>,
        /// Though your own ssh session would be cut off
        #[arg(long)]
        force: bool,
    },
    /// Judge and count packets, and drop none: the panic switch
    Pause {
        /// How long, like 30s, 15m or 2h [default: 15m]
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        time: Option<u64>,
    },
    /// End a pause
    Resume,
    /// Show what is guarded, by which policy, and what is wrong; exits 1 when degraded
    Status,
    /// Show packets and bytes by rule, verdict, reason and family
    Stats {
        /// Only this rule
        #[arg(long)]
        rule: Option<String>,
        /// Again every second, with rates
        #[arg(long)]
        watch: bool,
    },
    /// List the worst sources
    Top(top::TopArguments),
    /// Show what is dropped, as it is dropped: a sample
    Watch(watch::WatchArguments),
    /// Show every decision about one source, for a time
    Trace {
        /// An address or a prefix
        source: String,
        /// How long, like 30s or 5m [default: 30s]
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        time: Option<u64>,
    },
    /// Look for what keeps this host from being guarded well; exits 1 when something does
    Doctor(doctor::DoctorArguments),
    /// Refuse everything from a source, for a time
    Ban(ban::BanArguments),
    /// Lift the ban of a source
    Unban {
        /// The address or prefix that was banned
        source: String,
    },
    /// List the bans in force
    Bans,
    /// Say what the next packet of a source would get, and why; charges nothing
    Why(why::WhyArguments),
    /// Fill the buckets of a source
    Reset {
        /// An address, or a prefix for all sources in it
        source: String,
    },
    /// Show what would be decided about a request, and why; charges nothing
    CheckRequest(Box<check_request::CheckRequestArguments>),
    /// Set the plan of an API key, on every host that shares the store
    SetPlan {
        /// The key's hash, as `check-request --api-key` prints it
        hash: String,
        /// The plan; left out: what the keys file says holds again
        plan: Option<String>,
    },
    /// Refuse an API key, on every host that shares the store
    RevokeKey {
        /// The key's hash, as `check-request --api-key` prints it
        hash: String,
    },
    /// Print the ACL user limiterd needs at Redis
    RedisAcl {
        #[arg(long, default_value = "limiter", value_name = "NAME")]
        namespace: String,
        #[arg(long, default_value = "limiter", value_name = "NAME")]
        user: String,
    },
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Write manual pages into a directory
    Man { directory: PathBuf },
}

/// The whole program.
pub fn main() -> ExitCode {
    let Arguments { global, verb } = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Problem::failed(format!("cannot start: {error}"), None).report(),
    };
    let client = Client::new(&global.socket);
    runtime.block_on(run(verb, client, global.output)).unwrap_or_else(|problem| problem.report())
}

/// Seconds of a duration as the policy writes them.
fn duration(text: &str) -> Result<u64, String> {
    crate::policy::duration_seconds(text)
}

async fn run(verb: Verb, client: Client, format: Format) -> Result<ExitCode, Problem> {
    match verb {
        Verb::SetPolicy(arguments) => set_policy::run(&client, arguments, format).await,
        Verb::GetPolicy { effective } => get_policy::run(&client, effective, format).await,
        Verb::CheckPolicy { file, strict } => Ok(check_policy::run(&file, strict, format)),
        Verb::DiffPolicy { file } => set_policy::difference(&client, &file, format).await,
        Verb::Reload { force } => set_policy::reload(&client, force, format).await,
        Verb::RollbackPolicy { force } => set_policy::rollback(&client, force, format).await,
        Verb::Confirm => confirm::run(&client, format).await,
        Verb::Observed { stop } => observed::run(&client, stop, format).await,
        Verb::History => history::run(&client, format).await,
        Verb::Attach { interface, mode, replace } => {
            attach::run(&client, &interface, mode, replace, format).await
        }
        Verb::Detach(arguments) => detach::run(&client, arguments, format).await,
        Verb::Override(arguments) => overrides::set(&client, arguments, format).await,
        Verb::Overrides => overrides::list(&client, format).await,
        Verb::ClearOverride { rule, force } => overrides::clear(&client, &rule, force, format).await,
        Verb::AddTo { set, members, time, force } => {
            sets::add(&client, &set, members, time, force, format).await
        }
        Verb::RemoveFrom { set, members, force } => sets::remove(&client, &set, members, force, format).await,
        Verb::Pause { time } => pause::pause(&client, time, format).await,
        Verb::Resume => pause::resume(&client, format).await,
        Verb::Status => status::run(&client, format).await,
        Verb::Stats { rule, watch } => stats::run(&client, rule.as_deref(), watch, format).await,
        Verb::Top(arguments) => top::run(&client, arguments, format).await,
        Verb::Watch(arguments) => watch::run(&client, arguments, format).await,
        Verb::Trace { source, time } => trace::run(&client, &source, time, format).await,
        Verb::Doctor(arguments) => doctor::run(&client, arguments, format).await,
        Verb::Ban(arguments) => ban::run(&client, arguments, format).await,
        Verb::Unban { source } => ban::unban(&client, &source, format).await,
        Verb::Reset { source } => ban::reset(&client, &source, format).await,
        Verb::Why(arguments) => why::run(&client, &arguments, format).await,
        Verb::Bans => ban::list(&client, format).await,
        Verb::CheckRequest(arguments) => check_request::run(&client, *arguments, format).await,
        Verb::SetPlan { hash, plan } => plans::set(&client, &hash, plan, format).await,
        Verb::RevokeKey { hash } => plans::revoke(&client, &hash, format).await,
        Verb::RedisAcl { namespace, user } => Ok(redis_acl::run(&namespace, &user, format)),
        Verb::Completions { shell } => Ok(shell::completions(shell)),
        Verb::Man { directory } => shell::man(&directory),
    }
}
