//! The four languages in which models are asked: what a path and a body ask for, what an answer says and has used, and
//! errors as the provider itself would write them. Called by the gateway and by strategies; sends nothing.

mod bound;
mod compose;
mod content;
mod error;
mod frame;
mod gather;
mod mask;
mod meter;
mod question;
mod route;
mod splice;
mod tool;
mod usage;

pub use bound::IMAGE_TOKENS_MAX;
pub use compose::{Message, Prompt, Role, Said, Structured, compose, extract};
pub use error::{NO_RETRY, Trouble, error, error_event, models};
pub use meter::{Meter, Metered, is_same_model};
pub use question::Question;
pub use route::{Route, route};
pub use usage::Usage;

/// A provider's language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// OpenAI's chat completions, and all that speak like it.
    Chat,
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// Google's generateContent.
    Generate,
}

impl Protocol {
    pub const ALL: [Self; 4] = [Self::Chat, Self::Responses, Self::Messages, Self::Generate];

    /// Its name in documents.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Chat => "chat_completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Generate => "generate_content",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.word() == word)
    }
}

#[cfg(test)]
mod tests;
