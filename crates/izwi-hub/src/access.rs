//! Access to sources: the hub's address and token, and the programs of package clients. Opens no connection.

use std::fmt;
use std::net::IpAddr;

use ureq::http::Uri;

use crate::error::HubError;

/// Characters of an endpoint that an error shows.
const MAX_SHOWN_CHARS: usize = 200;
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Access to sources. Resolved once and never changed.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    /// Address of the hub, without a closing `/`.
    pub endpoint: String,
    /// Bearer token for the hub; sent to the endpoint's host alone, and only over TLS or to this machine.
    pub token: Option<String>,
    /// Whether hub sources are disabled.
    pub offline: bool,
    /// Python commands to try, in order.
    pub python: Vec<String>,
    /// npm commands to try, in order.
    pub npm: Vec<String>,
}

impl Access {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` through `variable`; an empty value counts as unset.
    pub fn resolve(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| {
            variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let offline = set("HF_HUB_OFFLINE").map(|value| value.to_ascii_uppercase());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: set("HF_TOKEN"),
            // The values that the hub's own client reads as true.
            // https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
            offline: offline.is_some_and(|value| matches!(value.as_str(), "1" | "ON" | "YES" | "TRUE")),
            python: ["python3", "python"].map(str::to_owned).to_vec(),
            npm: vec![if cfg!(windows) { "npm.cmd" } else { "npm" }.to_owned()],
        }
    }

    /// [`Access::resolve`] over the process's environment.
    pub fn from_env() -> Self {
        Self::resolve(|name| std::env::var(name).ok())
    }

    /// The token, if the connection to the endpoint is encrypted or stays on this machine.
    pub(crate) fn bearer(&self) -> Option<&str> {
        self.token.as_deref().filter(|_| self.check_endpoint().is_ok())
    }

    /// Whether the connection to the endpoint is encrypted, and redirects must be too.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.endpoint.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("https"))
    }

    /// Refuses an endpoint that others on the network could answer for.
    ///
    /// # Errors
    /// The endpoint is neither https nor on this machine.
    pub(crate) fn check_endpoint(&self) -> Result<(), HubError> {
        let refuse = |reason| {
            let shown = self.endpoint.rsplit('@').next().unwrap_or_default();
            Err(HubError::Endpoint { endpoint: shown.chars().take(MAX_SHOWN_CHARS).collect(), reason })
        };
        let Ok(uri) = self.endpoint.parse::<Uri>() else { return refuse("it is no address") };
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        match (uri.scheme_str(), uri.host()) {
            _ if authority.contains('@') => refuse("it names a user; set HF_TOKEN to your token"),
            (Some("https"), Some(_)) => Ok(()),
            (Some("http"), Some(host)) if is_this_machine(host) => Ok(()),
            _ => refuse("only https is accepted, and http for this machine alone"),
        }
    }
}

fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("offline", &self.offline)
            .field("python", &self.python)
            .field("npm", &self.npm)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(variables: &[(&str, &str)]) -> Access {
        Access::resolve(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_default_is_the_public_hub() {
        let access = resolved(&[("HF_TOKEN", " "), ("HF_HUB_OFFLINE", "0")]);
        assert_eq!(access.endpoint, "https://huggingface.co");
        assert_eq!((access.token, access.offline), (None, false));
    }

    #[test]
    fn environment_variables_are_read() {
        let access = resolved(&[("HF_ENDPOINT", "https://mirror/"), ("HF_HUB_OFFLINE", "true")]);
        assert_eq!(access.endpoint, "https://mirror");
        assert!(access.offline);
    }

    #[test]
    fn only_https_and_this_machine_are_accepted() {
        let checked = |endpoint: &str| {
            let access = Access { endpoint: endpoint.to_owned(), ..resolved(&[]) };
            access.check_endpoint().map_err(|error| error.to_string())
        };
        for good in [
            "https://huggingface.co",
            "https://mirror:8443/hub",
            "http://localhost:80",
            "http://[::1]:80/hub",
        ] {
            assert_eq!(checked(good), Ok(()), "{good}");
        }
        for bad in [
            "http://mirror",
            "http://mirror:443/hub",
            "http://127.0.0.1.mirror",
            "http://localhost@mirror",
            "http://localhost:80@mirror",
            "https://user:secret@mirror",
            "ftp://mirror",
            "mirror",
            "",
            "http://",
        ] {
            let error = checked(bad).unwrap_err();
            assert!(error.starts_with("HF_ENDPOINT is '"), "{bad}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let long = checked(&format!("http://{}", "a".repeat(5_000))).unwrap_err();
        assert!(long.len() < 400, "{long}");
        assert!(long.contains("only https is accepted"), "{long}");
    }

    #[test]
    fn the_token_is_sent_over_private_connections_only() {
        let sent = |endpoint| resolved(&[("HF_ENDPOINT", endpoint), ("HF_TOKEN", "t")]).bearer().is_some();
        assert!(sent("https://mirror/hub"));
        assert!(sent("http://127.0.0.1:80/hub"));
        assert!(sent("http://localhost"));
        assert!(!sent("http://mirror:80"));
        assert!(!sent("http://127.0.0.1.mirror"));
        assert!(!sent("http://localhost:80@mirror"));
        let debug = format!("{:?}", resolved(&[("HF_TOKEN", "secret")]));
        assert!(!debug.contains("secret"), "{debug}");
    }
}
