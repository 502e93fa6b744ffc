//! `/mcp`: the commands as MCP over HTTP, behind the same door as everything else. Without sessions: who asks is found out
//! for each request by its token, so there is no session that somebody else could take over.

use std::sync::Arc;

use actum_api::route::{Method as Verb, Need, Route};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{self, HeaderValue};
use axum::http::request::Parts;
use axum::response::Response;
use tokio::time::Instant;

use super::answer::{self, REQUEST_ID, Reply};
use super::line::Record;
use super::request::Desk;
use super::share::Whose;
use super::{Answer, Caller, Face, Given, door};
use crate::bridge::Refused;
use crate::mcp::over_http;
use crate::offer::{Commands, Host, Speaker};

pub(crate) const PATH: &str = "/mcp";
const NEEDS: [Need; 4] = [Need::Read, Need::Operate, Need::Approve, Need::Admin];

/// Somebody who has entered.
struct Guest {
    face: Arc<dyn Face>,
    caller: Caller,
    token: String,
    may: Vec<Need>,
}

impl Commands for Guest {
    fn may(&self, need: Need) -> bool {
        self.may.contains(&need)
    }

    fn answer(&self, route: &'static Route, given: Given) -> Answer {
        self.face.answer(&self.caller, route, given)
    }

    /// A token that was revoked opens nothing more, not even what somebody waits for already.
    fn holds(&self) -> bool {
        self.face.enter(&self.token).is_ok_and(|caller| caller == self.caller)
    }
}

impl Desk {
    /// All that is asked at this path. The answer may be a stream.
    pub(crate) async fn speak(
        &self,
        head: &Parts,
        body: Body,
        id: &str,
        record: &mut Record,
    ) -> Result<Response, Reply> {
        self.admit(head)?;
        record.found(PATH);
        if self.is_ending() {
            return Err(answer::ending());
        }
        let guest = self.guest(head, record).await?;
        if !guest.may(Need::Read) {
            return Err(door::unknown().into());
        }
        self.pace.take(&guest.caller.token, Instant::now()).map_err(answer::too_often)?;
        let is_post = head.method == axum::http::Method::POST;
        // Held until it is answered, as everywhere; whoever only waits has asked in a few words.
        let (content, _room) = match is_post {
            true => {
                let (content, _, room) = self.content(&guest.caller, head, body, Verb::Post).await?;
                (content, room)
            }
            // The protocol has nothing for other methods here, and says so itself.
            false => Default::default(),
        };
        let whose = Whose::from(&guest.caller);
        self.offered.under_way.hear(&whose.token, &content);
        let shared = Arc::clone(&self.offered);
        let (request_id, asked_bytes) = (id.to_owned(), content.len());
        let host = Host { commands: Arc::new(guest), tools: None, shared, whose, request_id, asked_bytes };
        let service = over_http(Speaker::new(host), self.settings.body_bytes_max);
        let response = service.handle(Request::from_parts(head.clone(), Body::from(content))).await;
        let mut response = response.map(Body::new);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        // Ours, or looked at when it came.
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert(REQUEST_ID, id);
        }
        Ok(response)
    }

    async fn guest(&self, head: &Parts, record: &mut Record) -> Result<Guest, Reply> {
        let token = door::token_in(&head.headers)?.to_owned();
        let face = Arc::clone(&self.face);
        let entered = self.enters.work(move || {
            let caller = face.enter(&token)?;
            let may = NEEDS.into_iter().filter(|need| face.may(&caller, *need)).collect();
            Ok::<_, Refused>(Guest { face, caller, token, may })
        });
        match entered.await? {
            Ok(guest) => {
                self.note_caller(head, record, &guest.caller).await?;
                Ok(guest)
            }
            Err(refused) if refused.status == 401 => Err(answer::unknown()),
            // Nobody could find out, which is not the token's fault.
            Err(refused) => Err(refused.into()),
        }
    }
}
