//! What stands between a server and the SDK: it bounds what a server can make us hold, counts what is not kept, and
//! refuses what a server asks of us.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientResult, ErrorCode, ErrorData, Implementation, InitializeRequestParams,
    JsonRpcMessage, ProtocolVersion, ServerNotification, ServerRequest,
};
use rmcp::service::{NotificationContext, RequestContext, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::{RoleClient, Service};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Notify;

/// Bytes of one message.
pub(super) const MESSAGE_MAX: usize = 8 * 1024 * 1024;

/// Values in one message: each takes up to a hundred times the two bytes it is written with.
pub(super) const VALUES_MAX: usize = 500_000;

/// Bytes, and notifications, after the last request of ours.
const NOISE_BYTES_MAX: u64 = 64 * 1024 * 1024;
const NOISE_MESSAGES_MAX: u64 = 1_000_000;

/// Requests of a server whose answers it does not take.
const UNANSWERED_MAX: u64 = 64;

/// What is known of a connection from outside the SDK.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) notifications: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) tools_changed: AtomicBool,
    is_over: AtomicBool,
    unanswered: AtomicU64,
    noise_bytes: AtomicU64,
    noise_messages: AtomicU64,
    complaint: Mutex<Option<String>>,
    complained: Notify,
}

impl Watch {
    /// Ends the connection, and says why; the first reason counts.
    pub(super) fn complain(&self, why: String) {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.complained.notify_one();
    }

    pub(super) fn complaint(&self) -> Option<String> {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn asked(&self) {
        self.noise_bytes.store(0, Ordering::Relaxed);
        self.noise_messages.store(0, Ordering::Relaxed);
    }
}

/// Counts the values of a message that comes in pieces.
#[derive(Debug, Default)]
pub(super) struct Density {
    values: usize,
    is_text: bool,
    is_escaped: bool,
}

impl Density {
    /// False: more than may be.
    pub(super) fn take(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_text => self.is_escaped = true,
                b'"' => self.is_text = !self.is_text,
                b',' | b'[' | b'{' if !self.is_text => self.values += 1,
                _ => {}
            }
        }
        self.values <= VALUES_MAX
    }
}

/// A reader that does not go on reading a line without end.
pub(super) struct Limited<R> {
    inner: R,
    line: usize,
    density: Density,
    watch: Arc<Watch>,
}

impl<R> Limited<R> {
    pub(super) fn new(inner: R, watch: Arc<Watch>) -> Self {
        Self { inner, line: 0, density: Density::default(), watch }
    }

    fn wrong_with(&mut self, bytes: &[u8]) -> Option<String> {
        let longest = match bytes.iter().position(|byte| *byte == b'\n') {
            None => {
                self.line += bytes.len();
                self.line
            }
            Some(first) => {
                let longest = self.line + first;
                // A piece is much shorter than a message may be: lines that begin and end in it are.
                self.line = bytes.iter().rev().take_while(|byte| **byte != b'\n').count();
                longest
            }
        };
        if longest > MESSAGE_MAX {
            return Some(format!("it sent a message of more than {MESSAGE_MAX} bytes"));
        }
        // Lines do not go on behind their end, not even those that are no JSON.
        for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if at > 0 {
                self.density = Density::default();
            }
            if !self.density.take(line) {
                return Some(format!("it sent a message of more than {VALUES_MAX} values"));
            }
        }
        let more = bytes.len() as u64;
        let noise = self.watch.noise_bytes.fetch_add(more, Ordering::Relaxed) + more;
        (noise > NOISE_BYTES_MAX).then(|| format!("it sent more than {NOISE_BYTES_MAX} bytes without being asked"))
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Limited<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        match self.wrong_with(&buffer.filled()[before..]) {
            None => Poll::Ready(Ok(())),
            Some(why) => {
                self.watch.complain(why.clone());
                Poll::Ready(Err(io::Error::other(why)))
            }
        }
    }
}

/// A transport that keeps notifications to itself and ends when somebody complained.
pub(super) struct Guarded<T> {
    inner: T,
    watch: Arc<Watch>,
}

impl<T> Guarded<T> {
    pub(super) fn new(inner: T, watch: Arc<Watch>) -> Self {
        Self { inner, watch }
    }

    /// Whether a message goes on to the SDK, which would begin a task for each notification and each request.
    fn passes(&self, message: &RxJsonRpcMessage<RoleClient>) -> bool {
        match message {
            JsonRpcMessage::Notification(message) => {
                self.watch.notifications.fetch_add(1, Ordering::Relaxed);
                if matches!(message.notification, ServerNotification::ToolListChangedNotification(_)) {
                    self.watch.tools_changed.store(true, Ordering::Release);
                }
                if self.watch.noise_messages.fetch_add(1, Ordering::Relaxed) >= NOISE_MESSAGES_MAX {
                    self.watch
                        .complain(format!("it sent more than {NOISE_MESSAGES_MAX} notifications without being asked"));
                }
                false
            }
            JsonRpcMessage::Request(message) => {
                if !matches!(message.request, ServerRequest::PingRequest(_)) {
                    self.watch.refused.fetch_add(1, Ordering::Relaxed);
                }
                if self.watch.unanswered.fetch_add(1, Ordering::Relaxed) >= UNANSWERED_MAX {
                    self.watch
                        .complain(format!("it sent more than {UNANSWERED_MAX} requests without taking the answers"));
                    return false;
                }
                true
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => true,
        }
    }

    async fn next(&mut self) -> Option<RxJsonRpcMessage<RoleClient>>
    where
        T: Transport<RoleClient>,
    {
        loop {
            let message = tokio::select! {
                biased;
                () = self.watch.complained.notified() => return None,
                message = self.inner.receive() => message?,
            };
            if self.passes(&message) {
                return Some(message);
            }
            // Others live on this thread too.
            tokio::task::consume_budget().await;
        }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Guarded<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let is_answer = matches!(item, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
        if matches!(item, JsonRpcMessage::Request(_)) {
            self.watch.asked();
        }
        let (sending, watch) = (self.inner.send(item), Arc::clone(&self.watch));
        async move {
            let sent = sending.await;
            if is_answer {
                // The counter never goes below nothing, whatever a server's ids look like.
                let fewer = |count: u64| Some(count.saturating_sub(1));
                let _ = watch.unanswered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let next = self.next().await;
        if next.is_none() {
            self.watch.is_over.store(true, Ordering::Release);
        }
        next
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.close()
    }
}

/// We, as servers see us: able to do nothing for them.
#[derive(Debug)]
pub(super) struct Refusing;

impl Service<RoleClient> for Refusing {
    async fn handle_request(
        &self,
        request: ServerRequest,
        _: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        match request {
            ServerRequest::PingRequest(_) => Ok(ClientResult::empty(())),
            _ => {
                Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "this client does nothing on behalf of servers", None))
            }
        }
    }

    async fn handle_notification(
        &self,
        _: ServerNotification,
        _: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn get_info(&self) -> ClientConfig {
        InitializeRequestParams::new(
            ClientCapabilities::default(),
            Implementation::new("actum", env!("CARGO_PKG_VERSION")),
        )
        .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::{Density, VALUES_MAX};

    #[test]
    fn values_are_counted_and_texts_are_not() {
        let mut density = Density::default();
        for byte in br#"{"a,[{\"":[1,2,{}],"b":"c\\","d":0}"# {
            assert!(density.take(&[*byte]));
        }
        assert_eq!((density.values, density.is_text), (7, false));
        assert!(!density.take(&vec![b','; VALUES_MAX]));
    }
}
