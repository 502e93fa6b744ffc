//! Handing a checkpoint to a witness (C2SP tlog-witness). Called by `cli`, which says which hosts may be reached and checks the
//! answer; it follows no redirect, reads a bounded answer and never tries twice.

use std::time::Duration;

use actum_contract::execution::Network;
use reqwest::Url;

use crate::api::{Http, chain, wait_for};
use crate::result::Stage;

/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// What a witness answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WitnessAnswer {
    Status(u16, String),
    /// There was no answer, or not in time.
    Lost(String),
    /// The host may not be reached.
    Denied(String),
}

impl Http {
    /// Sends the body of an `add-checkpoint` request to the witness at `url`. Blocks the caller.
    pub fn add_checkpoint(&self, network: &Network, url: &str, body: &str, within: Duration) -> WitnessAnswer {
        let Ok(url) = Url::parse(&format!("{}/add-checkpoint", url.trim_end_matches('/'))) else {
            return WitnessAnswer::Denied("its address is no URL".into());
        };
        let work = async {
            let client = match self.client(network, &url).await.1 {
                Ok(client) => client,
                Err(problem) if problem.stage == Stage::Denied => return WitnessAnswer::Denied(problem.message),
                Err(problem) => return WitnessAnswer::Lost(problem.message),
            };
            let mut response = match client.post(url.clone()).body(body.to_owned()).send().await {
                Ok(response) => response,
                Err(e) => return WitnessAnswer::Lost(chain(e.without_url())),
            };
            let mut bytes = Vec::new();
            while let Ok(Some(piece)) = response.chunk().await {
                bytes.extend_from_slice(&piece);
                if bytes.len() > ANSWER_BYTES_MAX {
                    return WitnessAnswer::Lost(format!("its answer is longer than {ANSWER_BYTES_MAX} bytes"));
                }
            }
            WitnessAnswer::Status(response.status().as_u16(), String::from_utf8_lossy(&bytes).into_owned())
        };
        let late = || WitnessAnswer::Lost(format!("no answer within {} ms", within.as_millis()));
        let timed = async { tokio::time::timeout(within, work).await.unwrap_or_else(|_| late()) };
        match wait_for(timed, &|| false) {
            Ok(Some(answer)) => answer,
            Ok(None) => late(),
            Err(e) => WitnessAnswer::Lost(format!("no connection can be made here: {e}")),
        }
    }
}
