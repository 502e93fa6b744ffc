//! `direct.v1`: one question; if the answer is no good, one more that says why. Called by `strategy::run`.

use serde_json::{Value, json};

use super::purse::{Ended, Halt, Kept, Purse};
use super::{Limits, Model, Outcome, Purpose, Stop, check_input, read_output, repair};
use crate::policy;
use crate::signature::Signature;

pub(super) fn run(signature: &Signature, input: &Value, limits: &Limits, model: &mut dyn Model) -> Outcome {
    let mut purse = Purse::new(limits, model);
    let ended = answer(signature, input, &mut purse).unwrap_or_else(Ended::badly);
    purse.close(signature, input, ended, json!({}))
}

fn answer(signature: &Signature, input: &Value, purse: &mut Purse<'_>) -> Result<Ended, Stop> {
    check_input(signature, input)?;
    let messages = signature.render(input, &[]).map_err(|bad| Stop::failed(policy::BAD_PROMPT, bad.to_string()))?;
    let form = Some((signature.name.as_str(), &signature.output_schema));
    let said = purse.ask(messages.clone(), form, Purpose::Answer, Kept::default()).map_err(Halt::stop)?;
    let why = match read_output(signature, &said) {
        Ok(output) => return Ok(Ended::well(output)),
        Err(why) => why,
    };
    purse.note_flaw(&why);
    let said = purse.ask(repair(messages, &said, &why), form, Purpose::Repair, Kept::default()).map_err(|halt| {
        let stop = halt.stop();
        let message = format!("the answer was no good ({why}), and there is no second one: {}", stop.message);
        Stop { message, ..stop }
    })?;
    read_output(signature, &said).map(Ended::well).map_err(|why| {
        purse.note_flaw(&why);
        Stop::failed(policy::INVALID_OUTPUT, format!("the answer is no good, also after a repair: {why}"))
    })
}
