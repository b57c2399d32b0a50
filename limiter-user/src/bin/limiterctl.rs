//! limiterctl: the hand on limiterd.

fn main() -> std::process::ExitCode {
    limiter_user::cli::main()
}
