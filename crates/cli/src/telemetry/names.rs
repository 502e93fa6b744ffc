//! The names in our telemetry, all of them. Those of the GenAI conventions are still "Development" there: when they move,
//! they move here and nowhere else. Ours begin with `actum.`.

/// Whose telemetry it is.
pub(super) const SCOPE: &str = "actum";
pub(super) const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";

pub(super) const OPERATION: &str = "gen_ai.operation.name";
pub(super) const PROVIDER: &str = "gen_ai.provider.name";
pub(super) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(super) const RESPONSE_MODEL: &str = "gen_ai.response.model";
pub(super) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(super) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(super) const AGENT: &str = "gen_ai.agent.name";
/// The run.
pub(super) const CONVERSATION: &str = "gen_ai.conversation.id";
pub(super) const TOOL: &str = "gen_ai.tool.name";
pub(super) const TOOL_CALL: &str = "gen_ai.tool.call.id";
pub(super) const TOKEN_TYPE: &str = "gen_ai.token.type";
pub(super) const ERROR: &str = "error.type";

pub(super) const INVOKE_AGENT: &str = "invoke_agent";
pub(super) const EXECUTE_TOOL: &str = "execute_tool";
pub(super) const CHAT: &str = "chat";

pub(super) const METHOD: &str = "http.request.method";
pub(super) const ROUTE: &str = "http.route";
pub(super) const STATUS: &str = "http.response.status_code";

pub(super) const TENANT: &str = "actum.tenant";
pub(super) const ITEM: &str = "actum.item";
pub(super) const ATTEMPT: &str = "actum.attempt";
pub(super) const EPOCH: &str = "actum.epoch";
pub(super) const REQUEST_ID: &str = "actum.request.id";
/// How a run ended, or left its worker: `success`, `failure`, `denied`, `timeout`, `cancelled`, `lost`, `handed_back`.
pub(super) const END: &str = "actum.run.end";
pub(super) const CURRENCY: &str = "actum.currency";

pub(super) const TOKEN_USAGE: &str = "gen_ai.client.token.usage";
pub(super) const OPERATION_DURATION: &str = "gen_ai.client.operation.duration";
pub(super) const REQUEST_DURATION: &str = "http.server.request.duration";
pub(super) const RUNS: &str = "actum.runs";
pub(super) const RUN_DURATION: &str = "actum.run.duration";
pub(super) const QUEUE_WAIT: &str = "actum.run.queue.wait";
pub(super) const SPEND: &str = "actum.spend";

/// Bounds of histograms as the conventions have them.
pub(super) const TOKEN_BOUNDS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];
pub(super) const OPERATION_BOUNDS_SECONDS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
pub(crate) const REQUEST_BOUNDS_SECONDS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// Ours: runs take from moments to hours.
pub(super) const RUN_BOUNDS_SECONDS: [f64; 12] =
    [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0];
