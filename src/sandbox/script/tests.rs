use super::*;

fn script(text: &str) -> Script {
    text.parse().unwrap()
}

fn error(text: &str) -> String {
    text.parse::<Script>().unwrap_err().to_string()
}

#[test]
fn the_nth_request_takes_the_nth_step_and_the_last_step_stays() {
    let script = script("500x2,429:2,201");
    let status = |position| match script.at(position) {
        Step::Answer(answer) => answer.status.as_u16(),
        other => panic!("{other:?}"),
    };
    assert_eq!([0, 1, 2, 3, 4, u32::MAX].map(status), [500, 500, 429, 201, 201, 201]);
}

#[test]
fn every_step_of_the_help_is_read() {
    for text in [
        "201",
        "429:2",
        "409:1",
        "503:TEXT",
        "301:http%3A%2F%2Fa%2Fb",
        "202:%2Fi%2F7",
        "body:%7B%7D",
        "body-422:a",
        "body",
        "empty",
        "empty-204",
        "empty-202:L",
        "big:100000",
        "drip",
        "kept-500",
        "kept-409:1",
        "reset",
        "close",
        "garbage",
        "hang",
        "lost",
        "cut",
        "bye",
        "bye:50",
        "slow:1500",
        "slow:1500:422",
        "slow:5:429:2",
        "gate:a",
        "gate:a:500",
        "slow:1:gate:a:reset",
        "done-500",
        "done-reset",
        "done-409:1",
        "done-slow:5:hang",
        "408",
        "429:Fri%2C%2031%20Dec%209999%2023%3A59%3A59%20GMT",
        "garbagex3",
    ] {
        text.parse::<Script>().unwrap_or_else(|e| panic!("{text}: {e}"));
    }
}

#[test]
fn arguments_arrive_decoded() {
    let Step::Answer(answer) = script("301:http%3A%2F%2Fx.test%2Fa").at(0).clone() else { panic!() };
    assert_eq!(answer.argument.unwrap(), "http://x.test/a");
    let Step::Answer(answer) = script("body-200:%7B%22errors%22%3A[1%2C2]%7Dx2").at(0).clone() else { panic!() };
    assert_eq!((answer.status.as_u16(), answer.body), (200, Content::Text(br#"{"errors":[1,2]}"#.to_vec())));
    assert_eq!(*script("lost").at(0), Step::Done(Box::new(Step::Hang)));
}

#[test]
fn what_is_no_step_is_refused_by_name() {
    assert_eq!(error("201,bogus"), "unknown step \"bogus\": `outbox sandbox --help` lists the steps");
    for text in ["", "201,", "20", "2010", "99x", "201xx", "steady-500"] {
        assert!(text.parse::<Script>().is_err(), "{text}");
    }
    for text in [
        "100",
        "600",
        "reset:1",
        "slow",
        "slow:",
        "slow:1s",
        "slow:99999999999",
        "gate",
        "gate:",
        "big",
        "big:-1",
        "201x0",
        "201x4294967296",
        "done-201",
        "done-cut",
        "done-done-500",
        "done-slow:5",
        "kept-201",
        "429:%0A",
        "body:%4",
        "slow:1:slow:1:slow:1:slow:1:500",
    ] {
        assert!(error(text).starts_with("step \""), "{text}: {}", error(text));
    }
    assert!(error(&"500,".repeat(1001)).contains("at most 1000"));
}

#[test]
fn encoded_text_reads_back() {
    for text in ["http://x.test/a?b=c,d", "x9", "{\"id\": null}", "å %"] {
        assert_eq!(decode_text(&encode(text)).as_deref(), Some(text));
        assert!(format!("body:{}", encode(text)).parse::<Script>().is_ok());
    }
    assert_eq!(decode("a%zz"), None);
}
