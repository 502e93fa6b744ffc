//! Connecting, and making the database ready.

use std::time::Duration;

use actum_ledger::journal::JournalError;
use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio_postgres::{Client, Config, IsolationLevel, NoTls};
use uuid::Uuid;

use super::{failed, not_pooled};
use crate::migration::{MIGRATIONS, VERSION, steps};
use crate::{Older, crash};

const POOL_CONNECTIONS_MAX: usize = 8;
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// How long a database may be silent to what was said to it before the connection counts as cut. Nobody tells when a network
/// does not pass anything on any more; the system's own patience is a quarter of an hour, for who only listens two hours.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How often whoever only listens asks whether the other side is there.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
const ALIVE_TRIES: u32 = 2;

/// The same, for the database to keep with us: a machine that is cut off or stopped in the middle of a transaction holds the log
/// of its tenant, and so everybody. And nothing is compiled: every question here is answered sooner than that is done. As far as
/// this database knows of such settings.
const SETTINGS: &str = "SELECT set_config(s.name, k.value, false) FROM (VALUES
        ('idle_in_transaction_session_timeout', '10s'), ('tcp_user_timeout', '10s'), ('tcp_keepalives_idle', '5'),
        ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '2'), ('jit', 'off')) AS k (name, value)
    JOIN pg_settings s ON s.name = k.name";

/// Held while the tables are made or changed, so that many machines may start at once.
const MIGRATION_LOCK: i64 = 0x4163_746d;

pub(super) struct Opened {
    pub store_id: String,
    /// Before and after.
    pub versions: (usize, usize),
}

pub(super) fn config(url: &str) -> Result<Config, JournalError> {
    let mut config: Config = url.parse().map_err(|e: tokio_postgres::Error| {
        JournalError::Unusable(format!("the store's URL is not usable: {}", failed(e)))
    })?;
    let options = config.get_options().map(str::to_owned).unwrap_or_default();
    // Whatever the database's default is: each statement has to see what was committed before it began.
    config.options(format!("{options} -c search_path=actum -c default_transaction_isolation=read\\ committed"));
    config.application_name("actum");
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_WAIT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE_MAX);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_idle(ALIVE_EVERY).keepalives_interval(ALIVE_EVERY).keepalives_retries(ALIVE_TRIES);
    }
    Ok(config)
}

pub(super) fn pool(config: &Config) -> Result<Pool, JournalError> {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let settings = Hook::async_fn(|client: &mut deadpool_postgres::ClientWrapper, _| {
        Box::pin(async move { client.batch_execute(SETTINGS).await.map_err(HookError::Backend) })
    });
    Pool::builder(Manager::from_config(config.clone(), NoTls, recycling))
        .post_create(settings)
        .max_size(POOL_CONNECTIONS_MAX)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(CONNECT_WAIT))
        .create_timeout(Some(CONNECT_WAIT))
        .build()
        .map_err(|e| JournalError::Unusable(e.to_string()))
}

/// A connection of one's own, driven by the runtime it is made on.
pub(super) async fn connect(config: &Config) -> Result<Client, JournalError> {
    let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
    #[expect(clippy::disallowed_methods, reason = "the driver of one connection, which ends with its client")]
    tokio::spawn(connection);
    client.batch_execute(SETTINGS).await.map_err(failed)?;
    Ok(client)
}

pub(super) async fn migrate(pool: &Pool, older: Older) -> Result<Opened, JournalError> {
    let mut client = pool.get().await.map_err(not_pooled)?;
    // The default may be another: one that does not see what the holder of the lock has just committed.
    let tx = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await.map_err(failed)?;
    // Not every database that speaks this language has it; there only one machine at a time may migrate.
    let known = "SELECT count(*) FROM pg_proc WHERE proname = 'pg_advisory_xact_lock'";
    if tx.query_one(known, &[]).await.map_err(failed)?.get::<_, i64>(0) > 0 {
        tx.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await.map_err(failed)?;
    }
    let exists = tx.query_one("SELECT to_regclass('actum.store') IS NOT NULL", &[]).await.map_err(failed)?;
    let found = if exists.get(0) {
        let row = tx.query_opt("SELECT version FROM store", &[]).await.map_err(failed)?;
        row.and_then(|r| usize::try_from(r.get::<_, i64>(0)).ok())
            .ok_or_else(|| JournalError::Damaged("it has lost its own version".into()))?
    } else {
        tx.batch_execute("CREATE SCHEMA IF NOT EXISTS actum").await.map_err(failed)?;
        0
    };
    let steps = steps(found, MIGRATIONS, older)?;
    for step in steps {
        tx.batch_execute(step.postgres).await.map_err(failed)?;
    }
    let version = VERSION as i64;
    if found == 0 {
        let id = Uuid::now_v7().to_string();
        tx.execute("INSERT INTO store (id, version) VALUES ($1, $2)", &[&id, &version]).await.map_err(failed)?;
    } else if !steps.is_empty() {
        tx.execute("UPDATE store SET version = $1", &[&version]).await.map_err(failed)?;
    }
    if !steps.is_empty() {
        crash::point("migrate.applied");
    }
    let store_id = tx.query_one("SELECT id FROM store", &[]).await.map_err(failed)?.get(0);
    tx.commit().await.map_err(failed)?;
    Ok(Opened { store_id, versions: (found, VERSION) })
}
