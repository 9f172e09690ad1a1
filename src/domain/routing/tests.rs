//! Which route a row takes.

use proptest::prelude::*;

use super::*;

fn route(operations: &[&str], endpoints: &[&str], policy: usize) -> Route {
    Route {
        operations: operations.iter().map(|&name| name.to_owned()).collect(),
        endpoints: endpoints.iter().map(|text| EndpointPattern::parse(text).unwrap()).collect(),
        policy,
    }
}

fn matches(pattern: &str, endpoint: &str) -> bool {
    Routing { routes: vec![route(&[], &[pattern], 1)] }.policy_of("any", endpoint) == 1
}

#[test]
fn spellings_of_one_origin_match_alike_and_paths_as_they_are() {
    for endpoint in [
        "https://api.stripe.com/x",
        "HTTPS://API.Stripe.com:443/x",
        "https://api.stripe.com./x",
        "https://user:p%40ss@api.stripe.com/x",
        "https://a@b@api.stripe.com:00443/x#y",
        "https://api.stripe.com",
        "https://api.stripe.com?x",
        "https://api.stripe.com#x",
    ] {
        assert!(matches("https://api.stripe.com/*", endpoint), "{endpoint}");
        assert!(matches("HTTPS://api.STRIPE.com:443/*", endpoint), "{endpoint}");
    }
    for endpoint in [
        "http://api.stripe.com/x",
        "https://api.stripe.com:8443/x",
        "https://api.stripe.com.evil.test/x",
        "https://api.stripe.com@evil.test/x",
        "https://evil.test/https://api.stripe.com/x",
        "https://api.stripe.com\u{a0}/x",
        "https://api.stripe.\u{212a}om/x",
        " https://api.stripe.com/x",
        "https:api.stripe.com/x",
        "https://api.stripe.com:44a/x",
        "",
        "x",
    ] {
        assert!(!matches("https://api.stripe.com/*", endpoint), "{endpoint}");
    }
    assert!(matches("http://[::1]:8080/*", "http://[::1]:8080/a") && !matches("http://[::1]:8080/*", "http://[::1]/a"));
}

#[test]
fn a_star_in_the_host_stays_in_the_host() {
    let pattern = "https://*.x.test/v1/*";
    assert!(matches(pattern, "https://a.x.test/v1/") && matches(pattern, "https://a.b.X.test/v1/c/d?e"));
    for endpoint in ["https://x.test/v1/", "https://y.test/.x.test/v1/", "https://a.x.test/v2/", "https://a.x.test/V1/"]
    {
        assert!(!matches(pattern, endpoint), "{endpoint}");
    }
    assert!(matches("https://x.test/*/charges", "https://x.test/v1/charges/charges"));
    assert!(matches("https://x.test/a?*=1", "https://x.test/a?b=1"));
    assert!(!matches("https://x.test/a", "https://x.test/ab"));
}

#[test]
fn a_pattern_needs_a_scheme_a_host_and_a_path() {
    for text in [
        "*",
        "https://x.test",
        "https://x.test*",
        "https:///a",
        "ftp://x.test/*",
        "https://u@x.test/*",
        "https://x.test/#a",
        "https://x.test/å",
        "https://x.test:*/",
        "https://x.test?/",
    ] {
        assert_eq!(EndpointPattern::parse(text), None, "{text}");
    }
}

#[test]
fn the_first_match_wins_and_none_is_the_relays_own() {
    let routing = Routing {
        routes: vec![
            route(&["create_payment", "refund"], &["https://api.stripe.com/*", "https://*.adyen.test/*"], 1),
            route(&["create_payment"], &[], 2),
            route(&[], &["https://api.stripe.com/v1/*"], 3),
        ],
    };
    for (operation, endpoint, policy) in [
        ("create_payment", "https://api.stripe.com/v1/charges", 1),
        ("refund", "https://eu.adyen.test/", 1),
        ("create_payment", "https://other.test/", 2),
        ("notify", "https://api.stripe.com/v1/charges", 3),
        ("notify", "https://api.stripe.com/v2/charges", 0),
        ("Create_payment", "https://other.test/", 0),
        ("create_payment", "junk", 2),
    ] {
        assert_eq!(routing.policy_of(operation, endpoint), policy, "{operation} {endpoint}");
    }
    assert_eq!(Routing::default().policy_of("a", "b"), 0);
    for (destination, policies) in [
        (Some("https://api.stripe.com"), vec![1, 2, 3, 0]),
        (Some("https://eu.adyen.test"), vec![1, 2, 0]),
        (Some("https://other.test"), vec![2, 0]),
        (None, vec![1, 2, 3, 0]),
    ] {
        assert_eq!(routing.policies_of_destination(destination), policies, "{destination:?}");
    }
    let whole = Routing { routes: vec![route(&[], &["https://x.test/*"], 1)] };
    assert_eq!(whole.policies_of_destination(Some("https://x.test")), [1], "no filter is needed");
    assert_eq!(whole.policies_of_destination(Some("https://y.test")), [0]);
    assert_eq!(whole.policies_of_destination(None), [1, 0]);
}

proptest! {
    #[test]
    fn a_rows_policy_is_among_those_of_its_destination(
        endpoint in "(?i:https?)://([a-z]{1,3}@)?[a-c.]{1,4}(:[0-9]{0,3})?(/[a-c]{0,2})?([?#][a-c])?",
        patterns in prop::collection::vec("https?://[a-c*.]{1,3}/[a-c*]{0,2}", 1..4),
        operation in "[ab]",
    ) {
        let routes = patterns.iter().enumerate().filter_map(|(n, text)| {
            let operations = if n % 2 == 0 { vec!["a".to_owned()] } else { Vec::new() };
            Some(Route { operations, endpoints: vec![EndpointPattern::parse(text)?], policy: n + 1 })
        });
        let routing = Routing { routes: routes.collect() };
        let policy = routing.policy_of(&operation, &endpoint);
        if let Some(spelled) = Spelled::of(&endpoint) {
            prop_assert!(routing.policies_of_destination(Some(&spelled.origin)).contains(&policy));
        }
        prop_assert!(routing.policies_of_destination(None).contains(&policy));
    }

    #[test]
    fn a_glob_is_what_a_search_for_its_parts_in_order_says(pattern in "[ab*]{0,6}", text in "[ab]{0,8}") {
        let by_parts = |pattern: &str, text: &str| {
            let parts: Vec<&str> = pattern.split('*').collect();
            let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return false };
            if parts.len() == 1 { return pattern == text; }
            let Some(mut rest) = text.strip_prefix(first) else { return false };
            for part in &parts[1..parts.len() - 1] {
                let Some(at) = rest.find(part) else { return false };
                rest = &rest[at + part.len()..];
            }
            rest.ends_with(last)
        };
        prop_assert_eq!(glob(&pattern, &text), by_parts(&pattern, &text));
    }
}
