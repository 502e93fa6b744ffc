//! What a call has used, in one form for all protocols. Read out of answers by `gather`; prices are put on it by `price`.

use serde_json::Value;

use super::Protocol;

/// More tokens than this were never used by one call.
const TOKENS_MAX: u64 = 1_000_000_000;

/// Tokens of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// All that was read, whether from a cache or not.
    pub input: u64,
    /// The part of the input that came from a cache.
    pub cached: u64,
    /// The part of the input that was written to a cache.
    pub cache_write: u64,
    /// The part of `cache_write` that the cache keeps for longer than usual, which costs more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_long: u64,
    /// All that was written, thinking included.
    pub output: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What an answer says about its usage, field by field. In a stream all counts are of the whole so far, so that the larger
/// one holds: some servers end with nothing where they began with the truth.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Told {
    input: Option<u64>,
    cached: Option<u64>,
    cache_write: Option<u64>,
    cache_write_long: Option<u64>,
    output: Option<u64>,
    thoughts: Option<u64>,
    tools: Option<u64>,
    flaw: Option<String>,
}

impl Told {
    /// Takes in an object of usage; null is nothing.
    pub(super) fn take(&mut self, protocol: Protocol, usage: Option<&Value>) {
        let Some(usage) = usage.filter(|usage| !usage.is_null()) else { return };
        if !usage.is_object() {
            self.flaw = Some("its usage is no object".into());
            return;
        }
        let mut take = |place: fn(&mut Self) -> &mut Option<u64>, path: &[&str]| {
            let found = path.iter().try_fold(usage, |value, name| value.get(name)).filter(|value| !value.is_null());
            let Some(found) = found else { return };
            match found.as_u64() {
                Some(tokens) if tokens <= TOKENS_MAX => *place(self) = (*place(self)).max(Some(tokens)),
                Some(_) => {
                    self.flaw = Some(format!("its usage is absurd: {} is more than {TOKENS_MAX}", path.join(".")))
                }
                None => self.flaw = Some(format!("its usage is no count of tokens: {}", path.join("."))),
            }
        };
        match protocol {
            Protocol::Chat => {
                take(|told| &mut told.input, &["prompt_tokens"]);
                take(|told| &mut told.output, &["completion_tokens"]);
                take(|told| &mut told.cached, &["prompt_cache_hit_tokens"]);
                take(|told| &mut told.cached, &["prompt_tokens_details", "cached_tokens"]);
            }
            Protocol::Responses => {
                take(|told| &mut told.input, &["input_tokens"]);
                take(|told| &mut told.output, &["output_tokens"]);
                take(|told| &mut told.cached, &["input_tokens_details", "cached_tokens"]);
            }
            Protocol::Messages => {
                take(|told| &mut told.input, &["input_tokens"]);
                take(|told| &mut told.output, &["output_tokens"]);
                take(|told| &mut told.cached, &["cache_read_input_tokens"]);
                take(|told| &mut told.cache_write, &["cache_creation_input_tokens"]);
                take(|told| &mut told.cache_write_long, &["cache_creation", "ephemeral_1h_input_tokens"]);
            }
            Protocol::Generate => {
                take(|told| &mut told.input, &["promptTokenCount"]);
                take(|told| &mut told.tools, &["toolUsePromptTokenCount"]);
                take(|told| &mut told.cached, &["cachedContentTokenCount"]);
                take(|told| &mut told.output, &["candidatesTokenCount"]);
                take(|told| &mut told.thoughts, &["thoughtsTokenCount"]);
            }
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.input.is_some() && self.output.is_some()
    }

    /// The usage, or why it cannot be believed. `has_said`: whether the model has said anything at all.
    pub(super) fn usage(&self, protocol: Protocol, has_said: bool) -> Result<Usage, String> {
        if let Some(flaw) = &self.flaw {
            return Err(flaw.clone());
        }
        // Google leaves out what is nothing.
        let output = self.output.or((protocol == Protocol::Generate).then_some(0));
        let (Some(input), Some(output)) = (self.input, output) else { return Err("its usage is missing".into()) };
        let [cached, cache_write, cache_write_long] =
            [self.cached, self.cache_write, self.cache_write_long].map(Option::unwrap_or_default);
        let apart = if protocol == Protocol::Messages { cached.saturating_add(cache_write) } else { 0 };
        let usage = Usage {
            input: input.saturating_add(apart).saturating_add(self.tools.unwrap_or_default()),
            cached,
            cache_write,
            cache_write_long,
            output: output.saturating_add(self.thoughts.unwrap_or_default()),
        };
        if usage.cached.saturating_add(usage.cache_write) > usage.input {
            return Err("its usage cannot be: more came from the cache than was read".into());
        }
        if usage.cache_write_long > usage.cache_write {
            return Err("its usage cannot be: more was kept in the cache for long than was written to it".into());
        }
        if usage.output == 0 && has_said {
            return Err("its usage cannot be: there is an answer of no tokens".into());
        }
        if usage.input == 0 && has_said {
            return Err("its usage cannot be: there was a question of no tokens".into());
        }
        Ok(usage)
    }
}
