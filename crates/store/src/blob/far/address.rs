//! The address of an object store, `s3://bucket/prefix` and the like, and what is settled beside it. Read by `Far::open`;
//! it speaks to nobody, and shows no secret.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

/// An address, or something beside it, that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadFar(pub(super) String);

/// Kinds of object stores, by the scheme of their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    S3,
    Gcs,
    Azure,
    File,
    /// Gone with the process: for tests.
    Memory,
}

const S3: &[&str] =
    &["endpoint", "region", "allow_http", "path_style", "access_key_id", "secret_access_key", "session_token"];
const GCS: &[&str] = &["endpoint", "allow_http", "service_account_key", "bearer_token", "skip_signature"];
const AZURE: &[&str] = &["endpoint", "allow_http", "account_name", "account_key", "sas_token", "bearer_token"];

/// Letters of a bucket's or a container's name.
const BUCKET_CHARS_MAX: usize = 222;
/// A connection that is not made by then is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest silence in the middle of a request, and longest time to send one piece.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// An object store that can be spoken to, and where in it our things lie.
pub(super) struct Reached {
    pub store: Arc<dyn ObjectStore>,
    /// Without slashes at its ends; may be empty.
    pub prefix: String,
    pub shown: String,
    /// The folder of `file:`, whose absence is not the absence of a content.
    pub folder: Option<PathBuf>,
    pub shared: bool,
}

pub(super) fn reach(url: &str, options: &[(String, String)]) -> Result<Reached, BadFar> {
    let (scheme, rest) = scheme_of(url)?;
    for (key, _) in options.iter().filter(|(key, _)| !is_ambient(key)) {
        if !keys(scheme).contains(&key.as_str()) {
            let known = keys(scheme).join(", ");
            let known = if known.is_empty() { "nothing".to_owned() } else { known };
            return Err(BadFar(format!(
                "{key} is not used for {}; beside its url there may be: {known}",
                word(scheme)
            )));
        }
    }
    match scheme {
        Scheme::File => file(rest),
        Scheme::Memory => Ok(Reached {
            store: Arc::new(InMemory::new()),
            prefix: prefix_of(rest)?,
            shown: format!("memory://{rest}"),
            folder: None,
            shared: false,
        }),
        Scheme::S3 | Scheme::Gcs | Scheme::Azure => bucket(scheme, rest, options),
    }
}

fn scheme_of(url: &str) -> Result<(Scheme, &str), BadFar> {
    let expected = "expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER";
    // What was given is not shown: there may be a secret in it.
    let (scheme, rest) = url.split_once("://").ok_or_else(|| BadFar(format!("the url has no scheme: {expected}")))?;
    let known = match scheme {
        "s3" => Scheme::S3,
        "gs" => Scheme::Gcs,
        "az" => Scheme::Azure,
        "file" => Scheme::File,
        "memory" => Scheme::Memory,
        _ => return Err(BadFar(format!("there is no object store of that scheme: {expected}"))),
    };
    if rest.contains('@') && known != Scheme::File {
        let why = "the url must not hold a name or password: give them as references beside it";
        return Err(BadFar(why.to_owned()));
    }
    Ok((known, rest))
}

const fn word(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => "s3",
        Scheme::Gcs => "gs",
        Scheme::Azure => "az",
        Scheme::File => "file",
        Scheme::Memory => "memory",
    }
}

const fn keys(scheme: Scheme) -> &'static [&'static str] {
    match scheme {
        Scheme::S3 => S3,
        Scheme::Gcs => GCS,
        Scheme::Azure => AZURE,
        Scheme::File | Scheme::Memory => &[],
    }
}

/// A variable that every program for such an object store knows, `AWS_REGION` and the like, in small letters. Whoever opens
/// hands them on; what stands beside the url counts more.
fn is_ambient(key: &str) -> bool {
    ["aws_", "google_", "azure_"].iter().any(|vendor| key.starts_with(vendor))
}

/// The ambient ones first, so that others replace them. One that is unknown is somebody else's.
fn ambient(options: &[(String, String)]) -> impl Iterator<Item = &(String, String)> {
    options.iter().filter(|(key, _)| is_ambient(key))
}

/// Names that every object store takes as they are, so that none has to be changed on the way.
fn prefix_of(text: &str) -> Result<String, BadFar> {
    let text = text.trim_end_matches('/').trim_start_matches('/');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._=-".contains(c);
    let is_name = |part: &str| !part.is_empty() && part.chars().all(is_plain) && part.chars().any(|c| c != '.');
    if text.is_empty() || text.split('/').all(is_name) {
        return Ok(text.to_owned());
    }
    Err(BadFar("the prefix in the url may hold letters, digits and . _ = - between single slashes".to_owned()))
}

/// The folder has to be there: one that is not mounted looks like one that was never made.
fn file(rest: &str) -> Result<Reached, BadFar> {
    let folder = PathBuf::from(rest);
    if !folder.is_absolute() {
        return Err(BadFar("a file url names a whole path: file:///srv/actum".to_owned()));
    }
    if !folder.is_dir() {
        let why = "there is no such folder; make it, or mount it, first";
        return Err(BadFar(format!("file://{rest}: {why}")));
    }
    let store = LocalFileSystem::new_with_prefix(&folder).map_err(|e| BadFar(format!("file://{rest}: {e}")))?;
    let store = Arc::new(store.with_fsync(true));
    Ok(Reached { store, prefix: String::new(), shown: format!("file://{rest}"), folder: Some(folder), shared: true })
}

fn bucket(scheme: Scheme, rest: &str, options: &[(String, String)]) -> Result<Reached, BadFar> {
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    if name.is_empty() || name.len() > BUCKET_CHARS_MAX || !name.chars().all(is_plain) {
        let why = "the url names no bucket; lower-case letters, digits and . _ - make one";
        return Err(BadFar(why.to_owned()));
    }
    let prefix = prefix_of(prefix)?;
    // There has to be a provider before the first client is made. Somebody else may have been faster.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (store, endpoint) = match scheme {
        Scheme::S3 => s3(name, options)?,
        Scheme::Gcs => gcs(name, options)?,
        _ => azure(name, options)?,
    };
    let slash = if prefix.is_empty() { "" } else { "/" };
    let at = endpoint.map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
    let shown = format!("{}://{name}{slash}{prefix}{at}", word(scheme));
    Ok(Reached { store, prefix, shown, folder: None, shared: true })
}

type Built = (Arc<dyn ObjectStore>, Option<String>);

/// Few: whether an object store is away is decided in one place, and that is not here.
fn retry() -> RetryConfig {
    RetryConfig { max_retries: 1, retry_timeout: Duration::from_secs(5), ..RetryConfig::default() }
}

fn client(allow_http: bool) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(allow_http)
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout_disabled()
        .with_read_timeout(SILENCE_MAX)
        // One connection would carry everything, and the servers that matter here speak the other one as well.
        .with_http1_only()
}

/// Whether unencrypted HTTP may be spoken, and that the endpoint does not need it otherwise.
fn may_be_plain(options: &[(String, String)], vendor: &str, endpoint: Option<&str>) -> Result<bool, BadFar> {
    let said = |wanted: &str| options.iter().find(|(key, _)| key == wanted).map(|(_, value)| value.as_str());
    let allowed = said("allow_http").or_else(|| said(&format!("{vendor}_allow_http")));
    let allowed = allowed.is_some_and(|value| value == "true" || value == "1");
    let Some(endpoint) = endpoint else { return Ok(allowed) };
    if endpoint.contains('@') || endpoint.contains('?') {
        return Err(BadFar("the endpoint holds more than scheme, host and port".to_owned()));
    }
    match endpoint.split_once("://") {
        Some(("https", _)) => Ok(allowed),
        Some(("http", _)) if allowed => Ok(true),
        Some(("http", _)) => {
            let why = "speaks unencrypted HTTP; say allow_http = true if that is meant";
            Err(BadFar(format!("the endpoint {endpoint} {why}")))
        }
        _ => Err(BadFar("the endpoint is no http or https address".to_owned())),
    }
}

fn unusable(e: &object_store::Error) -> BadFar {
    BadFar(format!("it cannot be used: {e}"))
}

fn s3(bucket: &str, options: &[(String, String)]) -> Result<Built, BadFar> {
    let mut builder = AmazonS3Builder::new();
    for (key, value) in ambient(options) {
        builder = key.parse().map(|key| builder.clone().with_config(key, value)).unwrap_or(builder);
    }
    builder = builder.with_bucket_name(bucket);
    for (key, value) in options {
        builder = match key.as_str() {
            "endpoint" => builder.with_endpoint(value),
            "region" => builder.with_region(value),
            "path_style" => builder.with_virtual_hosted_style_request(value != "true"),
            "access_key_id" => builder.with_access_key_id(value),
            "secret_access_key" => builder.with_secret_access_key(value),
            "session_token" => builder.with_token(value),
            _ => builder,
        };
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    let plain = may_be_plain(options, "aws", endpoint.as_deref())?;
    let store = builder.with_client_options(client(plain)).with_retry(retry()).build().map_err(|e| unusable(&e))?;
    Ok((Arc::new(store), endpoint))
}

fn gcs(bucket: &str, options: &[(String, String)]) -> Result<Built, BadFar> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (key, value) in ambient(options) {
        builder = key.parse().map(|key| builder.clone().with_config(key, value)).unwrap_or(builder);
    }
    builder = builder.with_bucket_name(bucket);
    for (key, value) in options {
        let key = match key.as_str() {
            "endpoint" => GoogleConfigKey::BaseUrl,
            "service_account_key" => GoogleConfigKey::ServiceAccountKey,
            "bearer_token" => GoogleConfigKey::BearerToken,
            "skip_signature" => GoogleConfigKey::SkipSignature,
            _ => continue,
        };
        builder = builder.with_config(key, value);
    }
    let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    let plain = may_be_plain(options, "google", endpoint.as_deref())?;
    let store = builder.with_client_options(client(plain)).with_retry(retry()).build().map_err(|e| unusable(&e))?;
    Ok((Arc::new(store), endpoint))
}

fn azure(container: &str, options: &[(String, String)]) -> Result<Built, BadFar> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in ambient(options) {
        builder = key.parse().map(|key| builder.clone().with_config(key, value)).unwrap_or(builder);
    }
    builder = builder.with_container_name(container);
    for (key, value) in options {
        let key = match key.as_str() {
            "endpoint" => AzureConfigKey::Endpoint,
            "account_name" => AzureConfigKey::AccountName,
            "account_key" => AzureConfigKey::AccessKey,
            "sas_token" => AzureConfigKey::SasKey,
            "bearer_token" => AzureConfigKey::Token,
            _ => continue,
        };
        builder = builder.with_config(key, value);
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let plain = may_be_plain(options, "azure", endpoint.as_deref())?;
    let store = builder.with_client_options(client(plain)).with_retry(retry()).build().map_err(|e| unusable(&e))?;
    Ok((Arc::new(store), endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, options: &[(&str, &str)]) -> String {
        let options: Vec<_> = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        match reach(url, &options) {
            Err(e) => e.to_string(),
            Ok(reached) => panic!("{url} was taken as {}", reached.shown),
        }
    }

    #[test]
    fn addresses_that_cannot_be_meant_are_refused_and_show_no_secret() {
        let bad = [
            "",
            "s3",
            "s3:/b",
            "S3://b",
            "ftp://b",
            "http://b/x",
            "s3://",
            "s3:///x",
            "s3://Bucket",
            "s3://b c",
            "s3://b/../x",
            "s3://b/x//y",
            "s3://b/./x",
            "s3://b/x?versionId=1",
            "s3://b/x#y",
            "s3://b/x y",
            "s3://b/é",
            "s3://b/%2e%2e/x",
            "s3://user:hunter2@b/x",
            "gs://b/x\0",
            "az://",
            "file://relative",
            "file:///nowhere/at/all",
        ];
        for url in bad {
            let said = refused(url, &[]);
            assert!(!said.contains("hunter2") && !said.is_empty(), "{url}: {said}");
        }
        assert!(refused("s3://b", &[("nonsense", "1")]).contains("access_key_id"));
        assert!(refused("file:///tmp", &[("region", "x")]).contains("nothing"));
        assert!(refused("s3://b", &[("endpoint", "http://127.0.0.1:1")]).contains("allow_http"));
        for endpoint in ["127.0.0.1:1", "ftp://x", "http://u:hunter2@x", "https://x?token=hunter2"] {
            let said = refused("s3://b", &[("endpoint", endpoint), ("allow_http", "true")]);
            assert!(!said.contains("hunter2"), "{said}");
        }
        assert!(refused("gs://b", &[("service_account_key", "no json")]).contains("cannot be used"));
        // Without an account there is nobody to ask.
        assert!(refused("az://c", &[("account_key", "bm9uZQ==")]).contains("cannot be used"));
    }

    #[test]
    fn addresses_are_shown_without_what_is_beside_them() {
        let options = [
            ("endpoint", "http://127.0.0.1:1"),
            ("allow_http", "true"),
            ("access_key_id", "i"),
            ("secret_access_key", "hunter2"),
        ];
        let options: Vec<_> = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let reached = reach("s3://bucket/a/b=c/", &options).unwrap();
        assert_eq!(
            (reached.shown.as_str(), reached.prefix.as_str()),
            ("s3://bucket/a/b=c at http://127.0.0.1:1", "a/b=c")
        );
    }
}
