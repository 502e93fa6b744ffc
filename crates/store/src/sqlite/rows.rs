//! The rows an append leaves behind. Also used to make projections anew, then on tables that stand in for them.

use actum_ledger::access::Token;
use actum_ledger::append::{Appended, Log};
use actum_ledger::event::Event;
use actum_ledger::head::Head;
use actum_ledger::pointer::Moved;
use actum_ledger::registry::{Item, Registered};
use rusqlite::{Connection, params};

use crate::batch::{DEAD_LETTERS_MAX, Letter};

pub(super) fn insert_entry(connection: &Connection, entry: &Appended) -> rusqlite::Result<()> {
    let sql =
        "INSERT INTO ledger_entry (tenant, seq, id, type, created_ns, hash, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    connection.prepare_cached(sql)?.execute(params![
        entry.tenant.as_str(),
        entry.seq as i64,
        entry.id,
        entry.kind,
        entry.created_ns,
        entry.hash.0,
        entry.body.as_slice(),
    ])?;
    Ok(())
}

/// What one entry changes in the projections, but for the head of the log.
pub(super) fn project(connection: &Connection, entry: &Appended) -> rusqlite::Result<()> {
    let tenant = entry.tenant.as_str();
    if let Some(Event { robot, execution, state, attempt, .. }) = &entry.event {
        let sql =
            "INSERT INTO execution (tenant, robot, execution, state, attempt, last_seq) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                   ON CONFLICT (tenant, robot, execution) DO UPDATE
                   SET state = excluded.state, attempt = excluded.attempt, last_seq = excluded.last_seq";
        let attempt = *attempt as i64;
        let values = params![tenant, robot, execution, state.word(), attempt, entry.seq as i64];
        connection.prepare_cached(sql)?.execute(values)?;
    }
    if let Some(registered) = &entry.registered {
        put_registered(connection, tenant, registered)?;
    }
    if let Some(moved) = &entry.moved {
        put_moved(connection, tenant, moved, entry.seq)?;
    }
    if let Some(token) = &entry.granted {
        put_granted(connection, token, entry.seq)?;
    }
    if let Some(head) = &entry.headed {
        put_head(connection, tenant, head)?;
    }
    for id in &entry.supersedes {
        let sql = "INSERT INTO superseded (tenant, id, by_id, by_created_ns) VALUES (?1, ?2, ?3, ?4)";
        connection.prepare_cached(sql)?.execute(params![tenant, id, entry.id, entry.created_ns])?;
    }
    for (node, hash) in &entry.nodes {
        let sql = "INSERT INTO ledger_node (tenant, level, idx, hash) VALUES (?1, ?2, ?3, ?4)";
        connection.prepare_cached(sql)?.execute(params![tenant, node.level, node.index as i64, hash.0])?;
    }
    Ok(())
}

fn put_registered(connection: &Connection, tenant: &str, registered: &Registered) -> rusqlite::Result<()> {
    let sql = "INSERT INTO registry (tenant, kind, item, n, version, hash, status, approved, name, tool, form, summary)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
               ON CONFLICT (tenant, kind, item) DO UPDATE
               SET n = excluded.n, version = excluded.version, hash = excluded.hash, status = excluded.status,
                   approved = excluded.approved, name = excluded.name, tool = excluded.tool, form = excluded.form,
                   summary = excluded.summary";
    let Registered { kind, item } = registered;
    let Item { id, name, tool, form, n, version, hash, status, approved, summary } = item;
    connection.prepare_cached(sql)?.execute(params![
        tenant,
        kind.word(),
        id,
        *n as i64,
        version,
        hash,
        status.word(),
        approved,
        name,
        tool,
        form,
        summary,
    ])?;
    Ok(())
}

fn put_moved(connection: &Connection, tenant: &str, moved: &Moved, seq: u64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO pointer (tenant, signature, n, restores, seq, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
               ON CONFLICT (tenant, signature) DO UPDATE
               SET n = excluded.n, restores = excluded.restores, seq = excluded.seq, body = excluded.body";
    let Moved { signature, n, restores, body } = moved;
    let values = params![tenant, signature, *n as i64, *restores as i64, seq as i64, body];
    connection.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

fn put_granted(connection: &Connection, token: &Token, seq: u64) -> rusqlite::Result<()> {
    // Nobody's token becomes another's, whatever a journal says that was not written by these rules.
    let sql = "INSERT INTO token (id, tenant, role, name, hash, expires_ms, revoked, n, seq)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
               ON CONFLICT (id) DO UPDATE
               SET role = excluded.role, name = excluded.name, hash = excluded.hash, expires_ms = excluded.expires_ms,
                   revoked = excluded.revoked, n = excluded.n, seq = excluded.seq
               WHERE token.tenant = excluded.tenant";
    let Token { id, tenant, role, name, hash, expires_ms, is_revoked, n } = token;
    let (role, n, seq) = (role.word(), *n as i64, seq as i64);
    let values = params![id, tenant.as_str(), role, name, hash, expires_ms, is_revoked, n, seq];
    connection.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

fn put_head(connection: &Connection, tenant: &str, head: &Head) -> rusqlite::Result<()> {
    let sql = "INSERT INTO head (tenant, workspace, n, tree) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (tenant, workspace) DO UPDATE SET n = excluded.n, tree = excluded.tree";
    let Head { workspace, n, tree } = head;
    connection.prepare_cached(sql)?.execute(params![tenant, workspace, *n as i64, tree.0])?;
    Ok(())
}

pub(super) fn put_log(connection: &Connection, tenant: &str, log: &Log) -> rusqlite::Result<()> {
    let sql = "INSERT INTO ledger_log (tenant, size, head, frontier) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (tenant) DO UPDATE SET size = excluded.size, head = excluded.head, frontier = excluded.frontier";
    let values = params![tenant, log.frontier.size() as i64, log.head.0, log.frontier.to_bytes()];
    connection.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

pub(super) fn insert_letter(connection: &Connection, letter: &Letter, recorded_ns: i64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO dead_letter (tenant, recorded_ns, code, refusal, document) VALUES (?1, ?2, ?3, ?4, ?5)";
    let Letter { tenant, code, refusal, document } = letter;
    connection.prepare_cached(sql)?.execute(params![tenant, recorded_ns, code, refusal, document])?;
    Ok(())
}

/// Makes room: only the newest letters of a tenant are kept.
pub(super) fn trim_letters(connection: &Connection, tenant: Option<&str>) -> rusqlite::Result<()> {
    let sql = "DELETE FROM dead_letter WHERE tenant IS ?1 AND n <=
               (SELECT n FROM dead_letter WHERE tenant IS ?1 ORDER BY n DESC LIMIT 1 OFFSET ?2)";
    connection.prepare_cached(sql)?.execute(params![tenant, DEAD_LETTERS_MAX])?;
    Ok(())
}
