//! Credentials that requests get on their way out. The program in the cell never has them: a request for a listed host is
//! opened here, gets its header, and goes on to the real host over a connection of ours.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use actum_contract::execution::{Host, Verdict, allows};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// A header that requests for a host get.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    pub host: Host,
    pub header: String,
    /// Holds the secret.
    pub value: String,
    /// Also over plain HTTP, where others on the way can read it.
    pub is_plain: bool,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("host", &self.host).field("header", &self.header).finish_non_exhaustive()
    }
}

/// The credentials of one cell, and the authority that answers for their hosts in it.
#[derive(Clone)]
pub struct Credentials {
    all: Vec<Credential>,
    authority: Arc<Authority>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.all).finish()
    }
}

/// A certificate authority that nobody but the programs of one cell believes.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    key: Vec<u8>,
    hosts: Mutex<BTreeMap<String, Arc<ServerConfig>>>,
    /// By which the real hosts are believed.
    outside: Arc<ClientConfig>,
}

/// Hosts of one cell for which a certificate is kept.
const HOSTS_MAX: usize = 64;

impl Credentials {
    /// Returns credentials with an authority of their own. `outside`: how real hosts are checked.
    pub fn new(all: Vec<Credential>, outside: &ClientConfig) -> io::Result<Self> {
        Ok(Self { all, authority: Arc::new(Authority::new(outside).map_err(io::Error::other)?) })
    }

    /// The certificate that programs in the cell have to believe.
    pub fn pem(&self) -> &str {
        &self.authority.pem
    }

    /// Returns the credentials for a host.
    pub(super) fn for_host(&self, name: &str, port: u16) -> Vec<&Credential> {
        let covers =
            |one: &&Credential| allows(std::slice::from_ref(&one.host), &[], name, Some(port)) == Verdict::Allowed;
        self.all.iter().filter(covers).collect()
    }

    /// Takes a greeting of TLS from within the cell, in the name of the host.
    pub(super) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        name: &str,
        stream: S,
    ) -> io::Result<server::TlsStream<S>> {
        TlsAcceptor::from(self.authority.config_for(name).map_err(io::Error::other)?).accept(stream).await
    }

    /// Greets the real host, which has to prove its name.
    pub(super) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        name: &str,
        stream: S,
    ) -> io::Result<client::TlsStream<S>> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.authority.outside)).connect(name, stream).await
    }
}

impl Authority {
    fn new(outside: &ClientConfig) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Actum egress of one cell");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let pem = params.self_signed(&key)?.pem();
        // One request a connection, in the one protocol that is read here.
        let mut outside = outside.clone();
        outside.alpn_protocols = vec![HTTP_1_1.to_vec()];
        Ok(Self {
            issuer: Issuer::new(params, key),
            pem,
            key: KeyPair::generate()?.serialize_der(),
            hosts: Mutex::default(),
            outside: Arc::new(outside),
        })
    }

    fn config_for(&self, name: &str) -> Result<Arc<ServerConfig>, String> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = hosts.get(name) {
            return Ok(Arc::clone(config));
        }
        let key = KeyPair::try_from(self.key.as_slice()).map_err(|e| e.to_string())?;
        let params = CertificateParams::new(vec![name.to_owned()]).map_err(|e| e.to_string())?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(|e| e.to_string())?;
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.clone()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .map_err(|e| e.to_string())?;
        config.alpn_protocols = vec![HTTP_1_1.to_vec()];
        let config = Arc::new(config);
        if hosts.len() >= HOSTS_MAX {
            hosts.clear();
        }
        hosts.insert(name.to_owned(), Arc::clone(&config));
        Ok(config)
    }
}

const HTTP_1_1: &[u8] = b"http/1.1";

/// A stream of which some bytes were read already: they come first.
pub(super) struct Begun<'a, S> {
    pub beginning: &'a [u8],
    pub stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<'_, S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.beginning.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, into);
        }
        let (now, later) = self.beginning.split_at(self.beginning.len().min(into.remaining()));
        into.put_slice(now);
        self.beginning = later;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
