//! The database of a relay's document, as a connection needs it. The one place that makes a URL of parts.

use crate::api::{Database, SecretKeyRef, SslMode};

/// PostgreSQL's own port.
const DEFAULT_PORT: u16 = 5432;

/// The URL of a database that is given in parts; `None`: a part is missing, or they make no URL.
pub fn url_of_parts(database: &Database, password: Option<&str>) -> Option<String> {
    let (host, dbname, user) = (database.host.as_ref()?, database.dbname.as_ref()?, database.user.as_ref()?);
    let mut url = url::Url::parse("postgres://host").ok()?;
    url.set_host(Some(host)).ok()?;
    url.set_port(Some(database.port.map_or(Ok(DEFAULT_PORT), u16::try_from).ok()?)).ok()?;
    url.set_username(user).ok()?;
    url.set_password(password).ok()?;
    url.path_segments_mut().ok()?.clear().push(dbname);
    Some(url.into())
}

/// Where the URL is that migrations connect by: the admin's, else the direct one, else the relay's own.
pub fn migration_url_ref(database: &Database) -> Option<&SecretKeyRef> {
    let special = database.admin_url_secret_ref.as_ref().or(database.direct_url_secret_ref.as_ref());
    special.or(database.url_secret_ref.as_ref())
}

/// libpq's word.
pub fn ssl_mode(mode: SslMode) -> &'static str {
    match mode {
        SslMode::Disable => "disable",
        SslMode::Prefer => "prefer",
        SslMode::Require => "require",
        SslMode::VerifyCa => "verify-ca",
        SslMode::VerifyFull => "verify-full",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(json: &str) -> Database {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn parts_make_a_url_whatever_they_hold() {
        let parts = database(r#"{"host": "db.test", "dbname": "a/b", "user": "o@p"}"#);
        let url = url_of_parts(&parts, Some("p:w/d?#")).unwrap();
        assert_eq!(url, "postgres://o%40p:p%3Aw%2Fd%3F%23@db.test:5432/a%2Fb");
        assert_eq!(url_of_parts(&database(r#"{"host": "db.test", "user": "o"}"#), None), None);
    }

    #[test]
    fn migrations_go_by_the_admins_url_then_past_the_pooler_then_as_the_relay() {
        let (own, direct, admin) = (
            r#""urlSecretRef": {"name": "s", "key": "own"}"#,
            r#""directUrlSecretRef": {"name": "s", "key": "direct"}"#,
            r#""adminUrlSecretRef": {"name": "s", "key": "admin"}"#,
        );
        for (fields, key) in [
            (vec![own], Some("own")),
            (vec![own, direct], Some("direct")),
            (vec![own, direct, admin], Some("admin")),
            (vec![], None),
        ] {
            let database = database(&format!("{{{}}}", fields.join(",")));
            assert_eq!(migration_url_ref(&database).map(|reference| reference.key.as_str()), key);
        }
    }
}
