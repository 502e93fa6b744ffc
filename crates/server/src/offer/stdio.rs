//! What is offered, on this process's standard input and output, until the input ends or somebody wants to stop.

use std::io;
use std::sync::Arc;
use std::thread::Builder;

use rmcp::ServiceExt as _;
use rmcp::service::ServerInitializeError;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::{Commands, Host, Shared, Speaker};
use crate::api::Bounds;
use crate::api::share::Whose;
use crate::api::turn::Turns;
use crate::bridge::Tools;
use crate::http::BODY_BYTES_MAX;
use crate::turns::{self, CALLS_MAX};

/// Threads for commands: there is one caller, and he is at this machine.
const LOOKS_MAX: usize = 4;
const WORKS_MAX: usize = 8;
/// Threads beside them: for the tools, and for standard input and output.
const OTHER_THREADS: usize = CALLS_MAX + 8;

/// Asks a conversation to end.
#[derive(Debug)]
pub struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Stop {
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// Serves one caller. Returns when nothing of what he asked is under way any more.
pub fn serve_commands(commands: Arc<dyn Commands>, tools: Arc<dyn Tools>, stop: Arc<Stop>) -> io::Result<()> {
    // A thread of our own: the caller may run inside another runtime.
    let thread = Builder::new().name("actum-mcp".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(LOOKS_MAX + WORKS_MAX + OTHER_THREADS)
            .thread_name("actum-command")
            .build()?;
        let outcome = runtime.block_on(async {
            let (reader, writer) = rmcp::transport::stdio_pipes();
            serve_on(commands, tools, &stop, reader, writer).await
        });
        // Not dropped: a read from a terminal cannot be interrupted, and would be waited for.
        runtime.shutdown_background();
        outcome
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the MCP server failed")))
}

pub(crate) async fn serve_on<R, W>(
    commands: Arc<dyn Commands>,
    tools: Arc<dyn Tools>,
    stop: &Stop,
    reader: R,
    writer: W,
) -> io::Result<()>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let bounds = Bounds::default();
    let (looks, works) = (Arc::new(Turns::new(LOOKS_MAX, &bounds)), Arc::new(Turns::new(WORKS_MAX, &bounds)));
    let tools = Arc::new(turns::Turns::new(tools));
    let shared = Arc::new(Shared::new(Arc::clone(&looks), Arc::clone(&works), stop.0.subscribe()));
    let host = Host {
        commands,
        tools: Some(Arc::clone(&tools)),
        shared,
        whose: Whose::default(),
        request_id: "mcp".to_owned(),
        asked_bytes: 0,
    };
    let transport = AsyncRwTransport::new(reader, writer).with_max_line_length(BODY_BYTES_MAX);
    // Nothing of the flag is held while something else is waited for: whoever asks twice would wait too.
    let stopped = || async { stop.0.subscribe().wait_for(|is_so| *is_so).await.map(drop).unwrap_or_default() };
    let begun = tokio::select! {
        begun = Speaker::new(host).serve(transport) => begun,
        () = stopped() => return Ok(()),
    };
    let outcome = match begun {
        Ok(running) => {
            let cut = running.cancellation_token();
            let waiting = running.waiting();
            tokio::pin!(waiting);
            let ended = tokio::select! {
                ended = &mut waiting => ended,
                () = stopped() => {
                    cut.cancel();
                    waiting.await
                }
            };
            ended.map(drop).map_err(io::Error::other)
        }
        // Somebody who leaves before saying anything is no failure.
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    };
    tools.settled().await;
    looks.settled().await;
    works.settled().await;
    outcome
}
