//! Documents as a person writes them: read, checked against the schema and its rules, resolved to settings.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outbox_operator::spec;

fuzz_target!(|data: &str| {
    match spec::read([("fuzz.yaml", data)]) {
        Ok(documents) => {
            for policy in &documents.policies {
                let _ = spec::check_policy(policy);
            }
            for relay in &documents.relays {
                if let Err(problems) = spec::resolve(relay, &documents.policies) {
                    assert!(!problems.is_empty());
                }
            }
        }
        // Whoever wrote it is told what to mend.
        Err(problems) => {
            assert!(!problems.is_empty());
            assert!(problems.iter().all(|problem| !problem.message.is_empty()));
        }
    }
});
