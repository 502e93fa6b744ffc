//! The statements of the writer: few and wide, so that a batch costs three round trips whatever its size.
//!
//! Also used to make projections anew, then prepared on a connection where tables of the same names stand in front.

use std::collections::BTreeMap;

use actum_contract::id::Tenant;
use actum_ledger::access::Token;
use actum_ledger::append::{Appended, Log};
use actum_ledger::event::Event;
use actum_ledger::head::Head;
use actum_ledger::pointer::Moved;
use actum_ledger::registry::{Item, Registered};
use tokio_postgres::{Client, Error, Statement};

use crate::batch::{DEAD_LETTERS_MAX, Letter};

/// A connection with the statements that write rows.
pub(super) struct Rows {
    pub client: Client,
    journal: Statement,
    superseded: Statement,
    nodes: Statement,
    registry: Statement,
    pointer: Statement,
    head: Statement,
    token: Statement,
    letters: Statement,
    trim: Statement,
    trim_nobodys: Statement,
    checkpoint: Statement,
}

/// Rows that share a key within one batch: the last word counts.
type ByKey<'a, V> = BTreeMap<(&'a str, &'a str, &'a str), V>;

impl Rows {
    pub(super) async fn prepare(client: Client) -> Result<Self, Error> {
        // Three tables at one stroke, because every append changes them and every statement has its price.
        let journal = "WITH
            entries AS (INSERT INTO ledger_entry (tenant, seq, id, type, created_ns, hash, body)
                SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::bytea[], $7::bytea[])),
            executions AS (INSERT INTO execution (tenant, robot, execution, state, attempt, last_seq)
                SELECT * FROM unnest($8::text[], $9::text[], $10::text[], $11::text[], $12::bigint[], $13::bigint[])
                ON CONFLICT (tenant, robot, execution) DO UPDATE
                SET state = excluded.state, attempt = excluded.attempt, last_seq = excluded.last_seq)
            INSERT INTO ledger_log (tenant, size, head, frontier)
                SELECT * FROM unnest($14::text[], $15::bigint[], $16::bytea[], $17::bytea[])
                ON CONFLICT (tenant) DO UPDATE
                SET size = excluded.size, head = excluded.head, frontier = excluded.frontier";
        let superseded = "INSERT INTO superseded (tenant, id, by_id, by_created_ns)
            SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[])";
        let nodes = "INSERT INTO ledger_node (tenant, level, idx, hash)
            SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[])";
        let registry = "INSERT INTO registry
                (tenant, kind, item, n, version, hash, status, approved, name, tool, form, summary)
            SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[],
                $8::bool[], $9::text[], $10::text[], $11::text[], $12::text[])
            ON CONFLICT (tenant, kind, item) DO UPDATE
            SET n = excluded.n, version = excluded.version, hash = excluded.hash, status = excluded.status,
                approved = excluded.approved, name = excluded.name, tool = excluded.tool, form = excluded.form,
                summary = excluded.summary";
        let pointer = "INSERT INTO pointer (tenant, signature, n, restores, seq, body)
            SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[])
            ON CONFLICT (tenant, signature) DO UPDATE
            SET n = excluded.n, restores = excluded.restores, seq = excluded.seq, body = excluded.body";
        let head = "INSERT INTO head (tenant, workspace, n, tree)
            SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[])
            ON CONFLICT (tenant, workspace) DO UPDATE SET n = excluded.n, tree = excluded.tree";
        // Nobody's token becomes another's, whatever a journal says that was not written by these rules.
        let token = "INSERT INTO token (id, tenant, role, name, hash, expires_ms, revoked, n, seq)
            SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bool[],
                $8::bigint[], $9::bigint[])
            ON CONFLICT (id) DO UPDATE
            SET role = excluded.role, name = excluded.name, hash = excluded.hash, expires_ms = excluded.expires_ms,
                revoked = excluded.revoked, n = excluded.n, seq = excluded.seq
            WHERE token.tenant = excluded.tenant";
        let letters = "INSERT INTO dead_letter (tenant, recorded_ns, code, refusal, document)
            SELECT t, $2, c, r, d FROM unnest($1::text[], $3::text[], $4::text[], $5::bytea[]) AS x (t, c, r, d)";
        // Two conditions instead of one that covers null, which no index would serve.
        let trim = "DELETE FROM dead_letter WHERE tenant = $1 AND n <=
            (SELECT n FROM dead_letter WHERE tenant = $1 ORDER BY n DESC LIMIT 1 OFFSET $2)";
        let trim_nobodys = "DELETE FROM dead_letter WHERE tenant IS NULL AND n <=
            (SELECT n FROM dead_letter WHERE tenant IS NULL ORDER BY n DESC LIMIT 1 OFFSET $1)";
        let checkpoint = "INSERT INTO checkpoint (tenant, size, note) VALUES ($1, $2, $3)
                ON CONFLICT (tenant, size) DO UPDATE SET note = excluded.note
                WHERE length(excluded.note) > length(checkpoint.note)";
        let (journal, superseded, nodes, registry, pointer, head, token, letters, trim, trim_nobodys, checkpoint) = tokio::try_join!(
            client.prepare(journal),
            client.prepare(superseded),
            client.prepare(nodes),
            client.prepare(registry),
            client.prepare(pointer),
            client.prepare(head),
            client.prepare(token),
            client.prepare(letters),
            client.prepare(trim),
            client.prepare(trim_nobodys),
            client.prepare(checkpoint),
        )?;
        Ok(Self {
            client,
            journal,
            superseded,
            nodes,
            registry,
            pointer,
            head,
            token,
            letters,
            trim,
            trim_nobodys,
            checkpoint,
        })
    }

    /// Entries, what they change in the projections, and the heads of their logs.
    pub(super) async fn append(&self, all: &[&Appended], logs: &[(&Tenant, &Log)]) -> Result<(), Error> {
        let journal = self.put(all, all, logs);
        tokio::try_join!(biased; journal, self.put_rest(all)).map(|_| ())
    }

    /// What entries change in the projections, but for the heads of the logs.
    pub(super) async fn project(&self, all: &[&Appended]) -> Result<(), Error> {
        let executions = self.put(&[], all, &[]);
        tokio::try_join!(biased; executions, self.put_rest(all)).map(|_| ())
    }

    /// What few entries have, each in a statement of its own.
    async fn put_rest(&self, all: &[&Appended]) -> Result<(), Error> {
        let rest = tokio::try_join!(
            biased;
            self.insert_superseded(all),
            self.insert_nodes(all),
            self.put_registered(all),
            self.put_moved(all),
            self.put_granted(all),
            self.put_heads(all),
        );
        rest.map(|_| ())
    }

    pub(super) async fn put_logs(&self, logs: &[(&Tenant, &Log)]) -> Result<(), Error> {
        self.put(&[], &[], logs).await
    }

    async fn put(&self, new: &[&Appended], projected: &[&Appended], logs: &[(&Tenant, &Log)]) -> Result<(), Error> {
        if projected.is_empty() && logs.is_empty() {
            return Ok(());
        }
        let (tenants, seqs) = (column(new, |e| e.tenant.as_str()), column(new, |e| e.seq as i64));
        let (ids, kinds) = (column(new, |e| e.id.as_str()), column(new, |e| e.kind.as_str()));
        let (created, hashes) = (column(new, |e| e.created_ns), column(new, |e| e.hash.0.as_slice()));
        let bodies = column(new, |e| e.body.as_slice());

        let mut rows: ByKey<'_, (&str, i64, i64)> = BTreeMap::new();
        for entry in projected {
            if let Some(Event { robot, execution, state, attempt, .. }) = &entry.event {
                let value = (state.word(), *attempt as i64, entry.seq as i64);
                rows.insert((entry.tenant.as_str(), robot, execution), value);
            }
        }
        let (owners, robots): (Vec<_>, Vec<_>) = rows.keys().map(|(t, r, _)| (*t, *r)).unzip();
        let executions: Vec<_> = rows.keys().map(|(_, _, e)| *e).collect();
        let states: Vec<_> = rows.values().map(|(s, ..)| *s).collect();
        let (attempts, last_seqs): (Vec<_>, Vec<_>) = rows.values().map(|(_, a, s)| (*a, *s)).unzip();

        let (whose, sizes) = (column(logs, |(t, _)| t.as_str()), column(logs, |(_, log)| log.frontier.size() as i64));
        let (heads, frontiers) =
            (column(logs, |(_, log)| log.head.0.as_slice()), column(logs, |(_, log)| log.frontier.to_bytes()));
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 17] = [
            &tenants,
            &seqs,
            &ids,
            &kinds,
            &created,
            &hashes,
            &bodies,
            &owners,
            &robots,
            &executions,
            &states,
            &attempts,
            &last_seqs,
            &whose,
            &sizes,
            &heads,
            &frontiers,
        ];
        self.client.execute(&self.journal, &values).await.map(|_| ())
    }

    async fn insert_superseded(&self, all: &[&Appended]) -> Result<(), Error> {
        let pairs: Vec<_> = all.iter().flat_map(|e| e.supersedes.iter().map(move |id| (*e, id.as_str()))).collect();
        if pairs.is_empty() {
            return Ok(());
        }
        let (tenants, ids) = (column(&pairs, |(e, _)| e.tenant.as_str()), column(&pairs, |(_, id)| *id));
        let (by, created) = (column(&pairs, |(e, _)| e.id.as_str()), column(&pairs, |(e, _)| e.created_ns));
        self.client.execute(&self.superseded, &[&tenants, &ids, &by, &created]).await.map(|_| ())
    }

    async fn insert_nodes(&self, all: &[&Appended]) -> Result<(), Error> {
        let nodes: Vec<_> = all.iter().flat_map(|e| e.nodes.iter().map(move |node| (*e, node))).collect();
        if nodes.is_empty() {
            return Ok(());
        }
        let (tenants, levels) =
            (column(&nodes, |(e, _)| e.tenant.as_str()), column(&nodes, |(_, (n, _))| i64::from(n.level)));
        let (indexes, hashes) =
            (column(&nodes, |(_, (n, _))| n.index as i64), column(&nodes, |(_, (_, hash))| hash.0.as_slice()));
        self.client.execute(&self.nodes, &[&tenants, &levels, &indexes, &hashes]).await.map(|_| ())
    }

    async fn put_registered(&self, all: &[&Appended]) -> Result<(), Error> {
        let mut rows: ByKey<'_, &Item> = BTreeMap::new();
        for entry in all {
            if let Some(registered) = entry.registered.as_deref() {
                let Registered { kind, item } = registered;
                rows.insert((entry.tenant.as_str(), kind.word(), &item.id), item);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = rows.into_iter().collect();
        let text = |of: fn(&Item) -> &str| column(&rows, |(_, item)| of(item));
        let (tenants, kinds) = (column(&rows, |(key, _)| key.0), column(&rows, |(key, _)| key.1));
        let (numbers, approved) = (column(&rows, |(_, item)| item.n as i64), column(&rows, |(_, item)| item.approved));
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 12] = [
            &tenants,
            &kinds,
            &text(|item| &item.id),
            &numbers,
            &text(|item| &item.version),
            &text(|item| &item.hash),
            &text(|item| item.status.word()),
            &approved,
            &text(|item| &item.name),
            &text(|item| &item.tool),
            &text(|item| &item.form),
            &text(|item| &item.summary),
        ];
        self.client.execute(&self.registry, &values).await.map(|_| ())
    }

    async fn put_moved(&self, all: &[&Appended]) -> Result<(), Error> {
        let mut rows: BTreeMap<(&str, &str), (&Moved, i64)> = BTreeMap::new();
        for entry in all {
            if let Some(moved) = entry.moved.as_deref() {
                rows.insert((entry.tenant.as_str(), &moved.signature), (moved, entry.seq as i64));
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = rows.into_iter().collect();
        let (tenants, signatures) = (column(&rows, |(key, _)| key.0), column(&rows, |(key, _)| key.1));
        let numbers = column(&rows, |(_, (moved, _))| moved.n as i64);
        let restores = column(&rows, |(_, (moved, _))| moved.restores as i64);
        let (seqs, bodies) =
            (column(&rows, |(_, (_, seq))| *seq), column(&rows, |(_, (moved, _))| moved.body.as_str()));
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&tenants, &signatures, &numbers, &restores, &seqs, &bodies];
        self.client.execute(&self.pointer, &values).await.map(|_| ())
    }

    async fn put_heads(&self, all: &[&Appended]) -> Result<(), Error> {
        let headed = all.iter().filter_map(|entry| Some((entry.tenant.as_str(), entry.headed.as_deref()?)));
        let rows: BTreeMap<(&str, &str), &Head> =
            headed.map(|(tenant, head)| ((tenant, head.workspace.as_str()), head)).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = rows.into_iter().collect();
        let (tenants, names) = (column(&rows, |(key, _)| key.0), column(&rows, |(key, _)| key.1));
        let numbers = column(&rows, |(_, head)| head.n as i64);
        let trees = column(&rows, |(_, head)| head.tree.0.to_vec());
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&tenants, &names, &numbers, &trees];
        self.client.execute(&self.head, &values).await.map(|_| ())
    }

    async fn put_granted(&self, all: &[&Appended]) -> Result<(), Error> {
        let granted = all.iter().filter_map(|entry| Some((entry.granted.as_deref()?, entry.seq as i64)));
        let rows: BTreeMap<&str, (&Token, i64)> =
            granted.map(|(token, seq)| (token.id.as_str(), (token, seq))).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = rows.into_values().collect();
        let text = |of: fn(&Token) -> &str| column(&rows, |(token, _)| of(token));
        let expiries = column(&rows, |(token, _)| token.expires_ms);
        let (revoked, numbers) = (column(&rows, |(t, _)| t.is_revoked), column(&rows, |(t, _)| t.n as i64));
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 9] = [
            &text(|token| &token.id),
            &text(|token| token.tenant.as_str()),
            &text(|token| token.role.word()),
            &text(|token| &token.name),
            &text(|token| &token.hash),
            &expiries,
            &revoked,
            &numbers,
            &column(&rows, |(_, seq)| *seq),
        ];
        self.client.execute(&self.token, &values).await.map(|_| ())
    }

    /// Keeps refused documents, and of each tenant only the newest.
    pub(super) async fn insert_letters(&self, letters: &[Letter], recorded_ns: i64) -> Result<(), Error> {
        if letters.is_empty() {
            return Ok(());
        }
        let (tenants, codes) = (column(letters, |l| l.tenant.as_deref()), column(letters, |l| l.code));
        let (refusals, documents) =
            (column(letters, |l| l.refusal.as_str()), column(letters, |l| l.document.as_slice()));
        self.client.execute(&self.letters, &[&tenants, &recorded_ns, &codes, &refusals, &documents]).await?;
        let mut whose: Vec<_> = tenants;
        whose.sort_unstable();
        whose.dedup();
        for tenant in whose {
            match tenant {
                Some(tenant) => self.client.execute(&self.trim, &[&tenant, &DEAD_LETTERS_MAX]).await?,
                None => self.client.execute(&self.trim_nobodys, &[&DEAD_LETTERS_MAX]).await?,
            };
        }
        Ok(())
    }

    pub(super) async fn put_checkpoint(&self, tenant: &Tenant, size: u64, note: &str) -> Result<(), Error> {
        self.client.execute(&self.checkpoint, &[&tenant.as_str(), &(size as i64), &note]).await.map(|_| ())
    }
}

fn column<'a, R, T>(rows: &'a [R], of: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(of).collect()
}
