//! Traces and metrics for a collector, by the GenAI conventions. Off unless an endpoint is named in the environment
//! (`OTEL_EXPORTER_OTLP_ENDPOINT`, or that of traces or metrics).
//!
//! Told by the worker's watch, the till, calls of tools and the server. Holds names, numbers and ids: never what was asked,
//! answered, read or written. Begun by the first who has something to tell, when signals are caught and cells are made;
//! whatever becomes of the collector, those who tell wait for nothing: what does not fit its queue is dropped.

mod names;
pub(crate) mod trace;
mod watch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use actum_adapters::collector::{Collector, Posts};
use actum_contract::id::Tenant;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider as _};
use opentelemetry::trace::{
    Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_otlp::{MetricExporter, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};

use crate::ui::note;

pub(crate) use names::REQUEST_BOUNDS_SECONDS;
pub(crate) use watch::Watched;

/// How long the end of a process waits for what is still to be sent.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// How long a collector has to answer, unless `OTEL_EXPORTER_OTLP_TIMEOUT` says otherwise.
const TIMEOUT_MS: u64 = 10_000;
/// Letters of a name in an attribute.
const VALUE_CHARS_MAX: usize = 200;
/// Runs under way in one process whose spans are known to others.
const RUNS_MAX: usize = 4_096;

/// What was posted to the collector; shown at `/metrics`.
pub(crate) static POSTS: Posts = Posts { sent: AtomicU64::new(0), failed: AtomicU64::new(0) };

static TELEMETRY: OnceLock<Option<Telemetry>> = OnceLock::new();

struct Telemetry {
    tracer: Option<(SdkTracerProvider, SdkTracer)>,
    meter: Option<(SdkMeterProvider, Meters)>,
    /// Spans of runs that are under way here, for what happens in them.
    runs: Mutex<HashMap<String, SpanContext>>,
}

struct Meters {
    tokens: Histogram<u64>,
    operations: Histogram<f64>,
    requests: Histogram<f64>,
    runs: Counter<u64>,
    run_seconds: Histogram<f64>,
    queue_seconds: Histogram<f64>,
    spend: Counter<u64>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Whether one kind of telemetry is wanted: somebody has named where it goes, and nobody has said no.
fn is_wanted(signal: &str) -> bool {
    let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let is_other = variable(&format!("OTEL_{signal}_EXPORTER")).is_some_and(|value| value != "otlp");
    let endpoint = variable(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"));
    let endpoint = endpoint.or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT"));
    !is_off && !is_other && endpoint.is_some()
}

fn collector(signal: &str) -> Collector {
    let timeout = variable(&format!("OTEL_EXPORTER_OTLP_{signal}_TIMEOUT"));
    let timeout = timeout.or_else(|| variable("OTEL_EXPORTER_OTLP_TIMEOUT")).and_then(|ms| ms.parse().ok());
    Collector::new(Duration::from_millis(timeout.filter(|ms| *ms > 0).unwrap_or(TIMEOUT_MS)), &POSTS)
}

/// None: the environment says which.
fn protocol(signal: &str) -> Option<Protocol> {
    let named = variable(&format!("OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"));
    named.or_else(|| variable("OTEL_EXPORTER_OTLP_PROTOCOL")).is_none().then_some(Protocol::HttpBinary)
}

fn resource() -> Resource {
    let mut resource = Resource::builder();
    // The variables name others; this is what stands there without them.
    let is_named = variable("OTEL_SERVICE_NAME").is_some()
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|text| text.contains("service.name="));
    if !is_named {
        resource = resource.with_service_name("actum");
    }
    resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))).build()
}

impl Telemetry {
    fn begin() -> Option<Self> {
        if !is_wanted("TRACES") && !is_wanted("METRICS") {
            return None;
        }
        // A collector that cannot be spoken to is no reason not to work.
        let told = |what: &str, e: &dyn std::fmt::Display| note(&format!("no {what} are sent: {e}"));
        let resource = resource();
        let scope = || InstrumentationScope::builder(names::SCOPE).with_version(env!("CARGO_PKG_VERSION"));
        let scope = || scope().with_schema_url(names::SCHEMA).build();
        let tracer = is_wanted("TRACES").then(|| {
            let builder = SpanExporter::builder().with_http().with_http_client(collector("TRACES"));
            let builder = match protocol("TRACES") {
                Some(protocol) => builder.with_protocol(protocol),
                None => builder,
            };
            let exporter = builder.build().map_err(|e| told("traces", &e)).ok()?;
            let provider = SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_id_generator(trace::Ids::default())
                .with_resource(resource.clone())
                .build();
            let tracer = provider.tracer_with_scope(scope());
            Some((provider, tracer))
        });
        let meter = is_wanted("METRICS").then(|| {
            let builder = MetricExporter::builder().with_http().with_http_client(collector("METRICS"));
            let builder = match protocol("METRICS") {
                Some(protocol) => builder.with_protocol(protocol),
                None => builder,
            };
            let exporter = builder.build().map_err(|e| told("metrics", &e)).ok()?;
            let provider =
                SdkMeterProvider::builder().with_periodic_exporter(exporter).with_resource(resource.clone()).build();
            let meters = Meters::new(&provider.meter_with_scope(scope()));
            Some((provider, meters))
        });
        Some(Self { tracer: tracer.flatten(), meter: meter.flatten(), runs: Mutex::default() })
    }

    fn meters(&self) -> Option<&Meters> {
        self.meter.as_ref().map(|(_, meters)| meters)
    }

    /// Begins a span: in the run it belongs to if that is under way here, below its remote parent, or as the root of its trace.
    fn span(&self, name: String, kind: SpanKind, run: &str, parent: Option<&SpanContext>) -> Option<Span> {
        let (_, tracer) = self.tracer.as_ref()?;
        let builder = tracer.span_builder(name).with_kind(kind);
        let known = self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(run).cloned();
        Some(match parent.or(known.as_ref()) {
            Some(parent) => {
                tracer.build_with_context(builder, &Context::new().with_remote_span_context(parent.clone()))
            }
            None => trace::within(trace::of_run(run), || tracer.build_with_context(builder, &Context::new())),
        })
    }
}

impl Meters {
    fn new(meter: &Meter) -> Self {
        let seconds = |name: &'static str, about: &'static str, bounds: &[f64]| {
            meter.f64_histogram(name).with_unit("s").with_description(about).with_boundaries(bounds.to_vec()).build()
        };
        Self {
            tokens: meter
                .u64_histogram(names::TOKEN_USAGE)
                .with_unit("{token}")
                .with_description("Tokens that a question took and its answer gave.")
                .with_boundaries(names::TOKEN_BOUNDS.to_vec())
                .build(),
            operations: seconds(
                names::OPERATION_DURATION,
                "How long agents, tools and models took.",
                &names::OPERATION_BOUNDS_SECONDS,
            ),
            requests: seconds(names::REQUEST_DURATION, "How long requests took.", &REQUEST_BOUNDS_SECONDS),
            runs: meter.u64_counter(names::RUNS).with_unit("{run}").with_description("Runs by how they ended.").build(),
            run_seconds: seconds(names::RUN_DURATION, "How long a worker had a run.", &names::RUN_BOUNDS_SECONDS),
            queue_seconds: seconds(
                names::QUEUE_WAIT,
                "From the submission of a run to its first worker.",
                &names::RUN_BOUNDS_SECONDS,
            ),
            spend: meter
                .u64_counter(names::SPEND)
                .with_description("Money that was spent on models, in the currency's smallest unit.")
                .build(),
        }
    }
}

fn this() -> Option<&'static Telemetry> {
    TELEMETRY.get_or_init(Telemetry::begin).as_ref()
}

/// Sends what is left, for a moment at most. Called once, when the process ends.
pub(crate) fn end() {
    let Some(Some(telemetry)) = TELEMETRY.get() else { return };
    let (done, heard) = std::sync::mpsc::sync_channel(1);
    let (tracer, meter) = (
        telemetry.tracer.as_ref().map(|(provider, _)| provider.clone()),
        telemetry.meter.as_ref().map(|(provider, _)| provider.clone()),
    );
    let ending = std::thread::Builder::new().name("actum-telemetry".into()).spawn(move || {
        // What cannot be sent now is lost; nobody is left to send it later.
        let _ = tracer.map(|provider| provider.shutdown_with_timeout(FLUSH_MAX));
        let _ = meter.map(|provider| provider.shutdown());
        done.send(()).unwrap_or_default();
    });
    if ending.is_ok() {
        let _ = heard.recv_timeout(FLUSH_MAX);
    }
}

/// A name as an attribute: bounded, whoever chose it.
fn text(key: &'static str, value: &str) -> KeyValue {
    KeyValue::new(key, value.chars().take(VALUE_CHARS_MAX).collect::<String>())
}

fn number(key: &'static str, value: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}

/// The trace that a run's telemetry and log lines are under.
pub(crate) fn trace_of(run: &actum_ledger::run::Run) -> String {
    trace::named_in(&run.metadata).map_or_else(|| trace::of_run(&run.id), |named| named.trace_id()).to_string()
}

/// Something that was begun in a run and is told when it is over.
pub(crate) struct Operation {
    telemetry: &'static Telemetry,
    span: Option<Span>,
    begun: Instant,
    attributes: Vec<KeyValue>,
}

impl Operation {
    fn begin(
        operation: &'static str,
        about: &str,
        kind: SpanKind,
        run: &str,
        attributes: Vec<KeyValue>,
    ) -> Option<Self> {
        let telemetry = this()?;
        let about: String = about.chars().take(VALUE_CHARS_MAX).collect();
        let span = telemetry.span(format!("{operation} {about}"), kind, run, None);
        let attributes = [vec![KeyValue::new(names::OPERATION, operation)], attributes].concat();
        Some(Self { telemetry, span, begun: Instant::now(), attributes })
    }

    /// Over: the metrics have few names and no ids, the span has all of them.
    fn end(mut self, error: Option<&str>, only_span: Vec<KeyValue>) {
        let mut attributes = std::mem::take(&mut self.attributes);
        attributes.extend(error.map(|error| text(names::ERROR, error)));
        if let Some(meters) = self.telemetry.meters() {
            meters.operations.record(self.begun.elapsed().as_secs_f64(), &attributes);
        }
        if let Some(mut span) = self.span.take() {
            span.set_attributes(attributes.into_iter().chain(only_span));
            if let Some(error) = error {
                span.set_status(Status::error(error.chars().take(VALUE_CHARS_MAX).collect::<String>()));
            }
            span.end();
        }
    }
}

/// A call of a tool begins.
pub(crate) fn tool(run: &str, tool: &str) -> Option<Operation> {
    Operation::begin(names::EXECUTE_TOOL, tool, SpanKind::Internal, run, vec![text(names::TOOL, tool)])
}

/// It is over; `error` is the code of what went wrong.
pub(crate) fn tool_ended(operation: Option<Operation>, run: &str, call: &str, error: Option<&str>) {
    if let Some(operation) = operation {
        operation.end(error, vec![text(names::CONVERSATION, run), text(names::TOOL_CALL, call)]);
    }
}

/// A question to a model begins.
pub(crate) fn chat(run: &str, model: &str, provider: &str) -> Option<Operation> {
    let attributes = vec![text(names::PROVIDER, provider), text(names::REQUEST_MODEL, model)];
    Operation::begin(names::CHAT, model, SpanKind::Client, run, attributes)
}

/// What came of a question: who answered, tokens in and out, what it cost.
#[derive(Debug, Default)]
pub(crate) struct Answered<'a> {
    pub model: Option<&'a str>,
    pub tokens: Option<(u64, u64)>,
    pub spent: (u64, &'a str),
    pub error: Option<&'a str>,
}

pub(crate) fn chat_ended(operation: Option<Operation>, run: &str, answered: &Answered<'_>) {
    let Some(mut operation) = operation else { return };
    operation.attributes.extend(answered.model.map(|model| text(names::RESPONSE_MODEL, model)));
    if let Some(meters) = operation.telemetry.meters() {
        for (kind, tokens) in answered.tokens.iter().flat_map(|(input, output)| [("input", input), ("output", output)])
        {
            let attributes = [&operation.attributes[..], &[KeyValue::new(names::TOKEN_TYPE, kind)]].concat();
            meters.tokens.record(*tokens, &attributes);
        }
        let (amount, currency) = answered.spent;
        if amount > 0 {
            meters.spend.add(amount, &[text(names::CURRENCY, currency)]);
        }
    }
    let mut only_span = vec![text(names::CONVERSATION, run)];
    if let Some((input, output)) = answered.tokens {
        only_span.extend([number(names::INPUT_TOKENS, input), number(names::OUTPUT_TOKENS, output)]);
    }
    operation.end(answered.error, only_span);
}

/// A request that is over.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub method: &'static str,
    pub route: &'static str,
    pub status: u16,
    pub took: Duration,
    pub id: &'a str,
    /// Under which whoever asked has begun it.
    pub parent: Option<&'a str>,
}

pub(crate) fn request(request: &Request<'_>) {
    let Some(telemetry) = this() else { return };
    let mut attributes = vec![
        KeyValue::new(names::METHOD, request.method),
        KeyValue::new(names::ROUTE, request.route),
        KeyValue::new(names::STATUS, i64::from(request.status)),
    ];
    if request.status >= 500 {
        attributes.push(KeyValue::new(names::ERROR, request.status.to_string()));
    }
    if let Some(meters) = telemetry.meters() {
        meters.requests.record(request.took.as_secs_f64(), &attributes);
    }
    let Some((_, tracer)) = &telemetry.tracer else { return };
    let parent = request.parent.and_then(trace::parse);
    let context = parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
    let begun = SystemTime::now().checked_sub(request.took).unwrap_or_else(SystemTime::now);
    attributes.push(text(names::REQUEST_ID, request.id));
    let builder = tracer.span_builder(format!("{} {}", request.method, request.route));
    let builder = builder.with_kind(SpanKind::Server).with_start_time(begun).with_attributes(attributes);
    let mut span = tracer.build_with_context(builder, &context);
    if request.status >= 500 {
        span.set_status(Status::error(""));
    }
    span.end();
}

/// A run while a worker has it.
struct Stay {
    operation: Operation,
    tenant: Tenant,
}

/// A run was taken by a worker here.
fn taken(run: &actum_ledger::run::Run, waited: Option<Duration>) -> Option<Stay> {
    let telemetry = this()?;
    if let (Some(meters), Some(waited)) = (telemetry.meters(), waited) {
        meters.queue_seconds.record(waited.as_secs_f64(), &[]);
    }
    let agent: String = run.robot.chars().take(VALUE_CHARS_MAX).collect();
    let name = format!("{} {agent}", names::INVOKE_AGENT);
    let parent = trace::named_in(&run.metadata);
    let span = telemetry.span(name, SpanKind::Internal, &run.id, parent.as_ref());
    if let Some(span) = &span {
        let mut runs = telemetry.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.len() < RUNS_MAX {
            runs.insert(run.id.clone(), span.span_context().clone());
        }
    }
    let attributes = vec![KeyValue::new(names::OPERATION, names::INVOKE_AGENT), text(names::AGENT, &run.robot)];
    let operation = Operation { telemetry, span, begun: Instant::now(), attributes };
    Some(Stay { operation, tenant: run.tenant.clone() })
}

/// It left: ended, lost or handed back.
fn left(stay: Stay, run: &actum_ledger::run::Run, end: &str, error: Option<&str>) {
    let Stay { operation, tenant } = stay;
    let telemetry = operation.telemetry;
    telemetry.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(&run.id);
    let how = text(names::END, end);
    if let Some(meters) = telemetry.meters() {
        let attributes = [how.clone()].into_iter().chain(error.map(|error| text(names::ERROR, error)));
        let attributes: Vec<KeyValue> = attributes.collect();
        meters.runs.add(1, &attributes);
        meters.run_seconds.record(operation.begun.elapsed().as_secs_f64(), &attributes);
    }
    let only_span = vec![
        how,
        text(names::CONVERSATION, &run.id),
        text(names::TENANT, tenant.as_str()),
        text(names::ITEM, &run.item),
        number(names::ATTEMPT, run.attempt),
        number(names::EPOCH, run.epoch),
    ];
    operation.end(error, only_span);
}

/// Posts that got through, and those that did not.
pub(crate) fn posts() -> (u64, u64) {
    (POSTS.sent.load(Ordering::Relaxed), POSTS.failed.load(Ordering::Relaxed))
}

/// Whoever looks on, looked on.
pub(crate) fn watched(inner: Arc<dyn actum_engine::Watch>) -> Arc<Watched> {
    Arc::new(Watched::new(inner))
}
