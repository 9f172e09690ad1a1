//! JSON pointers (RFC 6901) over raw text, so that a number is read as it is spelled and an id keeps every digit.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The raw JSON text of the value that `pointer` names in `body`, if the body is JSON and the value is there.
pub fn find<'a>(body: &'a str, pointer: &str) -> Option<&'a str> {
    let mut current = serde_json::from_str::<&RawValue>(body).ok()?.get();
    if pointer.is_empty() {
        return Some(current);
    }
    for token in pointer.strip_prefix('/')?.split('/') {
        let token = token.replace("~1", "/").replace("~0", "~");
        current = match current.as_bytes().first()? {
            b'{' => serde_json::from_str::<Members<'a>>(current).ok()?.0.remove(token.as_str())?.get(),
            b'[' if token == "0" || !(token.is_empty() || token.starts_with('0')) => {
                let index: usize = token.bytes().all(|b| b.is_ascii_digit()).then(|| token.parse().ok())??;
                serde_json::from_str::<Vec<&'a RawValue>>(current).ok()?.get(index)?.get()
            }
            _ => return None,
        };
    }
    Some(current)
}

/// The value as text: a string without its quotes and escapes, a number or literal as it is spelled. `None` for `null`,
/// objects and arrays, which name nothing.
pub fn text(raw: &str) -> Option<String> {
    match raw.as_bytes().first()? {
        b'"' => serde_json::from_str(raw).ok(),
        b'{' | b'[' | b'n' => None,
        _ => Some(raw.to_owned()),
    }
}

/// The members of an object; of two equal names the last one counts.
#[derive(Deserialize)]
struct Members<'a>(#[serde(borrow)] HashMap<String, &'a RawValue>);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_found_and_keep_their_spelling() {
        let body = r#"{"id": 2868860079149422351, "a": [{"b/c": 1.10}, "x"], "": 1, "m~n": null, "s": "\u00e5"}"#;
        for (pointer, raw) in [
            ("/id", Some("2868860079149422351")),
            ("/a/0/b~1c", Some("1.10")),
            ("/a/1", Some("\"x\"")),
            ("/a/01", None),
            ("/a/2", None),
            ("/a/-", None),
            ("/", Some("1")),
            ("/m~0n", Some("null")),
            ("/none", None),
            ("id", None),
        ] {
            assert_eq!(find(body, pointer), raw, "{pointer}");
        }
        assert_eq!(find(body, "/s").and_then(text).as_deref(), Some("å"));
        assert_eq!(find("", "/id"), None);
        assert_eq!(find("[]", "/id"), None);
        assert_eq!(find(r#"{"id":1"#, "/id"), None);
        assert_eq!(text("null"), None);
        assert_eq!(text("[1]"), None);
    }

    /// JSON as a receiver may send it, nested a few levels.
    fn json() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::{Value, json};
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a/~\u{e5}\"]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a/~0-1]{0,2}", inner, 0..4).prop_map(|members| json!(members)),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_body_and_no_pointer_panics(body in ".{0,64}", pointer in "[/~01a-]{0,12}") {
            let _ = find(&body, &pointer).and_then(text);
        }

        #[test]
        fn what_is_found_is_what_serde_json_finds(value in json(), pointer in "(/([a01-]|~0|~1){0,2}){0,4}") {
            let body = value.to_string();
            let expected = value.pointer(&pointer);
            let found = find(&body, &pointer);
            let read = found.map(|raw| serde_json::from_str::<serde_json::Value>(raw).unwrap());
            prop_assert_eq!(read.as_ref(), expected);
            if let Some(serde_json::Value::String(expected)) = expected {
                let read = found.and_then(text);
                prop_assert_eq!(read.as_ref(), Some(expected));
            }
        }
    }
}
