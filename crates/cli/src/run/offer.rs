//! Tools and models for an agent at work: offered to its cell, and what it heard of them kept, so that the run can be
//! repeated without them.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actum_contract::blob::Blobs as _;
use actum_contract::digest::Digest;
use actum_kernel::{Denial, State, ToolOp};
use actum_ledger::registry::{Item, Kind};
use actum_workspace::OverlayView;
use serde_json::Value;

use super::book::{ANSWERS_BYTES_MAX, Answers, Book, Exhausted, over};
use super::hands::{Done, RunHands};
use super::program::{Offer, Ran};
use crate::failure::Failure;
use crate::model::gateway::Gateway;
use crate::model::{Authorized, Till};
use crate::purse::Purse;
use crate::tool::bridge::{Desk, is_usable};
use crate::tool::call::Setting;
use crate::tool::cells::{Ground, Stops};
use crate::workspace::new_id;

/// What came of an offer.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub ops: Vec<ToolOp>,
    /// Why it was stopped, if it asked for more than it may.
    pub exhausted: Option<String>,
    /// What it was denied.
    pub denied: Option<Denial>,
    /// The digest of what was heard, if anything was offered.
    pub answers: Option<String>,
}

/// What is opened for an act, whoever acts.
pub(super) struct Opened {
    pub book: Arc<Book>,
    pub desk: Option<Arc<Desk>>,
    pub ops_left: u64,
}

/// So much later than the agent has to be done its calls have to.
const BEHIND: Duration = Duration::from_secs(5);

impl RunHands {
    /// How many tool operations the work item has left.
    fn ops_left(&self, state: &State) -> u64 {
        state.agreed.item.constraints.max_tool_ops.saturating_sub(state.tool_ops())
    }

    /// Whether the agent is given tools, and whether one of them may change the workspace.
    pub(super) fn tools(&self) -> Done<(bool, bool)> {
        let given = &self.facts.agreement.agent.tools;
        if self.repeats.is_some() || given.as_ref().is_some_and(Vec::is_empty) {
            return Ok((self.heard_tools, true));
        }
        let may = |id: &str| given.as_ref().is_none_or(|given| given.iter().any(|one| one == id || one == "*"));
        let items = self.shop.shelf.items(Kind::Tool)?;
        let mut offered = items.iter().filter(|item| is_usable(item) && may(&item.id)).peekable();
        let is_offered = offered.peek().is_some();
        let summary = |item: &Item| serde_json::from_str::<Value>(&item.summary).unwrap_or_default();
        let writes = offered.any(|item| summary(item)["data_access"] == "write");
        Ok((is_offered, writes))
    }

    /// The tools the agent may ask for in an act, if it was given any.
    pub(super) fn offer(&mut self, state: &State, left_ms: u64) -> Done<Option<Offer>> {
        let has_models = self.has_models();
        if !self.tools()?.0 && !has_models {
            return Ok(None);
        }
        let Opened { book, desk, .. } = self.open_book(state, left_ms)?;
        let models = match (has_models, self.repeats.filter(|_| self.live.is_none())) {
            (false, _) => None,
            (true, Some(_)) => Some(Gateway::new(None, Some(Arc::clone(&book)))),
            (true, None) => Some(Gateway::new(Some(self.till()?), Some(Arc::clone(&book)))),
        };
        let key = format!("actum-{}", self.secret("models"));
        let token = self.token();
        Ok(Some(Offer { book, desk, models: models.map(Arc::new), token, key }))
    }

    /// The book of an act, and who answers for tools in it, if there are any.
    pub(super) fn open_book(&mut self, state: &State, left_ms: u64) -> Done<Opened> {
        let has_tools = self.tools()?.0;
        let at = self.at();
        self.stage(state)?;
        let Some(stage) = &self.stage else {
            return Err(Failure::new(actum_api::error::INTERNAL, "there is no stage"));
        };
        let ground = match stage.view(&self.workspace) {
            actum_workspace::View::Folder(copy) => Ground::Copy { at, copy },
            actum_workspace::View::Overlay { overlay, folders, files } => {
                let stack = |view: &OverlayView| [std::slice::from_ref(&view.upper), &view.lowers].concat();
                let root = self.workspace.path();
                let within = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_owned();
                let inner = folders.iter().map(|view| (within(&view.at), stack(view))).collect();
                let files = files.iter().map(|view| within(&view.at)).collect();
                Ground::Layers { at, layers: stack(&overlay), inner, files }
            }
        };
        let copy = match &ground {
            Ground::Copy { copy, .. } => Some(copy.clone()),
            _ => None,
        };
        let (ops_left, intents) = match self.repeats {
            Some(_) => (self.ops_left(state), None),
            None => {
                let acts = state.answers.len();
                self.lost = self.folder.lost_calls(acts)?;
                (self.ops_left(state).saturating_sub(self.lost), Some(self.folder.intents(acts)))
            }
        };
        let bytes = self.folder.answers_bytes(&state.answers);
        let book = Arc::new(Book::new(ops_left, self.heard.clone(), copy, intents, bytes));
        let desk = match (has_tools, self.repeats) {
            (false, _) => None,
            (true, Some(_)) => Some(Desk::new(None, Some(Arc::clone(&book)))),
            (true, None) => Some(Desk::new(Some(self.setting(ground, left_ms)?), Some(Arc::clone(&book)))),
        };
        if desk.is_none() && self.repeats.is_none() {
            book.without_tools();
        }
        Ok(Opened { book, desk: desk.map(Arc::new), ops_left })
    }

    /// Whether the agent reaches models, by way of us.
    pub(super) fn has_models(&self) -> bool {
        self.facts.agreement.agent.network == "gateway"
    }

    /// What the run's models are asked and paid through; the same for all of its acts.
    pub(super) fn till(&mut self) -> Done<Arc<Till>> {
        if let Some(till) = &self.till {
            return Ok(Arc::clone(till));
        }
        let till = Arc::new(Till::open(&self.shop.counter()?, self.who()));
        self.till = Some(Arc::clone(&till));
        Ok(till)
    }

    /// For whom the run spends.
    fn who(&self) -> Authorized {
        let item = &self.facts.agreement.work_item;
        Authorized {
            run: self.live.as_ref().unwrap_or(&self.facts.run).clone(),
            thread: Some(self.facts.submission.clone()).filter(|id| !id.is_empty()),
            autopilot: Some(item.agent_id.clone()),
            epoch: self.facts.epoch,
            budget: item.budget.spend.as_ref().map(|spend| (spend.max_total, spend.currency.clone())),
            waits: true,
            is_served: self.facts.agreement.is_served(),
            ..Authorized::default()
        }
    }

    fn setting(&self, ground: Ground, left_ms: u64) -> Done<Setting> {
        let (shop, agent) = (&self.shop, &self.facts.agreement.agent);
        let (shelf, spawner) = (shop.shelf.clone(), Arc::clone(&shop.spawner));
        let stops = Arc::new(Stops::default());
        let purse = Purse::new(&shop.spend, &shop.tenant, self.who());
        let mut setting = Setting::new(shelf, purse, shop.home.clone(), shop.sandbox.clone(), spawner, ground, stops)?;
        setting.folder = self.facts.agreement.folder;
        setting.programs = Arc::clone(&shop.tool_programs);
        setting.results = Arc::clone(&self.results);
        setting.session = Some(self.facts.run.clone());
        setting.tools.clone_from(&agent.tools);
        setting.granted = vec![
            ("memory_mb", agent.memory_mb),
            ("cpu_cores", agent.cpu_cores),
            ("max_children", agent.max_children),
            ("disk_mb", agent.disk_mb),
        ];
        // The agent's own time is over first, and that is what is told; then its calls end with it.
        setting.until = Some(Instant::now() + Duration::from_millis(left_ms) + BEHIND);
        setting.waits = true;
        let folder = self.folder.clone();
        setting.tell = Some(Box::new(move |text| folder.note(text)));
        Ok(setting)
    }

    /// The same whenever the run is repeated, unless others of the machine might use it.
    fn token(&self) -> String {
        match self.facts.agreement.agent.network.as_str() {
            "open" => new_id(),
            _ => self.secret("tools"),
        }
    }

    fn secret(&self, of: &str) -> String {
        Digest::sha256(format!("{of} of {}", self.facts.run).as_bytes()).to_hex()[..32].to_owned()
    }

    /// Keeps what the agent heard.
    pub(super) fn taken(&mut self, book: Option<&Book>, state: &State) -> Done<Taken> {
        let Some(book) = book else { return Ok(Taken::default()) };
        let heard = book.take();
        let asked = self.till.as_ref().and_then(|till| till.silence());
        self.silence = heard.silence.or(asked);
        self.by_order += heard.by_order;
        self.asides += heard.asides;
        if let (None, Some(asked)) = (&self.strange, heard.strange) {
            self.strange = Some((asked, heard.unasked));
        }
        let text = Value::Array(heard.answers).to_string();
        let digest = Digest::blake3(text.as_bytes()).to_hex();
        self.folder.keep_answers(&digest, text.as_bytes())?;
        if self.facts.agreement.shared.is_some() {
            // Whoever takes the run over may be on another machine.
            let batch = self.shop.files.batch()?;
            batch.put(Digest::blake3(text.as_bytes()), text.as_bytes())?;
            batch.commit()?;
        }
        let exhausted = heard.exhausted.map(|how| match how {
            Exhausted::Bytes => format!("the answers of its tools are more than {} MiB", ANSWERS_BYTES_MAX >> 20),
            Exhausted::Ops => {
                let (max, made) = (
                    state.agreed.item.constraints.max_tool_ops,
                    state.tool_ops() + heard.ops.iter().filter(|op| op.is_tools()).count() as u64,
                );
                let wanted = made + self.lost + 1;
                let of_dead = match self.lost {
                    0 => String::new(),
                    lost => format!(", {lost} of them made by a worker that died"),
                };
                format!("Exceeded max tool ops: {wanted} > {max}{of_dead}")
            }
        });
        Ok(Taken { ops: heard.ops, exhausted, denied: heard.denied, answers: Some(digest) })
    }

    /// Everything the run has heard of its tools so far, in order.
    pub(super) fn all_heard(&self, state: &State) -> Done<Vec<Value>> {
        let mut all = Vec::new();
        for digest in &state.answers {
            let elsewhere = || Digest::from_hex(digest).and_then(|digest| self.shop.files.read(digest).ok());
            let bytes = self.folder.answers(digest).or_else(elsewhere);
            let right = bytes.filter(|bytes| Digest::blake3(bytes).to_hex() == *digest);
            let list = right.and_then(|bytes| serde_json::from_slice::<Vec<Value>>(&bytes).ok());
            let missing =
                || Failure::new(actum_api::error::CONTENT_DAMAGED, "what the agent heard of its tools is gone");
            all.extend(list.ok_or_else(missing)?);
            all.push(over());
        }
        Ok(all)
    }
}

/// Answers of a recording, to be used one by one.
pub(super) fn recorded(answers: Vec<Value>) -> Answers {
    Arc::new(Mutex::new(answers.into_iter().enumerate().collect()))
}

/// What an agent's program did, its response, and what it heard.
pub(super) type Asked = (Ran, Option<Result<Value, String>>, Taken);
