//! Secrets of a tool that its programs do not get (D-513): requests for their hosts get them on the way out of the cell. What
//! the programs need to believe Actum's certificate for these hosts is a file of the cell, named by the usual variables.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::tool::{Entry, SECRET_PLACE};
use actum_sandbox::{Access, Credential, Credentials, Grant, Source};

use crate::cell::Planned;
use crate::failure::Failure;
use crate::workspace::new_id;

/// Where programs find the certificates that they have to believe.
const BUNDLE: &str = "/run/actum-trust.pem";
/// Variables by which programs are told of it.
const VARIABLES: [&str; 9] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
];
/// Where systems keep the certificates that all their programs believe.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// What programs find in the variable of an injected secret: many refuse to begin without one.
const PLACEHOLDER: &str = "injected-by-actum";

/// A file with certificates, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct TrustBundle(PathBuf);

impl Drop for TrustBundle {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the variables of a tool's programs for its secrets: values, and placeholders for injected ones.
pub(super) fn variables(tool: &Entry, secrets: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let value = |(name, value): (&String, &String)| match tool.is_variable(name) {
        true => (name.clone(), value.clone()),
        false => (name.clone(), PLACEHOLDER.to_owned()),
    };
    secrets.iter().map(value).collect()
}

/// Lets requests of a planned cell get their credentials. `home`: where the file is kept as long as the cell needs it.
pub(super) fn inject(
    tool: &Entry,
    secrets: &BTreeMap<String, String>,
    planned: &mut Planned,
    home: &Path,
) -> Result<Option<TrustBundle>, Failure> {
    let mut all = Vec::new();
    for one in &tool.injections {
        let Some(secret) = secrets.get(&one.secret) else { continue };
        let value = one.value.replace(SECRET_PLACE, secret);
        if value.chars().any(|c| c.is_control() || !c.is_ascii()) {
            let message = format!("the secret {} of {} cannot stand in a header", one.secret, tool.tool_id);
            return Err(Failure::new(error::CONFIG, message).hint("it has to be one line of printable ASCII"));
        }
        let (host, header, is_plain) = (one.host.clone(), one.header.clone(), one.is_plain);
        all.push(Credential { host, header, value, is_plain });
    }
    if all.is_empty() {
        return Ok(None);
    }
    let failed = |e: std::io::Error| Failure::of_io(format!("secrets of {} cannot be injected: {e}", tool.tool_id), &e);
    let outside = actum_adapters::secure::config().map_err(failed)?;
    let credentials = Credentials::new(all, &outside).map_err(failed)?;
    let bundle = write_bundle(home, credentials.pem()).map_err(failed)?;
    let cell = &mut planned.cell;
    cell.grants.push(Grant {
        path: PathBuf::from(BUNDLE),
        access: Access::Read,
        from: Source::Folder(bundle.0.clone()),
    });
    cell.environment.extend(VARIABLES.map(|name| (name.into(), BUNDLE.into())));
    planned.rules.credentials = Some(credentials);
    Ok(Some(bundle))
}

fn write_bundle(home: &Path, own: &str) -> std::io::Result<TrustBundle> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let system = named.into_iter().chain(SYSTEM_BUNDLES.map(PathBuf::from)).find_map(|path| std::fs::read(path).ok());
    let folder = home.join("cache").join("trust");
    std::fs::create_dir_all(&folder)?;
    let bundle = TrustBundle(folder.join(format!("{}.pem", new_id())));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&bundle.0)?;
    file.write_all(&system.unwrap_or_default())?;
    file.write_all(b"\n")?;
    file.write_all(own.as_bytes())?;
    Ok(bundle)
}
