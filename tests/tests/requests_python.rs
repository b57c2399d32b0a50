//! The Python client of `examples/python` against the HTTP interface.

use std::path::Path;
use std::process::Command;

use limiter_tests::tier::{POLICY, Served};

#[test]
fn the_python_client_gets_what_the_interface_promises() {
    let text = POLICY.replace("name = \"login\"", "name = \"login\"\ncharge = \"on-failure\"");
    let served = Served::embedded(&text);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/python");
    let output = Command::new("python3")
        .current_dir(examples)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg("test_limiter_client.py")
        .arg(format!("unix:{}", served.socket().display()))
        .output()
        .expect("python3 is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("Ran 6 tests"), "{said}");
}
