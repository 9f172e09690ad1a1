//! JSON pointers over a receiver's body: the first line is the pointer, the rest the body. What they find is what
//! `serde_json` finds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outbox_operator::domain::json_pointer::{find, text};
use serde_json::Value;

fuzz_target!(|data: &str| {
    let (pointer, body) = data.split_once('\n').unwrap_or(("", data));
    let found = find(body, pointer);
    let _ = found.and_then(text);
    // Beyond 128 levels, and for numbers beyond a double, it knows nothing.
    let Ok(value) = serde_json::from_str::<Value>(body) else { return };
    // Escapes that RFC 6901 does not have are read in two ways.
    if pointer.replace("~0", "").replace("~1", "").contains('~') {
        return;
    }
    let expected = value.pointer(pointer);
    assert_eq!(found.map(|raw| serde_json::from_str::<Value>(raw).unwrap()).as_ref(), expected);
    if let Some(Value::String(expected)) = expected {
        assert_eq!(found.and_then(text).as_ref(), Some(expected));
    }
});
