//! Any bytes through the strict reader and the canonical writer, called by libFuzzer: the text must be the same
//! whoever reads it, and reading it again must change nothing. It never judges what is refused, only that nothing
//! panics.
#![no_main]

use actum_contract::canon::{self, Flaw, Unwritable};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = canon::parse(bytes) else { return };
    let text = canon::canonical(&value).expect("what the strict reader accepts can be written");

    // The other reader knows none of our rules, so that it can only agree by reading the same value.
    let other: Value = serde_json::from_slice(bytes).expect("the strict reader accepts a part of JSON");
    assert_eq!(canon::canonical(&other).as_ref(), Ok(&text), "two readers, two texts");

    // A double beyond the safe integers may be written with digits alone, and then is refused when it comes back.
    let again: Value = serde_json::from_slice(&text).expect("canonical text is JSON");
    match canon::parse(&text) {
        Ok(strict) => {
            assert_eq!(canon::canonical(&strict).as_ref(), Ok(&text), "canonical text is not a fixed point");
            assert_eq!(canon::canonical(&again).as_ref(), Ok(&text), "canonical text is read in two ways");
        }
        Err(error) => {
            assert_eq!(error.flaw, Flaw::UnsafeInteger, "canonical text is refused: {error}");
            match canon::canonical(&again) {
                Ok(text_again) => assert_eq!(text_again, text),
                Err(unwritable) => assert!(matches!(unwritable, Unwritable::UnsafeInteger(_)), "{unwritable}"),
            }
        }
    }
});
