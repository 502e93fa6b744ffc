//! `actum canon`: canonical JSON of a document, or its hash.

use std::path::PathBuf;

use actum_contract::canon;
use actum_contract::digest::Digest;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::Ended;
use crate::document::Document;
use crate::failure::Failure;
use crate::ui::Out;

/// Print the canonical JSON (RFC 8785) of a document, without a newline at the end
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  echo '{\"b\": 1.0, \"a\": [2e3]}' | actum canon")]
pub(crate) struct Canon {
    /// The document; stdin if left out or -
    #[arg(default_value = "-", hide_default_value = true)]
    file: PathBuf,

    /// Print the hash of the canonical text instead
    #[arg(long, value_name = "ALGORITHM")]
    hash: Option<Algorithm>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Algorithm {
    Sha256,
    Blake3,
}

impl Canon {
    pub(crate) fn run(self, out: &mut Out) -> Ended {
        let value = Document::read(&self.file)?.json()?;
        let text = canon::canonical(&value).map_err(|e| Failure::new(actum_api::error::INPUT, e.to_string()))?;
        let (algorithm, hash) = match self.hash {
            None => {
                out.bytes(&text);
                return Ok(0);
            }
            Some(Algorithm::Sha256) => ("sha256", Digest::sha256(&text)),
            Some(Algorithm::Blake3) => ("blake3", Digest::blake3(&text)),
        };
        out.result(&json!({"algorithm": algorithm, "hash": hash.to_hex()}), || hash.to_hex());
        Ok(0)
    }
}
