//! A secure line to a server whose name is known, for the blocking client behind `actum --server`. Whom to believe is what the
//! system believes, as for every other connection here. It asks nothing itself.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_platform_verifier::BuilderVerifierExt;

/// Returns how servers are checked: by what the system believes.
pub fn config() -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier);
    Ok(builder.map_err(|e| io::Error::other(e.to_string()))?.with_no_client_auth())
}

/// Makes a connection secure before anything is said on it.
pub fn secure(stream: TcpStream, name: &str) -> io::Result<impl Read + Write + Send + use<>> {
    let refused = |e: &dyn std::fmt::Display| io::Error::other(e.to_string());
    let config = config()?;
    let name = ServerName::try_from(name.to_owned()).map_err(|e| refused(&e))?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(|e| refused(&e))?;
    let mut line = StreamOwned::new(connection, stream);
    // So that whoever is not who he should be is told from a connection that breaks later.
    while line.conn.is_handshaking() {
        line.conn.complete_io(&mut line.sock)?;
    }
    line.flush()?;
    Ok(line)
}
