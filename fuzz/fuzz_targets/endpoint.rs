//! Endpoints and their placeholders: the first line is a row's `endpoint`, the rest its key.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outbox_operator::domain::destination::{Destination, Endpoint, MAX_ENDPOINT_BYTES, expand_placeholders};

/// What the column holds.
const MAX_DESTINATION_BYTES: usize = 300;

fuzz_target!(|data: &str| {
    let (template, key) = data.split_once('\n').unwrap_or((data, "key"));
    if let Ok(endpoint) = Endpoint::parse(template) {
        let destination = endpoint.destination();
        let text = destination.to_string();
        assert!(text.len() <= MAX_DESTINATION_BYTES, "{text}");
        // A destination is a destination: shown, pasted and read again it is the same.
        assert_eq!(text.parse::<Destination>().as_ref(), Ok(destination));
        // What is requested goes where it is counted.
        let requested = Endpoint::parse(endpoint.url().as_str());
        // Escapes may make it longer than what may be given.
        if endpoint.url().as_str().len() <= MAX_ENDPOINT_BYTES {
            assert_eq!(requested.unwrap().destination(), destination);
        }
        assert!(endpoint.url().username().is_empty() && endpoint.url().password().is_none());
    }
    if let Ok(expanded) = expand_placeholders(template, key) {
        assert!(expanded.len() <= MAX_ENDPOINT_BYTES);
        // A key never moves a request to another destination.
        if let (Ok(before), Ok(after)) = (Endpoint::parse(template), Endpoint::parse(&expanded)) {
            assert_eq!(before.destination(), after.destination());
        }
    }
    let _ = Endpoint::for_key(template, key);
});
