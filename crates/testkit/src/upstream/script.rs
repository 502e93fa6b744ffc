//! What the scripted provider is to say, turn by turn, and what it says that took. Data only; `upstream` plays it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

/// Numbers of tokens, as an answer states them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// All tokens that went in, those from a cache among them.
    pub input: u64,
    /// All tokens that came out, those of reasoning among them.
    pub output: u64,
    pub cached: u64,
    pub reasoning: u64,
}

impl Usage {
    pub const fn new(input: u64, output: u64) -> Self {
        Self { input, output, cached: 0, reasoning: 0 }
    }

    /// As far as a number goes: a script may state any.
    pub const fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            cached: self.cached.saturating_add(other.cached),
            reasoning: self.reasoning.saturating_add(other.reasoning),
        }
    }

    pub(super) const fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// What a turn uses unless it says something else.
const USUAL: Usage = Usage::new(100, 20);
const LAST: &str = "All done.";

/// What is said to one request.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    Text(String),
    /// A call of one of the asker's tools; a text as arguments is the input of a free-form tool.
    Tool {
        name: String,
        arguments: Value,
    },
    /// Takes the request and never says anything.
    Hang,
    /// Breaks off in the middle of a good answer.
    HalfStream,
    /// An answer that is no JSON, in a stream an event that is none.
    InvalidJson,
    /// An error of the provider, with the seconds after which to come again.
    Status(u16, Option<u64>),
    /// An answer that states these numbers instead of the turn's.
    WrongUsage {
        input: u64,
        output: u64,
    },
    /// An answer that says nothing of what it used.
    NoUsage,
    /// An answer in the name of [`Turn::OTHER_MODEL`].
    OtherModel,
    /// These bytes and nothing else; then the connection is closed.
    Raw(Vec<u8>),
    /// The same, after this time.
    Delay(Duration, Box<Self>),
    /// The same, once `Upstream::release` lets it go on.
    Held(Box<Self>),
}

impl Turn {
    pub const OTHER_MODEL: &str = "another-model-9";

    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub fn tool(name: impl Into<String>, arguments: Value) -> Self {
        Self::Tool { name: name.into(), arguments }
    }

    /// What its answer will say it used.
    pub(super) fn states(&self, usage: Usage) -> Option<Usage> {
        match self {
            Self::Text(_) | Self::Tool { .. } | Self::OtherModel => Some(usage),
            Self::WrongUsage { input, output } => Some(Usage::new(*input, *output)),
            Self::Delay(_, then) | Self::Held(then) => then.states(usage),
            Self::Hang | Self::HalfStream | Self::InvalidJson | Self::Status(..) | Self::NoUsage | Self::Raw(_) => None,
        }
    }
}

/// Turns in their order; after the last one there is a closing text for everybody who still asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    turns: Vec<(Turn, Usage)>,
    last: (String, Usage),
    pub(super) aside: Option<(String, Usage)>,
    wit: Option<Wit>,
}

/// Answers by what was asked: the body of the request, and how often the very same came before.
type Answering = dyn Fn(&Value, usize) -> Option<(Turn, Usage)> + Send + Sync;

#[derive(Clone)]
struct Wit(Arc<Answering>);

impl std::fmt::Debug for Wit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wit")
    }
}

impl PartialEq for Wit {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Default for Script {
    fn default() -> Self {
        Self { turns: Vec::new(), last: (LAST.into(), USUAL), aside: None, wit: None }
    }
}

impl Script {
    /// One more turn, which uses this much.
    pub fn turn(mut self, turn: Turn, usage: Usage) -> Self {
        self.turns.push((turn, usage));
        self
    }

    /// What is said after the end of the script.
    pub fn last(mut self, text: impl Into<String>, usage: Usage) -> Self {
        self.last = (text.into(), usage);
        self
    }

    /// What is said to requests that offer no tools; they take no turn. Agents ask for a title of their session and
    /// the like beside their work, at any time.
    pub fn asides(mut self, text: impl Into<String>, usage: Usage) -> Self {
        self.aside = Some((text.into(), usage));
        self
    }

    /// What is said by what was asked, whenever that is: the body of the request, and how often the very same came before.
    /// Who is answered so takes no turn.
    pub fn by(mut self, answer: impl Fn(&Value, usize) -> Option<(Turn, Usage)> + Send + Sync + 'static) -> Self {
        self.wit = Some(Wit(Arc::new(answer)));
        self
    }

    pub(super) fn to(&self, body: &Value, before: usize) -> Option<(Turn, Usage)> {
        (self.wit.as_ref()?.0)(body, before)
    }

    pub(super) fn at(&self, number: usize) -> (Turn, Usage) {
        let last = || (Turn::Text(self.last.0.clone()), self.last.1);
        self.turns.get(number).cloned().unwrap_or_else(last)
    }
}

impl From<Vec<Turn>> for Script {
    fn from(turns: Vec<Turn>) -> Self {
        turns.into_iter().fold(Self::default(), |script, turn| script.turn(turn, USUAL))
    }
}

impl<const N: usize> From<[Turn; N]> for Script {
    fn from(turns: [Turn; N]) -> Self {
        Vec::from(turns).into()
    }
}
