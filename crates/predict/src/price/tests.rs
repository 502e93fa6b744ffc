//! The table of prices, and the one promise that matters: an estimate is never below what it was an estimate of.

use proptest::prelude::*;

use super::*;

fn flaws(value: Value) -> String {
    let flaws = Prices::read(&value).unwrap_err();
    flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn price(input: u64, output: u64) -> Price {
    Price {
        input,
        output,
        cached: None,
        cache_write: None,
        cache_write_1h: None,
        image_tokens: None,
        currency: CURRENCY.into(),
    }
}

#[test]
fn the_closest_name_wins() {
    let named = |input: u64| json!({"input": input, "output": 0});
    let prices = Prices::read(&json!({
        "openai/gpt-x": named(1), "gpt-x": named(2), "gpt-*": named(3), "gpt-x-*": named(4), "*": named(5), "local/*": named(6),
        "*-mini": named(7),
    }))
    .unwrap();
    let find = |provider: &str, model: &str| prices.find(provider, model).unwrap().input;
    assert_eq!(find("openai", "gpt-x"), 1);
    assert_eq!(find("azure", "gpt-x"), 2);
    assert_eq!(find("openai", "gpt-y"), 3);
    assert_eq!(find("openai", "gpt-x-2025"), 4);
    assert_eq!(find("openai", "o9"), 5);
    assert_eq!(find("local", "qwen"), 6);
    assert_eq!(find("local", "gpt-y"), 6, "the longer of two");
    assert_eq!(find("local", "gpt-x-1"), 6, "of two as long, the later by name");
    assert_eq!(find("openai", "gpt-mini"), 7);
    assert!(Prices::read(&json!({"gpt-x": named(1)})).unwrap().find("openai", "gpt-xx").is_none());
    assert!(Prices::read(&Value::Null).unwrap().is_empty());
    assert_eq!(prices.iter().count(), 7);
}

#[test]
fn stars_stand_for_anything() {
    for (pattern, name, fits) in [
        ("*", "", true),
        ("a*b*c", "abc", true),
        ("a*b*c", "a--b--b--c", true),
        ("a*b*c", "a--b--", false),
        ("*a", "ba", true),
        ("*a", "ab", false),
        ("a**", "a", true),
        ("é*", "éa", true),
    ] {
        assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
    }
}

#[test]
fn every_flaw_is_told() {
    let bad = flaws(json!({
        "a": {"input": -1, "output": 1.5, "cached": "x", "image_tokens": -1, "currency": "US$"}, "b": {"input": 1}, "c": 3, "d e": {"input": 1, "output": 1},
        "e": {"input": 9_007_199_254_740_992_u64, "output": 1, "inputt": 2},
    }));
    for part in [
        "prices.a.input",
        "prices.a.output",
        "prices.a.cached",
        "prices.a.image_tokens",
        "the most tokens that one picture can be",
        "prices.a.currency",
        "prices.b.output",
        "prices.c",
        "prices.d e",
        "prices.e.input",
        "did you mean input?",
    ] {
        assert!(bad.contains(part), "{part} is missing in {bad}");
    }
    assert!(flaws(json!([])).contains("a table"));
}

#[test]
fn it_is_rounded_up_once() {
    let usage = |input, output| Usage { input, output, ..Usage::default() };
    assert_eq!(cost(&price(1, 1), &usage(1, 1)), 1);
    assert_eq!(cost(&price(150_000, 600_000), &usage(1_000, 10)), 156);
    assert_eq!(cost(&price(0, 0), &usage(u64::MAX, u64::MAX)), 0);
    assert_eq!(cost(&price(u64::MAX, u64::MAX), &usage(u64::MAX, u64::MAX)), u64::MAX);
    let cached = Price { cached: Some(10), cache_write: Some(125), ..price(100, 0) };
    let usage = Usage { input: 3_000_000, cached: 1_000_000, cache_write: 1_000_000, cache_write_long: 0, output: 0 };
    assert_eq!(cost(&cached, &usage), 235);
    assert_eq!(estimate(&cached, 3_000_000, 0, false), 375);
}

#[test]
fn a_cache_that_keeps_longer_has_its_own_price() {
    let usage = Usage { input: 2_000_000, cache_write: 2_000_000, cache_write_long: 1_000_000, ..Usage::default() };
    let listed = Price { cache_write: Some(125), cache_write_1h: Some(300), ..price(100, 0) };
    assert_eq!(cost(&listed, &usage), 425);
    assert_eq!((estimate(&listed, 1_000_000, 0, false), estimate(&listed, 1_000_000, 0, true)), (125, 300));
    // Known to be twice the input where writing has a price at all.
    let usual = Price { cache_write: Some(125), ..price(100, 0) };
    assert_eq!(cost(&usual, &usage), 325);
    assert_eq!(cost(&price(100, 0), &usage), 200);
}

#[test]
fn the_schema_takes_what_the_reader_takes() {
    let check = jsonschema::validator_for(&schema()).unwrap();
    let good = json!({"gpt-*": {"input": 1, "output": 2, "cached": 0, "image_tokens": 1_600, "currency": "sats"}});
    assert!(check.is_valid(&good));
    let prices = Prices::read(&good).unwrap();
    assert_eq!(prices.find("openai", "gpt-5").unwrap().image_tokens_max(), 1_600);
    assert_eq!(price(1, 1).image_tokens_max(), IMAGE_TOKENS_MAX);
    for bad in [
        json!({"a": {"input": 1}}),
        json!({"a": {"input": 1, "output": -2}}),
        json!({"a": {"input": 1, "output": 2, "x": 1}}),
        json!({"a": {"input": 1, "output": 2, "image_tokens": 1.5}}),
    ] {
        assert!(!check.is_valid(&bad) && Prices::read(&bad).is_err(), "{bad}");
    }
}

/// Amounts of all sizes, the largest among them.
fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![0..100_u64, 0..10_000_000_u64, any::<u64>(), Just(u64::MAX)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn an_estimate_is_never_below_the_cost(
        prices in (amount(), amount(), proptest::option::of(amount()), proptest::option::of(amount()), proptest::option::of(amount())),
        is_kept_long in any::<bool>(),
        bounds in (amount(), amount()),
        parts in (0..=1_000_u64, 0..=1_000_u64, 0..=1_000_u64, 0..=1_000_u64, 0..=1_000_u64),
    ) {
        let (input, output, cached, cache_write, cache_write_1h) = prices;
        let price = Price { input, output, cached, cache_write, cache_write_1h, image_tokens: None, currency: CURRENCY.into() };
        let share = |of: u64, permille: u64| u64::try_from(u128::from(of) * u128::from(permille) / 1_000).unwrap();
        let (input_max, output_max) = bounds;
        let input = share(input_max, parts.0);
        let cache_write = share(input, parts.2);
        let cache_write_long = if is_kept_long { share(cache_write, parts.4) } else { 0 };
        let usage = Usage { input, cached: share(input, parts.1), cache_write, cache_write_long, output: share(output_max, parts.3) };
        prop_assert!(estimate(&price, input_max, output_max, is_kept_long) >= cost(&price, &usage));
    }
}
