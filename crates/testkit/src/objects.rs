//! Object stores that others wrote, on loopback: one that speaks like S3 and one that speaks like Azure, in a cache folder,
//! installed by `cargo xtask test`. A server ends with the process that started it. Never part of a checkout.
//! Only std and what stands beside it: xtask includes this very file, so that it need not build the crate.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::packages::{Packages, succeeds};

/// The variable that names the folder they are in; `cargo xtask test` sets it.
pub const FOLDER: &str = "ACTUM_TEST_OBJECTS";

const MISSING: &str = "the object stores of others are not installed: run `cargo xtask test` once, it installs them";

const PYTHON: &[&str] = &["moto[server]==5.2.5", "boto3==1.44.0", "Flask==3.1.3", "Werkzeug==3.1.9"];
const NODE: &[&str] = &["azurite@3.35.0"];
/// The account that everybody knows.
const ACCOUNT: &str = "devstoreaccount1";
const ACCOUNT_KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// Its bucket or container.
pub const BUCKET: &str = "test";
const START_SECONDS_MAX: u64 = 90;

/// Ends when its input does, and takes what it started with it.
const KEEPER: &str = "\"$@\" > /dev/null 2>&1 < /dev/null & p=$!; cat > /dev/null; kill -9 $p; rm -rf \"$OWN\"";

const MAKE_S3: &str = "
import http.client, sys
c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1])); c.request('PUT', '/test')
sys.exit(c.getresponse().status != 200)
";

const MAKE_AZURE: &str = "
import base64, email.utils, hashlib, hmac, http.client, sys
port, account, key = sys.argv[1:4]
date = email.utils.formatdate(usegmt=True)
said = 'PUT' + '\\n' * 12 + f'x-ms-date:{date}\\nx-ms-version:2021-08-06\\n/{account}/{account}/test\\nrestype:container'
mac = base64.b64encode(hmac.new(base64.b64decode(key), said.encode(), hashlib.sha256).digest()).decode()
head = {'x-ms-date': date, 'x-ms-version': '2021-08-06', 'Authorization': f'SharedKey {account}:{mac}', 'Content-Length': '0'}
c = http.client.HTTPConnection('127.0.0.1', int(port)); c.request('PUT', f'/{account}/test?restype=container', headers=head)
sys.exit(c.getresponse().status != 201)
";

const PACKAGES: Packages = Packages { variable: FOLDER, name: "objects", python: PYTHON, node: NODE };

/// Where everything is once it is installed.
#[derive(Debug, Clone)]
pub struct Objects(PathBuf);

impl Objects {
    /// The folder that [`FOLDER`] names, else one in the user's cache.
    pub fn place() -> PathBuf {
        PACKAGES.place()
    }

    /// What is installed.
    ///
    /// # Panics
    /// When it is not, or other versions are.
    pub fn find() -> Self {
        assert!(PACKAGES.are_whole(), "{MISSING}");
        Self(Self::place())
    }

    /// Whether everything is there and starts.
    pub fn are_installed() -> bool {
        let found = Self(Self::place());
        PACKAGES.are_whole() && succeeds(found.python().args(["-c", "import moto.server"])) && found.azurite().exists()
    }

    /// Installs them anew, before everybody's eyes.
    pub fn install() -> Result<(), String> {
        PACKAGES.install(Self::are_installed)
    }

    fn python(&self) -> Command {
        PACKAGES.python()
    }

    fn azurite(&self) -> PathBuf {
        self.0.join("node_modules/azurite/dist/src/blob/main.js")
    }
}

/// One object store on a port of its own, with an empty bucket.
#[derive(Debug)]
pub struct ObjectStore {
    keeper: Child,
    port: u16,
    variables: Vec<(&'static str, String)>,
}

impl ObjectStore {
    /// One that speaks like S3. It forgets everything when it ends.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    pub fn s3() -> Self {
        let installed = Objects::find();
        let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_REGION", "us-east-1")];
        let mut variables: Vec<_> = keys.map(|(name, value)| (name, value.to_owned())).to_vec();
        let program = installed.0.join("venv/bin/moto_server").display().to_string();
        let mut started =
            Self::start(|port, _| vec![program.clone(), "-H".into(), "127.0.0.1".into(), "-p".into(), port]);
        variables.push(("AWS_ENDPOINT", format!("http://127.0.0.1:{}", started.port)));
        variables.push(("AWS_ALLOW_HTTP", "true".to_owned()));
        let made = installed.python().args(["-c", MAKE_S3, &started.port.to_string()]).status();
        assert!(made.is_ok_and(|status| status.success()), "the bucket can be made");
        started.variables = variables;
        started
    }

    /// One that speaks like Azure.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    pub fn azure() -> Self {
        let installed = Objects::find();
        let script = installed.azurite().display().to_string();
        let mut started = Self::start(|port, own| {
            let words = ["node", &script, "--location", own, "--blobHost", "127.0.0.1", "--blobPort", &port];
            let more = ["--skipApiVersionCheck", "--silent", "--disableTelemetry"];
            words.iter().chain(&more).map(|word| (*word).to_owned()).collect()
        });
        let port = started.port.to_string();
        let made = installed.python().args(["-c", MAKE_AZURE, &port, ACCOUNT, ACCOUNT_KEY]).status();
        assert!(made.is_ok_and(|status| status.success()), "the container can be made");
        let variables = vec![
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.to_owned()),
            ("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY.to_owned()),
            ("AZURE_ENDPOINT", format!("http://127.0.0.1:{port}/{ACCOUNT}")),
            ("AZURE_ALLOW_HTTP", "true".to_owned()),
        ];
        started.variables = variables;
        started
    }

    fn start(words: impl Fn(String, &str) -> Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it has an address").port();
        drop(listener);
        let own =
            std::env::temp_dir().join(format!("actum-objects-{}-{port}", std::process::id())).display().to_string();
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh"]).args(words(port.to_string(), &own)).env("OWN", &own);
        let keeper = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("there is a shell");
        let until = Instant::now() + Duration::from_secs(START_SECONDS_MAX);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "the object store does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { keeper, port, variables: Vec::new() }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The variables by which every program finds it, keys included.
    pub fn variables(&self) -> &[(&'static str, String)] {
        &self.variables
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
