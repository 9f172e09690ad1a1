//! What a request's target asks of the sandbox. Pure.

use http::{HeaderName, HeaderValue};

use super::{
    script::{decode, decode_text, parse_step},
    step::{Answer, Script, ScriptError, Step},
};

/// The header that carries the key where `?key=` names no other.
pub(super) const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The behaviour that a request asked for by its path and query.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// The answers, in their order.
    pub script: Script,
    /// Whether a key is executed once.
    pub dedup: bool,
    /// The answer to a key that is being worked on.
    pub busy: Option<Step>,
    /// Where the key is.
    pub key_header: HeaderName,
    /// Headers of the answer beside its own.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Ask {
    /// Reads a path and a query.
    pub fn read(path: &str, query: Option<&str>) -> Result<Self, ScriptError> {
        let script = match path.strip_prefix("/do/") {
            Some(rest) => rest.split('/').next().unwrap_or_default().parse()?,
            None => Script::always(Step::Answer(Answer::created())),
        };
        let mut ask = Self { script, dedup: true, busy: None, key_header: KEY_HEADER, headers: Vec::new() };
        for (name, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "dedup" => ask.dedup = dedup(value)?,
                "busy" => ask.busy = Some(busy(value)?),
                "key" => {
                    let header = decode(value).and_then(|name| HeaderName::from_bytes(&name).ok());
                    ask.key_header = header.ok_or_else(|| unreadable("key", value, "no header's name"))?;
                }
                "header" => {
                    let header = answer_header(value);
                    ask.headers.push(header.ok_or_else(|| unreadable("header", value, "not NAME:VALUE"))?);
                }
                _ => {}
            }
        }
        Ok(ask)
    }
}

fn dedup(value: &str) -> Result<bool, ScriptError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(unreadable("dedup", value, "neither on nor off")),
    }
}

fn busy(value: &str) -> Result<Step, ScriptError> {
    match parse_step(value, 2)? {
        step if step.makes_effect() => Err(unreadable("busy", value, "a step that makes an effect")),
        step => Ok(step),
    }
}

fn answer_header(value: &str) -> Option<(HeaderName, HeaderValue)> {
    let value = decode_text(value)?;
    let (name, value) = value.split_once(':')?;
    Some((name.parse().ok()?, value.trim_matches(' ').parse().ok()?))
}

fn unreadable(option: &'static str, value: &str, what: &str) -> ScriptError {
    let value: String = value.chars().take(80).collect();
    ScriptError::Option { option, wrong: format!("{value:?} is {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[test]
    fn any_path_outside_do_answers_201() {
        for path in ["/", "/v1/invoices", "/do", "/doing/500"] {
            let ask = Ask::read(path, Some("token=dedup")).unwrap();
            assert_eq!(*ask.script.at(0), Step::Answer(Answer::created()), "{path}");
            assert!(ask.dedup && ask.busy.is_none() && ask.headers.is_empty());
        }
    }

    #[test]
    fn segments_after_the_script_are_the_rows_own() {
        let ask = Ask::read("/do/500/tenant/7", None).unwrap();
        assert_eq!(*ask.script.at(0), Step::Answer(Answer::of(StatusCode::INTERNAL_SERVER_ERROR)));
    }

    #[test]
    fn options_are_read_and_nonsense_is_named() {
        let query = "dedup=off&busy=409:1&key=X-Key&header=X-A%3A%20b&header=Retry-After:5&other=%zz";
        let ask = Ask::read("/", Some(query)).unwrap();
        assert!(!ask.dedup && ask.busy.is_some());
        assert_eq!(ask.key_header, "x-key");
        assert_eq!(ask.headers.len(), 2);
        assert_eq!(ask.headers[0].1, "b");
        for query in ["dedup=no", "busy=201", "busy=what", "key=a%20b", "header=a", "header=a:%0A"] {
            assert!(Ask::read("/", Some(query)).is_err(), "{query}");
        }
    }
}
