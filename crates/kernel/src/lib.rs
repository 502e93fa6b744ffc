//! What to do next: from what was agreed and what has happened to the one thing that is due.
//!
//! `decide` takes a state and an event and answers with what is to be recorded and what is to be done; the engine
//! records, does it, and comes back with the next event. A state is nothing but its events, folded: whoever has the
//! journal can go on. Pure: acts on nothing, and never reads a clock, a file or a random number.

mod correct;
mod decide;
mod event;
mod light;
mod limit;
mod port;
mod result;
mod state;

pub use correct::{Correction, Kind, signature};
pub use decide::{Decision, Effect, decide, next};
pub use event::{
    Act, Acted, Changed, Checked, Denial, End, Event, Failed, GoverningContract, MODEL, Plan, SetBack, Step, Tested,
    ToolOp, Totals,
};
pub use light::{FILE_BYTES_LOOKED_AT, look_at};
pub use limit::{Admission, admit, is_env_file};
pub use port::{Desk, Finished, Hands, Recorded, Why};
pub use result::{Metrics, RunResult, Spent, Status, Verdict, code};
pub use state::{Agreed, ContractPeriod, Phase, Phases, State};
