//! A real nginx of a test's own, with the recipes of `deploy/nginx`.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Where the recipes are.
fn recipes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/nginx")
        .canonicalize()
        .expect("the recipes are there")
}

/// How nginx is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// While limiterd does not answer, requests go on.
    pub open: bool,
    /// nginx stands behind a load balancer and passes on what that says.
    pub behind_balancer: bool,
    /// More lines for the question's location.
    pub more: &'static str,
    /// The recipe's own 50 ms instead of what a loaded machine needs.
    pub short_timeouts: bool,
}

pub struct Nginx {
    process: Child,
    pub port: u16,
    directory: TempDir,
}

impl Nginx {
    /// Asks at `socket` about everything below `/v1/`; the service behind it answers 200 with `through`.
    pub fn start(socket: &Path, setup: Setup) -> Self {
        let directory = tempfile::tempdir().expect("a directory for nginx");
        let port = free_port();
        let backend = free_port();
        let here = directory.path().display();
        let mut check = fs::read_to_string(recipes().join("limiter-check.conf")).expect("the recipe");
        if setup.behind_balancer {
            check =
                check.replace("Limiter-Client $remote_addr;", "Limiter-Client $proxy_add_x_forwarded_for;");
        }
        let end = "    proxy_read_timeout 50ms;\n";
        check = check.replace(end, &format!("{end}{}\n", setup.more));
        let mut open_location = String::new();
        if setup.open {
            let open = recipes().join("limiter-open.conf");
            check = check.replace(end, &format!("{end}    include {};\n", open.display()));
            open_location = format!("include {};", recipes().join("limiter-open-location.conf").display());
        }
        // The recipe's timeouts are for production; a loaded test machine may pause for longer.
        if !setup.short_timeouts {
            check = check.replace("50ms;", "5s;");
        }
        let check_file = directory.path().join("check.conf");
        fs::write(&check_file, check).expect("the recipe is written");
        let config = format!(
            "daemon off; user root; worker_processes 1; pid {here}/pid; error_log {here}/error.log info;
             events {{ worker_connections 256; }}
             http {{
               access_log off;
               client_body_temp_path {here}/body; proxy_temp_path {here}/proxy; fastcgi_temp_path {here}/f;
               uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;
               upstream limiter {{ server unix:{socket}; keepalive 16; }}
               server {{ listen 127.0.0.1:{backend}; location / {{ return 200 'through'; }}
                 location = /v1/search/missing {{ return 404 'missing'; }} }}
               server {{
                 listen 127.0.0.1:{port};
                 include {check};
                 {open_location}
                 location / {{
                   auth_request /.limiter-check;
                   include {answer};
                   proxy_pass http://127.0.0.1:{backend};
                 }}
                 location = /forbidden {{
                   auth_request /.limiter-check;
                   include {answer};
                   deny all;
                 }}
               }}
             }}",
            socket = socket.display(),
            check = check_file.display(),
            answer = recipes().join("limiter-answer.conf").display(),
        );
        let file = directory.path().join("nginx.conf");
        fs::write(&file, config).expect("nginx' configuration is written");
        let mut command = Command::new("nginx");
        command.arg("-p").arg(directory.path()).arg("-c").arg(&file);
        command.arg("-e").arg(directory.path().join("error.log"));
        let process = command.stdin(Stdio::null()).spawn().expect("nginx is installed");
        let nginx = Self { process, port, directory };
        let give_up = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < give_up, "nginx does not start: {}", nginx.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        nginx
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("error.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM ends the workers too.
        // SAFETY: the process is a child not yet waited for, so its number is still its own.
        unsafe { libc::kill(self.process.id() as libc::pid_t, libc::SIGTERM) };
        let _ = self.process.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}
