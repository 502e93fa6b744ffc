//! The writing thread: takes whatever waits, locks the logs concerned, decides, commits it together.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use actum_contract::digest::Digest;
use actum_contract::id::Tenant;
use actum_ledger::append::{Appended, Book, Known, Log};
use actum_ledger::draft::{Draft, Submission};
use actum_ledger::entry::recorded_at;
use actum_ledger::event::State;
use actum_ledger::journal::JournalError;
use actum_ledger::merkle::Frontier;
use actum_ledger::refusal::Refusal;
use actum_ledger::run::{Run, Written};
use actum_ledger::spend::Purse;
use actum_ledger::state::Last;
use actum_ledger::time::{self, Moment};
use jiff::Timestamp;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_postgres::{Config, Row, Statement};

use super::access::{AccessRows, keeping, token_of};
use super::rows::Rows;
use super::run::{Roll, Share, about_runs, keys};
use super::run_rows::{Key, RunPlan, RunRows};
use super::spend_rows::{Money, SpendRows, spending};
use super::{ANSWER_WAIT, FLUSH, failed, is_to_be_tried_again, is_without_flush, open, silent};
use crate::access::{KeepRequest, TOKEN};
use crate::batch::{Effect, Letter, NotTaken, Refused, decide, decide_all, drafts, left_out};
use crate::crash;
use crate::queue::{Done, Receiver, Request};
use crate::request::RunRequest;
use crate::spend::{Planned, SpendRequest, Spent};
use crate::webhook::WebhookDone;

/// How often a batch is begun that the database gave up for the sake of another one.
const TRIES_MAX: u32 = 5;

/// Runs until all callers are gone. A connection that failed is not used again; the next batch gets a new one.
pub(super) fn run(config: Config, mut receiver: Receiver) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(async move {
        let mut writer = None;
        while let Some(batch) = receiver.next().await {
            let mut tries = 1;
            let done = loop {
                let committed = async { take(&mut writer, &config).await?.commit(&batch.requests).await };
                let done = timeout(ANSWER_WAIT, committed).await.unwrap_or_else(|_| Err(silent()));
                if done.is_err() {
                    writer = None;
                }
                // Nothing of it was kept, and the same may be kept the next time.
                match &done {
                    Err(e) if tries < TRIES_MAX && is_to_be_tried_again(e) => tries += 1,
                    _ => break done,
                }
            };
            batch.answer(done);
        }
    });
}

async fn take<'a>(writer: &'a mut Option<Writer>, config: &Config) -> Result<&'a Writer, JournalError> {
    if writer.as_ref().is_none_or(|w| w.rows.client.is_closed()) {
        *writer = Some(Writer::connect(config).await?);
    }
    writer.as_ref().ok_or_else(|| JournalError::Unavailable("no connection".into()))
}

/// Where those queue who make or revoke tokens, whose ids are one among all tenants. No tenant has this name.
const ALL_TENANTS: &str = "";

struct Writer {
    rows: Rows,
    /// Prepared when the first request about runs arrives.
    run_rows: OnceCell<RunRows>,
    /// Prepared when the first request about money arrives.
    spend_rows: OnceCell<SpendRows>,
    /// Prepared when the first answer is to be kept.
    access_rows: OnceCell<AccessRows>,
    /// Transactions begun, to know when plans are old.
    begun: Cell<u64>,
    lock: Statement,
    /// The reference clock: what is recorded carries its time.
    clock: Statement,
    /// Returns when all that was committed before it is on the disk; if this database has such a thing.
    flush: Option<Statement>,
    logs: Statement,
    entries: Statement,
    executions: Statement,
    tokens: Statement,
}

/// What a batch needs to know, as it was read.
struct Facts {
    logs: Vec<Row>,
    entries: Vec<Row>,
    executions: Vec<Row>,
    tokens: Vec<Row>,
    runs: Vec<Row>,
    money: Money,
    now: Timestamp,
}

impl Facts {
    fn book(&self) -> Result<Book, JournalError> {
        let mut book = Book::default();
        for row in &self.logs {
            let tenant = tenant_of(row)?;
            book.learn_log(&tenant, log_of(&tenant, row)?);
            if let Some(at) = row.get::<_, Option<&[u8]>>(4).and_then(recorded_at) {
                book.learn_recorded(&tenant, at);
            }
        }
        learn_entries(&mut book, &self.entries);
        learn_executions(&mut book, &self.executions)?;
        for row in &self.tokens {
            book.learn_token(token_of(row)?);
        }
        Ok(book)
    }
}

/// What a batch comes to.
struct Plan<'a> {
    book: Book,
    roll: Roll<'a>,
    purse: Purse,
    /// When it is, for money.
    now_ms: i64,
    answers: Vec<Answer>,
    entries: Vec<Appended>,
    letters: Vec<Letter>,
    checkpoints: Vec<(&'a Tenant, u64, &'a str)>,
    answers_to_keep: Vec<&'a KeepRequest>,
}

enum Answer {
    Done(Done),
    /// Known only when the database has said which runs there are.
    Claim(Share),
    /// Known only when the database has said whether there was one; by its place among those to be kept.
    Keep(usize),
}

impl<'a> Plan<'a> {
    fn new(keys: &[Key<'a>], facts: &Facts) -> Result<Self, JournalError> {
        Ok(Self {
            book: facts.book()?,
            roll: Roll::new(keys, &facts.runs)?,
            purse: facts.money.purse()?,
            now_ms: facts.money.now_ms,
            answers: Vec::new(),
            entries: Vec::new(),
            letters: Vec::new(),
            checkpoints: Vec::new(),
            answers_to_keep: Vec::new(),
        })
    }

    /// Decides all requests; or names the one that has to be left out, and why.
    fn decide(&mut self, requests: &'a [Request], refused: &Refused, now: &Moment) -> Result<(), (usize, Refusal)> {
        for (at, request) in requests.iter().enumerate() {
            let answer = match (request, refused.get(&at)) {
                (_, Some(refusal)) => Answer::Done(left_out(request, refusal)),
                (Request::Append(submission), _) => {
                    let (effect, outcome) = decide(&mut self.book, submission, now);
                    match effect {
                        Effect::Entry(entry) => self.entries.push(*entry),
                        Effect::DeadLetter(letter) => self.letters.push(letter),
                        Effect::Nothing => {}
                    }
                    Answer::Done(Done::Appended(outcome))
                }
                (Request::Checkpoint { tenant, size, note }, _) => {
                    self.checkpoints.push((tenant, *size, note));
                    Answer::Done(Done::Kept)
                }
                (Request::Keep(request), _) => {
                    self.answers_to_keep.push(request);
                    Answer::Keep(self.answers_to_keep.len() - 1)
                }
                // Those are written on connections of the pool, by a statement each.
                (Request::Webhook(_), _) => Answer::Done(Done::Webhook(WebhookDone::Changed(false))),
                (Request::Run(request), _) => self.decide_run(request, now).map_err(|refusal| (at, refusal))?,
                (Request::Spend(request), _) => {
                    let spent = self.decide_spend(request, now).map_err(|refusal| (at, refusal))?;
                    Answer::Done(Done::Spent(spent))
                }
            };
            self.answers.push(answer);
        }
        Ok(())
    }

    fn decide_run(&mut self, request: &'a RunRequest, now: &Moment) -> Result<Answer, Refusal> {
        let written = match request {
            RunRequest::Claim(claim) => return Ok(Answer::Claim(self.roll.claim(claim))),
            RunRequest::Renew { lease_ms, held } => {
                return Ok(Answer::Done(Done::Renewed(self.roll.renew(*lease_ms, held))));
            }
            RunRequest::Cancel { tenant, run } => self.roll.cancel(tenant.as_str(), run),
            RunRequest::Submit { runs, .. } if !self.roll.are_new(runs) => Written::Lost,
            RunRequest::Submit { runs, entries } => match self.decide_all(entries, now)? {
                Written::Done => {
                    self.roll.submit(runs);
                    Written::Done
                }
                other => other,
            },
            RunRequest::Commit(..) | RunRequest::Settle(..) => match self.roll.change(request) {
                None => Written::Lost,
                Some((key, change)) => match self.decide_all(request.entries(), now)? {
                    Written::Done => {
                        self.roll.apply(key, change);
                        Written::Done
                    }
                    other => other,
                },
            },
        };
        Ok(Answer::Done(Done::Written(written)))
    }

    fn decide_spend(&mut self, request: &SpendRequest, now: &Moment) -> Result<Spent, Refusal> {
        let Planned { step, entries } = match request.decide(&self.purse, self.now_ms) {
            Ok(planned) => planned,
            Err(answer) => return Ok(answer),
        };
        match self.decide_all(&entries, now)? {
            Written::Refused(refusal) => Ok(request.not_taken(&refusal.message)),
            Written::Done | Written::Lost => Ok(self.purse.apply(step)),
        }
    }

    /// An error is a refusal for which all has to be decided again.
    fn decide_all(&mut self, submissions: &[Submission], now: &Moment) -> Result<Written, Refusal> {
        match decide_all(&mut self.book, submissions, now) {
            Ok(entries) => {
                self.entries.extend(entries);
                Ok(Written::Done)
            }
            Err(NotTaken { refusal, spoiled: false }) => Ok(Written::Refused(refusal)),
            Err(NotTaken { refusal, spoiled: true }) => Err(refusal),
        }
    }
}

impl Writer {
    async fn connect(config: &Config) -> Result<Self, JournalError> {
        let client = open::connect(config).await?;
        // Acknowledged means durable, whatever the server's default. Every look-up here is by key: a plan that
        // scans or sorts would only ever come from statistics that are missing or old, and there is no better plan to be
        // found by looking at the values.
        client.batch_execute("SET synchronous_commit = on").await.map_err(failed)?;
        // As far as this database knows of such settings.
        let settings = "SELECT set_config(s.name, k.value, false) FROM (VALUES ('enable_seqscan', 'off'),
                ('enable_bitmapscan', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'),
                ('enable_sort', 'off'), ('plan_cache_mode', 'force_generic_plan')) AS k (name, value)
            JOIN pg_settings s ON s.name = k.name";
        client.batch_execute(settings).await.map_err(failed)?;
        let rows = Rows::prepare(client).await.map_err(failed)?;
        let lock = "SELECT tenant FROM ledger_lock WHERE tenant = ANY($1) ORDER BY tenant FOR UPDATE";
        let logs = "SELECT l.tenant, l.size, l.head, l.frontier, e.body FROM ledger_log l
            LEFT JOIN ledger_entry e ON e.tenant = l.tenant AND e.seq = l.size - 1 WHERE l.tenant = ANY($1)";
        // Read after the locks are held, so that a later entry of a log has a later time.
        let clock = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let entries = "SELECT e.tenant, e.id, e.seq, e.created_ns, CASE WHEN k.own THEN e.body END
            FROM unnest($1::text[], $2::text[], $3::bool[]) AS k (tenant, id, own)
            JOIN ledger_entry e ON e.tenant = k.tenant AND e.id = k.id";
        let executions = "SELECT x.tenant, x.robot, x.execution, x.state, x.attempt, k.id, e.seq, e.created_ns, e.body
            FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS k (tenant, robot, execution, id)
            JOIN execution x ON x.tenant = k.tenant AND x.robot = k.robot AND x.execution = k.execution
            LEFT JOIN ledger_entry e ON e.tenant = k.tenant AND e.id = k.id";
        let tokens = format!("SELECT {TOKEN} FROM token WHERE id = ANY($1)");
        let client = &rows.client;
        // Not every database that speaks this language has it, nor lets everybody.
        let tried = async {
            let flush = client.prepare(FLUSH).await?;
            client.execute(&flush, &[]).await.map(|_| flush)
        };
        let flush = match tried.await {
            Ok(flush) => Some(flush),
            Err(e) if is_without_flush(&e) => None,
            Err(e) => return Err(failed(e)),
        };
        let (lock, clock, logs, entries, executions, tokens) = tokio::try_join!(
            client.prepare(lock),
            client.prepare(clock),
            client.prepare(logs),
            client.prepare(entries),
            client.prepare(executions),
            client.prepare(&tokens)
        )
        .map_err(failed)?;
        let (run_rows, spend_rows, access_rows) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        let begun = Cell::new(0);
        Ok(Self {
            rows,
            run_rows,
            spend_rows,
            access_rows,
            begun,
            lock,
            clock,
            flush,
            logs,
            entries,
            executions,
            tokens,
        })
    }

    async fn commit(&self, requests: &[Request]) -> Result<Vec<Done>, JournalError> {
        let done = self.try_commit(requests).await;
        if done.is_err() {
            // Best effort; the connection is dropped either way, which rolls back what was open.
            let _ = self.rows.client.batch_execute("ROLLBACK").await;
        }
        done
    }

    async fn try_commit(&self, requests: &[Request]) -> Result<Vec<Done>, JournalError> {
        let run_rows = match requests.iter().any(|request| matches!(request, Request::Run(_))) {
            true => Some(self.run_rows.get_or_try_init(|| RunRows::prepare(&self.rows.client)).await.map_err(failed)?),
            false => None,
        };
        let spend_rows = match spending(requests).next() {
            Some(_) => {
                let prepare = || SpendRows::prepare(&self.rows.client);
                Some(self.spend_rows.get_or_try_init(prepare).await.map_err(failed)?)
            }
            None => None,
        };
        if keeping(requests).next().is_some() {
            self.access_rows.get_or_try_init(|| AccessRows::prepare(&self.rows.client)).await.map_err(failed)?;
        }
        let keys = keys(about_runs(requests));
        let (flush, facts) = self.begin(requests, run_rows, spend_rows, &keys).await?;
        crash::point("append.begun");

        let now = Moment::new(facts.now);
        let mut refused = Refused::new();
        let plan = loop {
            let mut plan = Plan::new(&keys, &facts)?;
            match plan.decide(requests, &refused, &now) {
                Ok(()) => break plan,
                // Too late to leave out what was decided before it. Rare: all is decided again without that request.
                Err((at, refusal)) => refused.insert(at, refusal),
            };
        };
        self.write(plan, run_rows, spend_rows, flush, &now).await
    }

    async fn write(
        &self,
        plan: Plan<'_>,
        run_rows: Option<&RunRows>,
        spend_rows: Option<&SpendRows>,
        flush: Option<&Statement>,
        now: &Moment,
    ) -> Result<Vec<Done>, JournalError> {
        let Plan { book, roll: Roll { plan: run_plan, .. }, purse, answers, entries, letters, .. } = plan;
        let Plan { checkpoints, answers_to_keep, .. } = plan;
        let money = purse.changes();
        let client = &self.rows.client;
        let entries: Vec<&Appended> = entries.iter().collect();
        let changed: BTreeSet<&Tenant> = entries.iter().map(|e| &e.tenant).collect();
        let logs: Vec<_> = book.logs().filter(|(tenant, _)| changed.contains(tenant)).collect();
        for (tenant, size, note) in checkpoints {
            self.rows.put_checkpoint(tenant, size, note).await.map_err(failed)?;
            crash::point("checkpoint.written");
        }
        self.rows.insert_letters(&letters, time::nanoseconds(now.at)).await.map_err(failed)?;
        let kept = match self.access_rows.get() {
            Some(access_rows) if !answers_to_keep.is_empty() => {
                access_rows.keep(client, &answers_to_keep).await.map_err(failed)?
            }
            _ => Vec::new(),
        };
        crash::point("append.inserted");
        run_points(&run_plan);
        if !money.is_empty() {
            crash::point("spend.written");
        }
        crash::point("append.written");
        // Each of these sends all it has when it is first looked at. None may wait for an answer before it does: what is
        // sent behind the COMMIT is outside of the transaction, and its writer has lost the turn.
        let runs = async {
            match run_rows {
                Some(run_rows) => run_rows.write(client, &run_plan).await.map_err(failed),
                None => Ok(()),
            }
        };
        let spent = async {
            match spend_rows {
                Some(spend_rows) => spend_rows.write(client, &money).await.map_err(failed),
                None => Ok(()),
            }
        };
        let journal = async { self.rows.append(&entries, &logs).await.map_err(failed) };
        let commit = async {
            let flush = async {
                match flush {
                    // By then it is committed: whatever this says, it is not to be tried again.
                    Some(flush) => client.execute(flush, &[]).await.map(|_| ()).map_err(|e| {
                        JournalError::Unavailable(format!("it is unknown whether it is on the disk: {e}"))
                    }),
                    None => Ok(()),
                }
            };
            let commit = async { client.batch_execute("COMMIT").await.map_err(failed) };
            tokio::try_join!(biased; commit, flush).map(|_| ())
        };
        // One flight, in this order. If a row is refused the server turns the COMMIT into a ROLLBACK, and the error of
        // that row is what is returned. What is claimed comes last: nobody is waited for from then on, so that two
        // writers never wait for each other.
        let claims = match (run_rows, run_plan.claims.as_slice()) {
            (Some(run_rows), [claims]) => {
                let claim = run_rows.claim(client, claims);
                let (.., claimed, ()) = tokio::try_join!(biased; runs, spent, journal, claim, commit)?;
                vec![claimed]
            }
            (Some(run_rows), claims) if !claims.is_empty() => {
                tokio::try_join!(biased; runs, spent, journal)?;
                let mut all = Vec::with_capacity(claims.len());
                for claims in claims {
                    all.push(run_rows.claim(client, claims).await?);
                }
                commit.await?;
                all
            }
            _ => {
                tokio::try_join!(biased; runs, spent, journal, commit)?;
                Vec::new()
            }
        };
        crash::point("append.committed");
        Ok(answered(answers, claims, &kept))
    }

    /// Begins the transaction, waits for its turn at the logs, and reads what the batch needs: one flight, because
    /// each statement sees what was committed before it began, and it begins after the locks are held.
    ///
    /// Runs come, end and set others free only by whoever has the turn at their tenant's log, too. A step of one run needs
    /// the run and no turn: a busy tenant's log is no place to queue at for those who have nothing to tell it. Nor do
    /// claims, which wait for nobody.
    ///
    /// A turn ends with the transaction and not when that is on the disk, so that many machines have their waiting for it in
    /// common. Whoever comes next may build on what is not there yet: the database writes in one order, so what is built
    /// on it is there only if it is. Nobody is answered before that: what has to be done for it comes with the facts.
    async fn begin(
        &self,
        requests: &[Request],
        run_rows: Option<&RunRows>,
        spend_rows: Option<&SpendRows>,
        concerned: &[Key<'_>],
    ) -> Result<(Option<&Statement>, Facts), JournalError> {
        let client = &self.rows.client;
        // A request about money may find that the ledger has to be told something.
        let spenders = spending(requests).map(|request| request.tenant().as_str());
        let writers: BTreeSet<&str> = drafts(requests).map(|d| d.tenant.as_str()).chain(spenders).collect();
        let writers: Vec<_> = writers.into_iter().collect();
        let concerning_others = |request: &&RunRequest| !request.is_private();
        let runs = keys(about_runs(requests).filter(concerning_others)).into_iter().map(|(tenant, _)| tenant);
        let keepers = keeping(requests).map(|request| request.tenant.as_str());
        let tokens: BTreeSet<&str> = drafts(requests).filter_map(Draft::asks_about_token).collect();
        let tokens: Vec<_> = tokens.into_iter().collect();
        let all = if tokens.is_empty() { None } else { Some(ALL_TENANTS) };
        let tenants: BTreeSet<&str> = writers.iter().copied().chain(runs).chain(keepers).chain(all).collect();
        let tenants: Vec<_> = tenants.into_iter().collect();
        let flush = self.flush.as_ref().filter(|_| !tenants.is_empty());
        loop {
            let (_, locked, now, logs, entries, executions, tokens, runs, money) = tokio::try_join!(
                biased;
                async { client.batch_execute(&self.begin_sql(flush.is_some())).await.map_err(failed) },
                self.read_of(&self.lock, &tenants),
                async { client.query_one(&self.clock, &[]).await.map_err(failed) },
                self.read_of(&self.logs, &writers),
                self.read_entries(requests),
                self.read_executions(requests),
                self.read_of(&self.tokens, &tokens),
                async {
                    match run_rows {
                        Some(run_rows) => run_rows.read(client, concerned).await.map_err(failed),
                        None => Ok(Vec::new()),
                    }
                },
                async {
                    match spend_rows {
                        Some(spend_rows) => spend_rows.read(client, requests).await.map_err(failed),
                        None => Ok(Money::default()),
                    }
                },
            )?;
            if locked.len() == tenants.len() {
                let now = time::from_microseconds(now.get(0));
                return Ok((flush, Facts { logs, entries, executions, tokens, runs, money, now }));
            }
            // A tenant's first entry. Its lock is made in a transaction of its own: making it while holding others
            // could have two writers wait for each other.
            client.batch_execute("ROLLBACK").await.map_err(failed)?;
            let sql = "INSERT INTO ledger_lock (tenant) SELECT t FROM unnest($1::text[]) AS k (t) ORDER BY t ON CONFLICT DO NOTHING";
            client.execute(sql, &[&tenants]).await.map_err(failed)?;
        }
    }

    /// Plans are made anew after the 1st, 2nd, 4th … transaction: the first ones were made for tables that were empty.
    fn begin_sql(&self, is_flushed_later: bool) -> String {
        let begun = self.begun.get();
        self.begun.set(begun + 1);
        let plans = if begun.is_power_of_two() { "DISCARD PLANS; " } else { "" };
        let commit = if is_flushed_later { "; SET LOCAL synchronous_commit = off" } else { "" };
        format!("{plans}BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE{commit}")
    }

    async fn read_of(&self, statement: &Statement, names: &[&str]) -> Result<Vec<Row>, JournalError> {
        match names {
            [] => Ok(Vec::new()),
            _ => self.rows.client.query(statement, &[&names]).await.map_err(failed),
        }
    }

    async fn read_entries(&self, requests: &[Request]) -> Result<Vec<Row>, JournalError> {
        let mut keys: BTreeSet<(&str, Cow<'_, str>, bool)> = BTreeSet::new();
        for draft in drafts(requests) {
            let tenant = draft.tenant.as_str();
            keys.extend(draft.asks_about().map(|id| (tenant, id, false)));
            let own = draft.id.iter().filter(|_| draft.event.is_none());
            keys.extend(own.map(|id| (tenant, Cow::Borrowed(id.as_str()), true)));
        }
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let (tenants, ids): (Vec<_>, Vec<_>) = keys.iter().map(|(tenant, id, _)| (*tenant, &**id)).unzip();
        let own: Vec<_> = keys.iter().map(|(.., own)| *own).collect();
        self.rows.client.query(&self.entries, &[&tenants, &ids, &own]).await.map_err(failed)
    }

    /// Where the executions stand, and the events themselves if they are recorded already. An event of an execution
    /// nobody has heard of cannot be, so it is not looked for.
    async fn read_executions(&self, requests: &[Request]) -> Result<Vec<Row>, JournalError> {
        let mut keys: BTreeSet<[&str; 4]> = BTreeSet::new();
        for draft in drafts(requests) {
            if let (Some(event), Some(id)) = (&draft.event, &draft.id) {
                keys.insert([draft.tenant.as_str(), &event.robot, &event.execution, id]);
            }
        }
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let column = |i: usize| keys.iter().map(|key| key[i]).collect::<Vec<_>>();
        let (tenants, robots, executions, ids) = (column(0), column(1), column(2), column(3));
        self.rows.client.query(&self.executions, &[&tenants, &robots, &executions, &ids]).await.map_err(failed)
    }
}

fn run_points(plan: &RunPlan<'_>) {
    if !plan.new.is_empty() {
        crash::point("run.submitted");
    }
    if !plan.claims.is_empty() {
        crash::point("run.claimed");
    }
    if !plan.changed.is_empty() {
        crash::point("run.committed");
    }
}

/// Gives every claim its part of what was taken, and every answer to be kept whether it is.
fn answered(answers: Vec<Answer>, claims: Vec<Vec<Run>>, kept: &[bool]) -> Vec<Done> {
    let mut claims: Vec<_> = claims.into_iter().map(Vec::into_iter).collect();
    let done = |answer| match answer {
        Answer::Done(done) => done,
        Answer::Keep(at) => Done::KeptAnswer(kept.get(at).copied().unwrap_or(false)),
        Answer::Claim(Share { of, runs_max }) => Done::Claimed(claims[of].by_ref().take(runs_max).collect()),
    };
    answers.into_iter().map(done).collect()
}

fn tenant_of(row: &Row) -> Result<Tenant, JournalError> {
    Tenant::new(row.get::<_, String>(0)).map_err(|e| JournalError::Damaged(format!("a tenant's name {e}")))
}

/// The head of a log out of (tenant, size, head, frontier).
pub(super) fn log_of(tenant: &Tenant, row: &Row) -> Result<Log, JournalError> {
    let frontier = Frontier::from_bytes(row.get::<_, i64>(1) as u64, row.get(3));
    let (frontier, head) = frontier.zip(Digest::from_slice(row.get(2))).ok_or_else(|| {
        JournalError::Damaged(format!("the head of {tenant}'s log is broken: run `actum store rebuild`"))
    })?;
    Ok(Log { frontier, head })
}

fn learn_entries(book: &mut Book, rows: &[Row]) {
    for row in rows {
        let Ok(tenant) = tenant_of(row) else { continue };
        let id: String = row.get(1);
        let body: Option<Vec<u8>> = row.get(4);
        // The same id may be one draft's own and another's dependency; the row with the text is the fuller one.
        if body.is_none() && book.knows_entry(&tenant, &id) {
            continue;
        }
        let known = Known { seq: row.get::<_, i64>(2) as u64, created_ns: row.get(3), body: body.map(Arc::new) };
        book.learn_entry(&tenant, id, known);
    }
}

fn learn_executions(book: &mut Book, rows: &[Row]) -> Result<(), JournalError> {
    for row in rows {
        let (robot, execution, state): (String, String, String) = (row.get(1), row.get(2), row.get(3));
        let state = State::named(&state)
            .ok_or_else(|| JournalError::Damaged(format!("execution {execution} has no known state")))?;
        let last = Last { state, attempt: row.get::<_, i64>(4) as u64 };
        let tenant = tenant_of(row)?;
        if let Some(seq) = row.get::<_, Option<i64>>(6) {
            let body = Some(Arc::new(row.get(8)));
            book.learn_entry(&tenant, row.get(5), Known { seq: seq as u64, created_ns: row.get(7), body });
        }
        book.learn_execution(&tenant, (robot, execution), last);
    }
    Ok(())
}
