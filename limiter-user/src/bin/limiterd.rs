//! limiterd: guards interfaces by one policy.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use limiter_user::cli::output::{error_text, print};
use limiter_user::daemon::settings::{DEFAULT_TEXT, Layer};
use limiter_user::daemon::{self, Settings};
use limiter_user::datapath::{Datapath, Kernel, Options};
use limiter_user::requests::config;
use tracing_subscriber::EnvFilter;

/// Guards interfaces by one policy: packets of sources that spend too fast are dropped before the kernel's stack
#[derive(Parser)]
#[command(name = "limiterd", version, max_term_width = 100)]
struct Arguments {
    /// This host's settings [default: /etc/limiter/limiterd.toml, if there is one]
    #[arg(long, env = "LIMITER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Check the settings and the policy, then end
    #[arg(long)]
    check_config: bool,

    /// Print every setting with its default, then end
    #[arg(long)]
    print_default_config: bool,

    #[command(flatten)]
    settings: Layer,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.print_default_config {
        return print(DEFAULT_TEXT);
    }
    let settings = match Settings::read(arguments.config.as_deref(), arguments.settings) {
        Ok(settings) => settings,
        Err(error) => return fail(&error.to_string(), Some(&error.hint()), 2),
    };
    if arguments.check_config {
        if let Err(error) = config::resolve(&settings.redis, &settings.requests) {
            return fail(&error.message, Some(&error.hint), 2);
        }
        return limiter_user::cli::check_policy::run(&settings.policy, false, Default::default());
    }
    let filter = EnvFilter::try_from_env("LIMITER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .init();

    let datapath = if settings.guards_packets() {
        let options = Options { pin: settings.pin.clone(), buckets: settings.buckets, bans: settings.bans };
        match Kernel::open(&options) {
            Ok(kernel) => Some(Box::new(kernel) as Box<dyn Datapath>),
            Err(error) => return fail(&error.to_string(), error.hint().as_deref(), 1),
        }
    } else {
        None
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(daemon::run(settings, datapath)),
        Err(error) => return fail(&format!("cannot start: {error}"), None, 1),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            for diagnostic in &refusal.failure.diagnostics {
                eprintln!("{diagnostic}");
            }
            fail(&refusal.failure.error, refusal.failure.hint.as_deref(), 1)
        }
    }
}

fn fail(error: &str, hint: Option<&str>, code: u8) -> ExitCode {
    eprint!("{}", error_text(error, hint));
    ExitCode::from(code)
}
