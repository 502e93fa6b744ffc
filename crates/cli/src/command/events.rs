//! `actum events`: what has happened so far, entry by entry or event by event, and with `-f` what happens from now on.

use std::time::Duration;

use actum_api::error;
use actum_server::api::{Event, Source, Wish};
use clap::Args;
use serde_json::{Value, json};

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::feed;
use crate::project::Project;
use crate::run::Open;
use crate::ui::{Out, clean};

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// A run, for the events of its journal; without it, the entries of the ledger
    #[arg(id = "run", value_name = "RUN")]
    run: Option<String>,

    /// Go on with what happens; of a run, until it has ended
    #[arg(short, long)]
    follow: bool,

    /// Only those behind the one with this number
    #[arg(long, value_name = "N")]
    after: Option<u64>,

    /// Only those of this type; may be given several times, or with commas between
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,

    /// At most so many
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

/// How often it is looked for more.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Types that one may choose at once.
const TYPES_MAX: usize = 64;
/// Letters of an event that are shown to a person.
const DETAIL_CHARS_MAX: usize = 160;

impl Events {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        let (limit, follow) = (self.limit, self.follow);
        let Wish { source, after: mut cursor, types } = self.wish(&open)?;
        let mut left = limit.unwrap_or(u64::MAX);
        while left > 0 {
            // Looked at first: what happened before the end is read after it.
            let reached = feed::reached(&open.waiter, &source)?;
            let events = feed::stretch(&open.waiter, &source, cursor)?;
            let is_last = events.is_empty();
            for event in events {
                cursor = Some(event.id);
                if left > 0 && (types.is_empty() || types.contains(&event.kind)) {
                    tell(&event, out);
                    left -= 1;
                }
            }
            if is_last && (!follow || reached.end.is_some()) {
                break;
            }
            if is_last {
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(0)
    }

    /// What somebody wants to hear who goes on listening to a server.
    pub(crate) fn wish_of(self, open: &Open) -> Result<Wish, Failure> {
        if self.limit.is_some() {
            let failure = Failure::new(error::USAGE, "a stream has no limit");
            return Err(failure.hint("leave it out, or ask with `Accept: application/json`"));
        }
        self.wish(open)
    }

    fn wish(self, open: &Open) -> Result<Wish, Failure> {
        if self.types.len() > TYPES_MAX {
            return Err(Failure::new(error::USAGE, format!("there can be {TYPES_MAX} types at most")));
        }
        let run = self.run.map(|run| open.run(&run)).transpose()?.map(|run| run.id);
        let source = Source { tenant: open.tenant.as_str().to_owned(), run };
        feed::check_after(&open.waiter, &source, self.after)?;
        Ok(Wish { source, after: self.after, types: self.types })
    }
}

/// One event, as a line.
pub(crate) fn tell(event: &Event, out: &mut Out) {
    let data: Value = serde_json::from_str(&event.data).unwrap_or_else(|_| Value::String(event.data.clone()));
    if out.is_json() {
        return out.line(&json!({"id": event.id, "type": event.kind, "data": data}).to_string());
    }
    let text = |field: &str| data.get(field).and_then(Value::as_str);
    let at = text("at").or_else(|| text("createdAt")).unwrap_or_default();
    let detail = match (text("id"), data.get("data")) {
        (Some(id), _) => id.to_owned(),
        (None, Some(inner)) => inner.to_string(),
        (None, None) => String::new(),
    };
    let detail: String = clean(&detail).chars().take(DETAIL_CHARS_MAX).collect();
    out.line(format!("{}  {}  {}  {detail}", event.id, clean(at), clean(&event.kind)).trim_end());
}
