//! What an agent in its cell may ask for: the tools it was given, level by level, and calls of them. Every call is an
//! execution that is counted while it runs, kept, and answered from the recording when the run is repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actum_api::error;
use actum_contract::canon;
use actum_contract::tool::Level;
use actum_ledger::registry::{Item, Kind, Status};
use actum_server::{Call, Refused, Tools};
use serde_json::{Value, json};

use super::call::{Ask, Setting};
use super::change;
use crate::command::tool::item_at;
use crate::failure::Failure;
use crate::run::book::{Book, Exhausted, answer_of};
use crate::workspace::new_id;

/// Answers for the tools: by calling them, or from what is on record.
pub(crate) struct Desk {
    /// None when a run is repeated: then everything is on record.
    setting: Option<Setting>,
    book: Option<Arc<Book>>,
}

/// Whether a tool may be called at all.
pub(crate) fn is_usable(tool: &Item) -> bool {
    tool.approved && tool.status != Status::Blocked
}

impl Desk {
    pub(crate) fn new(setting: Option<Setting>, book: Option<Arc<Book>>) -> Self {
        Self { setting, book }
    }

    /// Ends what is still running.
    pub(crate) fn stop(&self) {
        if let Some(setting) = &self.setting {
            setting.stops.stop();
        }
    }

    fn setting(&self) -> Result<&Setting, Failure> {
        self.setting.as_ref().ok_or_else(|| Failure::new(error::INTERNAL, "a replay calls no tools"))
    }

    fn see(&self, kind: Kind, id: &str, level: Level) -> Result<Value, Failure> {
        let setting = self.setting()?;
        let item = setting.shelf.item(kind, id)?;
        let is_given = match kind {
            Kind::Tool => is_usable(&item),
            Kind::Adapter => {
                item.status != Status::Blocked
                    && setting.shelf.item(Kind::Tool, &item.tool).is_ok_and(|tool| is_usable(&tool))
            }
        };
        if !setting.may(&item.tool) || !is_given {
            // The same words as for one that is not there.
            let failure = Failure::new(error::NOT_FOUND, format!("no {} {id:?} is registered", kind.word()));
            return Err(failure.hint("`actum adapter list` shows what is"));
        }
        let mut shown = item_at(&setting.shelf, kind, &item, level)?;
        if kind == Kind::Adapter && level >= Level::L2 {
            // Whoever only looks starts nothing: what is known already is shown.
            if let Some(tools) = setting.schemas_known(&setting.shelf.adapter(&item.id)?) {
                shown["tools"] = tools;
            }
        }
        Ok(shown)
    }

    fn all(&self, level: Level, tool: Option<&str>) -> Result<Value, Failure> {
        let setting = self.setting()?;
        let usable = setting.shelf.items(Kind::Tool)?;
        let is_given = |item: &&Item| {
            let of = &item.tool;
            let is_usable = |tool: &Item| tool.id == *of && is_usable(tool);
            let is_wanted = setting.may(of) && tool.is_none_or(|tool| tool == of);
            is_wanted && item.status != Status::Blocked && usable.iter().any(is_usable)
        };
        let mut shown = Vec::new();
        for item in setting.shelf.items(Kind::Adapter)?.iter().filter(is_given) {
            shown.push(item_at(&setting.shelf, Kind::Adapter, item, level.min(Level::L1))?);
        }
        Ok(json!({"adapters": shown}))
    }

    fn look(&self, input: &Value, find: impl FnOnce() -> Result<Value, Failure>) -> Result<Value, Failure> {
        match &self.book {
            None => find(),
            Some(book) => book.look(input, find),
        }
    }

    /// One call: counted, made or recalled, and noted.
    fn make(&self, ask: &Ask, gone: &AtomicBool) -> Result<Value, Failure> {
        let Some(book) = &self.book else { return self.find(ask, gone) };
        let input = json!({"call": {"tool": ask.tool, "adapter": ask.adapter, "operation": ask.operation, "params": ask.params}});
        // What cannot be hashed cannot be traced.
        canon::canonical(&input).map_err(|e| Failure::new(error::INPUT, e.to_string()))?;
        if let Some(recorded) = book.recorded() {
            return book.repeat(recorded, &input, gone);
        }
        if !book.count() {
            return Err(book.exhaust(Exhausted::Ops));
        }
        book.intend()?;
        let found = self.find(ask, gone);
        let mut answer = answer_of(&input, &found);
        if gone.load(Ordering::SeqCst) || self.setting.as_ref().is_some_and(|setting| setting.stops.is_stopped()) {
            answer["cut"] = json!(true);
        }
        book.note(usize::MAX, &answer);
        found
    }

    fn find(&self, ask: &Ask, gone: &AtomicBool) -> Result<Value, Failure> {
        let setting = self.setting()?;
        let stop = || gone.load(Ordering::SeqCst);
        let copy = self.book.as_ref().and_then(|book| book.copy()).filter(|_| setting.writes(&ask.tool));
        let before = copy.map(|copy| change::look(copy));
        let mut result = setting.call(&new_id(), ask, None, &stop)?.result;
        if let Some((copy, before)) = copy.zip(before) {
            result["changes"] = change::since(copy, &before);
        }
        Ok(result)
    }
}

impl Desk {
    fn refused(&self, failure: &Failure) -> Refused {
        if let Some(book) = self.book.as_ref().filter(|_| failure.is_passing()) {
            book.fell_silent(&failure.message);
        }
        Refused { status: failure.row.status, body: failure.to_json() }
    }
}

impl Tools for Desk {
    fn list(&self, level: &str, tool: Option<&str>) -> Result<Value, Refused> {
        let level = Level::named(level).unwrap_or(Level::L0);
        let input = json!({"list": level.word(), "tool": tool});
        self.look(&input, || self.all(level, tool)).map_err(|failure| self.refused(&failure))
    }

    fn show(&self, id: &str, level: &str) -> Result<Value, Refused> {
        let level = Level::named(level).unwrap_or(Level::L1);
        let input = json!({"show": id, "level": level.word()});
        let find = || self.see(Kind::Tool, id, level).or_else(|_| self.see(Kind::Adapter, id, level));
        self.look(&input, find).map_err(|failure| self.refused(&failure))
    }

    fn call(&self, call: Call, cancelled: &Arc<AtomicBool>) -> Result<Value, Refused> {
        let Call { tool, adapter, operation, params } = call;
        let made = self.make(&Ask { tool, adapter, operation, params, input: None }, cancelled);
        let mut result = made.map_err(|failure| self.refused(&failure))?;
        // What the host saw of the cell is no business of the agent's.
        if let Some(fields) = result.as_object_mut() {
            ["evidence", "changes"].iter().for_each(|name| drop(fields.remove(*name)));
        }
        Ok(result)
    }
}
