//! Documents and secrets from files.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use clap::Args;

use crate::{
    api::SecretKeyRef,
    domain::settings::{Policy, SecretRef},
    http::Credentials,
    spec::{self, Documents, Problem},
};

/// Longest file that is read, in bytes: well above the API server's own limit for an object.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Where the documents are.
#[derive(Clone, Debug, Args)]
pub struct FileArgs {
    /// A YAML file with OutboxRelay and DispatchPolicy documents; - reads standard input. May be repeated.
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

impl FileArgs {
    /// Reads all files. Returns every problem at once.
    pub fn read(&self) -> Result<Documents, Vec<Problem>> {
        let mut texts = Vec::new();
        let mut problems = Vec::new();
        for file in &self.files {
            let name = file.display().to_string();
            match read_text(file) {
                Ok(text) => texts.push((name, text)),
                Err(message) => problems.push(Problem { path: name, code: "Invalid", message }),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        spec::read(texts.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    }
}

fn read_text(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().take(MAX_FILE_BYTES).read_to_string(&mut text)
    } else {
        fs::File::open(file).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text))
    };
    read.map(|_| text).map_err(|error| format!("cannot read this file: {error}"))
}

/// Shows problems on standard error, one a line.
pub fn show(problems: &[Problem]) {
    for problem in problems {
        eprintln!("outbox: {problem}");
    }
}

/// Where secrets are: `DIR/<name>/<key>`, as the operator projects them into pods.
#[derive(Clone, Debug, Args)]
pub struct SecretsArgs {
    /// The directory with the secrets that the documents refer to, as DIR/<name>/<key>.
    #[arg(long, env = "OUTBOX_SECRETS_DIR", value_name = "DIR")]
    pub secrets_dir: Option<PathBuf>,
}

impl SecretsArgs {
    /// Reads one key of one Secret. The error names both, and never the value.
    pub fn read(&self, name: &str, key: &str) -> Result<String, String> {
        let Some(dir) = &self.secrets_dir else {
            return Err(format!(
                "secret {name}, key {key} is needed: give --secrets-dir DIR with the file DIR/{name}/{key}"
            ));
        };
        let path = dir.join(name).join(key);
        fs::read_to_string(&path)
            .map_err(|error| format!("read secret {name}, key {key} from {}: {error}", path.display()))
    }

    /// Reads a reference of a document.
    pub fn read_ref(&self, reference: &SecretKeyRef) -> Result<String, String> {
        self.read(&reference.name, &reference.key)
    }

    /// The secret values of a policy.
    pub fn credentials(&self, policy: &Policy) -> Result<Credentials, String> {
        let read = |secret: &SecretRef| self.read(&secret.name, &secret.key);
        Credentials::read(&policy.request, read).map_err(|error| error.to_string())
    }
}
