//! `actum serve`: the commands over HTTP for whoever has a token, and workers for what is submitted, until stopped.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use actum_api::error;
use actum_api::route::{Need, ROUTES, Route};
use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_ledger::access::{Action, Change, Kept, Role};
use actum_ledger::draft;
use actum_ledger::journal::{Journal, Outcome};
use actum_ledger::run::Runs;
use actum_ledger::webhook::Webhooks;
use actum_sandbox::Signals;
use actum_server::api::{Answer, Api, Caller, Event, Face, Given, Line, Reached, Settings, Source, Wish};
use actum_server::{Models, Refused};
use actum_store::Store;
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Ended;
use super::run::{LEASE, work_on};
use crate::access;
use crate::active_config::ActiveConfig;
use crate::args::{Command, Global};
use crate::face;
use crate::failure::Failure;
use crate::feed;
use crate::hook::Deliveries;
use crate::housekeeping::House;
use crate::log::{self, Form, Level};
use crate::metrics::{self, Facts, Requests};
use crate::model::alive::Alive;
use crate::model::gateway::Gateway;
use crate::progress::Progress;
use crate::project::Project;
use crate::quota::StorageQuotas;
use crate::run::Open;
use crate::seat::Seat;
use crate::telemetry;
use crate::ui::Out;
use crate::workspace::{LOCAL_TENANT, new_id};

/// How long requests may go on when it is told to stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest refusal that is kept for a repetition of the request.
const KEPT_REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Commands that act on files of the project, or on the store of everybody. They are those of whoever has the project, not of
/// other tenants, whose runs are on shared workspaces.
const OF_THE_PROJECT: [&str; 7] = ["snapshot", "stage", "store", "exec", "tool", "adapter", "config"];

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,

    /// Runs that are executed here at once; 0: none, workers elsewhere do it
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=256))]
    workers: u16,

    /// A name by which it may be asked, beside 127.0.0.1 and localhost; may be given several times
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,

    /// Requests of one token in a second; 0: as many as there are
    #[arg(long, value_name = "N", default_value_t = 100)]
    rate: u32,

    /// How often old things are removed and stuck ones looked for, in seconds; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    housekeeping: u64,

    /// Print a line for everything that happens, on stderr: every request, every run that is taken and ends, trouble;
    /// ACTUM_LOG=error|warn|info|debug says how much
    #[arg(long, value_name = "FORM", num_args = 0..=1, default_missing_value = "json")]
    log: Option<Form>,
}

impl Serve {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        if let Some(form) = self.log {
            log::begin(form);
        }
        // Before there are threads, which would get them instead.
        let signals = Signals::catch().map_err(|e| crate::cell::not_built(&e.to_string()))?;
        let internal = |e: std::io::Error| Failure::new(error::INTERNAL, format!("cannot start: {e}"));
        let runtime = Waiter::runtime().map_err(internal)?;
        let store = runtime.block_on(project.open(out, false))?;
        let (runs, journal): (Arc<dyn Runs>, Arc<dyn Journal>) = (store.clone(), store.clone());
        let waiter = Waiter::new(runtime, runs, journal);
        project.folder()?;
        face::sweep();
        let requests = Arc::new(Requests::default());
        let quotas = StorageQuotas::new(Arc::clone(&store), waiter.clone(), project.root().to_owned());
        let front = Arc::new(Front {
            store,
            waiter,
            quotas,
            root: project.root().to_owned(),
            config: Arc::clone(project.active_config()),
            openapi: OnceLock::new(),
            requests: Arc::clone(&requests),
            purses: Mutex::default(),
        });
        let cannot = |e: std::io::Error| {
            let failure = Failure::of_io(format!("cannot listen on {}: {e}", self.listen), &e);
            failure.hint("`--listen 127.0.0.1:0` takes any port that is free")
        };
        let listener = TcpListener::bind(self.listen).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        // Not before there is a place to serve at: one that nobody is shown would keep the next server from making one.
        let made = front.first_token(self.listen)?;
        let settings = Settings {
            hosts: self.host.clone(),
            requests_per_second: self.rate,
            burst: self.rate.saturating_mul(2),
            request_prefix: new_id().chars().take(8).collect(),
            log: Some(Arc::new(move |line: &Line| tell(line, &requests))),
            ..Settings::default()
        };
        let webhooks: Arc<dyn Webhooks> = front.store.clone();
        let deliveries = Deliveries::begin(&webhooks, &front.waiter, project.active_config())?;
        let face: Arc<dyn Face> = front.clone();
        let api = Api::serve(listener, face, ROUTES, settings).map_err(cannot)?;
        let url = format!("http://{address}");
        let shown = json!({"listen": address.to_string(), "url": url, "token": made, "workers": self.workers});
        out.result(&shown, || match &made {
            Some(token) => format!("serving {url}\nexport ACTUM_SERVER={url} ACTUM_TOKEN={token}"),
            None => format!("serving {url}"),
        });
        let _house = House::begin(&front, Duration::from_secs(self.housekeeping))?;
        if self.workers == 0 {
            signals.next();
        } else {
            let seat = Arc::new(front.seat(Tenant::new(LOCAL_TENANT).map_err(|e| bad_tenant(&e))?, "worker"));
            let open = Open::new(Project::seated(seat), out)?;
            let watch = Arc::new(Progress::unless_logged(out));
            work_on(&open, None, usize::from(self.workers), LEASE, Some(signals), watch)?;
        }
        match log::is_on() {
            true => log::say(Level::Info, "server.stopping", &json!({})),
            false => out.remark("stopping: what was asked is answered first"),
        }
        api.end(PATIENCE);
        front.close_purses();
        drop(deliveries);
        Ok(0)
    }
}

fn bad_tenant(e: &impl std::fmt::Display) -> Failure {
    Failure::new(error::INTERNAL, e.to_string())
}

/// What is told of a request that is over: to the log, to `/metrics`, to the collector.
fn tell(line: &Line, requests: &Requests) {
    requests.note(line);
    let trace = line.trace.as_deref().and_then(telemetry::trace::parse);
    let level = if line.status >= 500 { Level::Error } else { Level::Info };
    if log::hears(level) {
        let fields = json!({
            "method": line.method, "route": line.route, "status": line.status, "ms": line.ms, "tenant": line.tenant,
            "token": line.token, "request_id": line.request_id,
            "trace_id": trace.map(|trace| trace.trace_id().to_string()),
        });
        log::say(level, "request", &fields);
    }
    telemetry::request(&telemetry::Request {
        method: line.method,
        route: line.route,
        status: line.status,
        took: line.took,
        id: &line.request_id,
        parent: line.trace.as_deref(),
    });
}

/// By which one token asks models, and the configuration under which it was opened.
type OpenPurse = (Arc<Gateway>, Alive, Option<Digest>);

/// What stands behind the door.
pub(crate) struct Front {
    pub store: Arc<dyn Store>,
    pub waiter: Waiter,
    root: PathBuf,
    config: Arc<ActiveConfig>,
    openapi: OnceLock<Arc<[u8]>>,
    requests: Arc<Requests>,
    quotas: StorageQuotas,
    /// By which those who have asked models do it, by their token.
    purses: Mutex<BTreeMap<String, OpenPurse>>,
}

impl Front {
    pub(crate) fn seat(&self, tenant: Tenant, actor: &str) -> Seat {
        Seat::new(Arc::clone(&self.store), self.waiter.clone(), tenant, actor.to_owned(), Arc::clone(&self.config))
    }

    /// Where nobody may enter yet, a token is made for whoever sits at this machine. Elsewhere somebody has to make one first.
    fn first_token(&self, listen: SocketAddr) -> Result<Option<String>, Failure> {
        let local = Tenant::new(LOCAL_TENANT).map_err(|e| bad_tenant(&e))?;
        let now = Timestamp::now().as_millisecond();
        let mut tenants = self.waiter.wait(self.store.tenants())?;
        tenants.push(local.clone());
        for tenant in tenants {
            if self.waiter.wait(self.store.tokens(&tenant))?.iter().any(|token| token.is_in_force(now)) {
                return Ok(None);
            }
        }
        if !listen.ip().is_loopback() {
            let failure = Failure::new(error::USAGE, format!("{listen} is open to others, and there is no token"));
            return Err(failure.hint("`actum token create --role operator` makes one; or listen on 127.0.0.1"));
        }
        let fresh = access::fresh()?;
        let change = Change {
            tenant: local,
            token: fresh.id.clone(),
            n: Action::Create.n(),
            action: Action::Create,
            role: Role::Admin,
            name: "first".to_owned(),
            hash: fresh.hash.clone(),
            expires_ms: None,
            actor: "actum serve".to_owned(),
            reason: "the token could not be checked".to_owned(),
        };
        let submission = draft::read_own(change.document());
        match self.waiter.wait(self.waiter.journal.append(submission))? {
            Outcome::Created { .. } | Outcome::Idempotent { .. } => Ok(Some(fresh.text)),
            Outcome::Refused(refusal) => Err(Failure::new(error::INTERNAL, refusal.message)),
        }
    }

    /// Nobody asks models any more: what was cut off is settled as far as it can be.
    fn close_purses(&self) {
        let purses = std::mem::take(&mut *self.purses.lock().unwrap_or_else(PoisonError::into_inner));
        purses.into_values().for_each(|(gateway, _alive, _)| gateway.close());
    }

    /// Fails if a request that creates something would go beyond a quota of storage.
    fn admit(&self, tenant: &Tenant, caller: &Caller, route: &Route, given: &Given) -> Result<Vec<String>, Failure> {
        let config = self.config.current()?;
        match route.creates {
            true => self.quotas.admit(tenant, &caller.token, given.content.len() as u64, &config.server),
            false => Ok(Vec::new()),
        }
    }

    fn refused(name: &str, message: &str) -> Refused {
        Refused::named(name, message, &Value::Null, None)
    }
}

impl Face for Front {
    fn enter(&self, token: &str) -> Result<Caller, Refused> {
        match access::look_up(&*self.store, &self.waiter, token) {
            Ok(Some(token)) => Ok(Caller {
                tenant: token.tenant.as_str().to_owned(),
                token: token.id,
                name: token.name,
                role: token.role.word().to_owned(),
            }),
            Ok(None) => Err(Self::refused(error::UNAUTHORIZED, "the token opens nothing")),
            Err(e) => {
                log::store_trouble(&e.to_string());
                Err(Self::refused(error::STORE_UNAVAILABLE, &e.to_string()))
            }
        }
    }

    fn may(&self, caller: &Caller, need: Need) -> bool {
        let role = Role::named(&caller.role);
        match need {
            Need::Read => role.is_some(),
            Need::Operate => matches!(role, Some(Role::Operator | Role::Admin)),
            Need::Approve => matches!(role, Some(Role::Approver | Role::Admin)),
            Need::Admin => role == Some(Role::Admin),
        }
    }

    fn answer(&self, caller: &Caller, route: &'static Route, given: Given) -> Answer {
        let is_of_project = route.command.first().is_some_and(|word| OF_THE_PROJECT.contains(word));
        if caller.tenant != LOCAL_TENANT && is_of_project {
            let why = "the files of this project are not those of the token's tenant";
            return answer_of(&Self::refused(error::FORBIDDEN, why));
        }
        let Ok(tenant) = Tenant::new(caller.tenant.as_str()) else {
            return answer_of(&Self::refused(error::UNAUTHORIZED, "the token opens nothing"));
        };
        let remarks = match self.admit(&tenant, caller, route, &given) {
            Ok(remarks) => remarks,
            Err(failure) => return answer_of(&refusal_of(&failure)),
        };
        let seat = self.seat(tenant.clone(), &caller.name).with_token(&caller.token).traced(given.trace.clone());
        let seat = seat.once(given.once.map(Digest));
        let mut answer = face::run(Arc::new(seat), route, &given);
        // What is refused is kept as well: documents in the list of refused ones, answers for a repetition.
        if route.creates {
            self.quotas.note(&tenant, &caller.token, given.content.len() as u64);
        }
        answer.remarks.extend(remarks);
        answer
    }

    fn wish(&self, caller: &Caller, route: &'static Route, given: &Given) -> Result<Wish, Refused> {
        let unknown = || Self::refused(error::UNAUTHORIZED, "the token opens nothing");
        let tenant = Tenant::new(caller.tenant.as_str()).map_err(|_| unknown())?;
        // What is not of the form that the document shows, and what is and cannot be had, are told apart.
        let Command::Events(events) = face::read(route, given).map_err(|failure| refusal_of(&failure))?.command else {
            return Err(Self::refused(error::INTERNAL, &format!("{} tells no events", route.path)));
        };
        let seat = Arc::new(self.seat(tenant, &caller.name).with_token(&caller.token));
        let wished = || events.wish_of(&Open::new(Project::seated(seat), &Out::captured(true))?);
        wished().map_err(|failure| refusal_of(&failure).with_status(failure.row.status_once_read()))
    }

    fn reached(&self, source: &Source) -> Result<Reached, Refused> {
        feed::reached(&self.waiter, source).map_err(|failure| refusal_of(&failure))
    }

    fn stretch(&self, source: &Source, after: Option<u64>) -> Result<Vec<Event>, Refused> {
        feed::stretch(&self.waiter, source, after).map_err(|failure| refusal_of(&failure))
    }

    fn is_in(&self, caller: &Caller) -> Result<bool, Refused> {
        let found = self.waiter.wait(self.store.token(&caller.token));
        let found = found.map_err(|e| Self::refused(error::STORE_UNAVAILABLE, &e.to_string()))?;
        let now_ms = Timestamp::now().as_millisecond();
        Ok(found.is_some_and(|token| token.tenant.as_str() == caller.tenant && token.is_in_force(now_ms)))
    }

    fn kept(&self, caller: &Caller, key: &str, request_hash: &str) -> Result<Option<Answer>, Refused> {
        let Ok(tenant) = Tenant::new(caller.tenant.as_str()) else { return Ok(None) };
        let found = self.waiter.wait(self.store.kept(&tenant, &caller.token, key));
        let found = found.map_err(|e| Self::refused(error::STORE_UNAVAILABLE, &e.to_string()))?;
        let Some(kept) = found.filter(|kept| !kept.is_over(Timestamp::now().as_millisecond())) else { return Ok(None) };
        if kept.request_hash != request_hash {
            let message = format!("another request was made under the key {key:?}");
            return Err(Self::refused(error::IDEMPOTENCY_CONFLICT, &message));
        }
        let Kept { status, content_type, body, exit, .. } = kept;
        Ok(Some(Answer::new(status, content_type, body, exit)))
    }

    fn keep(&self, caller: &Caller, key: &str, request_hash: &str, answer: &Answer) {
        // A long refusal is not worth a place: the same request is refused in the same way again.
        if answer.status >= 400 && answer.body.len() > KEPT_REFUSAL_BYTES_MAX {
            return;
        }
        let Ok(tenant) = Tenant::new(caller.tenant.as_str()) else { return };
        let kept = Kept {
            request_hash: request_hash.to_owned(),
            status: answer.status,
            content_type: answer.content_type.clone(),
            body: answer.body.clone(),
            exit: answer.exit,
            at_ms: Timestamp::now().as_millisecond(),
        };
        // What cannot be kept is done all the same; whoever asks again hears of what is there by then.
        let _ = self.waiter.wait(self.store.keep(&tenant, &caller.token, key, kept));
    }

    fn models(&self, caller: &Caller) -> Result<Arc<dyn Models>, Refused> {
        let mut purses = self.purses.lock().unwrap_or_else(PoisonError::into_inner);
        let config = self.config.current().map_err(|failure| refusal_of(&failure))?;
        let in_force = config.digest;
        if let Some((gateway, _, config)) = purses.get(&caller.token) {
            if *config == in_force {
                return Ok(Arc::clone(gateway) as _);
            }
            // Calls under way are ended with the configuration they began under.
            if let Some((gateway, ..)) = purses.remove(&caller.token) {
                gateway.close();
            }
        }
        let opened = || {
            let tenant = Tenant::new(caller.tenant.as_str()).map_err(|e| bad_tenant(&e))?;
            let seat = Arc::new(self.seat(tenant, &caller.name).with_token(&caller.token));
            super::gateway::for_caller(&Open::new(Project::seated(seat), &Out::captured(true))?, &caller.name)
        };
        let (gateway, alive) = opened().map_err(|failure| refusal_of(&failure))?;
        purses.insert(caller.token.clone(), (Arc::clone(&gateway), alive, in_force));
        Ok(gateway)
    }

    fn admit_question(&self, caller: &Caller, bytes: u64) -> Result<(), Refused> {
        let admit = || {
            let tenant = Tenant::new(caller.tenant.as_str()).map_err(|e| bad_tenant(&e))?;
            self.quotas.admit(&tenant, &caller.token, bytes, &self.config.current()?.server).map(drop)
        };
        admit().map_err(|failure: Failure| refusal_of(&failure))
    }

    fn note_question(&self, caller: &Caller, bytes: u64) {
        if let Ok(tenant) = Tenant::new(caller.tenant.as_str()) {
            self.quotas.note(&tenant, &caller.token, bytes);
        }
    }

    fn openapi(&self) -> Arc<[u8]> {
        Arc::clone(self.openapi.get_or_init(|| face::openapi().to_string().into_bytes().into()))
    }

    fn ready(&self) -> Result<(), String> {
        self.waiter.wait(self.store.tenants()).map(|_| ()).map_err(|e| {
            log::store_trouble(&e.to_string());
            e.to_string()
        })
    }

    /// Who has shown no token learns nothing of who is there; a tenant's token shows that tenant's numbers alone.
    fn metrics(&self, caller: Option<&Caller>) -> String {
        let is_own = caller.is_some_and(|caller| caller.tenant == LOCAL_TENANT);
        if let Some(guest) = caller.filter(|_| !is_own) {
            let counts = Tenant::new(guest.tenant.as_str()).map(|tenant| self.waiter.wait(self.store.counts(&tenant)));
            let counts = counts.ok().and_then(Result::ok).unwrap_or_default();
            let runs = counts.into_iter().map(|(state, code, number)| ((None, state, code), number)).collect();
            return metrics::of_runs(&runs);
        }
        let clock = Tenant::new(LOCAL_TENANT).ok().and_then(|t| self.waiter.measure_clock(&t).ok());
        let now = clock.map_or_else(Timestamp::now, |clock| clock.store.now());
        let is_outdated = self.config.is_outdated();
        let mut facts = Facts { now_ms: now.as_millisecond(), clock, is_outdated, ..Facts::default() };
        match self.waiter.wait(self.store.queue(facts.now_ms)) {
            Ok(queue) => facts.queue = Some(queue),
            Err(e) => log::store_trouble(&e.to_string()),
        }
        for tenant in self.waiter.wait(self.store.tenants()).unwrap_or_default() {
            let name = is_own.then(|| tenant.as_str().to_owned());
            for (state, code, number) in self.waiter.wait(self.store.counts(&tenant)).unwrap_or_default() {
                *facts.runs.entry((name.clone(), state, code)).or_default() += number;
            }
        }
        for worker in crate::run::local_workers(&self.root.join(".actum")) {
            let state = match (worker.alive, worker.report.unwell) {
                (false, _) => "gone",
                (true, Some(_)) => "unwell",
                (true, None) => "well",
            };
            *facts.workers.entry(state).or_default() += 1;
        }
        metrics::text(&facts, &self.requests)
    }
}

fn refusal_of(failure: &Failure) -> Refused {
    Refused::named(failure.row.name, &failure.message, &failure.details, failure.hint.as_deref())
}

fn answer_of(refused: &Refused) -> Answer {
    Answer::new(refused.status, face::JSON, refused.body.to_string().into_bytes(), 3)
}
