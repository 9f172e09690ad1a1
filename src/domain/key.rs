//! Idempotency keys: how one is derived from an approved intent, and the digest that stands for it in a URL.
//!
//! The key is `operation + ":" + hex40(SHA-256(canonical))`, where `canonical` is the JSON text that Python's
//! `json.dumps(..., sort_keys=True, separators=(",", ":"), ensure_ascii=True)` prints for the intent. The contract is
//! `tests/vectors/derive_key.json`, byte for byte: a producer in another language must come to the same key.
//!
//! This module works on the raw JSON text and never goes through `serde_json::Value`, which would round large integers
//! (or need `arbitrary_precision`, a feature that changes every other user of `serde_json` in the build).
//! It does no I/O and knows neither clock nor randomness.

mod canonical;
mod number;

use sha2::{Digest, Sha256};

/// Longest operation name, in characters: with `:` and the digest a derived key stays within 241 of the 255 bytes
/// that a receiver accepts by default.
pub const MAX_OPERATION_CHARS: usize = 200;

/// Deepest nesting of arrays and objects in the arguments, in brackets open at once; the arguments' own outermost
/// bracket is the first. It bounds the recursion of the parser.
pub const MAX_NESTING: usize = 128;

/// Longest integer in the arguments, in digits without the sign. Python refuses longer ones by default
/// (`sys.get_int_max_str_digits`), so no Python producer could derive such a key.
pub const MAX_INTEGER_DIGITS: usize = 4300;

/// Hex digits of SHA-256 kept in a key: 160 bits.
const DIGEST_HEX_DIGITS: usize = 40;

/// Why no key can be derived. Offsets are bytes from the start of the arguments' text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The operation has no characters.
    #[error("the operation is empty: name it, as in `create_invoice`")]
    OperationEmpty,
    /// The operation has more than [`MAX_OPERATION_CHARS`] characters.
    #[error("the operation has {chars} characters: at most {MAX_OPERATION_CHARS} are allowed, shorten it")]
    OperationTooLong {
        /// Characters given.
        chars: usize,
    },
    /// The operation holds a character that may not stand in a header value of visible ASCII.
    #[error("the operation's character {position} is {character:?}: use visible ASCII only (0x21 to 0x7e, no spaces)")]
    OperationNotVisibleAscii {
        /// Position of the first such character, counted from 1.
        position: usize,
        /// The character.
        character: char,
    },
    /// Versions count from 1.
    #[error("the intent version is {version}: versions start at 1, count up for a revised intent")]
    VersionBelowOne {
        /// The version given.
        version: i64,
    },
    /// The arguments are not one JSON document.
    #[error("the arguments are not JSON: {expected} expected at byte {offset}; pass one JSON document")]
    ArgumentsNotJson {
        /// Where the text stops being JSON, in bytes.
        offset: usize,
        /// What would have been JSON there.
        expected: &'static str,
    },
    /// A float is beyond the range of a double, or is one of the names that JSON does not have.
    #[error("the number at byte {offset} of the arguments is not finite: pass it as a string")]
    NumberNotFinite {
        /// Where the number starts, in bytes.
        offset: usize,
    },
    /// An integer has more than [`MAX_INTEGER_DIGITS`] digits.
    #[error(
        "the integer at byte {offset} of the arguments has {digits} digits: at most {MAX_INTEGER_DIGITS} are allowed, \
         pass it as a string"
    )]
    IntegerTooLong {
        /// Where the number starts, in bytes.
        offset: usize,
        /// Digits given.
        digits: usize,
    },
    /// A `\uD800` to `\uDFFF` escape without its other half names no character.
    #[error("the escape at byte {offset} of the arguments is half a surrogate pair: write both halves")]
    LoneSurrogate {
        /// Where the escape starts, in bytes.
        offset: usize,
    },
    /// Arrays and objects are nested deeper than [`MAX_NESTING`].
    #[error(
        "the arguments are nested deeper than {MAX_NESTING} at byte {offset}: flatten them, or pass the inner part as a \
         string"
    )]
    NestedTooDeep {
        /// Where the bracket too many stands, in bytes.
        offset: usize,
    },
}

/// Derives the idempotency key of an intent: `operation:` and 40 hex digits, visible ASCII throughout.
///
/// `tenant` and `entity` are taken as given, be they empty or not. `args_json` is the raw JSON text of the approved
/// arguments, of any JSON type. Takes time nearly linear in its length.
///
/// # Errors
///
/// [`KeyError`] where the operation, the version or the arguments are outside the contract.
pub fn derive_key(
    tenant: &str,
    operation: &str,
    entity: &str,
    version: i64,
    args_json: &str,
) -> Result<String, KeyError> {
    let canonical = canonical_intent(tenant, operation, entity, version, args_json)?;
    Ok(format!("{operation}:{}", digest_prefix(&canonical)))
}

/// The text whose SHA-256 is in the key: ASCII, keys sorted by code point at every depth, no white space.
///
/// Shown by `outbox key` beside the key, for those who compare two derivations that should agree.
///
/// # Errors
///
/// As [`derive_key`].
pub fn canonical_intent(
    tenant: &str,
    operation: &str,
    entity: &str,
    version: i64,
    args_json: &str,
) -> Result<String, KeyError> {
    check_operation(operation)?;
    if version < 1 {
        return Err(KeyError::VersionBelowOne { version });
    }
    let arguments = canonical::parse(args_json)?;

    // The five members are written in their sorted order; 64 bytes cover their names and the version.
    let mut text = String::with_capacity(args_json.len() + tenant.len() + entity.len() + 64);
    text.push_str("{\"args\":");
    arguments.write(&mut text);
    text.push_str(",\"entity\":");
    canonical::write_string(entity, &mut text);
    text.push_str(",\"op\":");
    canonical::write_string(operation, &mut text);
    text.push_str(",\"tenant\":");
    canonical::write_string(tenant, &mut text);
    text.push_str(",\"v\":");
    text.push_str(&version.to_string());
    text.push('}');
    Ok(text)
}

/// What an endpoint's `{keyHash}` placeholder becomes: 40 lower-case hex digits, safe in any part of a URL.
///
/// A key of our own form already ends in them. Any other key is hashed: the first 40 digits of SHA-256 of its UTF-8.
#[must_use]
pub fn key_hash(key: &str) -> String {
    derived_digest(key).map_or_else(|| digest_prefix(key), str::to_owned)
}

/// The digest at the end of a key that [`derive_key`] can have made, or nothing for a key made elsewhere.
fn derived_digest(key: &str) -> Option<&str> {
    let (operation, digest) = key.rsplit_once(':')?;
    let is_digest = digest.len() == DIGEST_HEX_DIGITS && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    (is_digest && check_operation(operation).is_ok()).then_some(digest)
}

fn check_operation(operation: &str) -> Result<(), KeyError> {
    if operation.is_empty() {
        return Err(KeyError::OperationEmpty);
    }
    let chars = operation.chars().count();
    if chars > MAX_OPERATION_CHARS {
        return Err(KeyError::OperationTooLong { chars });
    }
    match operation.chars().enumerate().find(|(_, c)| !c.is_ascii_graphic()) {
        Some((index, character)) => Err(KeyError::OperationNotVisibleAscii { position: index + 1, character }),
        None => Ok(()),
    }
}

/// The first [`DIGEST_HEX_DIGITS`] lower-case hex digits of SHA-256 over the text's UTF-8.
fn digest_prefix(text: &str) -> String {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    Sha256::digest(text.as_bytes())
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 0x0f])
        .take(DIGEST_HEX_DIGITS)
        .filter_map(|nibble| HEX.get(usize::from(nibble)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    const VECTORS: &str = include_str!("../../tests/vectors/derive_key.json");

    fn vectors() -> Value {
        serde_json::from_str(VECTORS).unwrap()
    }

    fn derive(args: &str) -> Result<String, KeyError> {
        canonical_intent("t", "op", "e", 1, args)
    }

    /// The canonical form of the arguments alone.
    fn canonical(args: &str) -> String {
        let text = derive(args).unwrap();
        let inner = text.strip_prefix("{\"args\":").unwrap();
        inner.strip_suffix(",\"entity\":\"e\",\"op\":\"op\",\"tenant\":\"t\",\"v\":1}").unwrap().to_owned()
    }

    #[test]
    fn every_vector_gives_its_canonical_text_and_key() {
        let document = vectors();
        let all = document["vectors"].as_array().unwrap();
        assert!(all.len() >= 21, "the vectors are read");
        for vector in all {
            let text = |name: &str| vector[name].as_str().unwrap();
            let version = vector["intent_version"].as_i64().unwrap();
            let (tenant, op, entity) = (text("tenant_id"), text("operation"), text("entity_id"));
            let canonical = canonical_intent(tenant, op, entity, version, text("args_json"));
            assert_eq!(canonical.as_deref(), Ok(text("canonical")), "{}", text("name"));
            let key = derive_key(tenant, op, entity, version, text("args_json"));
            assert_eq!(key.as_deref(), Ok(text("key")), "{}", text("name"));
            assert_eq!(key_hash(text("key")), text("key").rsplit_once(':').unwrap().1);
        }
    }

    #[test]
    fn every_refused_vector_is_refused() {
        let document = vectors();
        let default = &document["vectors"][0];
        let all = document["refused"].as_array().unwrap();
        assert!(all.len() >= 16, "the vectors are read");
        for vector in all {
            let field = |name: &str| {
                if vector[name].is_null() { &default[name] } else { &vector[name] }
            };
            let text = |name: &str| field(name).as_str().unwrap();
            let version = field("intent_version").as_i64().unwrap();
            let result =
                derive_key(text("tenant_id"), text("operation"), text("entity_id"), version, text("args_json"));
            assert!(result.is_err(), "{} gave {result:?}", text("name"));
        }
    }

    #[test]
    fn every_key_hash_vector_agrees() {
        let document = vectors();
        for vector in document["key_hash"].as_array().unwrap() {
            let text = |name: &str| vector[name].as_str().unwrap();
            assert_eq!(key_hash(text("key")), text("key_hash"), "{}", text("key"));
        }
    }

    #[test]
    fn only_a_key_of_our_own_form_lends_its_digest() {
        let digest = "d8815ab6c48310cfdb01562cba43eb649c73dc11";
        for ours in ["op:", "a:b:", "billing.create-invoice:"] {
            assert_eq!(key_hash(&format!("{ours}{digest}")), digest);
        }
        for foreign in ["", ":", "create invoice:", "å:"] {
            assert_ne!(key_hash(&format!("{foreign}{digest}")), digest, "{foreign}");
        }
        assert_ne!(key_hash(&format!("op:{}", digest.to_uppercase())), digest);
        assert_ne!(key_hash(&format!("{}:{digest}", "o".repeat(201))), digest);
        assert_eq!(key_hash("").len(), 40);
    }

    #[test]
    fn the_limit_of_nesting_counts_open_brackets_of_the_arguments() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let nested = |depth: usize, leaf: &str| format!("{}{leaf}{}", open.repeat(depth), close.repeat(depth));
            assert!(derive(&nested(128, "1")).is_ok());
            let refused = derive(&nested(129, "1"));
            assert!(matches!(refused, Err(KeyError::NestedTooDeep { .. })), "{refused:?}");
        }
        // Brackets beside each other are not nested, and an unclosed one is refused before any depth does harm.
        assert!(derive(&format!("[{}[]]", "[],".repeat(10_000))).is_ok());
        assert!(matches!(derive(&"[".repeat(1 << 20)), Err(KeyError::NestedTooDeep { .. })));
    }

    #[test]
    fn the_limit_of_digits_leaves_out_the_sign() {
        let digits = |n: usize| "9".repeat(n);
        assert_eq!(canonical(&format!("-{}", digits(4300))), format!("-{}", digits(4300)));
        for sign in ["", "-"] {
            let refused = derive(&format!("{sign}{}", digits(4301)));
            assert_eq!(refused, Err(KeyError::IntegerTooLong { offset: 0, digits: 4301 }));
        }
        // A float has no such limit, only its range.
        assert_eq!(canonical(&format!("0.{}", digits(5000))), "1.0");
        assert_eq!(derive(&format!("{}.0", digits(5000))), Err(KeyError::NumberNotFinite { offset: 0 }));
    }

    #[test]
    fn what_is_no_json_is_refused_even_if_other_parsers_let_it_through() {
        for text in [
            "\u{feff}{}",
            " ",
            "+1",
            ".5",
            "1.",
            "-",
            "-.5",
            "1e",
            "1e+",
            "0x10",
            "1_000",
            "00",
            "-01",
            "01.5",
            "1.e5",
            "NaN",
            "Infinity",
            "-Infinity",
            "nul",
            "True",
            "'a'",
            "{'a':1}",
            "[1,]",
            "{\"a\":1,}",
            "[,1]",
            "{,}",
            "[1 2]",
            "{\"a\" 1}",
            "{\"a\":}",
            "{1:2}",
            "[",
            "]",
            "{",
            "\"",
            "\"\\\"",
            "\"\\x41\"",
            "\"\\u12\"",
            "\"\\u+123\"",
            "\"\\U0041\"",
            "\"a\nb\"",
            "\"a\tb\"",
            "\"\u{0}\"",
            "\u{a0}1",
            "1\u{b}",
            "1\u{c}",
            "//c\n1",
            "1//c",
            "1;",
            "١",
            "1\u{0}",
            "\"\\u00e\u{e9}\"",
            "\"\\",
            "\"\\u",
            "\"\\ud83d\\u",
            "\"\\ud83d\\\"",
        ] {
            assert!(derive(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn white_space_of_json_is_accepted_everywhere_between_tokens() {
        assert_eq!(canonical(" \t\r\n{ \"b\" :\n[ 1 ,\t2 ] , \"a\":{ } } \n"), "{\"a\":{},\"b\":[1,2]}");
        assert_eq!(canonical("[ ]"), "[]");
    }

    #[test]
    fn strings_are_escaped_as_python_escapes_them() {
        assert_eq!(canonical("\"\u{7f}\""), "\"\\u007f\"");
        assert_eq!(canonical("\"\\/\\u002F\""), "\"//\"");
        assert_eq!(canonical("\"\\u0000\\u001F\\u0008\\u0041\""), "\"\\u0000\\u001f\\bA\"");
        assert_eq!(canonical("\"\u{10ffff}\u{2028}\""), "\"\\udbff\\udfff\\u2028\"");
        assert_eq!(canonical("\"\\uD83D\\uDE00\""), "\"\\ud83d\\ude00\"");
        for lone in ["\\ud83d", "\\ud83dx", "\\ud83d\\u0041", "\\ud83d\\ud83d\\ude00", "\\ude00\\ud83d", "\\ud83d\\n"] {
            let refused = derive(&format!("[\"{lone}\"]"));
            assert!(matches!(refused, Err(KeyError::LoneSurrogate { .. })), "{lone}: {refused:?}");
        }
    }

    #[test]
    fn equal_keys_are_equal_after_unescaping_and_the_last_one_wins() {
        assert_eq!(canonical("{\"a\":1,\"b\":2,\"\\u0061\":3,\"a\":[4]}"), "{\"a\":[4],\"b\":2}");
        // What loses must still be within the contract: a key never rests on text that was refused elsewhere.
        assert_eq!(derive("{\"a\":1e999,\"a\":1}"), Err(KeyError::NumberNotFinite { offset: 5 }));
    }

    #[test]
    fn messages_name_the_thing_and_the_mend() {
        let message = |result: Result<String, KeyError>| result.unwrap_err().to_string();
        assert_eq!(
            message(derive("{\"a\": 01}")),
            "the arguments are not JSON: `,` or `}` expected at byte 7; pass one JSON document"
        );
        assert_eq!(
            message(derive_key("t", "skapa r", "e", 1, "{}")),
            "the operation's character 6 is ' ': use visible ASCII only (0x21 to 0x7e, no spaces)"
        );
        assert_eq!(
            message(derive_key("t", "op", "e", -1, "{}")),
            "the intent version is -1: versions start at 1, count up for a revised intent"
        );
    }

    #[test]
    fn a_mebibyte_at_full_depth_takes_no_quadratic_time() {
        // 127 objects around 1 MiB of text: a copy or rescan at each level would move 128 MiB.
        let open = "{\"b\":1,\"a\":".repeat(127);
        let inner = format!("[{}0]", "1.5,\"\\u00e9\",".repeat((1 << 20) / 13));
        let text = format!("{open}{inner}{}", "}".repeat(127));
        let started = std::time::Instant::now();
        assert!(derive(&text).is_ok());
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
    }

    /// Arguments as an agent may write them, with spaces, repeated names and numbers of every kind among them.
    fn arguments() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            "-?(0|[1-9][0-9]{0,30})([.][0-9]{1,6})?([eE][+-]?[0-9]{1,3})?",
            "\"([a-z\u{e5}\u{1f600}]|\\\\u00e5|\\\\n){0,4}\"",
            "true|false|null",
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[ {} ]", items.join(" , "))),
                prop::collection::vec(("[a-c\u{e5}]{0,2}", inner), 0..4).prop_map(|members| {
                    let members: Vec<_> = members.iter().map(|(name, value)| format!("\"{name}\" : {value}")).collect();
                    format!("{{ {} }}", members.join(" ,"))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_canonical_is_its_own_canonical_form(args in arguments()) {
            // Numbers that no double holds are refused.
            if let Ok(text) = derive(&args) {
                let once = text.strip_prefix("{\"args\":").unwrap();
                let once = once.strip_suffix(",\"entity\":\"e\",\"op\":\"op\",\"tenant\":\"t\",\"v\":1}").unwrap();
                let again = derive(once);
                prop_assert_eq!(again.as_ref(), Ok(&text));
                prop_assert_eq!(derive_key("t", "op", "e", 1, once), derive_key("t", "op", "e", 1, &args));
            }
        }

        #[test]
        fn no_text_panics_and_every_key_can_be_sent(
            tenant in any::<String>(), operation in "[ -~\u{e5}]{0,8}", entity in any::<String>(),
            version in any::<i64>(), args in prop_oneof![any::<String>(), arguments()],
        ) {
            if let Ok(key) = derive_key(&tenant, &operation, &entity, version, &args) {
                prop_assert!(key.bytes().all(|byte| byte.is_ascii_graphic()));
                prop_assert_eq!(key_hash(&key), &key[key.len() - 40..]);
            }
            prop_assert_eq!(key_hash(&args).len(), 40);
        }
    }
}
